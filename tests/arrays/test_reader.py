"""Readers compared with NumPy: any array, any reads, any memory limit; and the number of decoded chunks."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, trio_test

from tests.support.arrays import WIDE, Example, Reading, examples, reading, store_of
from tests.support.length import tries
from tests.support.stores import WaitingStore, fill
from tests.support.trees import READ_ONLY, tree_over, walk
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkDecodeError
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import File

LIMITS = st.sampled_from([0, 4096, 3 * 4096, 1 << 20])
unhurried = tries(100)


async def read_pass(opened: OpenArray, step: int) -> bytes:
    """Return the whole array, read forwards, ``step`` bytes at a time."""
    position = opened.reader.new_position()
    nbytes = opened.array.metadata.nbytes
    parts = []
    for offset in range(0, nbytes, step):
        parts.append(bytes(await opened.reader.read(offset, min(step, nbytes - offset), position)))
        await trio.lowlevel.checkpoint()
    opened.reader.closed(position)
    return b"".join(parts)


@unhurried
@given(example=examples(), limits=st.tuples(LIMITS, LIMITS), data=st.data())
def test_any_reads_of_any_array_give_its_elements(example: Example, limits: tuple[int, int], data: st.DataObject) -> None:
    expected = example.elements.tobytes()
    offsets = st.integers(0, max(0, len(expected) - 1))
    one_reader = st.lists(st.tuples(offsets, st.integers(1, 200)), max_size=12)
    readers = data.draw(st.lists(one_reader, min_size=1, max_size=3), label="reads")
    ahead = data.draw(st.booleans(), label="ahead")

    async def main() -> None:
        async with trio.open_nursery() as background:
            start_soon = background.start_soon if ahead else None
            r = reading(await store_of(example), slab_limit=limits[0], cache_limit=limits[1], start_soon=start_soon)
            opened = await r.array()

            async def read(ranges: list[tuple[int, int]]) -> None:
                position = opened.reader.new_position()
                for offset, size in ranges:
                    stop = min(offset + size, len(expected))
                    assert bytes(await opened.reader.read(offset, stop - offset, position)) == expected[offset:stop]
                    await trio.lowlevel.checkpoint()
                opened.reader.closed(position)

            async with trio.open_nursery() as nursery:
                for ranges in readers:
                    nursery.start_soon(read, ranges)
        assert r.slabs.nbytes <= max(limits[0], 0)
        assert r.cache.nbytes <= limits[1]

    trio.run(main)


@unhurried
@given(example=examples(), limit=LIMITS, step=st.integers(1, 300), ahead=st.booleans())
def test_a_pass_decodes_each_chunk_once(example: Example, limit: int, step: int, ahead: bool) -> None:
    async def main() -> None:
        async with trio.open_nursery() as background:
            r = reading(await store_of(example), slab_limit=limit, start_soon=background.start_soon if ahead else None)
            assert await read_pass(await r.array(), step) == example.elements.tobytes()
        assert r.counters.chunks_decoded == len(example.stored)

    trio.run(main)


@tries(30)
@given(
    several=st.lists(examples(max_ndim=2, max_extent=12), min_size=2, max_size=4),
    limit=LIMITS,
    step=st.integers(8, 100),
    seed=st.integers(0, 1000),
)
def test_passes_over_several_arrays_at_once_do_not_displace_each_other(
    several: list[Example], limit: int, step: int, seed: int
) -> None:
    async def main() -> None:
        async with trio.open_nursery() as background:
            r = reading(await store_of(*several), slab_limit=limit, start_soon=background.start_soon)
            order = list(zip("abcdefgh", several, strict=False))
            random.Random(seed).shuffle(order)

            async def check(name: str, example: Example) -> None:
                assert await read_pass(await r.array(name), step) == example.elements.tobytes()

            async with trio.open_nursery() as nursery:
                for each in order:
                    nursery.start_soon(check, *each)
        assert r.counters.chunks_decoded == sum(len(each.stored) for each in several)

    trio.run(main)


@tries(30)
@given(example=examples(max_ndim=2, max_extent=12), limit=LIMITS, jitter=st.randoms(use_true_random=False))
def test_requests_out_of_order_within_the_window_decode_each_chunk_once(
    example: Example, limit: int, jitter: random.Random
) -> None:
    """As the kernel's readahead sends them: a few at once, none far from the rest."""
    expected = example.elements.tobytes()

    async def main() -> None:
        r = reading(await store_of(example), slab_limit=limit)
        opened = await r.array()
        position = opened.reader.new_position()

        async def read(offset: int) -> None:
            stop = min(offset + 8, len(expected))
            assert bytes(await opened.reader.read(offset, stop - offset, position)) == expected[offset:stop]

        offsets = list(range(0, len(expected), 8))
        for start in range(0, len(offsets), 4):
            portion = offsets[start : start + 4]
            jitter.shuffle(portion)
            async with trio.open_nursery() as nursery:
                for offset in portion:
                    nursery.start_soon(read, offset)
        opened.reader.closed(position)
        assert r.counters.chunks_decoded == len(example.stored)

    trio.run(main)


# --- one row of chunks is the whole array, and much larger than the memory ----------------------------------------------------


@trio_test
async def test_columns_of_chunks_are_decoded_once_under_64_mib(tmp_path: Path) -> None:
    store = MemoryStore()
    await fill(store, WIDE.values("a"))
    row = WIDE.row
    async with tree_over(store, memory_limit="64MiB", cache_dir=str(tmp_path)) as tree:
        file = await walk(tree, "npy/a.npy")
        assert isinstance(file, File)
        handle = await file.open(READ_ONLY)
        size = (await handle.attributes()).size
        header = size - 8192 * 8192 * 4
        step = 128 * 8192 * 4
        await handle.read(0, header)
        for offset in range(header, size, step):
            assert memoryview(await handle.read(offset, step)) == row * 128
        await handle.release()
        assert tree.stats()["chunks_decoded"] == 128
        assert tree.stats()["slab_bytes"] == 0
    assert os.listdir(tmp_path) == []


# --- errors -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [False, True])
@trio_test
async def test_a_bad_chunk_fails_its_own_ranges_only(ahead: bool) -> None:
    example = Example((8, 6), (2, 3))
    store = await store_of(example)
    await store.set(Key("a/1.1"), b"short")
    expected = example.elements.tobytes()
    async with trio.open_nursery() as background:
        r = reading(store, start_soon=background.start_soon if ahead else None)
        opened = await r.array()
        position = opened.reader.new_position()
        bad = {offset for row in (2, 3) for offset in range(row * 12 + 6, row * 12 + 12)}
        for offset in range(len(expected)):
            if offset in bad:
                with pytest.raises(ChunkDecodeError, match=r"chunk \(1, 1\) of /a"):
                    await opened.reader.read(offset, 1, position)
            else:
                assert bytes(await opened.reader.read(offset, 1, position)) == expected[offset : offset + 1]
        opened.reader.closed(position)
    assert r.counters.chunks_decoded == 7


@trio_test
async def test_a_chunk_that_was_mended_is_read_at_the_next_try() -> None:
    example = Example((4,), (4,))
    store = await store_of(example)
    await store.set(Key("a/0"), b"short")
    r = reading(store)
    opened = await r.array()
    position = opened.reader.new_position()
    with pytest.raises(ChunkDecodeError):
        await opened.reader.read(0, 8, position)
    await store.set(Key("a/0"), example.values("a")["a/0"])
    assert bytes(await opened.reader.read(0, 8, position)) == example.elements.tobytes()


@trio_test
async def test_where_there_is_no_room_for_a_slab_chunks_are_read_one_by_one(expect_logs: object) -> None:
    """A row of chunks that exceeds any disk; the missing chunks cost nothing."""
    expect_logs("/a: no room for a row of chunks")  # type: ignore[operator]
    example = Example((2, 1 << 50), (2, 1 << 10), "|u1")
    store = MemoryStore()
    small = Example((2, 4096), (2, 1 << 10), "|u1", frozenset({(0, 1), (0, 2), (0, 3)}))
    values = small.values("a")
    values["a/.zarray"] = Example.values(Example((0, 0), (2, 1 << 10), "|u1"), "a")["a/.zarray"].replace(
        b'"shape": [0, 0]', f'"shape": {list(example.shape)}'.encode()
    )
    for key, value in values.items():
        await store.set(Key(key), value)
    r = reading(store)
    opened = await r.array()
    position = opened.reader.new_position()
    assert bytes(await opened.reader.read(0, 4096, position)) == small.elements[0].tobytes()
    assert bytes(await opened.reader.read(1 << 50, 100, position)) == small.elements[1, :100].tobytes()
    opened.reader.closed(position)


# --- sharing ------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_two_readers_of_one_chunk_decode_it_once() -> None:
    example = Example((6,), (3,))
    store = WaitingStore(await store_of(example), "get_partial_values")
    store.waits.clear()
    r = reading(store)
    opened = await r.array()
    store.waits.add("get_partial_values")
    expected = example.elements.tobytes()

    async def read(offset: int) -> None:
        position = opened.reader.new_position()
        assert bytes(await opened.reader.read(offset, 2, position)) == expected[offset : offset + 2]
        opened.reader.closed(position)

    async with trio.open_nursery() as nursery:
        for offset in (0, 2, 4, 0, 2):
            nursery.start_soon(read, offset)
        await trio.testing.wait_all_tasks_blocked()
        assert store.waiting == ["a/0"]
        store.let_go()
    assert r.counters.chunks_decoded == 1


async def first_bytes(r: Reading, name: str = "a") -> bytes:
    opened = await r.array(name)
    position = opened.reader.new_position()
    data = bytes(await opened.reader.read(0, 2, position))
    opened.reader.closed(position)
    return data


@trio_test
async def test_a_change_through_the_mount_is_seen_at_once() -> None:
    store = await store_of(Example((4,), (2,)))
    r = reading(store)
    opened = await r.array()
    position = opened.reader.new_position()
    assert bytes(await opened.reader.read(0, 8, position)) == np.arange(1, 5, dtype="<i2").tobytes()
    await store.set(Key("a/1"), np.array([8, 9], "<i2").tobytes())
    r.hierarchy.changed("a/1", is_prefix=False)
    assert bytes(await opened.reader.read(0, 8, position)) == np.array([1, 2, 8, 9], "<i2").tobytes()
    opened.reader.closed(position)


def test_a_change_behind_the_mount_is_seen_by_a_file_opened_after_the_ttl() -> None:
    async def main(keep_one_open: bool) -> None:
        store = await store_of(Example((4,), (2,)))
        r = reading(store, ttl=10)
        one, two, nine = (np.array([n], "<i2").tobytes() for n in (1, 2, 9))
        if keep_one_open:
            (await r.array()).reader.new_position()
        assert await first_bytes(r) == one
        await store.set(Key("a/0"), nine + two)
        assert await first_bytes(r) == one
        await trio.sleep(11)
        assert await first_bytes(r) == nine

    for keep_one_open in (False, True):
        trio.run(main, keep_one_open, clock=MockClock(autojump_threshold=0))


@trio_test
async def test_filling_ahead_ends_with_the_last_reader() -> None:
    example = Example((4096,), (1,), "|u1")
    store = WaitingStore(await store_of(example), "get_partial_values")
    store.waits.clear()
    async with trio.open_nursery() as background:
        r = reading(store, slab_nbytes=4096, start_soon=background.start_soon)
        opened = await r.array()
        position = opened.reader.new_position()
        await opened.reader.read(0, 1, position)
        await opened.reader.read(1, 1, position)
        store.waits.add("get_partial_values")
        await trio.testing.wait_all_tasks_blocked()
        opened.reader.closed(position)
        store.let_go()
        await trio.testing.wait_all_tasks_blocked()
        assert r.counters.chunks_decoded < 4096
        assert await read_pass(opened, 512) == example.elements.tobytes()
        assert r.counters.chunks_decoded == 4096


@trio_test
async def test_a_jump_decodes_only_what_it_needs() -> None:
    example = Example((64, 64), (8, 8))
    r = reading(await store_of(example))
    opened = await r.array()
    position = opened.reader.new_position()
    expected = example.elements.tobytes()
    for offset in (4000, 1000, 7000, 1000):
        assert bytes(await opened.reader.read(offset, 4, position)) == expected[offset : offset + 4]
    assert r.counters.chunks_decoded == 3
    opened.reader.closed(position)


@trio_test
async def test_a_jump_to_where_another_pass_reads_decodes_nothing_again() -> None:
    example = Example((64, 64), (8, 8))
    r = reading(await store_of(example), slab_nbytes=1024, cache_limit=0)
    opened = await r.array()
    expected = example.elements.tobytes()
    passing, jumping = opened.reader.new_position(), opened.reader.new_position()
    for offset in range(0, 3000, 100):
        await opened.reader.read(offset, 100, passing)
    decoded = r.counters.chunks_decoded
    for offset in (2900, 2000, 2700):
        assert bytes(await opened.reader.read(offset, 4, jumping)) == expected[offset : offset + 4]
    assert r.counters.chunks_decoded == decoded


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("shape", [(64, 8), (512, 1)])
@trio_test
async def test_after_a_change_of_a_chunk_a_pass_decodes_that_chunk(shape: tuple[int, ...], ahead: bool) -> None:
    """A program that wrote rows through a mapping, and synced each, had all chunks of 8 MiB decoded for each row."""
    store = await store_of(Example(shape, (1, 8), "|u1"))
    expected = np.frombuffer(bytearray(Example(shape, (1, 8), "|u1").elements.tobytes()), "u1").reshape(shape)
    async with trio.open_nursery() as background:
        r = reading(store, slab_nbytes=4096, window_nbytes=4096, start_soon=background.start_soon if ahead else None)
        opened = await r.array()
        position = opened.reader.new_position()
        assert bytes(await opened.reader.read(0, 512, position)) == expected.tobytes()
        await trio.testing.wait_all_tasks_blocked()
        decoded = r.counters.chunks_decoded
        for row in range(shape[0] - 1, 0, -7):
            expected[row] = 255 - row % 256
            await store.set(Key(f"a/{row}.0"), bytes(expected[row]).ljust(8, b"\0"))
            r.hierarchy.changed(f"a/{row}.0", is_prefix=False)
            for offset in (0, 256):
                assert bytes(await opened.reader.read(offset, 256, position)) == expected.tobytes()[offset : offset + 256]
            decoded += 1
        assert r.counters.chunks_decoded == decoded
        opened.reader.closed(position)


@tries(40)
@given(seed=st.integers(0, 10_000), length=st.sampled_from([4, 2000]))
def test_what_is_read_while_chunks_change_is_of_one_value_each_and_not_older_than_the_read(seed: int, length: int) -> None:
    order = random.Random(seed)
    versions = [1] * 12

    class Slow(ForwardingStore):
        async def get_partial_values(self, key_ranges: Any, *, if_generation: Any = None) -> list[Buffer | None]:
            for _ in range(order.randrange(4)):
                await trio.lowlevel.checkpoint()
            found = await super().get_partial_values(key_ranges, if_generation=if_generation)
            for _ in range(order.randrange(4)):
                await trio.lowlevel.checkpoint()
            return found

    async def main() -> None:
        store = await store_of(Example((12, length), (1, length), "|u1"))
        for row in range(12):
            await store.set(Key(f"a/{row}.0"), bytes([1]) * length)
        async with trio.open_nursery() as background:
            r = reading(Slow(store), slab_nbytes=1 << 20, window_nbytes=1 << 20, start_soon=background.start_soon)
            opened = await r.array()

            async def read() -> None:
                position = opened.reader.new_position()
                for _ in range(50):
                    first = order.randrange(12)
                    count = order.randint(1, 12 - first)
                    before = versions[first : first + count]
                    data = bytes(await opened.reader.read(first * length, count * length, position))
                    for least, row in zip(before, range(count), strict=True):
                        assert len(values := set(data[row * length : (row + 1) * length])) == 1
                        assert least <= values.pop() <= versions[first + row]
                    await trio.lowlevel.checkpoint()
                opened.reader.closed(position)

            async def change() -> None:
                while True:
                    row = order.randrange(12)
                    if versions[row] < 255:
                        await store.set(Key(f"a/{row}.0"), bytes([versions[row] + 1]) * length)
                        versions[row] += 1
                        r.hierarchy.changed(f"a/{row}.0", is_prefix=False)
                    for _ in range(order.randrange(20)):
                        await trio.lowlevel.checkpoint()

            background.start_soon(change)
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(read)
            background.cancel_scope.cancel()

    trio.run(main)


@pytest.mark.parametrize("ahead", [False, True])
@trio_test
async def test_a_long_read_after_a_jump_requests_few_of_many_missing_chunks(ahead: bool) -> None:
    """The kernel reads around the page of a mapping that is accessed: one element cost two requests for each of 68,000 chunks."""

    class Counting(ForwardingStore):
        requests = 0

        async def get_partial_values(self, key_ranges: Any, *, if_generation: Any = None) -> list[Buffer | None]:
            self.requests += 1
            return await super().get_partial_values(key_ranges, if_generation=if_generation)

    example = Example((20_000,), (1,), "|u1", frozenset((number,) for number in range(20_000) if number % 1000))
    store = Counting(await store_of(example))
    expected = example.elements.tobytes()
    async with trio.open_nursery() as background:
        r = reading(store, slab_nbytes=4096, start_soon=background.start_soon if ahead else None)
        opened = await r.array()
        position = opened.reader.new_position()
        for offset in (10_000, 3_000, 17_500, 6_000):
            assert bytes(await opened.reader.read(offset, 1500, position)) == expected[offset : offset + 1500]
        opened.reader.closed(position)
    assert store.requests < 100
    assert r.counters.chunks_decoded <= 12
