"""Runs of chunks are the projections of a box, neighbours taken together."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import unhurried
from tests.support.unequal_chunks import UnequalGrid, unequal_edges
from zarrfs.model.chunk_grid import ChunkGrid, RegularGrid
from zarrfs.model.chunk_plan import ChunkPlan
from zarrfs.model.chunk_runs import runs


@unhurried
@given(data=st.data())
def test_runs_name_each_part_of_each_chunk_as_projections_do(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 9), max_size=3)))
    grid: ChunkGrid = RegularGrid(tuple(data.draw(st.integers(1, 4)) for _ in shape))
    if data.draw(st.booleans()):
        grid = UnequalGrid(tuple(data.draw(unequal_edges(extent)) for extent in shape))
    size = math.prod(shape)
    start = data.draw(st.integers(0, size))
    plan = ChunkPlan(shape, grid, start, data.draw(st.integers(start, size)))
    for box in plan.boxes():
        source = np.arange(box.size).reshape(box.shape)
        expected = {each.coords: (each.chunk_selection, source[each.box_selection].tolist()) for each in plan.projections(box)}
        found = {}
        for run in runs(grid, box):
            values = source[run.box_selection]
            assert run.count == 1 or run.chunk_selection[-1] == slice(0, grid.chunk_shape(run.coords)[-1])
            for number, part in enumerate(np.split(values, run.count, axis=-1) if shape else [values]):
                coords = (*run.coords[:-1], run.coords[-1] + number) if shape else ()
                assert coords not in found
                found[coords] = (run.chunk_selection, part.tolist())
        assert found == expected


def test_a_row_of_chunks_is_one_run() -> None:
    plan = ChunkPlan((8, 100), RegularGrid((4, 10)), 50, 350)
    found = [(run.coords, run.count) for box in plan.boxes() for run in runs(plan.grid, box)]
    assert found == [((0, 5), 5), ((0, 0), 10), ((0, 0), 5)]


def test_equal_neighbours_are_one_run_in_a_grid_of_unequal_chunks() -> None:
    plan = ChunkPlan((4, 20), UnequalGrid(((4,), (2, 3, 3, 3, 5, 4))), 0, 80)
    found = [(run.coords, run.count) for box in plan.boxes() for run in runs(plan.grid, box)]
    assert found == [((0, 0), 1), ((0, 1), 3), ((0, 4), 1), ((0, 5), 1)]
