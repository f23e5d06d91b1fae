"""Dirty chunks: written elements, complete units, and the memory that they take."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import unhurried
from tests.support.small_disks import small_disk, unusable_cache
from zarrfs.arrays import dirty_chunks
from zarrfs.arrays.dirty_chunks import DirtyChunks, DirtyRun, RunLayout
from zarrfs.errors import StoreError, StoreFull
from zarrfs.memory.budget import MemoryBudget

FORM = RunLayout((2, 5), (2, 4), np.dtype("<i4"))
SIZE, NBYTES = 8, 40
spans = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE)).filter(lambda span: span[0] < span[1])


@unhurried
@given(data=st.data(), together=st.booleans(), count=st.integers(1, 5), limit=st.sampled_from([0, 10_000]))
def test_what_was_written_is_known_of_each_chunk(data: st.DataObject, together: bool, count: int, limit: int) -> None:
    """Chunks in one unit, or each in its own, compared with a set of elements for each."""

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
        # Memory is free again with the last chunk of those that share it.
        assert budget.nbytes == (count * (NBYTES + dirty_chunks.OBJECTS_NBYTES) if len(gone) < count and limit else 0)
        dirty.close()
        assert (dirty.nbytes, budget.nbytes, len(dirty.units)) == (0, 0, 0)

    trio.run(main)


def test_a_chunk_of_a_busy_unit_ends_what_can_be_written_together() -> None:
    dirty = DirtyChunks(MemoryBudget(1 << 20), None)
    coords = [(number,) for number in range(4)]
    run = dirty.add_in_memory(coords, [dirty.unit(each, 1) for each in coords], FORM)
    assert run is not None
    assert run.reach(0, 4, ()) == 4
    assert run.reach(1, 4, ()) == 3
    assert run.reach(0, 2, ()) == 2
    assert run.reach(0, 4, {(2,)}) == 2
    assert run.reach(3, 4, {(2,)}) == 1


def test_a_unit_is_not_complete_by_chunks_that_are_dirty_no_more() -> None:
    dirty = DirtyChunks(MemoryBudget(1 << 20), None)
    coords = [(0,), (1,)]
    run = dirty.add_in_memory(coords, [dirty.unit((0,), 2)] * 2, FORM)
    assert run is not None
    assert run.wrote(0, 1, 0, SIZE) == []
    dirty.remove((0,))
    assert run.wrote(1, 1, 0, SIZE) == []
    again = dirty.add_in_memory([(0,)], [dirty.unit((0,), 2)], FORM)
    assert again is not None
    assert [unit.coords for unit in again.wrote(0, 1, 0, SIZE)] == [(0,)]


def one_chunk(form: RunLayout = FORM) -> tuple[DirtyChunks, DirtyRun]:
    dirty = DirtyChunks(MemoryBudget(1 << 20), None)
    run = dirty.add_in_memory([(0,)], [dirty.unit((0,), 1)], form)
    assert run is not None
    return dirty, run


@unhurried
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 2**SIZE - 1)), max_size=8), few=st.integers(0, 2))
def test_scattered_elements_are_known_one_by_one_however_many_they_are(steps: list[tuple[bool, int]], few: int) -> None:
    """``few``: number of spans from which on a mask is used instead."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dirty_chunks, "_FEW_SPANS", few)
        dirty, run = one_chunk()
        model = np.zeros(SIZE, bool)
        for together, bits in steps:
            which = np.array([bool(bits >> number & 1) for number in range(SIZE)])
            was_whole = bool(model.all())
            if together:
                completed = run.wrote(0, 1, 2, 2 + bits % 4)
                model[2 : 2 + bits % 4] = True
            else:
                completed = run.wrote_selected(0, 0, which)
                model |= which
            assert [unit.coords for unit in completed] == ([(0,)] if model.all() and not was_whole else [])
            assert run.is_whole(0) == model.all()
            assert run.mask(0, 1, 7).tolist() == model[1:7].tolist()
            assert [run.covers(0, 0, stop) for stop in range(1, SIZE + 1)] == [
                bool(model[:stop].all()) for stop in range(1, SIZE + 1)
            ]
        dirty.remove((0,))
        assert len(dirty) == 0 and not dirty.units


def test_a_chunk_that_is_whole_stays_so_when_scattered_elements_are_written_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dirty_chunks, "_FEW_SPANS", 0)
    _, run = one_chunk()
    assert len(run.wrote(0, 1, 0, SIZE)) == 1
    assert run.wrote_selected(0, 0, np.arange(SIZE) % 2 == 0) == []
    assert run.is_whole(0) and run.covers(0, 0, SIZE)


def test_what_writes_nothing_changes_nothing() -> None:
    _, run = one_chunk()
    assert run.wrote(0, 1, 3, 3) == [] and run.wrote(0, 1, 5, 7) == [] and run.wrote(0, 1, 4, 4) == []
    assert run.mask(0, 0, SIZE).tolist() == [number in (5, 6) for number in range(SIZE)]


def test_a_chunk_that_lies_outside_the_array_lacks_nothing() -> None:
    dirty, run = one_chunk(RunLayout((2, 5), (0, 4), np.dtype("<i4")))
    assert run.is_whole(0) and dirty.units[(0,)].complete


def test_what_is_dirty_no_more_can_be_removed_again_and_gives_no_memory_twice() -> None:
    dirty, _ = one_chunk()
    for _ in range(2):
        dirty.remove((0,))
        assert (len(dirty), dirty.nbytes) == (0, 0)
    assert dirty.get((0,)) is None


@pytest.mark.parametrize(("cache", "error"), [("gone", StoreError), ("full", StoreFull)])
def test_where_there_is_no_room_for_a_file_nothing_is_dirty(cache: str, error: type[StoreError], tmp_path: Path) -> None:
    with unusable_cache(tmp_path, cache) as folder:
        dirty = DirtyChunks(MemoryBudget(0), folder)
        with pytest.raises(error, match=r"dirty chunks: reserving .* of staging failed") as caught:
            trio.run(dirty.add_in_file, [(0,)], [dirty.unit((0,), 1)], FORM)
        assert type(caught.value) is error
    assert (len(dirty), dirty.nbytes, dirty.units) == (0, 0, {})


def test_chunks_that_get_no_memory_from_the_system_take_nothing_of_the_budget() -> None:
    """As on machines that promise no more memory than they have. The chunks go to a file."""
    budget = MemoryBudget(1 << 60)
    dirty = DirtyChunks(budget, None)
    form = RunLayout((1 << 50,), (1 << 50,), np.dtype("u1"))
    assert dirty.add_in_memory([(0,)], [dirty.unit((0,), 1)], form) is None
    assert budget.nbytes == dirty.nbytes == len(dirty) == 0


def test_a_chunk_finds_room_where_many_would_find_none(tmp_path: Path) -> None:
    """The file of the first one is for up to 64 MiB of them."""
    run_layout = RunLayout((1 << 20,), (1 << 20,), np.dtype("u1"))

    async def main(folder: Path) -> None:
        dirty = DirtyChunks(MemoryBudget(0), str(folder))
        runs = [await dirty.add_in_file([(number,)], [dirty.unit((number,), 1)], run_layout) for number in range(2)]
        for number, run in enumerate(runs):
            run.memory[...] = number
        assert [int(run.memory.min()) for run in runs] == [0, 1]
        dirty.close()

    with small_disk(tmp_path / "disk", "8m") as disk:
        trio.run(main, disk)
