"""Documents and chunks in different places: an array is renamed while a program stores its first chunk, or removes its last one."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from tests.hierarchy.test_several_steps import npy
from tests.support.stores import HangingStore, contents
from tests.support.trees import load, names, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NoSuchEntry, StoreTimeout
from zarrfs.keys import Key, Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import Directory

DIALECTS = pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022"])
OPTIONS = {"new_chunks": "4", "new_codecs": "none", "timeout": "10"}
ONE = np.r_[1, 2, 3, 4, 0, 0, 0, 0].astype("<i4")
"""Elements of an array whose second chunk, all fill value, is not stored."""


async def rename(tree: MountTree) -> None:
    folder = await walk(tree, "chunks")
    assert isinstance(folder, Directory)
    await folder.rename("a", folder, "b")


async def unlink(tree: MountTree) -> None:
    folder = await walk(tree, "chunks/a")
    assert isinstance(folder, Directory)
    await folder.unlink("0")


@DIALECTS
@trio_test
async def test_a_first_chunk_goes_with_the_array(autojump_clock: MockClock, tmp_path: Path, dialect: str) -> None:
    """Its close returned 0, and it stayed under the old name, where it belonged to no array."""
    inner = MemoryStore()
    store = HangingStore(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(0 * ONE))
        # Asked when there is no folder of chunks.
        store.hang("data/*a", "stat")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rename, tree)
            await wait_all_tasks_blocked()
            assert store.hanging
            nursery.start_soon(_written_or_renamed_before, tree)
            await wait_all_tasks_blocked()
            store.answer()
        assert await names(tree, "npy") == {"b.npy"}
        if (await load(tree, "npy/b.npy")).any():
            np.testing.assert_array_equal(await load(tree, "npy/b.npy"), ONE)
        else:
            # The write was refused.
            assert not await contents(inner, "data/")


async def _written_or_renamed_before(tree: MountTree) -> None:
    with contextlib.suppress(NoSuchEntry):
        await write(tree, "chunks/a/0", ONE[:4].tobytes())


@DIALECTS
@trio_test
async def test_a_last_chunk_may_be_removed_meanwhile(autojump_clock: MockClock, tmp_path: Path, dialect: str) -> None:
    """The rename was refused, and the documents of the array stayed apart: it was gone, also from later mounts."""
    inner = MemoryStore()
    store = HangingStore(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(ONE))
        # Asked when there is a folder of chunks.
        store.hang("meta/root/a/", "prefix_exists")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rename, tree)
            await wait_all_tasks_blocked()
            assert store.hanging
            nursery.start_soon(_removed_or_renamed_before, tree)
            await wait_all_tasks_blocked()
            store.answer()
        assert await names(tree, "npy") == {"b.npy"}
        assert await contents(inner, ".zarrfs/") == {}


async def _removed_or_renamed_before(tree: MountTree) -> None:
    with contextlib.suppress(NoSuchEntry):
        await unlink(tree)


@pytest.mark.logs("")
@DIALECTS
@trio_test
async def test_a_last_chunk_may_be_removed_late(autojump_clock: MockClock, tmp_path: Path, dialect: str) -> None:
    """The same, when the removal is longer than its deadline: the rename waits for it, and finds no chunks."""
    inner = MemoryStore()
    store = HangingStore(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(ONE))
        store.hang("data/*", "erase")
        with pytest.raises(StoreTimeout):
            await unlink(tree)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, tree)
            await trio.sleep(5)
            store.answer()
        assert await names(tree, "npy") == {"a.npy"}
        assert await contents(inner, ".zarrfs/") == {}
        await rename(tree)
        assert await names(tree, "npy") == {"b.npy"}
        assert await tree.publish_all() == []


async def _refused(tree: MountTree) -> None:
    with pytest.raises(NoSuchEntry):
        await rename(tree)


class RemovedByOthers(ForwardingStore):
    """A store from which another program removes all of an array just before its document is renamed."""

    async def rename(self, old: Key, new: Key) -> bool:
        if old.startswith("meta/root/a."):
            for prefix in ("meta/", "data/"):
                await self.inner.erase_prefix(Prefix(prefix))
        return await super().rename(old, new)


@DIALECTS
@trio_test
async def test_an_array_that_another_program_removes_meanwhile_is_not_renamed(tmp_path: Path, dialect: str) -> None:
    """rename(2) returned 0, and there was no array under either name."""
    inner = MemoryStore()
    async with tree_over(RemovedByOthers(inner), cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(ONE))
        with pytest.raises(NoSuchEntry):
            await rename(tree)
        assert await names(tree, "npy") == set()
        assert await contents(inner, ".zarrfs/") == {}
