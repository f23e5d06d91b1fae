"""The default chunk shape is that of zarr-python."""

from __future__ import annotations

import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from zarrfs.model.chunk_guess import guess_chunks


@settings(deadline=None)
@given(shape=st.lists(st.integers(0, 100_000), min_size=1, max_size=5).map(tuple), itemsize=st.integers(1, 1000))
def test_it_is_the_one_that_zarr_python_chooses(shape: tuple[int, ...], itemsize: int) -> None:
    array = zarr.create_array(zarr.storage.MemoryStore(), shape=shape, dtype=f"S{itemsize}", zarr_format=2)
    assert guess_chunks(shape, itemsize) == array.chunks


def test_an_array_without_dimensions_has_one_chunk_without_any() -> None:
    assert guess_chunks((), 8) == ()
