"""Slabs and their rows: they cut an array into runs of elements, and the chunks of a row fill it exactly."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data_types import numbered
from tests.support.length import unhurried
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.slab import SlabGrid

GRIDS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 7)), max_size=4)
TARGETS = st.integers(1, 300)


def slab_grid(dimensions: list[tuple[int, int]], target: int) -> tuple[SlabGrid, tuple[int, ...], tuple[int, ...]]:
    shape, chunks = tuple(n for n, _ in dimensions), tuple(c for _, c in dimensions)
    return SlabGrid(shape, RegularGrid(chunks), 2, target), shape, chunks


@unhurried
@given(dimensions=GRIDS, target=TARGETS)
def test_slabs_partition_the_elements(dimensions: list[tuple[int, int]], target: int) -> None:
    grid, shape, _ = slab_grid(dimensions, target)
    place = 0
    for slab in range(grid.slabs):
        first, stop = grid.extent(slab)
        assert first == place < stop
        assert all(grid.slab_at(element) == slab for element in (first, stop - 1, (first + stop) // 2))
        place = stop
    assert place == math.prod(shape)


@unhurried
@given(dimensions=GRIDS, target=TARGETS)
def test_rows_partition_a_slab_and_chunks_a_row(dimensions: list[tuple[int, int]], target: int) -> None:
    grid, shape, chunks = slab_grid(dimensions, target)
    every = [coords for slab in range(grid.slabs) for number in grid.row_numbers(slab) for coords in grid.coords(number)]
    extents = [range(-(-n // c)) for n, c in zip(shape, chunks, strict=True)]
    assert sorted(every) == sorted(itertools.product(*extents))
    for slab in range(grid.slabs):
        rows = [grid.row(number) for number in grid.row_numbers(slab)]
        assert [row.start for row in rows] + [grid.extent(slab)[1]] == [grid.extent(slab)[0]] + [row.stop for row in rows]
        assert grid.chunks(slab) == sum(1 for number in grid.row_numbers(slab) for _ in grid.coords(number))
        for number in grid.row_numbers(slab):
            assert all(grid.row_of(coords) == number for coords in grid.coords(number))


@unhurried
@given(dimensions=GRIDS, target=TARGETS)
def test_pieces_put_together_are_the_array(dimensions: list[tuple[int, int]], target: int) -> None:
    grid, shape, chunks = slab_grid(dimensions, target)
    whole = numbered(shape)
    padded = np.full(tuple(-(-n // c) * c for n, c in zip(shape, chunks, strict=True)), -1)
    padded[tuple(slice(0, n) for n in shape)] = whole
    out = np.full(whole.size, -2)
    for number in range(grid.rows):
        row = grid.row(number)
        box = out[row.start : row.stop].reshape(row.shape)
        for coords in grid.coords(number):
            chunk = padded[tuple(slice(i * c, (i + 1) * c) for i, c in zip(coords, chunks, strict=True))]
            piece = grid.piece(coords)
            assert piece.coords == coords
            place = box[(*piece.row_selection, ...)]
            assert (place == -2).all()
            place[...] = chunk[(*piece.chunk_selection, ...)]
    assert (out.reshape(shape) == whole).all()


@unhurried
@given(dimensions=GRIDS, target=TARGETS)
def test_a_slab_is_one_row_or_not_larger_than_asked(dimensions: list[tuple[int, int]], target: int) -> None:
    grid, shape, _ = slab_grid(dimensions, target)
    average = max(1, math.prod(shape) * 2 // grid.rows)
    assert grid.rows_per_slab == 1 or grid.rows_per_slab * average <= target


def test_nothing_is_enumerated() -> None:
    shape = (2**31, 2**31)
    grid = SlabGrid(shape, RegularGrid((1, 2**20)), 8, 8 << 20)
    assert grid.slab_at(2**62 - 1) == grid.slabs - 1
    assert grid.extent(grid.slabs - 1)[1] == 2**62
    wide = SlabGrid((2, 2**62), RegularGrid((2, 1)), 1, 8 << 20)
    assert list(itertools.islice(wide.coords(0), 3)) == [(0, 0), (0, 1), (0, 2)]
    assert wide.rows_per_slab == 1


def test_a_slab_of_tiny_chunks_has_a_bounded_number_of_them() -> None:
    grid = SlabGrid((2**40,), RegularGrid((1,)), 1, 8 << 20)
    assert grid.chunks(0) == SlabGrid.MAX_CHUNKS


def test_an_array_without_elements_has_no_rows() -> None:
    for shape in ((0,), (3, 0), (0, 3)):
        assert SlabGrid(shape, RegularGrid((1,) * len(shape)), 8, 100).slabs == 0


@unhurried
@given(dimensions=GRIDS, target=TARGETS, data=st.data())
def test_numbers_are_those_of_the_chunks_that_hold_the_elements(
    dimensions: list[tuple[int, int]], target: int, data: st.DataObject
) -> None:
    grid, shape, chunks = slab_grid(dimensions, target)
    slab = data.draw(st.integers(0, grid.slabs - 1))
    first, stop = grid.extent(slab)
    begin = data.draw(st.integers(first, stop - 1))
    end = data.draw(st.integers(begin + 1, stop))
    touched = {
        tuple(int(index) // length for index, length in zip(np.unravel_index(element, shape), chunks, strict=True)) if shape else ()
        for element in range(begin, end)
    }
    found = {number for each in grid.numbers(slab, begin, end) for number in each}
    assert found == {grid.number_in(slab, coords) for coords in touched}


@unhurried
@given(dimensions=GRIDS, target=TARGETS, data=st.data())
def test_coordinates_belong_to_their_numbers(dimensions: list[tuple[int, int]], target: int, data: st.DataObject) -> None:
    grid, _, _ = slab_grid(dimensions, target)
    slab = data.draw(st.integers(0, grid.slabs - 1))
    start = data.draw(st.integers(0, grid.chunks(slab)))
    numbers = range(start, data.draw(st.integers(start, grid.chunks(slab))))
    assert [grid.number_in(slab, coords) for coords in grid.coords_of(slab, numbers)] == list(numbers)


@unhurried
@given(dimensions=GRIDS.filter(bool), target=TARGETS, data=st.data())
def test_blocks_are_the_chunks_with_these_numbers(dimensions: list[tuple[int, int]], target: int, data: st.DataObject) -> None:
    grid, shape, chunks = slab_grid(dimensions, target)
    whole = np.arange(math.prod(shape)).reshape(-1)
    slab = data.draw(st.integers(0, grid.slabs - 1))
    start = data.draw(st.integers(0, grid.chunks(slab) - 1))
    numbers = range(start, data.draw(st.integers(start + 1, grid.chunks(slab))))
    coords = grid.coords_of(slab, numbers)
    done = 0
    for block in grid.blocks(slab, numbers):
        mine, done = coords[done : done + block.count], done + block.count
        selected = whole[block.start : block.stop].reshape(block.shape)[block.selection]
        inside = [tuple(slice(i * c, (i + 1) * c) for i, c in zip(each, chunks, strict=True)) for each in mine]
        expected = {int(element) for each in inside for element in whole.reshape(shape)[each].reshape(-1)}
        assert {int(element) for element in selected.reshape(-1)} == expected and selected.size == len(expected)
        assert math.prod(block.chunk) * math.prod(chunks[: block.leading]) == math.prod(chunks)
    assert done == len(numbers)
