"""Dirty chunks: which elements were written, which units are complete, and the memory that they take."""

from __future__ import annotations

import numpy as np
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import unhurried
from zarrfs.arrays.dirty_chunks import DirtyChunks, RunLayout
from zarrfs.memory.budget import MemoryBudget

FORM = RunLayout((2, 5), (2, 4), np.dtype("<i4"))
SIZE, NBYTES = 8, 40
spans = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).filter(lambda span: span[0] < span[1])


@unhurried
@given(data=st.data(), together=st.booleans(), count=st.integers(1, 5), limit=st.sampled_from([0, 1000]))
def test_what_was_written_is_known_of_each_chunk(data: st.DataObject, together: bool, count: int, limit: int) -> None:
    """Chunks of one unit, or each of its own, against a set of elements for each."""

    async def main() -> None:
        budget = MemoryBudget(limit)
        dirty = DirtyChunks(budget, None)
        coords = [(number,) for number in range(count)]
        units = [dirty.unit((0,), count)] * count if together else [dirty.unit(each, 1) for each in coords]
        run = dirty.add_in_memory(coords, units, FORM)
        assert (run is None) == (limit == 0)
        if run is None:
            run = await dirty.add_in_file(coords, units, FORM)
        model: list[set[int]] = [set() for _ in coords]
        gone: set[int] = set()

        def complete() -> set[tuple[int, ...]]:
            whole = {number for number in range(count) if len(model[number]) == SIZE and number not in gone}
            if together:
                return {(0,)} if len(whole) == count else set()
            return {(number,) for number in whole}

        for _ in range(data.draw(st.integers(0, 12))):
            place = data.draw(st.integers(0, count - 1))
            if place in gone:
                continue
            if data.draw(st.integers(0, 5)) == 0:
                dirty.remove((place,))
                gone.add(place)
                continue
            reach = run.reach(place, data.draw(st.integers(1, count)), ())
            assert not gone & set(range(place, place + reach))
            start, stop = data.draw(spans)
            before = complete()
            completed = run.wrote(place, reach, start, stop)
            for number in range(place, place + reach):
                model[number] |= set(range(start, stop))
            assert {unit.coords for unit in completed} == complete() - before
            for number in set(range(count)) - gone:
                chunk = dirty.get((number,))
                assert chunk is not None
                assert chunk.whole == (len(model[number]) == SIZE)
                first, last = data.draw(spans)
                assert run.covers(number, first, last) == (set(range(first, last)) <= model[number])
                assert run.mask(number, first, last).tolist() == [each in model[number] for each in range(first, last)]
        assert set(dirty) == {(number,) for number in set(range(count)) - gone}
        assert dirty.nbytes == (count - len(gone)) * NBYTES
        # Memory is free again with the last chunk of those that lie together.
        assert budget.nbytes == (count * NBYTES if len(gone) < count and limit else 0)
        dirty.close()
        assert (dirty.nbytes, budget.nbytes, len(dirty.units)) == (0, 0, 0)

    trio.run(main)


def test_a_chunk_of_a_busy_unit_ends_what_can_be_written_together() -> None:
    dirty = DirtyChunks(MemoryBudget(1000), None)
    coords = [(number,) for number in range(4)]
    run = dirty.add_in_memory(coords, [dirty.unit(each, 1) for each in coords], FORM)
    assert run is not None
    assert run.reach(0, 4, ()) == 4
    assert run.reach(1, 4, ()) == 3
    assert run.reach(0, 2, ()) == 2
    assert run.reach(0, 4, {(2,)}) == 2
    assert run.reach(3, 4, {(2,)}) == 1


def test_a_unit_is_not_complete_by_chunks_that_are_dirty_no_more() -> None:
    dirty = DirtyChunks(MemoryBudget(1000), None)
    coords = [(0,), (1,)]
    run = dirty.add_in_memory(coords, [dirty.unit((0,), 2)] * 2, FORM)
    assert run is not None
    assert run.wrote(0, 1, 0, SIZE) == []
    dirty.remove((0,))
    assert run.wrote(1, 1, 0, SIZE) == []
    again = dirty.add_in_memory([(0,)], [dirty.unit((0,), 2)], FORM)
    assert again is not None
    assert [unit.coords for unit in again.wrote(0, 1, 0, SIZE)] == [(0,)]
