"""Arrays of the same documents are parsed once, and differ in their paths alone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.arrays import reading
from tests.support.small_stores import array_document
from tests.support.stores import fill
from zarrfs.dialects.base import Dialect, Layout
from zarrfs.errors import MetadataError
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.hierarchy.parsed_documents import ParsedDocuments, content_of
from zarrfs.hierarchy.roots import dialects
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.data_type import from_numpy
from zarrfs.model.metadata import ArrayNode, Node
from zarrfs.stores.memory import MemoryStore

PATHS = [NodePath("/a"), NodePath("/b"), NodePath("/g/a"), NodePath("/g/h/c")]
# Names that some layout reserves, or that it uses itself.
STRANGE = [
    NodePath(f"/{name}") for name in ("__a", ".a", "a b", "zarr.json", ".zgroup", "c", "0", "0.0", "meta", "data", "ü", "a.array")
]
DIALECTS = pytest.mark.parametrize("dialect", dialects(), ids=lambda each: each.name)


def parse(parsed: ParsedDocuments, layout: Layout, path: NodePath, documents: dict[Key, bytes]) -> Node | None:
    """Return what is known of the documents, else what the layout makes of them, as `zarrfs.hierarchy.node_reader` does."""
    content = content_of(layout, path, documents)
    if content is not None and (node := parsed.get(content, path)) is not None:
        return node
    found = layout.parse(path, documents)
    if content is not None:
        parsed.keep(content, found)
    return found


def documents_of(layout: Layout, path: NodePath, dtype: str = "<f4", **attributes: object) -> dict[Key, bytes]:
    node = NewArrays().node(path, layout, shape=(8,), data_type=from_numpy(np.dtype(dtype)))
    return dict(layout.format(replace(node, attributes=attributes)))


@DIALECTS
def test_it_gives_what_the_layout_gives(dialect: Dialect) -> None:
    for prefix in ("", "in/"):
        layout, parsed = dialect.create(Prefix(prefix)), ParsedDocuments()
        for dtype in ("<f4", "<i2", "<f4"):
            for number in (1, 2, 1):
                for path in filter(layout.holds, PATHS):
                    documents = documents_of(layout, path, dtype, number=number, units="m")
                    assert parse(parsed, layout, path, documents) == layout.parse(path, documents), path


@DIALECTS
def test_a_path_that_is_no_node_is_none_whatever_its_documents(dialect: Dialect) -> None:
    layout, parsed = dialect.create(Prefix("")), ParsedDocuments()
    documents = documents_of(layout, NodePath("/a"))
    assert parse(parsed, layout, NodePath("/a"), documents) is not None
    keys = layout.document_keys(NodePath("/a"))
    for path in STRANGE:
        there = {key: documents[each] for key, each in zip(layout.document_keys(path), keys, strict=False) if each in documents}
        assert parse(parsed, layout, path, there) == layout.parse(path, there), path


@DIALECTS
def test_the_same_documents_share_their_metadata(dialect: Dialect) -> None:
    layout, parsed = dialect.create(Prefix("")), ParsedDocuments()
    found = [parse(parsed, layout, path, documents_of(layout, path)) for path in filter(layout.holds, PATHS)]
    arrays = [each for each in found if isinstance(each, ArrayNode)]
    assert arrays == found
    assert len({id(each.metadata) for each in arrays}) == 1
    assert [each.chunk_prefix for each in arrays] == [layout.chunk_prefix(path) for path in filter(layout.holds, PATHS)]


@DIALECTS
def test_bad_documents_are_refused_each_time_with_their_own_key(dialect: Dialect) -> None:
    layout, parsed = dialect.create(Prefix("")), ParsedDocuments()
    for path in filter(layout.holds, PATHS):
        documents = {key: value.replace(b"8", b"-8") for key, value in documents_of(layout, path).items()}
        with pytest.raises(MetadataError) as ours:
            parse(parsed, layout, path, documents)
        with pytest.raises(MetadataError) as its:
            layout.parse(path, documents)
        assert str(ours.value) == str(its.value)


@trio_test
async def test_attributes_that_a_consolidated_copy_alone_has_are_those_of_their_array() -> None:
    store = MemoryStore()
    document = array_document((4,), (2,), "<i2")
    copied = {f"{name}/.zattrs": {"is": name} for name in "ab"} | {f"{name}/.zarray": json.loads(document) for name in "ab"}
    consolidated = {"zarr_consolidated_format": 1, "metadata": {".zgroup": {"zarr_format": 2}} | copied}
    await fill(store, {".zgroup": b'{"zarr_format":2}', ".zmetadata": json.dumps(consolidated).encode()})
    await fill(store, {f"{name}/.zarray": document for name in "ab"})
    found = reading(store)
    nodes = [await found.hierarchy.node(NodePath(f"/{name}")) for name in "ab"]
    alone = reading(store)
    assert nodes[1] == await alone.hierarchy.node(NodePath("/b"))


@trio_test
async def test_documents_that_change_are_read_again() -> None:
    store = MemoryStore()
    await fill(store, {".zgroup": b'{"zarr_format":2}'} | {f"{name}/.zarray": array_document((4,), (2,), "<i2") for name in "abc"})
    found = reading(store)
    for name in "abc":
        await found.hierarchy.node(NodePath(f"/{name}"))
    await store.set(Key("b/.zarray"), array_document((6,), (2,), "<i2"))
    found.hierarchy.changed("b/.zarray", is_prefix=False)
    shapes = [(await found.hierarchy.node(NodePath(f"/{name}"))).metadata.shape for name in "abc"]  # type: ignore[union-attr]
    assert shapes == [(4,), (6,), (4,)]
