"""Chunks queued for the shards of an array that another program renames: older than what is written at its new path."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.support.mounting import Mounted, mounted
from tests.support.waiting import until

pytestmark = pytest.mark.fuse

LENGTH, CHUNKS = 8, 4


@pytest.fixture
def store(tmp_path: Path) -> Path:
    zarr.create_group(str(tmp_path / "store"))
    array = zarr.create_array(
        str(tmp_path / "store"), name="a", shape=(LENGTH * CHUNKS,), chunks=(LENGTH,), shards=(LENGTH * CHUNKS,), dtype="i4"
    )
    array[...] = 7
    return tmp_path / "store"


def write_chunk(mount: Mounted, name: str, number: int, value: int) -> None:
    (mount.path / "chunks" / name / str(number)).write_bytes(np.full(LENGTH, value, "<i4").tobytes())


def by_part_of_a_chunk(mount: Mounted, name: str, number: int, value: int) -> None:
    with (mount.path / "chunks" / name / str(number)).open("r+b") as file:
        file.write(np.full(LENGTH, value, "<i4").tobytes())


def by_npy(mount: Mounted, name: str, number: int, value: int) -> None:
    elements = np.load(mount.path / f"npy/{name}.npy", mmap_mode="r+")
    elements[number * LENGTH : (number + 1) * LENGTH] = value
    elements.flush()


def elements(path: Path) -> list[int]:
    return [int(each) for each in zarr.open_array(str(path), mode="r")[...][::LENGTH]]


WRITERS = pytest.mark.parametrize("write", [write_chunk, by_part_of_a_chunk, by_npy])
Writer = Callable[[Mounted, str, int, int], None]


@WRITERS
@pytest.mark.parametrize("options", [(), ("--no-watch", "--metadata-ttl", "60")], ids=["watch", "no-watch"])
def test_a_later_write_at_the_new_path_is_not_undone(store: Path, options: tuple[str, ...], write: Writer) -> None:
    with mounted(store, "--shard-delay", "600", *options) as mount:
        write_chunk(mount, "a", 1, 88)
        write_chunk(mount, "a", 2, 88)
        os.rename(store / "a", store / "b")
        write(mount, "b", 1, 99)
        assert list(np.load(mount.path / "npy/b.npy")[::LENGTH]) == [7, 99, 88, 7]
    assert elements(store / "b") == [7, 99, 88, 7]
    assert not (store / "a").exists()


@WRITERS
def test_a_later_write_is_not_undone_if_the_array_was_away_for_a_moment(store: Path, write: Writer) -> None:
    """It is renamed back before anything uses it at the other path: those that were queued before have the same path."""
    with mounted(store, "--shard-delay", "600") as mount:
        write_chunk(mount, "a", 1, 88)
        write_chunk(mount, "a", 2, 88)
        os.rename(store / "a", store / "b")
        until(lambda: not (mount.path / "npy/a.npy").exists())
        os.rename(store / "b", store / "a")
        until((mount.path / "npy/a.npy").exists)
        write(mount, "a", 1, 99)
        assert list(np.load(mount.path / "npy/a.npy")[::LENGTH]) == [7, 99, 88, 7]
    assert elements(store / "a") == [7, 99, 88, 7]


@pytest.mark.parametrize("view", ["npy", "chunks"])
def test_they_are_read_at_the_new_path(store: Path, view: str) -> None:
    with mounted(store, "--shard-delay", "600") as mount:
        write_chunk(mount, "a", 1, 88)
        os.rename(store / "a", store / "b")
        if view == "npy":
            assert list(np.load(mount.path / "npy/b.npy")[::LENGTH]) == [7, 88, 7, 7]
        else:
            assert np.fromfile(mount.path / "chunks/b/1", "<i4").tolist() == [88] * LENGTH
        assert elements(store / "b") == [7, 7, 7, 7]
        fd = os.open(mount.path / "chunks/b", os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        assert elements(store / "b") == [7, 88, 7, 7]
        assert not mount.errors()


def test_they_follow_twice(store: Path) -> None:
    with mounted(store, "--shard-delay", "600") as mount:
        for number, (old, new) in enumerate([("a", "b"), ("b", "c")]):
            write_chunk(mount, old, number, 80 + number)
            os.rename(store / old, store / new)
            write_chunk(mount, new, number + 1, 90 + number)
    assert elements(store / "c") == [80, 81, 91, 7]


def resize(document: Path, chunks: int) -> None:
    """Change the shape as an editor does: by another document in its place."""
    content: dict[str, Any] = json.loads(document.read_text())
    content["shape"] = [LENGTH * chunks]
    document.with_name("edited").write_text(json.dumps(content))
    os.replace(document.with_name("edited"), document)


@pytest.mark.parametrize("looked_at", [True, False], ids=["used", "unused"])
def test_they_follow_an_array_that_was_resized_too(store: Path, looked_at: bool) -> None:
    with mounted(store, "--shard-delay", "600") as mount:
        write_chunk(mount, "a", 1, 88)
        os.rename(store / "a", store / "b")
        resize(store / "b/zarr.json", 6)
        if looked_at:
            write_chunk(mount, "b", 5, 99)
    assert elements(store / "b") == [7, 88, 7, 7, 0, 99 if looked_at else 0]


def test_those_that_a_resize_removed_are_stored_beyond_the_edge(store: Path) -> None:
    with mounted(store, "--shard-delay", "600") as mount:
        write_chunk(mount, "a", 0, 77)
        write_chunk(mount, "a", 3, 88)
        os.rename(store / "a", store / "b")
        resize(store / "b/zarr.json", 2)
        write_chunk(mount, "b", 1, 99)
    assert elements(store / "b") == [77, 99]
    resize(store / "b/zarr.json", 4)
    assert elements(store / "b") == [77, 99, 7, 88]


def test_another_array_of_the_same_folder_gets_none(store: Path, tmp_path: Path) -> None:
    with mounted(store, "--shard-delay", "600", "--cache-dir", str(tmp_path / "cache"), ends_with=7) as mount:
        write_chunk(mount, "a", 1, 88)
        os.rename(store / "a", store / "b")
        document = store / "b/zarr.json"
        content = json.loads(document.read_text())
        content["data_type"] = "uint32"
        document.with_name("edited").write_text(json.dumps(content))
        os.replace(document.with_name("edited"), document)
        np.load(mount.path / "npy/b.npy")
    assert elements(store / "b") == [7, 7, 7, 7]


def test_an_array_called_as_the_kernel_calls_a_removed_one_gets_none(store: Path) -> None:
    shutil.copytree(store / "a", store / "a (deleted)")
    with mounted(store, "--shard-delay", "600", "--no-watch", "--metadata-ttl", "0") as mount:
        write_chunk(mount, "a", 1, 88)
        shutil.rmtree(store / "a")
        assert list(np.load(mount.path / "npy/a (deleted).npy")[::LENGTH]) == [7, 7, 7, 7]
    assert elements(store / "a (deleted)") == [7, 7, 7, 7]


def unlink(mount: Path) -> None:
    (mount / "npy/g/a.npy").unlink()


def remove_group(mount: Path) -> None:
    # Of what took the place of the array, its chunks are another folder: ESTALE.
    shutil.rmtree(mount / "chunks/g", ignore_errors=True)


def save_over(mount: Path) -> None:
    np.save(mount / "npy/g/new.npy", np.zeros(LENGTH * CHUNKS, "i4"))
    os.rename(mount / "npy/g/new.npy", mount / "npy/g/a.npy")


def rename_over(mount: Path) -> None:
    os.rename(mount / "npy/a.npy", mount / "npy/g/a.npy")


@pytest.mark.parametrize("is_inside", [True, False], ids=["in the store", "out of the store"])
@pytest.mark.parametrize("is_another_there", [False, True], ids=["moved", "replaced"])
@pytest.mark.parametrize("end", [unlink, remove_group, save_over, rename_over])
def test_what_this_mount_then_removes_at_the_old_path_is_not_their_array(
    store: Path, tmp_path: Path, end: Callable[[Path], None], is_another_there: bool, is_inside: bool
) -> None:
    (store / "g").mkdir()
    shutil.copy(store / "zarr.json", store / "g")
    for name in ("g/a", "other"):
        shutil.copytree(store / "a", store / name)
    options = ("--shard-delay", "600", "--no-watch", "--metadata-ttl", "60", "--cache-dir", str(tmp_path / "cache"))
    away = store / "b" if is_inside else tmp_path / "b"
    with mounted(store, *options, ends_with=0 if is_inside else 7) as mount:
        np.load(mount.path / "npy/g/a.npy")
        write_chunk(mount, "g/a", 1, 88)
        os.rename(store / "g/a", away)
        if is_another_there:
            os.rename(store / "other", store / "g/a")
        is_absent = end is unlink and not is_another_there
        with pytest.raises(FileNotFoundError) if is_absent else nullcontext():
            end(mount.path)
    assert elements(away) == ([7, 88, 7, 7] if is_inside else [7, 7, 7, 7])
    assert is_inside != any((tmp_path / "cache").rglob("lost.jsonl"))
