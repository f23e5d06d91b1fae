"""Files that change while another program lists their folder, in several requests."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounting import mounted
from tests.support.small_stores import write

pytestmark = pytest.mark.fuse

GROUP = b'{"zarr_format":2}'
# Several answers of the kernel's, and more names than the mount keeps of a listing.
MANY = 6000
GROWN = 100_000
_NAME_AT = 19


class Folder:
    """A folder that a C program has open: readdir(3), telldir(3) and seekdir(3)."""

    def __init__(self, path: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        for name, result, *arguments in [
            ("opendir", ctypes.c_void_p, ctypes.c_char_p),
            ("readdir", ctypes.c_void_p, ctypes.c_void_p),
            ("telldir", ctypes.c_long, ctypes.c_void_p),
            ("seekdir", None, ctypes.c_void_p, ctypes.c_long),
            ("closedir", ctypes.c_int, ctypes.c_void_p),
        ]:
            function = getattr(self._libc, name)
            function.restype, function.argtypes = result, arguments
        self._folder = self._libc.opendir(os.fsencode(path))
        assert self._folder

    def names(self, most: int = MANY * 2) -> list[str]:
        found: list[str] = []
        while len(found) < most and (entry := self._libc.readdir(self._folder)):
            found.append(os.fsdecode(ctypes.string_at(entry + _NAME_AT)))
        return found

    def tell(self) -> int:
        place: int = self._libc.telldir(self._folder)
        return place

    def seek(self, place: int) -> None:
        self._libc.seekdir(self._folder, place)

    def close(self) -> None:
        self._libc.closedir(self._folder)


@contextmanager
def opened(path: Path) -> Iterator[Folder]:
    folder = Folder(path)
    try:
        yield folder
    finally:
        folder.close()


def last_listed(path: Path) -> str:
    with opened(path) as folder:
        return [name for name in folder.names() if name.startswith("k")][MANY // 2]


def test_what_was_mapped_of_a_file_that_grew_is_stored(tmp_path: Path) -> None:
    store = write(tmp_path / "store", {f"k{number:05}": b"0123456789" for number in range(MANY)})
    with mounted(store, ends_with=None) as mount:
        raw = mount.path / "raw"
        name = last_listed(raw)
        with opened(raw) as folder:
            folder.names(3)
            with open(raw / name, "r+b") as file:
                file.truncate(GROWN)
                with mmap.mmap(file.fileno(), GROWN) as mapped:
                    mapped[:] = b"A" * GROWN
                    # With the size of before, the kernel would drop all pages that the mapping has written.
                    assert name in folder.names()
                    assert os.fstat(file.fileno()).st_size == GROWN
                    assert os.pread(file.fileno(), GROWN, 0) == b"A" * GROWN
            assert (raw / name).read_bytes() == b"A" * GROWN
        mount.umount()
    assert (store / name).read_bytes() == b"A" * GROWN


def test_a_temporary_file_written_meanwhile_is_whole(tmp_path: Path) -> None:
    store = write(tmp_path / "store", {".zgroup": GROUP, "g/.zgroup": GROUP})
    with mounted(store, ends_with=None) as mount:
        path = mount.path / "chunks/g"
        for number in range(MANY // 4):
            (path / f"k{number:05}.tmp").write_bytes(b"0123456789")
        with opened(path) as folder:
            written, replaced, emptied = [name for name in folder.names() if name.startswith("k")][-3:]
        (path / "k.tmp").write_bytes(b"another one")
        with opened(path) as folder:
            folder.names(3)
            (path / written).write_bytes(b"longer than before")
            (path / "k.tmp").rename(path / replaced)
            os.truncate(path / emptied, 0)
            assert {written, replaced, emptied} <= set(folder.names())
            assert (path / written).stat().st_size == len(b"longer than before")
            assert (path / written).read_bytes() == b"longer than before"
            assert (path / replaced).read_bytes() == b"another one"
            assert (path / emptied).stat().st_size == 0
        for each in path.iterdir():
            if each.suffix == ".tmp":
                each.unlink()
        mount.umount()


def test_no_name_is_missing_after_seekdir_to_before_names_that_were_removed(tmp_path: Path) -> None:
    store = write(tmp_path / "store", {f"k{number:05}": b"" for number in range(MANY)})
    with mounted(store) as mount, opened(mount.path / "raw") as folder:
        before = folder.names(200)
        place = folder.tell()
        everything = {*before, *folder.names()}
        removed = {name for name in before if name.startswith("k")}
        assert len(everything) >= MANY
        for name in removed:
            (mount.path / "raw" / name).unlink()
        folder.seek(place)
        after = folder.names()
        assert {*before, *after} == everything
        assert not removed & set(after)


@pytest.mark.parametrize("by", ["chunks/x", "raw/x"])
def test_the_listing_of_an_array_goes_on_after_a_rename(by: str, tmp_path: Path) -> None:
    array = (
        b'{"zarr_format":2,"shape":[6000],"chunks":[1],"dtype":"|u1","fill_value":0,"order":"C","compressor":null,"filters":null}'
    )
    chunks = {f"x/{number}": b"1" for number in range(MANY)}
    store = write(tmp_path / "store", {".zgroup": GROUP, "x/.zarray": array, **chunks})
    with mounted(store) as mount, opened(mount.path / "chunks/x") as folder:
        before = folder.names(200)
        (mount.path / by).rename(mount.path / by.replace("x", "y"))
        after = folder.names()
        assert sorted(before + after) == sorted([".", "..", ".zarray", *map(str, range(MANY))])
