"""Requirements on every container; ``test_conformance.py`` runs them over all registered containers.

A container gets metadata and returns the layout of a file: literal bytes, and elements of arrays. It refuses metadata that it cannot
represent with `NotRepresentable`. The bytes are not judged here: only the format's own reader can do that.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.data_types import data_types, shapes
from tests.support.length import unhurried
from zarrfs.containers.base import Container, Elements, FileLayout, GroupContainer, Literal
from zarrfs.errors import ContentInvalid, NotPermitted, NotRepresentable
from zarrfs.keys import ROOT, NodePath
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.data_type import DataType, from_name
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node, UnsupportedNode


def array(shape: tuple[int, ...], data_type: DataType, chunks: tuple[int, ...] | None = None) -> ArrayMetadata:
    """Return an array of zeros."""
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


# --- groups -----------------------------------------------------------------------------------------------------------------------


@st.composite
def hierarchies(draw: st.DrawFn) -> list[Node]:
    """Return any few nodes, as for `GroupContainer.layout`."""
    attributes = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5) | st.lists(st.floats()), max_size=3)
    nodes: list[Node] = [GroupNode(path=ROOT, dialect="v3", attributes=draw(attributes))]
    for index, parent in enumerate(draw(st.lists(st.integers(0, 9), max_size=8))):
        groups = [node for node in nodes if isinstance(node, GroupNode)]
        path = groups[parent % len(groups)].path.child(f"n{index}")
        match draw(st.sampled_from("array array group unsupported".split())):
            case "group":
                nodes.append(GroupNode(path=path, dialect="v3", attributes=draw(attributes)))
            case "unsupported":
                nodes.append(UnsupportedNode(path=path, dialect="v3", reason=draw(st.text(max_size=5))))
            case _:
                metadata = array(draw(shapes()), draw(data_types()))
                nodes.append(
                    ArrayNode(path=path, dialect="v3", metadata=metadata, chunk_prefix=path.prefix, attributes=draw(attributes))
                )
    return sorted(nodes, key=lambda node: node.path[1:].split("/") if node.path != ROOT else [])


def layout_of(container: GroupContainer, nodes: Sequence[Node]) -> FileLayout | None:
    """Return the layout; None if the format cannot represent the nodes."""
    try:
        return container.layout(nodes)
    except NotRepresentable:
        return None


class GroupContainerConformance:
    """The suite. ``container`` is parametrised by the module that collects it."""

    def test_its_name_is_a_folder_and_its_suffix_an_extension(self, container: GroupContainer) -> None:
        assert re.fullmatch(r"[a-z][a-z0-9_-]*", container.name)
        assert re.fullmatch(r"\.[a-z0-9.]+", container.suffix)
        assert container.most_nodes > 0

    @unhurried
    @given(nodes=hierarchies())
    def test_the_extents_are_the_file_in_order_and_hold_whole_arrays(self, container: GroupContainer, nodes: list[Node]) -> None:
        layout = layout_of(container, nodes)
        if layout is None:
            return
        arrays = {node.path: node.metadata for node in nodes if isinstance(node, ArrayNode)}
        offset = 0
        ends: dict[NodePath, int] = {}
        for extent in layout.extents:
            assert extent.offset == offset
            assert extent.nbytes > 0 or isinstance(extent, Literal)
            offset += extent.nbytes
            if isinstance(extent, Elements):
                assert extent.path is not None
                metadata = arrays[extent.path]
                itemsize = extent.dtype.itemsize if extent.dtype is not None else metadata.data_type.itemsize
                assert 0 <= extent.start <= math.prod(metadata.shape) * itemsize - extent.nbytes
                ends[extent.path] = max(ends.get(extent.path, 0), extent.start + extent.nbytes)
                if extent.dtype is not None:
                    zeros = bytes(metadata.data_type.itemsize)
                    np.frombuffer(zeros, metadata.data_type.npy_dtype).astype(extent.dtype)
        assert layout.size == offset

    @unhurried
    @given(nodes=hierarchies())
    def test_nodes_and_layout_can_go_to_another_process(self, container: GroupContainer, nodes: list[Node]) -> None:
        layout = layout_of(container, nodes)
        assert layout_of(container, pickle.loads(pickle.dumps(nodes))) == layout
        assert pickle.loads(pickle.dumps(layout)) == layout

    @unhurried
    @given(nodes=hierarchies(), chunk=st.integers(1, 5))
    def test_the_file_does_not_depend_on_the_chunks(self, container: GroupContainer, nodes: list[Node], chunk: int) -> None:
        other = [
            replace(node, metadata=array(node.metadata.shape, node.metadata.data_type, (chunk,) * node.metadata.ndim))
            if isinstance(node, ArrayNode)
            else node
            for node in nodes
        ]
        assert layout_of(container, other) == layout_of(container, nodes)

    @pytest.mark.parametrize("shape", [(2**61,), (2**40, 2**20), (0, 2**62)], ids=str)
    def test_a_huge_array_costs_nothing(self, container: GroupContainer, shape: tuple[int, ...]) -> None:
        metadata = array(shape, from_name("uint8"), (1,) * len(shape))
        layout = layout_of(container, [ArrayNode(path=ROOT, dialect="v3", metadata=metadata, chunk_prefix=ROOT.prefix)])
        if layout is not None:
            assert sum(extent.nbytes for extent in layout.extents if isinstance(extent, Literal)) < 1 << 20

    def test_as_many_nodes_as_it_allows_can_be_represented_or_are_refused(self, container: GroupContainer) -> None:
        metadata = array((3,), from_name("uint8"))
        arrays = (ROOT.child(f"a{index:05}") for index in range(container.most_nodes - 1))
        below = (ArrayNode(path=path, dialect="v3", metadata=metadata, chunk_prefix=path.prefix) for path in arrays)
        layout_of(container, [GroupNode(path=ROOT, dialect="v3"), *below])
