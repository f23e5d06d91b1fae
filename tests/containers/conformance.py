"""What holds of every container, run over all that are registered by ``test_conformance.py``.

A container is handed metadata and says how a file is made of literal bytes and of the array's elements; what it cannot say it refuses
with `NotRepresentable`. The bytes are not judged here: only the format's own reader can do that.
"""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data_types import data_types, shapes
from tests.support.length import unhurried
from zarrfs.containers.base import Container, Elements, Literal
from zarrfs.errors import ContentInvalid, NotPermitted, NotRepresentable
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.data_type import DataType, from_name
from zarrfs.model.metadata import ArrayMetadata


def array(shape: tuple[int, ...], data_type: DataType, chunks: tuple[int, ...] | None = None) -> ArrayMetadata:
    """An array of zeros."""
    return ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=RegularGrid(chunks or tuple(max(1, n) for n in shape)),
        chunk_key_encoding=chunk_key.v2("."),
        fill_value=bytes(data_type.itemsize),
        codecs=(),
    )


class ContainerConformance:
    """The suite. ``container`` is parametrised by the module that collects it."""

    def test_its_name_is_a_folder_and_its_suffix_an_extension(self, container: Container) -> None:
        assert re.fullmatch(r"[a-z][a-z0-9_-]*", container.name)
        assert re.fullmatch(r"\.[a-z0-9.]+", container.suffix)

    @unhurried
    @given(shape=shapes(), data_type=data_types())
    def test_the_extents_are_the_file_in_order_and_without_gaps(
        self, container: Container, shape: tuple[int, ...], data_type: DataType
    ) -> None:
        metadata = array(shape, data_type)
        try:
            layout = container.layout(metadata)
        except NotRepresentable:
            return
        place, elements = 0, 0
        for extent in layout.extents:
            assert extent.offset == place
            assert extent.nbytes > 0 or isinstance(extent, Literal)
            if isinstance(extent, Elements):
                assert 0 <= extent.start <= metadata.nbytes - extent.nbytes
                elements += extent.nbytes
            place += extent.nbytes
        assert layout.size == place
        assert elements == metadata.nbytes

    @unhurried
    @given(shape=shapes(), data_type=data_types(), more=st.binary(max_size=20))
    def test_what_can_be_taken_back_is_what_was_shown(
        self, container: Container, shape: tuple[int, ...], data_type: DataType, more: bytes
    ) -> None:
        try:
            first = container.layout(array(shape, data_type)).extents[0]
        except NotRepresentable:
            return
        if not container.writable:
            with pytest.raises(NotPermitted):
                container.read_head(b"")
            return
        assert isinstance(first, Literal)
        for size in range(len(first.data)):
            assert container.read_head(first.data[:size]) is None
        head = container.read_head(first.data + more)
        assert head is not None
        assert (head.nbytes, head.shape, head.fortran_order) == (first.nbytes, shape, False)
        assert head.dtype == data_type.npy_dtype

    @unhurried
    @given(data=st.binary(max_size=300))
    def test_what_is_no_such_file_is_refused_or_waited_for(self, container: Container, data: bytes) -> None:
        with contextlib.suppress(ContentInvalid, NotPermitted):
            assert container.read_head(data) is None

    @unhurried
    @given(shape=shapes(), data_type=data_types(), chunk=st.integers(1, 5))
    def test_the_file_does_not_depend_on_the_chunks(
        self, container: Container, shape: tuple[int, ...], data_type: DataType, chunk: int
    ) -> None:
        try:
            whole = container.layout(array(shape, data_type))
        except NotRepresentable:
            return
        assert container.layout(array(shape, data_type, (chunk,) * len(shape))) == whole

    @pytest.mark.parametrize("shape", [(2**62,), (2**40, 2**20), (0, 2**62), (1,) * 32], ids=str)
    def test_a_huge_array_costs_nothing(self, container: Container, shape: tuple[int, ...]) -> None:
        try:
            layout = container.layout(array(shape, from_name("uint8"), (1,) * len(shape)))
        except NotRepresentable:
            return
        assert sum(extent.nbytes for extent in layout.extents if isinstance(extent, Literal)) < 1 << 20
