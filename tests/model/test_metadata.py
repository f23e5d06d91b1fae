"""Array metadata: the derived sizes on which all other modules rely."""

from __future__ import annotations

import pytest

from zarrfs.errors import MetadataUnsupported
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.data_type import from_name
from zarrfs.model.metadata import MAX_CHUNK_NBYTES, ArrayMetadata, check_chunk_nbytes


def metadata(shape: tuple[int, ...], chunks: tuple[int, ...], fill_value: bytes | None = b"\1\0") -> ArrayMetadata:
    return ArrayMetadata(
        shape=shape,
        data_type=from_name("int16"),
        chunk_grid=RegularGrid.checked(chunks, shape),
        chunk_key_encoding=chunk_key.default(),
        fill_value=fill_value,
        codecs=(),
    )


def test_sizes_are_those_of_decoded_elements() -> None:
    found = metadata((5, 4), (2, 3))
    assert (found.ndim, found.grid_shape, found.nbytes, found.chunk_nbytes((2, 1))) == (2, (3, 2), 40, 12)
    assert (metadata((), ()).nbytes, metadata((), ()).chunk_nbytes(())) == (2, 2)


def test_an_undefined_fill_value_reads_as_zeros() -> None:
    assert metadata((1,), (1,), None).fill_bytes == b"\0\0"
    assert metadata((1,), (1,)).fill_bytes == b"\1\0"


def test_a_chunk_too_large_to_decode_is_unsupported() -> None:
    check_chunk_nbytes((MAX_CHUNK_NBYTES,), from_name("int8"))
    with pytest.raises(MetadataUnsupported):
        check_chunk_nbytes((2**15, 2**15), from_name("int16"))
