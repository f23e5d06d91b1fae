"""Many values read in one thread are those that are read one by one, whatever lies at their keys."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
from trio.testing import trio_test

from zarrfs.errors import StoreAccessDenied, ZarrfsError
from zarrfs.keys import WHOLE, ByteRange, Key
from zarrfs.stores.folder.several import read_several
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.folder.tree import FolderTree

KEYS = [
    "a/0",
    "a/1",
    "a/missing",
    "a/large",
    "a/folder",
    "b/0",
    "b/deep/0",
    "none/0",
    "a/0/below",
    "top",
    "a/odd name",
    "a/ü",
    "a/empty",
    "a//0",
    "/top",
    "//top",
]
RANGES = [WHOLE, ByteRange(0, 3), ByteRange(0, 100_000), ByteRange(1, 2)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for key, value in {
        "a/0": b"zero",
        "a/1": b"one",
        "a/large": bytes(range(256)) * 1000,
        "a/folder/x": b"x",
        "b/0": b"0",
        "b/deep/0": b"deep",
        "top": b"top",
        "a/odd name": b"odd",
        "a/ü": b"umlaut",
        "a/empty": b"",
    }.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(value)
    return tmp_path


@pytest.mark.parametrize("byte_range", RANGES, ids=str)
@trio_test
async def test_they_are_as_read_one_by_one(folder: Path, byte_range: ByteRange) -> None:
    store = FolderStore(str(folder))
    # More than are read on the event loop.
    keys = [Key(each) for each in KEYS * 3]
    alone = {key: (await store.get_partial_values([(key, byte_range)]))[0] for key in keys}
    once = list(dict.fromkeys(keys))
    filler = [Key(f"a/filler{number}") for number in range(100)]
    found = await store.get_partial_values([(key, byte_range) for key in (*once, *filler)])
    assert [None if each is None else bytes(each) for each in found] == [
        None if each is None else bytes(each) for each in (*(alone[key] for key in once), *([None] * len(filler)))
    ]
    await store.aclose()


@pytest.mark.parametrize("link", ["a/link", "linked/0"], ids=["value", "folder"])
@pytest.mark.logs("symbolic links and special files")
@trio_test
async def test_links_are_denied_and_not_missing(folder: Path, link: str) -> None:
    (folder / "a/link").symlink_to(folder / "top")
    (folder / "linked").symlink_to(folder / "b")
    store = FolderStore(str(folder))
    keys = [*(Key(f"a/filler{number}") for number in range(100)), Key("a/0"), Key(link), Key("b/0")]
    with pytest.raises(StoreAccessDenied, match="symbolic link"):
        await store.get_partial_values([(key, WHOLE) for key in keys])
    await store.aclose()


@pytest.mark.logs("symbolic links and special files")
@trio_test
async def test_special_files_are_neither_read_nor_opened(folder: Path) -> None:
    os.mkfifo(folder / "a/fifo")
    store = FolderStore(str(folder))
    keys = [*(Key(f"a/filler{number}") for number in range(100)), Key("a/fifo")]
    # A FIFO that is opened has a reader.
    with pytest.raises(ZarrfsError):
        await store.get_partial_values([(key, WHOLE) for key in keys])
    with pytest.raises(OSError, match="No such device"):
        os.open(folder / "a/fifo", os.O_WRONLY | os.O_NONBLOCK)
    await store.aclose()


def test_a_value_takes_five_calls_and_a_missing_one_a_single_one(folder: Path) -> None:
    names = [f"deep/{number}" for number in range(1000)]
    (folder / "b/deep/0").unlink()
    for name in names:
        (folder / "b" / name).write_bytes(b"four")
    tree = FolderTree(str(folder))
    asked = [(Key(f"b/{name}"), ByteRange(0, 5)) for name in (*names, *(f"deep/missing{number}" for number in range(1000)))]
    calls = Counter[str]()

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call" and getattr(argument, "__module__", "") == "posix":
            calls[getattr(argument, "__name__", "")] += 1

    sys.setprofile(profile)
    try:
        found = read_several(tree, asked)
    finally:
        sys.setprofile(None)
    tree.close()
    assert found == [b"four"] * 1000 + [None] * 1000
    # Two more open the folder: one for each part of its path.
    assert calls == {"stat": 2000, "open": 1002, "fstat": 1000, "read": 1000, "close": 1002}
