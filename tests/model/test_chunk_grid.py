"""Regular grids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarrfs.errors import MetadataError
from zarrfs.model.chunk_grid import RegularGrid, in_grid

HUGE = 2**62


def test_the_example_of_the_specification() -> None:
    grid = RegularGrid.checked((5, 20, 400), (10, 200, 3000))
    assert grid.grid_shape((10, 200, 3000)) == (2, 10, 8)
    assert [grid.indices(axis, c, c + 1) for axis, c in enumerate((7, 150, 900))] == [range(1, 2), range(7, 8), range(2, 3)]


@given(st.data())
def test_spans_and_indices_agree(data: st.DataObject) -> None:
    length, extent = data.draw(st.integers(1, 10)), data.draw(st.integers(0, 30))
    start = data.draw(st.integers(0, extent))
    stop = data.draw(st.integers(start, extent))
    grid = RegularGrid.checked((length,), (extent,))
    (chunks,) = grid.grid_shape((extent,))
    assert [i for index in range(chunks) for i in range(*grid.span(0, index))][:extent] == list(range(extent))
    touched = [index for index in range(chunks) if set(range(*grid.span(0, index))) & set(range(start, stop))]
    assert list(grid.indices(0, start, stop)) == touched


def test_no_element_means_no_chunk() -> None:
    grid = RegularGrid.checked((0, 3), (0, 5))
    assert grid.grid_shape((0, 5)) == (0, 2)
    assert grid.indices(0, 0, 0) == range(0)
    assert RegularGrid.checked((4,), (0,)).grid_shape((0,)) == (0,)


def test_an_array_without_dimensions_has_one_chunk() -> None:
    grid = RegularGrid.checked((), ())
    assert grid.grid_shape(()) == () and grid.chunk_shape(()) == ()
    assert in_grid((), ())


def test_indices_of_huge_arrays_are_exact() -> None:
    grid = RegularGrid.checked((3, 2**40 + 1), (HUGE, HUGE))
    assert grid.grid_shape((HUGE, HUGE)) == (-(-HUGE // 3), -(-HUGE // (2**40 + 1)))
    assert grid.indices(0, HUGE - 1, HUGE) == range((HUGE - 1) // 3, (HUGE - 1) // 3 + 1)


@pytest.mark.parametrize(
    ("chunks", "shape"), [((2,), (4, 4)), ((2, 2), (4,)), ((0,), (4,)), ((-1,), (4,)), ((-1,), (0,)), ((), (1,))]
)
def test_a_grid_that_does_not_fit_is_refused(chunks: tuple[int, ...], shape: tuple[int, ...]) -> None:
    with pytest.raises(MetadataError):
        RegularGrid.checked(chunks, shape)


@pytest.mark.parametrize("coords", [(2, 0), (-1, 0), (0,), (0, 0, 0), ()])
def test_coordinates_outside_are_no_chunk(coords: tuple[int, ...]) -> None:
    assert in_grid((1, 2), (2, 3))
    assert not in_grid(coords, (2, 3))
