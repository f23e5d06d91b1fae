"""Another program moves an array that is open with changes; then this mount removes what is at the old path: another file, or none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support.mounting import mounted

pytestmark = pytest.mark.fuse

LENGTH, CHUNKS = 8, 4


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = zarr.create_group(str(tmp_path / "store"))
    for name, value in (("g/a", 7), ("g/other", 5), ("new", 3)):
        array = root.create_array(name, shape=(LENGTH * CHUNKS,), chunks=(LENGTH,), dtype="i4", compressors=None)
        array[...] = value
    return tmp_path / "store"


def unlink(mount: Path) -> None:
    (mount / "npy/g/a.npy").unlink()


def remove(mount: Path) -> None:
    shutil.rmtree(mount / "chunks/g/a", ignore_errors=True)


def unlink_value(mount: Path) -> None:
    with suppress(FileNotFoundError):
        (mount / "raw/g/a/c/1").unlink()


def rename_value_over(mount: Path) -> None:
    with suppress(FileNotFoundError):
        os.rename(mount / "raw/new/c/1", mount / "raw/g/a/c/1")


def unlink_document(mount: Path) -> None:
    with suppress(FileNotFoundError):
        (mount / "raw/g/a/zarr.json").unlink()


def rename_over(mount: Path) -> None:
    os.rename(mount / "npy/new.npy", mount / "npy/g/a.npy")


@pytest.mark.parametrize("is_another_there", [False, True], ids=["moved", "replaced"])
@pytest.mark.parametrize(
    ("file", "end"),
    [
        ("npy/g/a.npy", unlink),
        ("npy/g/a.npy", rename_over),
        ("chunks/g/a/1", remove),
        ("chunks/g/a/.zarray", remove),
        ("raw/g/a/c/1", unlink_value),
        ("raw/g/a/c/1", rename_value_over),
        ("raw/g/a/zarr.json", unlink_document),
    ],
)
def test_a_program_that_has_written_to_it_is_told(
    store: Path, file: str, end: Callable[[Path], None], is_another_there: bool
) -> None:
    with mounted(store, "--no-watch", "--metadata-ttl", "60") as mount:
        np.load(mount.path / "npy/g/a.npy")
        os.listdir(mount.path / "chunks/g/a")
        fd = os.open(mount.path / file, os.O_RDWR)
        if file.endswith((".zarray", ".json")):
            os.pwrite(fd, (mount.path / file).read_bytes().replace(b"32", b"40"), 0)
        else:
            os.pwrite(fd, np.full(LENGTH, 99, "<i4").tobytes(), 128 if file.endswith("npy") else 0)
        os.rename(store / "g/a", store / "b")
        if is_another_there:
            os.rename(store / "g/other", store / "g/a")
        is_absent = end is unlink and not is_another_there
        with pytest.raises(FileNotFoundError) if is_absent else nullcontext():
            end(mount.path)
        with pytest.raises(OSError, match="Stale"):
            os.close(fd)
    assert set(zarr.open_array(str(store / "b"), mode="r")[...]) == {7}


def test_one_that_was_not_moved_is_removed_as_ever(store: Path) -> None:
    with mounted(store, "--no-watch", "--metadata-ttl", "60") as mount:
        fd = os.open(mount.path / "npy/g/a.npy", os.O_RDWR)
        os.pwrite(fd, np.full(LENGTH, 99, "<i4").tobytes(), 128)
        unlink(mount.path)
        os.close(fd)
    assert not (store / "g/a").exists()
