"""Fill values of long elements: complete where they are used, and of the size of their document where they are kept."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from zarrfs.dialects.v2.array import parse_array
from zarrfs.model.metadata import ArrayMetadata

LENGTH = 4_000_000


def parsed(fill_value: str | None, dtype: str = f"<U{LENGTH}") -> ArrayMetadata:
    document = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": dtype, "fill_value": fill_value, "order": "C"}
    return parse_array(document | {"compressor": None, "filters": None})


@pytest.mark.parametrize("text", ["7", "", "\0é\0b"])
def test_it_is_one_complete_element(text: str) -> None:
    metadata = parsed(text)
    assert metadata.fill_value == text.encode("utf-32-le").ljust(4 * LENGTH, b"\0")
    assert metadata == parsed(text) and metadata != parsed("8") and metadata != parsed(None)
    assert replace(metadata, shape=(5,)).fill_value == metadata.fill_value
    assert replace(metadata, fill_value=None).fill_value is None


def test_arrays_of_long_elements_take_no_memory_for_the_length_that_is_declared() -> None:
    parsed("before")
    tracemalloc.start()
    try:
        held = [parsed(str(number)) for number in range(20)]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < LENGTH and max(each.held_nbytes for each in held) < LENGTH
