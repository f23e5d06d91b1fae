"""Readers and writers of arrays of unequal chunks, compared with NumPy."""

from __future__ import annotations

import math

import numpy as np
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.arrays import reading
from tests.support.length import tries
from tests.support.plugged import plugins
from tests.support.stores import contents
from tests.support.unequal_chunks import GRIDS, UnequalExample, store_with, unequal_examples
from zarrfs.arrays.writer import ArrayWriter, FileOrder
from zarrfs.memory.budget import MemoryBudget

LIMITS = st.sampled_from([0, 4096, 3 * 4096, 1 << 20])


grid = plugins(GRIDS)


@tries(100)
@given(example=unequal_examples(), limits=st.tuples(LIMITS, LIMITS), data=st.data())
def test_any_reads_give_its_elements(example: UnequalExample, limits: tuple[int, int], data: st.DataObject) -> None:
    expected = example.elements.tobytes()
    offsets = st.integers(0, max(0, len(expected) - 1))
    readers = data.draw(st.lists(st.lists(st.tuples(offsets, st.integers(1, 200)), max_size=12), min_size=1, max_size=3))
    ahead = data.draw(st.booleans())

    async def main() -> None:
        async with trio.open_nursery() as background:
            start_soon = background.start_soon if ahead else None
            r = reading(await store_with(example), slab_limit=limits[0], cache_limit=limits[1], start_soon=start_soon)
            opened = await r.array()

            async def read(ranges: list[tuple[int, int]]) -> None:
                position = opened.reader.new_position()
                for offset, size in ranges:
                    stop = min(offset + size, len(expected))
                    found = bytes(await opened.reader.read(offset, stop - offset, position))
                    assert found == expected[offset:stop]
                opened.reader.closed(position)

            async with trio.open_nursery() as nursery:
                for ranges in readers:
                    nursery.start_soon(read, ranges)
            background.cancel_scope.cancel()

    trio.run(main)


@tries(100)
@given(example=unequal_examples(), step=st.integers(1, 300), limits=st.tuples(LIMITS, LIMITS))
def test_one_pass_decodes_each_chunk_once(example: UnequalExample, step: int, limits: tuple[int, int]) -> None:
    async def main() -> None:
        r = reading(await store_with(example), slab_limit=limits[0], cache_limit=limits[1])
        opened = await r.array()
        position = opened.reader.new_position()
        nbytes = opened.array.metadata.nbytes
        parts = [bytes(await opened.reader.read(offset, min(step, nbytes - offset), position)) for offset in range(0, nbytes, step)]
        opened.reader.closed(position)
        assert b"".join(parts) == example.elements.tobytes()
        assert r.counters.chunks_decoded == (len(example.coords) - len(example.missing) if nbytes else 0)

    trio.run(main)


@tries(150)
@given(example=unequal_examples(), budget=st.sampled_from([0, 64, 1 << 20]), fortran=st.booleans(), data=st.data())
def test_any_writes_are_stored(example: UnequalExample, budget: int, fortran: bool, data: st.DataObject) -> None:
    """Overlapping writes at any byte, read while they are dirty, then stored; also of a new array, in the order of its file."""
    size = 4 * math.prod(example.shape)
    is_new = data.draw(st.booleans())
    writes = data.draw(st.lists(st.tuples(st.integers(0, max(0, size - 1)), st.binary(min_size=1, max_size=120)), max_size=8))
    order = "F" if fortran and is_new else "C"

    async def main() -> None:
        r = reading(store := await store_with(example))
        opened = await r.array()
        writer = ArrayWriter(
            opened.array,
            None if is_new else opened.reader,
            budget=MemoryBudget(budget),
            directory=None,
            start_soon=None,
            file_order=FileOrder(np.dtype("<i4"), fortran=order == "F"),
        )
        expected = bytearray(size if is_new else example.elements.tobytes())
        for offset, written in writes:
            written = written[: size - offset]
            if written:
                await writer.write(offset, written)
                expected[offset : offset + len(written)] = written
                assert bytes(await writer.read(0, size)) == expected
        await (writer.publish_whole() if is_new else writer.publish())
        await writer.aclose()
        stored = example.stored_in(await contents(store), "a")
        assert stored.tolist() == np.frombuffer(expected, "<i4").reshape(example.shape, order=order).tolist()

    trio.run(main)


def test_equal_neighbours_become_dirty_together() -> None:
    """A row of 64 chunks of one length, and one longer: two runs, whatever the number of writes."""
    example = UnequalExample((4, 64 * 3 + 5), ((4,), (3,) * 64 + (5,)))

    async def main() -> None:
        r = reading(store := await store_with(example))
        opened = await r.array()
        writer = ArrayWriter(opened.array, opened.reader, budget=MemoryBudget(1 << 20), directory=None, start_soon=None)
        new = -example.elements
        for row in range(4):
            await writer.write(row * new[0].nbytes, new[row].tobytes())
        assert len({id(chunk.run) for coords in writer.dirty if (chunk := writer._dirty.get(coords)) is not None}) == 2
        await writer.publish()
        await writer.aclose()
        assert (example.stored_in(await contents(store), "a") == new).all()
        assert r.counters.chunks_decoded == 0

    trio.run(main)
