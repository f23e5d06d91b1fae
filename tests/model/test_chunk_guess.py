"""The chunk shape that nobody chose is zarr-python's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from zarr.core.chunk_grids import _guess_chunks

from zarrfs.model.chunk_guess import guess_chunks


@given(shape=st.lists(st.integers(0, 100_000), min_size=1, max_size=5).map(tuple), itemsize=st.integers(1, 1000))
def test_it_is_the_one_that_zarr_python_chooses(shape: tuple[int, ...], itemsize: int) -> None:
    assert guess_chunks(shape, itemsize) == _guess_chunks(shape, itemsize)


def test_an_array_without_dimensions_has_one_chunk_without_any() -> None:
    assert guess_chunks((), 8) == ()
