"""An array that grows step by step, as a time series: chunks queued for its last shard continue to be queued."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import numpy as np
import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.hierarchy.test_several_steps import npy
from tests.hierarchy.test_stopped_resizing import resized
from tests.support.trees import load, opened, tree_over, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.keys import Key
from zarrfs.stores.base import Store
from zarrfs.stores.change import Change
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.observed import ObservedStore
from zarrfs.vfs.node import OpenFlags

SHARD = "a/c/0"
OPTIONS = {
    "new_dialect": "v3",
    "new_chunks": "2",
    "new_shards": "32",
    "new_codecs": "none",
    "shard_delay": "600",
    "metadata_ttl": "0",
}
FILES = {"chunks": ("chunks/a/.zarray", "chunks/a/{}"), "zarr3": ("zarr3/a/zarr.json", "zarr3/a/c/{}")}


def sets_of_the_shard(store: ObservedStore) -> list[Change]:
    """Return a list that gets each later set of the shard."""
    sets: list[Change] = []
    store.subscribe(lambda change: sets.append(change) if change.target == SHARD else None)
    return sets


class WithoutLocks(ForwardingStore):
    """A store for a writer within the lock of another."""

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        return nullcontext()


@asynccontextmanager
async def growing(store: Store, extent: int) -> AsyncIterator[MountTree]:
    """Yield a tree with an array of ``extent`` zeros, two to a chunk and 64 to a shard; no chunk is stored."""
    async with tree_over(store, **OPTIONS) as tree:
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


async def enlarge(tree: MountTree, extent: int) -> None:
    """Enlarge the array to ``extent``, and store its last chunk."""
    await resized(tree, "zarr3/a/zarr.json", extent)
    await write(tree, f"chunks/a/{extent // 2 - 1}", b"\x09\x00\x09\x00")
    await tree.queue.publish(Key(SHARD))


@trio_test
async def test_chunks_that_another_mount_stores_stay_if_all_of_an_earlier_shape_are_queued() -> None:
    """The shard was replaced without being read: nothing had used the array here since it had grown again."""
    store = MemoryStore()
    async with growing(store, 8) as tree, tree_over(store, **OPTIONS) as other:
        for number in range(3):
            await write(tree, f"chunks/a/{number}", b"\x01\x00\x01\x00")
        await resized(other, "zarr3/a/zarr.json", 6)
        assert (await load(tree, "npy/a.npy")).shape == (6,)
        await enlarge(other, 8)
        await tree.queue.publish(Key(SHARD))
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), [1] * 6 + [9] * 2)


@trio_test
async def test_chunks_that_another_mount_stores_stay_if_it_enlarges_the_array_before_the_lock_of_its_shard_is_taken() -> None:
    """The shape was looked at before the wait for the lock, and the shard replaced without being read."""
    store = MemoryStore()
    async with growing(store, 6) as tree, tree_over(WithoutLocks(store), **OPTIONS) as other:
        async with trio.open_nursery() as nursery:
            async with store.exclusive(Key(SHARD)):
                for number in range(3):
                    nursery.start_soon(write, tree, f"chunks/a/{number}", b"\x01\x00\x01\x00")
                await wait_all_tasks_blocked()
                await enlarge(other, 8)
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), [1] * 6 + [9] * 2)


def nested(extent: int) -> bytes:
    """Return an array in chunks of 2, four to a shard, in shards of two such shards."""
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs: list[object] = [little]
    for extent_of_chunk in (2, 8):
        sharding = {"chunk_shape": [extent_of_chunk], "codecs": codecs, "index_codecs": [little]}
        codecs = [{"name": "sharding_indexed", "configuration": sharding}]
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [extent],
            "data_type": "int16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16]}},
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 0,
            "codecs": codecs,
        }
    ).encode()


@trio_test
async def test_chunks_that_another_mount_stores_stay_if_all_of_an_inner_shard_are_queued() -> None:
    """The inner shard was replaced without being read, by the shape of before the wait for the lock of the outer one."""
    store = MemoryStore()
    await store.set(Key("a/zarr.json"), nested(14))
    async with tree_over(store, **OPTIONS) as tree, tree_over(WithoutLocks(store), **OPTIONS) as other:
        for number in range(4, 7):
            await write(tree, f"chunks/a/{number}", b"\x01\x00\x01\x00")
        async with trio.open_nursery() as nursery:
            async with store.exclusive(Key(SHARD)):
                nursery.start_soon(tree.queue.publish, Key(SHARD))
                await wait_all_tasks_blocked()
                await enlarge(other, 16)
        np.testing.assert_array_equal((await load(tree, "npy/a.npy"))[8:], [1] * 6 + [9] * 2)


def wide(columns: int) -> bytes:
    """Return an array of four rows in chunks of two rows and four columns, two to a shard, whose padding repeats the last column."""
    delta = {"name": "numcodecs.delta", "configuration": {"dtype": "<u2", "astype": "|i1"}}
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {"chunk_shape": [2, 4], "codecs": [delta, {"name": "bytes"}], "index_codecs": [little]}
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [4, columns],
            "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
            "chunk_key_encoding": {"name": "default"},
            "fill_value": 999,
            "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
        }
    ).encode()


@trio_test
async def test_elements_of_another_mount_that_equal_their_neighbours_are_no_padding_of_an_array_that_has_grown() -> None:
    """By the shape in which part of the chunk was changed, they lay beyond its edge: they were replaced by the changed neighbour."""
    store = MemoryStore()
    await store.set(Key("a/zarr.json"), wide(3))
    first = np.array([[1, 2, 3, 0], [4, 5, 6, 0]], "<u2")
    async with tree_over(store, **OPTIONS) as tree, tree_over(store, **OPTIONS) as other:
        for number in range(2):
            await write(tree, f"chunks/a/{number}.0", first.tobytes())
        handle = await opened(tree, "chunks/a/0.0", OpenFlags(write=True))
        await handle.write(4, np.array([7], "<u2").tobytes())
        await handle.flush()
        await handle.release()
        await store.set(Key("a/zarr.json"), wide(4))
        await write(other, "chunks/a/0.0", np.array([[1, 2, 3, 3], [4, 5, 9, 9]], "<u2").tobytes())
        await other.queue.publish(Key("a/c/0/0"))
        await tree.queue.publish(Key("a/c/0/0"))
        np.testing.assert_array_equal((await load(tree, "npy/a.npy"))[:2], [[1, 2, 7, 3], [4, 5, 9, 9]])
