"""The set of chunks, against Python's set of their coordinates."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import unhurried
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_set import ChunkSet

GRID = (3, 50, 40)
COORDS = st.tuples(*(st.integers(0, extent - 1) for extent in GRID))
ANY = st.tuples(*(st.integers(-2, extent + 2) for extent in GRID)) | st.just((1,)) | st.just(())
ROWS = st.tuples(st.integers(0, 2), st.integers(0, 49)).map(lambda row: [(*row, index) for index in range(GRID[2])])
CHANGES = st.lists(st.tuples(st.booleans(), ROWS | COORDS.map(lambda coords: [coords])), max_size=12)


def changed(changes: list[tuple[bool, list[Coords]]]) -> tuple[ChunkSet, set[Coords]]:
    found, expected = ChunkSet(GRID), set[Coords]()
    for adds, several in changes:
        if adds:
            found.update(several)
            expected.update(several)
        else:
            for coords in several:
                found.discard(coords)
                expected.discard(coords)
    return found, expected


@unhurried
@given(changes=CHANGES, others=CHANGES, asked=st.lists(ANY, max_size=5))
def test_it_holds_what_was_added_in_order(
    changes: list[tuple[bool, list[Coords]]], others: list[tuple[bool, list[Coords]]], asked: list[Coords]
) -> None:
    found, expected = changed(changes)
    assert list(found) == sorted(expected)
    assert len(found) == len(expected)
    assert all((each in found) == (each in expected) for each in (*asked, *expected))
    other, also = changed(others)
    both = found.union(other)
    assert list(both) == sorted(expected | also)
    assert len(both) == len(expected | also)
    assert (list(found), list(other)) == (sorted(expected), sorted(also))


@unhurried
@given(changes=CHANGES, box=st.tuples(*(st.tuples(st.integers(0, extent), st.integers(0, extent)) for extent in GRID)))
def test_those_in_a_box(changes: list[tuple[bool, list[Coords]]], box: tuple[tuple[int, int], ...]) -> None:
    found, expected = changed(changes)
    ranges = [range(min(ends), max(ends)) for ends in box]
    assert list(found.within(ranges)) == sorted(coords for coords in expected if coords in set(itertools.product(*ranges)))
    whole = ChunkSet(GRID)
    whole.update(itertools.product(*map(range, GRID)))
    assert list(whole.within(ranges)) == list(itertools.product(*ranges))


@pytest.mark.parametrize("members", [[], [()]])
def test_in_the_box_of_a_scalar(members: list[Coords]) -> None:
    found = ChunkSet(())
    found.update(members)
    assert list(found.within([])) == members


def test_of_a_box_with_many_chunks_the_rows_are_looked_at() -> None:
    found = ChunkSet((3, 2**40))
    found.update([(0, 5), (1, 7), (1, 2**40 - 1), (2, 0)])
    assert list(found.within([range(1, 2), range(7, 8)])) == [(1, 7)]
    assert list(found.within([range(1, 3), range(8, 9)])) == []


@pytest.mark.parametrize("coords", [(0, 50, 0), (0, 0, 40), (3, 0, 0), (-1, 0, 0), (0, 0), (0, 0, 0, 0)])
def test_a_chunk_outside_the_grid_is_none_within(coords: Coords) -> None:
    found = ChunkSet(GRID)
    with pytest.raises(ValueError, match="not in a grid"):
        found.add(coords)
    found.update(itertools.product(*map(range, GRID)))
    found.discard(coords)
    assert coords not in found
    assert len(found) == math.prod(GRID)


def test_the_only_chunk_of_a_scalar() -> None:
    found = ChunkSet(())
    assert () not in found
    found.add(())
    assert list(found) == [()]


def test_a_few_chunks_of_a_huge_grid() -> None:
    found = ChunkSet((2**53, 2**53))
    some = [(0, 0), (2**52, 1), (2**53 - 1, 2**53 - 1)]
    found.update(reversed(some))
    assert list(found) == some
