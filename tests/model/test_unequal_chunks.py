"""All divisions of an array use the grid: plans and slabs of a grid of unequal chunks."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import unhurried
from tests.support.unequal_chunks import UnequalExample, UnequalGrid, unequal_examples
from zarrfs.model.chunk_plan import ChunkPlan
from zarrfs.model.slab import SlabGrid


@unhurried
@given(example=unequal_examples(), data=st.data())
def test_a_plan_reads_any_range(example: UnequalExample, data: st.DataObject) -> None:
    size = math.prod(example.shape)
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    elements = np.arange(size).reshape(example.shape)
    plan = ChunkPlan(example.shape, example.grid, start, stop)
    out = np.full(stop - start, -1)
    touched = set()
    for box in plan.boxes():
        for each in plan.projections(box):
            touched.add(each.coords)
            part = elements[example.box(each.coords)]
            out[box.offset : box.offset + box.size].reshape(box.shape)[each.box_selection] = part[each.chunk_selection]
    assert out.tolist() == list(range(start, stop))
    assert sorted(plan.coords()) == sorted(touched)


@unhurried
@given(example=unequal_examples().filter(lambda each: 0 not in each.shape), target=st.integers(1, 300))
def test_slabs_are_made_of_whole_chunks(example: UnequalExample, target: int) -> None:
    shape, grid = example.shape, SlabGrid(example.shape, example.grid, 2, target)
    place, found = 0, []
    out = np.full(math.prod(shape), -1)
    whole = np.arange(math.prod(shape)).reshape(shape)
    for slab in range(grid.slabs):
        first, stop = grid.extent(slab)
        assert first == place < stop
        assert all(grid.slab_at(element) == slab for element in (first, stop - 1, (first + stop) // 2))
        place = stop
        numbers = []
        for number in grid.row_numbers(slab):
            row = grid.row(number)
            box = out[row.start : row.stop].reshape(row.shape)
            for coords in grid.coords(number):
                found.append(coords)
                numbers.append(grid.number_in(slab, coords))
                assert grid.row_of(coords) == number
                piece = grid.piece(coords)
                box[(*piece.row_selection, ...)] = whole[example.box(coords)]
        assert sorted(numbers) == list(range(grid.chunks(slab)))
        assert grid.rows_per_slab == 1 or (stop - first) * 2 <= 2 * target
    assert place == math.prod(shape)
    assert (out.reshape(shape) == whole).all()
    assert sorted(found) == sorted(itertools.product(*map(range, example.grid.grid_shape(shape))))


def test_a_long_row_among_short_ones_makes_no_large_slab() -> None:
    grid = SlabGrid((1100,), UnequalGrid(((1,) * 100 + (1000,),)), 1, 1000)
    assert max(stop - first for first, stop in map(grid.extent, range(grid.slabs))) <= 1001
