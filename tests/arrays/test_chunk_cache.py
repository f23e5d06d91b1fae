"""The cache of decoded chunks: one decoding at a time, bounded, never older than the last discard."""

from __future__ import annotations

import numpy as np
import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.errors import ChunkDecodeError
from zarrfs.memory.budget import MemoryBudget

KEY = (1, (0, 0))


class Source:
    """Chunks of 1000 bytes; each read waits for the gate, and returns its own number."""

    def __init__(self, *, waits: bool = False) -> None:
        self.reads = 0
        self.gate = trio.Event()
        self.error: Exception | None = None
        if not waits:
            self.gate.set()

    async def read(self) -> np.ndarray:
        self.reads += 1
        number = self.reads
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return np.full(1000, number, "u1")


async def got(cache: ChunkCache, source: Source, results: list[int], generation: str | None = None) -> None:
    chunk = await cache.get(KEY, source.read, generation)
    assert chunk is not None
    results.append(int(chunk[0]))


@trio_test
async def test_many_ask_and_one_reads() -> None:
    cache, source, results = ChunkCache(1 << 20), Source(waits=True), list[int]()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(got, cache, source, results)
        await wait_all_tasks_blocked()
        source.gate.set()
    assert (source.reads, results, cache.hits) == (1, [1] * 5, 4)


@trio_test
async def test_what_is_cached_cannot_be_written_to() -> None:
    cache = ChunkCache(1 << 20)
    chunk = await cache.get(KEY, Source().read)
    assert chunk is not None
    with pytest.raises(ValueError, match="read-only"):
        chunk[0] = 1


@trio_test
async def test_the_least_recently_used_goes_first() -> None:
    cache, source = ChunkCache(4000), Source()
    for index in (0, 1, 0, 2):
        await cache.get((1, (index,)), source.read)
    assert [cache.peek((1, (index,)))[0] for index in (0, 1, 2)] == [True, False, True]
    assert cache.nbytes <= cache.limit


@trio_test
async def test_chunks_that_are_not_stored_are_remembered_and_bounded_too() -> None:
    cache, reads = ChunkCache(10_000), 0

    async def nothing() -> None:
        nonlocal reads
        reads += 1

    for _ in range(2):
        assert await cache.get(KEY, nothing) is None
    assert reads == 1
    for index in range(1000):
        await cache.get((1, (index,)), nothing)
    assert cache.nbytes <= cache.limit
    assert sum(cache.peek((1, (index,)))[0] for index in range(1000)) < 50


@trio_test
async def test_what_is_larger_than_the_cache_is_not_kept() -> None:
    cache, source = ChunkCache(1000), Source()
    await cache.get(KEY, source.read)
    assert (cache.nbytes, cache.peek(KEY)) == (0, (False, None))


@trio_test
async def test_discard_while_a_chunk_is_read_keeps_the_old_one_out() -> None:
    """A reader after the change must not get data read before it."""
    cache, source, results = ChunkCache(1 << 20), Source(waits=True), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(got, cache, source, results)
        await wait_all_tasks_blocked()
        cache.discard(1, (0, 0))
        nursery.start_soon(got, cache, source, results)
        await wait_all_tasks_blocked()
        source.gate.set()
    assert sorted(results) == [1, 2]
    await got(cache, source, results)
    assert results[-1] == 2


@trio_test
async def test_discard_of_an_array_leaves_the_others() -> None:
    cache, source = ChunkCache(1 << 20), Source()
    for serial in (1, 2):
        for index in (0, 1):
            await cache.get((serial, (index,)), source.read)
    cache.discard(1)
    assert [cache.peek((serial, (1,)))[0] for serial in (1, 2)] == [False, True]
    cache.discard(2, (0,))
    assert [cache.peek((2, (index,)))[0] for index in (0, 1)] == [False, True]


@trio_test
async def test_another_generation_is_another_value() -> None:
    cache, source, results = ChunkCache(1 << 20), Source(), list[int]()
    for generation in ("x", "x", None, "y", "y", None, "x"):
        await got(cache, source, results, generation)
    assert results == [1, 1, 1, 2, 2, 2, 3]


@trio_test
async def test_an_error_is_not_kept_and_every_waiter_tries_for_itself() -> None:
    cache, source, results = ChunkCache(1 << 20), Source(waits=True), list[int]()
    source.error = ChunkDecodeError("bad")

    async def fails() -> None:
        with pytest.raises(ChunkDecodeError):
            await cache.get(KEY, source.read)

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(fails)
        await wait_all_tasks_blocked()
        source.gate.set()
    source.error = None
    await got(cache, source, results)
    assert results == [4]


@trio_test
async def test_a_reader_who_is_cancelled_takes_nobody_with_him() -> None:
    cache, source, results = ChunkCache(1 << 20), Source(waits=True), list[int]()
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as first:
            async with trio.open_nursery() as inner:
                inner.start_soon(got, cache, source, results)
                await wait_all_tasks_blocked()
                nursery.start_soon(got, cache, source, results)
                await wait_all_tasks_blocked()
                first.cancel()
        await wait_all_tasks_blocked()
        source.gate.set()
    assert results == [2]


@trio_test
async def test_memory_that_is_wanted_elsewhere_is_given_up_oldest_first_and_no_more_than_is_wanted() -> None:
    budget = MemoryBudget(4000)
    cache, source = ChunkCache(1 << 20, budget), Source()
    for number in range(4):
        await cache.get((1, (number, 0)), source.read)
    held = 4000 - budget.limit + budget.nbytes
    assert cache.nbytes == held > 3000
    assert budget.take(1500)
    assert cache.nbytes <= 2500 and source.reads == 4
    await cache.get((1, (3, 0)), source.read)
    assert source.reads == 4
    await cache.get((1, (0, 0)), source.read)
    assert source.reads == 5


@trio_test
async def test_when_all_is_forgotten_what_is_being_read_is_not_kept_either() -> None:
    cache, source, results = ChunkCache(1 << 20), Source(waits=True), list[int]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(got, cache, source, results)
        await wait_all_tasks_blocked()
        cache.discard_all()
        source.gate.set()
    assert cache.nbytes == 0
    await got(cache, source, results)
    assert (results, source.reads) == ([1, 2], 2)
