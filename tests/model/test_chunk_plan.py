"""Chunk plans compared with NumPy: the gathered bytes are those of the range."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data_types import numbered, shapes
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.chunk_plan import ChunkPlan

HUGE = 2**62


@st.composite
def plans(draw: st.DrawFn) -> ChunkPlan:
    shape = draw(shapes())
    chunks = tuple(draw(st.integers(1 if extent else 0, 7)) for extent in shape)
    size = math.prod(shape)
    start = draw(st.integers(0, size))
    return ChunkPlan(shape, RegularGrid.checked(chunks, shape), start, draw(st.integers(start, size)))


def chunked(array: np.ndarray, grid: RegularGrid) -> dict[tuple[int, ...], np.ndarray]:
    """Return every chunk at its full shape; -1 beyond the array's edge."""
    found = {}
    for coords in np.ndindex(*grid.grid_shape(array.shape)):
        part = array[tuple(slice(c * n, (c + 1) * n) for c, n in zip(coords, grid.chunks, strict=True))]
        found[coords] = np.full(grid.chunks, -1)
        found[coords][tuple(slice(n) for n in part.shape)] = part
    return found


@given(plans())
def test_what_a_plan_gathers_is_the_range(plan: ChunkPlan) -> None:
    array = numbered(plan.shape)
    assert isinstance(plan.grid, RegularGrid)
    chunks = chunked(array, plan.grid)
    out = np.full(plan.stop - plan.start, -2)
    for box in plan.boxes():
        buffer = np.full(box.shape, -2)
        for projection in plan.projections(box):
            buffer[projection.box_selection] = chunks[projection.coords][projection.chunk_selection]
        out[box.offset : box.offset + box.size] = buffer.reshape(-1)
    assert np.array_equal(out, array.reshape(-1)[plan.start : plan.stop])


@given(plans())
def test_boxes_follow_each_other_and_are_few(plan: ChunkPlan) -> None:
    boxes = list(plan.boxes())
    assert len(boxes) <= max(1, 2 * len(plan.shape) - 1)
    offset = 0
    for box in boxes:
        assert box.offset == offset and box.size > 0
        assert np.ravel_multi_index(box.origin, plan.shape) == plan.start + offset
        offset += box.size
    assert offset == plan.stop - plan.start


@given(plans())
def test_each_chunk_that_is_touched_is_named_once(plan: ChunkPlan) -> None:
    named = list(plan.coords())
    assert len(named) == len(set(named))
    assert set(named) == {projection.coords for box in plan.boxes() for projection in plan.projections(box)}


@given(st.data())
def test_an_array_larger_than_any_disk_is_not_enumerated(data: st.DataObject) -> None:
    shape = (HUGE, HUGE, HUGE)
    start = data.draw(st.integers(0, HUGE**3 - 100))
    plan = ChunkPlan(shape, RegularGrid.checked((10, 10, 10), shape), start, start + 100)
    numbers = [
        ((box.origin[0] + i) * HUGE + box.origin[1] + j) * HUGE + box.origin[2] + k
        for box in plan.boxes()
        for i, j, k in itertools.product(*map(range, box.shape))
    ]
    assert numbers == list(range(start, start + 100))
    assert len(list(plan.coords())) <= 22


def test_an_array_without_dimensions_is_one_box() -> None:
    plan = ChunkPlan((), RegularGrid.checked((), ()), 0, 1)
    (box,) = plan.boxes()
    (projection,) = plan.projections(box)
    assert (box.origin, box.shape, box.size, projection.coords) == ((), (), 1, ())
