"""Elements that could not be stored: the next attempt does not store them over what others have stored since."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.support.trees import load, opened, tree_over, write
from tests.views.test_npy_partly_stored import _npy
from zarrfs.arrays.array import Array
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.layers import ShardLayers, chunks_of
from zarrfs.buffers import Buffer
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import StoreError, StoreFull
from zarrfs.keys import ByteRange, Key
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import Handle, OpenFlags
from zarrfs.views.whole_array.array_stage import ElementsStage

READ_WRITE = OpenFlags(read=True, write=True)
HEADER = 128
CHUNK = 4
FAILED, OTHERS, LATER = 90, 50, 20
DTYPES = pytest.mark.parametrize("dtype", ["<i4", "<c16"])
VIEWS = pytest.mark.parametrize("view", ["npy", "chunks"])


class Full(ForwardingStore):
    """A store that has no room while ``is_full``; another program then sets the value to ``by_others`` in that moment.

    ``is_unreadable``: documents cannot be read."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.is_full = self.is_unreadable = False
        self.by_others: bytes | None = None

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if self.is_full:
            if self.by_others is not None:
                await self.inner.set(key, self.by_others)
            raise StoreFull("no room", key=key)
        return await self.inner.set(key, value, expect=expect)

    async def stat(self, key: Key) -> KeyStat | None:
        self._check(key)
        return await self.inner.stat(key)

    async def get(self, key: Key) -> Buffer | None:
        self._check(key)
        return await self.inner.get(key)

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        self._check(key)
        return await self.inner.get_with_stat(key, byte_range)

    def _check(self, key: Key) -> None:
        if self.is_unreadable and key.endswith("zarr.json"):
            raise StoreError("unreadable", key=key)


class Slow(Full):
    """A store that takes a second for each read while ``is_full``; ``read`` counts them."""

    read = 0

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        if self.is_full:
            self.read += 1
            await trio.sleep(1)
        return await self.inner.get_with_stat(key, byte_range)


@asynccontextmanager
async def tree_of(dtype: str) -> AsyncIterator[tuple[MountTree, Full]]:
    """Yield a tree with an array of three chunks, all ones."""
    store = Full()
    async with tree_over(store, new_chunks=str(CHUNK), new_codecs="none") as tree:
        await write(tree, "npy/a.npy", _npy(np.ones(3 * CHUNK, dtype)))
        yield tree, store


async def put(handle: Handle, view: str, index: int, *values: int, dtype: str) -> None:
    """Write elements; those of a chunk file are of the first chunk."""
    data = np.array(values, dtype)
    await handle.write((HEADER if view == "npy" else 0) + index * data.itemsize, data.tobytes())


async def of_view(tree: MountTree, view: str) -> Handle:
    return await opened(tree, "npy/a.npy" if view == "npy" else "chunks/a/0", READ_WRITE)


async def fail(handle: Handle, store: Full) -> None:
    store.is_full = True
    with pytest.raises(StoreFull):
        await handle.flush()
    store.is_full = False


async def values(tree: MountTree) -> list[int]:
    return (await load(tree, "npy/a.npy")).real.astype(int).tolist()


@DTYPES
@VIEWS
@trio_test
async def test_another_writers_close_keeps_what_others_have_stored_since_a_failed_one(view: str, dtype: str) -> None:
    """The close of a program that has written another element put the failed ones back, over accepted ones, with success."""
    async with tree_of(dtype) as (tree, store):
        other = "chunks" if view == "npy" else "npy"
        first, second = await of_view(tree, view), await of_view(tree, view)
        await put(first, view, 0, FAILED, FAILED, FAILED, dtype=dtype)
        await fail(first, store)
        await first.release()
        third = await of_view(tree, other)
        await put(third, other, 1, OTHERS, OTHERS, dtype=dtype)
        await third.flush()
        await third.release()
        await put(second, view, 2, LATER, LATER, dtype=dtype)
        await second.flush()
        await second.release()
        assert (await values(tree))[:CHUNK] == [FAILED, OTHERS, LATER, LATER]


@DTYPES
@pytest.mark.parametrize(
    ("view", "by"), [("npy", "chunks/a/0"), ("npy", "raw/a/c/0"), ("chunks", "raw/a/c/0"), ("chunks", "zarr3/a/c/0")]
)
@trio_test
async def test_a_whole_chunk_that_could_not_be_stored_keeps_what_others_have_stored_since(view: str, by: str, dtype: str) -> None:
    async with tree_of(dtype) as (tree, store):
        first = await of_view(tree, view)
        await put(first, view, 0, *[FAILED] * CHUNK, dtype=dtype)
        await fail(first, store)
        await write(tree, by, np.array([OTHERS, 1, OTHERS, OTHERS], dtype).tobytes())
        await first.flush()
        await first.release()
        assert (await values(tree))[:CHUNK] == [OTHERS, FAILED, OTHERS, OTHERS]


@VIEWS
@trio_test
async def test_elements_that_nobody_has_changed_are_stored_by_the_next_attempt(view: str) -> None:
    async with tree_of("<i4") as (tree, store):
        first = await of_view(tree, view)
        await put(first, view, 1, FAILED, FAILED, dtype="<i4")
        await fail(first, store)
        await put(first, view, 2, LATER, dtype="<i4")
        await fail(first, store)
        await first.flush()
        await first.release()
        assert (await values(tree))[:CHUNK] == [1, FAILED, LATER, 1]


@VIEWS
@trio_test
async def test_what_was_written_between_two_failures_keeps_what_others_have_stored_since(view: str) -> None:
    async with tree_of("<i4") as (tree, store):
        first = await of_view(tree, view)
        await put(first, view, 0, FAILED, dtype="<i4")
        await fail(first, store)
        await put(first, view, 1, FAILED, FAILED, dtype="<i4")
        await fail(first, store)
        await write(tree, "raw/a/c/0", np.array([1, OTHERS, 1, 1], "<i4").tobytes())
        await first.flush()
        await first.release()
        assert (await values(tree))[:CHUNK] == [FAILED, OTHERS, FAILED, 1]


@VIEWS
@trio_test
async def test_what_others_store_in_the_moment_of_a_failure_stays(view: str) -> None:
    async with tree_of("<i4") as (tree, store):
        first = await of_view(tree, view)
        await put(first, view, 0, FAILED, FAILED, dtype="<i4")
        store.by_others = np.array([1, OTHERS, 1, 1], "<i4").tobytes()
        await fail(first, store)
        await first.flush()
        await first.release()
        assert (await values(tree))[:CHUNK] == [FAILED, OTHERS, 1, 1]


@trio_test
async def test_chunks_that_were_not_attempted_keep_what_others_have_stored_since() -> None:
    """One refusal ends the attempt: the other chunks are no more accepted than the refused one."""
    async with tree_of("<i4") as (tree, store):
        first = await of_view(tree, "npy")
        await put(first, "npy", 0, *[FAILED] * 3 * CHUNK, dtype="<i4")
        await fail(first, store)
        for number in range(3):
            await write(tree, f"raw/a/c/{number}", np.array([OTHERS, 1, 1, 1], "<i4").tobytes())
        await first.flush()
        await first.release()
        assert await values(tree) == [OTHERS, FAILED, FAILED, FAILED] * 3


@VIEWS
@trio_test
async def test_a_chunk_that_others_have_erased_since_a_failure_has_only_what_they_did_not_erase(view: str) -> None:
    async with tree_of("<i4") as (tree, store):
        first = await of_view(tree, view)
        await put(first, view, 0, FAILED, dtype="<i4")
        await fail(first, store)
        await store.inner.erase(Key("a/c/0"))
        await put(first, view, 1, LATER, dtype="<i4")
        await first.flush()
        await first.release()
        assert (await values(tree))[:CHUNK] == [0, LATER, 0, 0]


@VIEWS
@trio_test
async def test_an_unreadable_chunk_is_replaced_by_the_attempt_after_a_failed_one(view: str) -> None:
    async with tree_of("<i4") as (tree, store):
        await store.inner.set(Key("a/c/0"), b"not a chunk")
        first = (
            await of_view(tree, view) if view == "npy" else await opened(tree, "chunks/a/0", OpenFlags(write=True, truncate=True))
        )
        await put(first, view, 0, *[FAILED] * CHUNK, dtype="<i4")
        await fail(first, store)
        await first.flush()
        await first.release()
        assert (await values(tree))[:CHUNK] == [FAILED] * CHUNK


@pytest.mark.logs("write failed, data lost: no room")
@VIEWS
@trio_test
async def test_what_is_kept_of_failures_gives_its_memory_back(view: str) -> None:
    async with tree_of("<i4") as (tree, store):
        budget = tree.staging.room.budget
        before = budget.nbytes
        first = await of_view(tree, view)
        await put(first, view, 0, FAILED, dtype="<i4")
        await fail(first, store)
        await put(first, view, 1, FAILED, dtype="<i4")
        await first.flush()
        assert budget.nbytes == before
        await put(first, view, 2, LATER, dtype="<i4")
        await fail(first, store)
        store.is_full = True
        await first.release()
        assert budget.nbytes == before


@trio_test
async def test_what_could_not_be_stored_is_rescued_whatever_is_stored_in_its_array() -> None:
    async with tree_of("<i4") as (tree, store):
        first = await of_view(tree, "npy")
        await put(first, "npy", 1, FAILED, FAILED, dtype="<i4")
        await fail(first, store)
        elsewhere, counters = MemoryStore(), WorkCounters()

        async def rescued(node: ArrayNode) -> Array:
            return Array(node, chunks_of(elsewhere, node, ShardLayers(counters)), counters)

        staged = tree.staging.get("npy/a.npy")
        assert staged is not None and isinstance(staged.stage, ElementsStage)
        await staged.stage.publish_into(rescued)
        assert np.frombuffer(bytes(await elsewhere.get(Key("a/c/0")) or b""), "<i4").tolist() == [0, FAILED, FAILED, 0]
        await first.release()


@pytest.mark.logs("write failed, data lost: no room")
@trio_test
async def test_a_close_that_fails_does_not_read_all_that_is_stored_first(autojump_clock: MockClock) -> None:
    """With a slow store, the error of a close of many chunks took minutes: these were read one after the other."""
    store = Slow()
    async with tree_over(store, new_chunks="1", new_codecs="none") as tree:
        await write(tree, "npy/a.npy", _npy(np.ones(2000, "<i4")))
        first = await of_view(tree, "npy")
        await put(first, "npy", 0, *[FAILED] * 2000, dtype="<i4")
        await fail(first, store)
        assert store.read < 1000
        store.is_full = True
        await first.release()


@trio_test
async def test_what_was_stored_at_an_earlier_failure_is_not_what_was_stored_at_a_later_one() -> None:
    """An attempt that fails before the chunk is read kept the chunk of an earlier one: what was written later counted as older."""
    store = Full()
    async with tree_over(store, new_chunks=str(CHUNK), new_codecs="none", metadata_ttl=0) as tree:
        await write(tree, "npy/a.npy", _npy(np.ones(3 * CHUNK, "<i4")))
        first = await of_view(tree, "chunks")
        await put(first, "chunks", 0, FAILED, dtype="<i4")
        await fail(first, store)
        await store.inner.set(Key("a/c/0"), np.array([1, OTHERS, 1, 1], "<i4").tobytes())
        await put(first, "chunks", 1, LATER, dtype="<i4")
        store.is_unreadable = True
        with pytest.raises(StoreError, match="unreadable"):
            await first.flush()
        store.is_unreadable = False
        await first.flush()
        await first.release()
        assert (await values(tree))[:CHUNK] == [FAILED, LATER, 1, 1]


@trio_test
async def test_a_chunk_of_any_size_is_replaced_by_the_attempt_after_a_failed_one() -> None:
    async with tree_of("<i4") as (tree, store):
        await store.inner.set(Key("a/c/0"), bytes(100_000))
        first = await opened(tree, "chunks/a/0", OpenFlags(write=True, truncate=True))
        await put(first, "chunks", 0, *[FAILED] * CHUNK, dtype="<i4")
        await fail(first, store)
        await first.flush()
        await first.release()
        assert (await values(tree))[:CHUNK] == [FAILED] * CHUNK
