"""An array is written to while this mount saves over it, renames it or removes it: held before any operation of that, one run each.

Another program may have resized it before: what is open then belongs to an earlier shape of the same array.
"""

from __future__ import annotations

import contextvars
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
import zarr

from tests.hierarchy.test_several_steps import npy
from tests.support.stores import HangingStore
from tests.support.trees import opened, read, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import ZarrfsError
from zarrfs.stores.folder.store import FolderStore
from zarrfs.vfs.node import Directory, OpenFlags

_edits: contextvars.ContextVar[bool] = contextvars.ContextVar("edits", default=False)

OURS, THEIRS, SAVED, WRITTEN = 7, 5, 3, 99
LENGTH, RESIZED = 32, 40
WRITING = OpenFlags(read=True, write=True)

# The program that writes gets the error at close.
pytestmark = pytest.mark.logs(r"write failed, data lost", r"; chunks (saved|lost)", "too large to be kept")


class Held(HangingStore):
    """A folder in which operation number ``at`` of the edit, counted by its context, waits for ``gate``."""

    def __init__(self, path: Path, at: int) -> None:
        super().__init__(FolderStore(str(path)))
        self.gate, self.paused = trio.Event(), trio.Event()
        """``paused``: that operation waits, or the edit has ended."""
        self.is_held = False
        self._count, self._at = 0, at

    async def interrupt(self, operation: str, target: str) -> None:
        if not _edits.get() or not target.startswith(("a/", "b/", "c/", ".zarrfs/")):
            return
        self._count += 1
        if self._count - 1 == self._at:
            self.is_held = True
            self.paused.set()
            await self.gate.wait()


async def save_over(tree: MountTree) -> None:
    # One of the same shape would be stored chunk by chunk, in the same array.
    await write(tree, "npy/a.npy", npy(np.full(LENGTH + 4, SAVED, "<i4")))


async def rename_over(tree: MountTree) -> None:
    await _renamed(tree, "c.npy", "a.npy")


async def rename(tree: MountTree) -> None:
    await _renamed(tree, "a.npy", "b.npy")


async def remove(tree: MountTree) -> None:
    folder = await walk(tree, "npy")
    assert isinstance(folder, Directory)
    await folder.unlink("a.npy")


async def _renamed(tree: MountTree, old: str, new: str) -> None:
    folder = await walk(tree, "npy")
    assert isinstance(folder, Directory)
    await folder.rename(old, folder, new)


@pytest.mark.many_cases
@pytest.mark.parametrize("edit", [save_over, rename_over, rename, remove], ids=lambda edit: edit.__name__)
@pytest.mark.parametrize("is_resized", [False, True], ids=["", "resized"])
@pytest.mark.parametrize("delay", ["0", "600", None], ids=["at once", "queued", "plain"])
@pytest.mark.parametrize("view", ["chunks", "zarr3", "npy"])
def test_no_byte_of_one_array_is_in_another(view: str, delay: str | None, is_resized: bool, edit: Any, tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "store"), zarr_format=3)
    for name, value in ("a", OURS), ("c", THEIRS):
        more = {"shards": (16,)} if delay is not None else {}
        zarr.create_array(str(tmp_path / "store"), name=name, shape=(LENGTH,), chunks=(8,), dtype="<i4", compressors=None, **more)[
            :
        ] = value
    at, is_held = 0, True
    while is_held:
        path = shutil.copytree(tmp_path / "store", tmp_path / str(at))
        is_held = trio.run(_is_apart, path, view, delay or "0", is_resized, edit, at, tmp_path / "cache")
        shutil.rmtree(path)
        # Of most windows, several operations are part.
        at += 6 if view == "chunks" else 15
    assert at > 15


async def _is_apart(
    path: Path, view: str, delay: str, is_resized: bool, edit: Callable[[MountTree], Awaitable[None]], at: int, cache: Path
) -> bool:
    """Return True if the edit has an operation of that number."""
    store = Held(path, at)
    options = {"shard_delay": delay, "watch": "no", "metadata_ttl": "0", "cache_dir": str(cache), "new_chunks": "8"}
    name, start = {"chunks": ("chunks/a/1", 16), "zarr3": ("zarr3/a/c/1", 0), "npy": ("npy/a.npy", -(LENGTH - 12) * 4)}[view]
    data = np.full(8 if view == "zarr3" else 4, WRITTEN, "<i4").tobytes()
    outcome: list[ZarrfsError | None] = []
    refused: list[ZarrfsError] = []
    async with tree_over(store, f"file:{path}", **options) as tree:
        content = await read(tree, name)
        handle = await opened(tree, name, WRITING)
        await handle.write(start % len(content), data)
        if is_resized:
            _resize(path / "a/zarr.json")
            await read(tree, "chunks/a/.zarray")

        async def close() -> None:
            try:
                await handle.flush()
                outcome.append(None)
            except ZarrfsError as error:
                outcome.append(error)

        async def change() -> None:
            _edits.set(True)
            try:
                await edit(tree)
            except ZarrfsError as error:
                refused.append(error)
            store.paused.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(change)
            await store.paused.wait()
            nursery.start_soon(close)
            for _ in range(5):
                await trio.testing.wait_all_tasks_blocked(0.002)
            store.gate.set()
        await handle.release()
        lost = await tree.publish_all()
    is_held = store.is_held
    await store.aclose()
    assert not refused or view == "npy" or is_resized, refused
    what = f"{edit.__name__}, held before operation {at}: {outcome}"
    for folder, value in ("a", SAVED if edit is save_over else OURS), ("b", OURS), ("c", THEIRS):
        if (path / folder).exists():
            found = zarr.open_array(str(path / folder), mode="r")[:LENGTH].tolist()
            if value == SAVED and set(found) & {OURS}:
                value = OURS
            if value == OURS and set(found) & {THEIRS}:
                assert edit is rename_over, what
                value = THEIRS
            first = 8 if view == "zarr3" else 12
            changed = [value] * first + [WRITTEN] * (16 - first) + [value] * 16
            is_ours = value == OURS
            assert found == [value] * LENGTH or (is_ours and found == changed), f"{what}: {folder}: {found}"
            if is_ours and outcome == [None] and not lost:
                assert found == changed, f"{what}: acknowledged, and neither stored nor told: {folder}: {found}"
    return is_held


def _resize(document: Path) -> None:
    content = json.loads(document.read_text())
    content["shape"] = [RESIZED]
    document.with_name("edited").write_text(json.dumps(content))
    os.replace(document.with_name("edited"), document)
