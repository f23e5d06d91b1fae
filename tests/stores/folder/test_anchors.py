"""A folder that is held open is distinguished from every other one; the number of descriptors is bounded."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support.mounting import run
from zarrfs.errors import StoreError
from zarrfs.keys import Prefix
from zarrfs.stores.anchor import AbsentFolder
from zarrfs.stores.folder.store import FolderStore


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    yield 1024
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@trio_test
async def test_another_folder_in_its_place_is_another(tmp_path: Path) -> None:
    (tmp_path / "g/a").mkdir(parents=True)
    store = FolderStore(str(tmp_path))
    anchor = store.anchor(Prefix("g/a/"))
    assert anchor is not None and anchor.holds and anchor.is_at(Prefix("g/a/"))
    (tmp_path / "g").rename(tmp_path / "h")
    assert not anchor.is_at(Prefix("g/a/")) and anchor.is_at(Prefix("h/a/"))
    shutil.rmtree(tmp_path / "h")
    for _ in range(20):
        # ext4 gives the next folder the same inode number.
        (tmp_path / "g/a").mkdir(parents=True)
        assert not anchor.is_at(Prefix("g/a/"))
        shutil.rmtree(tmp_path / "g")
    nowhere = store.anchor(Prefix("g/a/"))
    assert isinstance(nowhere, AbsentFolder) and not nowhere.is_at(Prefix("g/a/"))
    assert store.anchor(Prefix("")) is None
    await store.aclose()


@trio_test
async def test_few_are_held_and_none_that_nobody_has(tmp_path: Path, few_descriptors: int) -> None:
    store = FolderStore(str(tmp_path))
    for number in range(1000):
        (tmp_path / str(number)).mkdir()
    before = descriptors()
    anchors = [store.anchor(Prefix(f"{number % 1000}/")) for number in range(10_000)]
    assert descriptors() - before <= few_descriptors // 8
    assert all(anchor is not None for anchor in anchors)
    held = [anchor for anchor in anchors if anchor is not None and anchor.holds]
    assert held == anchors[-len(held) :] and held
    # An anchor without a descriptor cannot detect a replacement.
    assert anchors[0] is not None and not anchors[0].holds and anchors[0].is_at(Prefix("7/"))
    del anchors, held
    gc.collect()
    assert descriptors() <= before
    await store.aclose()


@trio_test
async def test_the_garbage_collector_releases_one_during_the_use_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs at any allocation, in any thread."""
    for name in "ab":
        (tmp_path / name).mkdir()
    store = FolderStore(str(tmp_path))
    anchor = store.anchor(Prefix("a/"))
    assert anchor is not None
    garbage: list[object] = [store.anchor(Prefix("b/"))]
    garbage.append(garbage)
    del garbage
    fstat = os.fstat
    found: list[bool] = []

    def collected(fd: int) -> os.stat_result:
        gc.collect()
        return fstat(fd)

    monkeypatch.setattr(os, "fstat", collected)
    thread = threading.Thread(target=lambda: found.append(anchor.is_erased), daemon=True)  # type: ignore[attr-defined]
    thread.start()
    thread.join(30)
    monkeypatch.undo()
    assert found == [False] and len(store._anchors._fds) == 1
    await store.aclose()


@trio_test
async def test_a_removed_folder_is_not_the_one_whose_name_the_kernel_gives_it(tmp_path: Path) -> None:
    (tmp_path / "g/a").mkdir(parents=True)
    (tmp_path / "g/a (deleted)").mkdir()
    store = FolderStore(str(tmp_path))
    removed, other = store.anchor(Prefix("g/a/")), store.anchor(Prefix("g/a (deleted)/"))
    assert removed is not None and other is not None
    (tmp_path / "g/a").rmdir()
    assert removed.is_erased and removed.prefix() is None and not removed.is_at(Prefix("g/a (deleted)/"))
    assert not other.is_erased and other.prefix() == "g/a (deleted)/" and other.is_at(Prefix("g/a (deleted)/"))
    (tmp_path / "g").rename(tmp_path / "h")
    assert other.prefix() == "h/a (deleted)/"
    await store.aclose()


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Path]:
    """An overlay whose lower layer has the folder ``a``."""
    for name in ("lower/a", "upper", "work", "merged"):
        (tmp_path / name).mkdir(parents=True)
    merged = tmp_path / "merged"
    layers = f"lowerdir={tmp_path / 'lower'},upperdir={tmp_path / 'upper'},workdir={tmp_path / 'work'}"
    run("mount", "-t", "overlay", "-o", layers, "none", merged)
    yield merged
    run("umount", "-l", merged)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting an overlay needs root")
@trio_test
async def test_a_removed_folder_of_an_overlay_is_erased(overlay: Path) -> None:
    """The overlay still counts a name of a removed folder that has a lower and an upper layer."""
    (overlay / "a/value").touch()
    store = FolderStore(str(overlay))
    anchor = store.anchor(Prefix("a/"))
    assert anchor is not None and not anchor.is_erased
    shutil.rmtree(overlay / "a")
    assert anchor.is_erased and anchor.prefix() is None
    (overlay / "a").mkdir()
    (overlay / "a (deleted)").mkdir()
    assert anchor.is_erased and anchor.prefix() is None and not anchor.is_at(Prefix("a/"))
    await store.aclose()


@trio_test
async def test_a_folder_that_cannot_be_looked_at_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/zarr.json").write_bytes(b"{}")
    store = FolderStore(str(tmp_path))
    anchor = store.anchor(Prefix("a/"))
    assert anchor is not None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(StoreError, match="Too many open files"):
            anchor.generation("zarr.json")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert anchor.generation("zarr.json") is not None
    await store.aclose()
