"""What another program has just changed counts before inotify's report of it is processed: its writer opens it at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
import zarr
from trio.testing import trio_test

from tests.support.trees import READ_ONLY, folder_at, tree_over, walk
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NoSuchEntry, StaleEntry
from zarrfs.stores.folder.store import FolderStore
from zarrfs.vfs.node import File

pytest.importorskip("inotify_simple")

OLD, NEW = np.full((4, 4), 7, "<i4"), np.full((4, 4), 2.5, "<f4")


def put(path: Path, elements: np.ndarray[tuple[int, int], np.dtype[np.generic]]) -> None:
    array = zarr.create_array(str(path), shape=elements.shape, chunks=elements.shape, dtype=elements.dtype, zarr_format=3)
    array[...] = elements


@asynccontextmanager
async def watched(path: Path) -> AsyncIterator[MountTree]:
    """Yield a tree whose reports of changes come at a checkpoint, and so after what the body does without one."""
    store = FolderStore(str(path))
    async with tree_over(store, f"file:{path}") as tree:
        with trio.fail_after(30):
            while not tree.watched:  # noqa: ASYNC110 (there is no event)
                await trio.sleep(0.001)
        await reported(tree)
        yield tree
    await store.aclose()


async def reported(tree: MountTree) -> None:
    with trio.fail_after(30):
        while tree.observed.has_changes_now():
            await trio.lowlevel.checkpoint()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    zarr.create_group(str(tmp_path / "store"), zarr_format=3)
    put(tmp_path / "store/a", OLD)
    put(tmp_path / "new", NEW)
    return tmp_path / "store"


@pytest.mark.parametrize("name", ["chunks/a/0.0", "npy/a.npy"])
@trio_test
async def test_a_known_absence_ends_with_the_creation(name: str, path: Path) -> None:
    async with watched(path) as tree:
        shutil.rmtree(path / "a")
        await reported(tree)
        with pytest.raises(NoSuchEntry):
            await walk(tree, name)
        shutil.copytree(path.parent / "new", path / "a")
        assert tree.observed.has_changes_now()
        assert (await read(await walk(tree, name))).endswith(NEW.tobytes())


@trio_test
async def test_a_folder_in_the_place_of_another_is_found_by_its_name(path: Path) -> None:
    """The lookup of a name within it found that it was another one, and the kernel looks up a whole path twice, and not three times."""
    async with watched(path) as tree:
        before = await folder_at(tree, "chunks/a")
        await before.lookup("0.0")
        os.rename(path / "a", path.parent / "old")
        os.rename(path.parent / "new", path / "a")
        assert tree.observed.has_changes_now()
        found = await folder_at(tree, "chunks/a")
        assert before.is_outdated and not found.is_outdated
        assert await read(await found.lookup("0.0")) == NEW.tobytes()


@pytest.mark.parametrize("name", ["chunks/a/0.0", "npy/a.npy", "zarr3/a/c/0/0"])
@trio_test
async def test_chunks_of_another_type_in_the_same_folder_are_not_read_as_those_of_before(name: str, path: Path) -> None:
    async with watched(path) as tree:
        file = await walk(tree, name)
        assert isinstance(file, File)
        assert await read(file)
        for each in ("zarr.json", "c/0/0"):
            os.replace(path.parent / "new" / each, path / "a" / each)
        assert tree.observed.has_changes_now()
        # As the kernel does where it holds the name: without a lookup.
        with pytest.raises(StaleEntry):
            await read(file)


@trio_test
async def test_groups_without_documents_are_read_once_for_each_node_below_them(tmp_path: Path) -> None:
    """It was twice as often for each level, without a checkpoint: a file that was written anywhere stopped the mount for minutes."""
    depth, path = 10, tmp_path / "store"
    name = "/".join(f"g{level}" for level in range(depth))
    put(path / name / "a", OLD)
    for each in path.rglob("zarr.json"):
        if each.parent.name != "a":
            each.unlink()
    async with watched(path) as tree:
        await walk(tree, f"chunks/{name}/a")
        counters = tree.observed.counters
        before = counters.get_many + counters.get
        (path / "other").touch()
        assert tree.observed.has_changes_now()
        await walk(tree, f"chunks/{name}/a/0.0")
        assert 0 < counters.get_many + counters.get - before < 10 * depth * depth


async def read(file: object) -> bytes:
    assert isinstance(file, File)
    handle = await file.open(READ_ONLY)
    try:
        return bytes(await handle.read(0, 1 << 16))
    finally:
        await handle.release()
