"""Another mount renames or removes an array whose document lies elsewhere than its chunks (2019, 2022), while this one writes to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.hierarchy.test_several_steps import npy
from tests.hierarchy.test_windows import Interposed
from tests.support.trees import tree_over, walk, write
from zarrfs.errors import NodeInDoubt, NoSuchEntry, StaleEntry
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import OpenFlags

OLD = np.full(8, 7, "<i4")
# Document, folder of the chunks, and the first chunk in it.
PLACES = {"v3_2019": ("meta/root/a.array", "data/a", "0"), "v3_2022": ("meta/root/a.array.json", "data/root/a", "c0")}

pytestmark = [
    pytest.mark.parametrize("layout", PLACES),
    pytest.mark.parametrize("between", [0, 1, 2, 3]),
    pytest.mark.logs(r"write failed, data lost", r"; chunks (saved|lost)"),
]


def _taken_away(store: Path, layout: str) -> Iterator[None]:
    """Move the parts of the array a to a place apart, in the order of a mount."""
    for number, place in enumerate(PLACES[layout][:2]):
        os.rename(store / place, store / f"old{number}")
        yield


def _renamed(store: Path, layout: str) -> Iterator[None]:
    yield from _taken_away(store, layout)
    for number in (1, 0):
        place = store / PLACES[layout][number]
        os.rename(store / f"old{number}", place.with_name(place.name.replace("a", "b", 1)))
        yield


def _removed(store: Path, layout: str) -> Iterator[None]:
    yield from _taken_away(store, layout)
    shutil.rmtree(store / "old1")
    yield
    (store / "old0").unlink()
    yield


async def _is_written(path: Path, layout: str, steps: Iterator[None], at: int, between: int) -> tuple[bool, bool]:
    """Write one element of the array a; return whether that succeeded, and whether there was an operation with the number ``at``.

    The first step is before that operation. ``between``: operations from one step to the next; 0: none."""
    store = Interposed(path)
    async with tree_over(store, f"file:{path}", new_dialect=layout, new_chunks="4", new_codecs="none", watch="no") as tree:
        await write(tree, "npy/a.npy", npy(OLD))

    async with tree_over(store, f"file:{path}", metadata_ttl="60", watch="no") as tree:
        store.arm_steps(at, steps, between)
        try:
            file = await walk(tree, "npy/a.npy")
            assert isinstance(file, StagedFile)
            handle = await file.open(OpenFlags(read=True, write=True))
            await handle.write(128, b"\3\0\0\0")
            await handle.flush()
            is_written = True
            await handle.release()
        except (NoSuchEntry, StaleEntry, NodeInDoubt):
            is_written = False
    happened = store.count > at
    await store.aclose()
    for _ in steps:
        pass
    return is_written, happened


def test_what_is_written_goes_with_the_array(layout: str, between: int, tmp_path: Path) -> None:
    """Its close returned 0, and the chunk stayed under the old name, where it belonged to no array."""
    at, happened = 0, True
    while happened:
        (path := tmp_path / str(at)).mkdir()
        is_written, happened = trio.run(_is_written, path, layout, _renamed(path, layout), at, between)
        _, folder, chunk = PLACES[layout]
        assert not (path / folder).exists(), f"before operation {at}"
        first = int(np.frombuffer((path / f"{folder[:-1]}b" / chunk).read_bytes(), "<i4")[0])
        # An attempt that was refused late may have stored it before.
        assert first == 3 or (first == 7 and not is_written), f"before operation {at}"
        at += 1
    assert at > 3


def test_what_is_written_of_a_removed_array_stays_nowhere(layout: str, between: int, tmp_path: Path) -> None:
    at, happened = 0, True
    while happened:
        (path := tmp_path / str(at)).mkdir()
        _, happened = trio.run(_is_written, path, layout, _removed(path, layout), at, between)
        assert not (path / PLACES[layout][1]).exists(), f"before operation {at}"
        at += 1
    assert at > 3
