"""A file under a temporary name in raw/, whose folder another program moves or replaces before the rename: it belongs to that folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted

pytestmark = pytest.mark.fuse

OPTIONS = pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "60")], ids=["watch", "no-watch"])
OURS = np.full(8, 99, "<i4").tobytes()
TEMPORARY = f"1.{'ab' * 16}.partial"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = zarr.create_group(str(tmp_path / "store"))
    for name, value in (("a", 7), ("b", 5)):
        root.create_array(name, shape=(32,), chunks=(8,), dtype="i4", compressors=None)[...] = value
    return tmp_path / "store"


def elements(store: Path, name: str) -> set[int]:
    return set(zarr.open_array(str(store / name), mode="r")[...].tolist())


def moved(store: Path) -> None:
    os.rename(store / "a", store / "z")


def replaced(store: Path) -> None:
    moved(store)
    os.rename(store / "b", store / "a")


def erased_and_replaced(store: Path) -> None:
    shutil.rmtree(store / "a")
    os.rename(store / "b", store / "a")


def rename(folder: Path) -> None:
    os.rename(folder / TEMPORARY, folder / "1")


def link(folder: Path) -> None:
    os.link(folder / TEMPORARY, folder / "9")


@OPTIONS
@pytest.mark.parametrize("publish", [rename, link])
@pytest.mark.parametrize("end", [moved, replaced, erased_and_replaced])
def test_it_is_not_stored_in_the_array_that_has_taken_the_path(
    store: Path, end: Callable[[Path], None], publish: Callable[[Path], None], options: tuple[str, ...]
) -> None:
    """The rename was 0."""
    with mounted(store, *options) as mount:
        folder = mount.path / "raw/a/c"
        (folder / TEMPORARY).write_bytes(OURS)
        end(store)
        with pytest.raises(FileNotFoundError):
            publish(folder)
        assert end is moved or TEMPORARY not in os.listdir(folder)
    assert end is moved or elements(store, "a") == {5}
    assert end is erased_and_replaced or elements(store, "z") == {7}
    assert not any(path.read_bytes() == OURS for path in store.rglob("*") if path.is_file())


@OPTIONS
def test_one_that_is_open_is_stale(store: Path, options: tuple[str, ...]) -> None:
    with mounted(store, *options) as mount:
        fd = os.open(mount.path / "raw/a/c" / TEMPORARY, os.O_RDWR | os.O_CREAT)
        os.write(fd, OURS)
        replaced(store)
        # The name is free again.
        (mount.path / "raw/a/c" / TEMPORARY).write_bytes(OURS)
        with pytest.raises(OSError, match="Stale"):
            os.close(fd)
        rename(mount.path / "raw/a/c")
    assert elements(store, "a") == {5, 99}
    assert elements(store, "z") == {7}


@OPTIONS
@pytest.mark.parametrize("is_synced", [False, True])
def test_one_that_is_open_is_no_file_that_is_renamed_to_its_name_in_the_other_folder(
    store: Path, is_synced: bool, options: tuple[str, ...]
) -> None:
    """Its fsync was 0 for lost bytes; one that was clean read as empty."""
    with mounted(store, *options) as mount:
        folder = mount.path / "raw/a/c"
        fd = os.open(folder / "1.__lock", os.O_RDWR | os.O_CREAT)
        os.write(fd, OURS)
        if is_synced:
            os.fsync(fd)
        replaced(store)
        (folder / "2.__lock").write_bytes(b"other")
        os.rename(folder / "2.__lock", folder / "1.__lock")
        if is_synced:
            with pytest.raises(OSError, match="Stale"):
                os.pread(fd, len(OURS), 0)
            with pytest.raises(OSError, match="Stale"):
                os.pwrite(fd, OURS, 0)
        else:
            with pytest.raises(OSError, match="Stale"):
                os.fsync(fd)
        with suppress(OSError):
            os.close(fd)
        assert (folder / "1.__lock").read_bytes() == b"other"


def by_raw(mount: Mounted) -> None:
    os.rename(mount.path / "raw/a", mount.path / "raw/z")


def by_npy(mount: Mounted) -> None:
    os.rename(mount.path / "npy/a.npy", mount.path / "npy/z.npy")


@pytest.mark.parametrize("move", [by_raw, by_npy])
def test_it_follows_a_folder_that_this_mount_renames(store: Path, move: Callable[[Mounted], None]) -> None:
    with mounted(store) as mount:
        (mount.path / "raw/a/c" / TEMPORARY).write_bytes(OURS)
        move(mount)
        rename(mount.path / "raw/z/c")
    assert elements(store, "z") == {7, 99}
