"""An array that grows step by step, as a time series: chunks queued for its last shard continue to be queued."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from trio.testing import trio_test

from tests.hierarchy.test_several_steps import npy
from tests.hierarchy.test_stopped_resizing import resized
from tests.support.trees import load, opened, tree_over, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.keys import Key
from zarrfs.stores.base import Store
from zarrfs.stores.change import Change
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.observed import ObservedStore
from zarrfs.vfs.node import OpenFlags

SHARD = "a/c/0"
FILES = {"chunks": ("chunks/a/.zarray", "chunks/a/{}"), "zarr3": ("zarr3/a/zarr.json", "zarr3/a/c/{}")}


def sets_of_the_shard(store: ObservedStore) -> list[Change]:
    """Return a list that gets each later set of the shard."""
    sets: list[Change] = []
    store.subscribe(lambda change: sets.append(change) if change.target == SHARD else None)
    return sets


@asynccontextmanager
async def growing(store: Store, extent: int) -> AsyncIterator[MountTree]:
    """Yield a tree with an array of ``extent`` zeros, two to a chunk and 64 to a shard; no chunk is stored."""
    options = {"new_dialect": "v3", "new_chunks": "2", "new_shards": "32", "new_codecs": "none", "shard_delay": "600"}
    async with tree_over(store, **options) as tree:
        # The number of chunks limits that of a new shard.
        await write(tree, "npy/a.npy", npy(np.zeros(64, "<i2")))
        await resized(tree, "zarr3/a/zarr.json", extent)
        yield tree


@pytest.mark.parametrize("view", FILES)
@trio_test
async def test_a_step_of_a_time_series_does_not_store_the_shard(view: str) -> None:
    """Each step stored it, with all steps before: n * n / 2 chunks for n steps."""
    document, chunk = FILES[view]
    store = ObservedStore(MemoryStore())
    async with growing(store, 2) as tree:
        sets = sets_of_the_shard(store)
        for step in range(1, 32):
            await resized(tree, document, 2 * step + 2)
            await write(tree, chunk.format(step), np.array([step, -step], "<i2").tobytes())
        assert not sets
        expected = np.array([[step, -step] for step in range(32)], "<i2").reshape(-1)
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), expected)
        await tree.queue.publish(Key(SHARD))
        assert len(sets) == 1
    async with tree_over(store) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), expected)


@pytest.mark.parametrize(("offset", "extent"), [(0, 4), (2, 8)], ids=["any, if it shrinks", "one changed in part, if it grows"])
@trio_test
async def test_a_queued_chunk_is_stored_before_the_shape_changes(offset: int, extent: int) -> None:
    store = ObservedStore(MemoryStore())
    async with growing(store, 6) as tree:
        await write(tree, "chunks/a/1", b"\x01\x00\x02\x00")
        await tree.queue.publish(Key(SHARD))
        sets = sets_of_the_shard(store)
        handle = await opened(tree, "chunks/a/1", OpenFlags(write=True))
        await handle.write(offset, b"\x09" * (4 - offset))
        await handle.flush()
        await handle.release()
        assert not sets
        await resized(tree, "zarr3/a/zarr.json", extent)
        assert len(sets) == 1
