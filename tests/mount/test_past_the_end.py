"""Bytes that a mapping wrote beyond the end of its file are zeros when the file grows, as on any local file system."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.mounting import mounted
from tests.support.small_stores import write

pytestmark = pytest.mark.fuse

SIZE = 100
GROWN = 300


def by_ftruncate(file: int, path: Path) -> bytes:
    os.ftruncate(file, GROWN)
    return bytes(GROWN - SIZE)


def by_pwrite(file: int, path: Path) -> bytes:
    os.pwrite(file, b"end", GROWN - 3)
    return bytes(GROWN - SIZE - 3) + b"end"


def by_pwrite_in_another_page(file: int, path: Path) -> bytes:
    os.pwrite(file, b"end", 10_000)
    return bytes(10_000 - SIZE) + b"end"


def by_path(file: int, path: Path) -> bytes:
    os.truncate(path, GROWN)
    return bytes(GROWN - SIZE)


def by_another_descriptor(file: int, path: Path) -> bytes:
    with open(path, "r+b") as other:
        other.truncate(10_000)
    return bytes(10_000 - SIZE)


@pytest.mark.parametrize("flushed", [False, True], ids=["dirty", "flushed"])
@pytest.mark.parametrize("grow", [by_ftruncate, by_pwrite, by_pwrite_in_another_page, by_path, by_another_descriptor])
@pytest.mark.parametrize("name", ["raw/k", "raw/new", "raw/k.__lock", "chunks/x.__lock", "npy/.x.npy", "local"])
def test_it_is_zeros(tmp_path: Path, name: str, grow: Callable[[int, Path], bytes], flushed: bool) -> None:
    store = write(tmp_path / "store", {".zgroup": b'{"zarr_format":2}', "k": b"a" * SIZE})
    with mounted(store, ends_with=None) as mount:
        path = tmp_path / name if name == "local" else mount.path / name
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        os.pwrite(file, b"a" * SIZE, 0)
        with mmap.mmap(file, SIZE) as mapped:
            # The rest of the page is writable: slices in CPython end with the file, the address range does not.
            _behind(mapped, 150, b"past the end")
            _behind(mapped, 5, b"b")
            if flushed:
                mapped.flush()
            expected = b"aaaaab" + b"a" * (SIZE - 6) + grow(file, path)
            assert os.pread(file, 20_000, 0) == expected
            assert path.read_bytes() == expected
            os.fsync(file)
        os.close(file)
        assert path.read_bytes() == expected
        if name in ("raw/k", "raw/new"):
            assert (store / name.removeprefix("raw/")).read_bytes() == expected
        mount.umount()


def _behind(mapped: mmap.mmap, offset: int, data: bytes) -> None:
    import ctypes

    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    ctypes.memmove(start + offset, data, len(data))


def test_what_is_written_after_it_has_grown_stays(tmp_path: Path) -> None:
    store = write(tmp_path / "store", {"k": b"a" * SIZE})
    with mounted(store) as mount:
        file = os.open(mount.path / "raw/k", os.O_RDWR)
        with mmap.mmap(file, SIZE) as mapped:
            _behind(mapped, 150, b"past the end")
            os.ftruncate(file, GROWN)
            _behind(mapped, 200, b"data")
        os.close(file)
    assert (store / "k").read_bytes() == b"a" * SIZE + bytes(100) + b"data" + bytes(96)
