"""Requirements on every dialect; ``test_conformance.py`` runs them over all registered dialects.

A node is drawn without regard to the dialect. The dialect must refuse a node that it cannot represent with
`NotRepresentable`, and must read back its own documents. Junk in place of documents may raise `MetadataError` and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.support.data_types import CORE, data_types, elements, shapes
from tests.support.length import unhurried
from zarrfs.codecs import lookup
from zarrfs.codecs.base import ArrayBytesCodec
from zarrfs.dialects.base import Dialect, Edit, Layout
from zarrfs.errors import MetadataError, NameInvalid, NotRepresentable
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType, from_name
from zarrfs.model.fill_value import from_json, to_json
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode

PREFIXES = st.sampled_from([Prefix(""), Prefix("some/where/")])
PATHS = st.lists(st.sampled_from(["a", "b", "Temp_2m", "x.y", "c-1"]), max_size=3).map(
    lambda parts: NodePath("/" + "/".join(parts))
)
KEY_ENCODINGS = [chunk_key.default("/"), chunk_key.v2("."), chunk_key.v2("/"), chunk_key.default(".")]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ATTRIBUTES = st.dictionaries(st.text("abc_é ", min_size=1, max_size=6), VALUES, max_size=4)
JUNK = st.binary(max_size=30) | VALUES.map(lambda value: json.dumps(value).encode())


@st.composite
def array_metadata(draw: st.DrawFn) -> ArrayMetadata:
    """Return any array that has a regular grid and simple codecs."""
    shape = draw(shapes())
    # Older layouts have only these types.
    data_type = draw(st.sampled_from(CORE).map(from_name) | data_types())
    chunks = tuple(draw(st.integers(1, 5)) for _ in shape)
    codecs = [bytes_codec(data_type, draw(st.sampled_from(["little", "big"])))]
    if len(shape) > 1 and draw(st.booleans()):
        codecs.insert(0, CodecSpec("transpose", {"order": list(reversed(range(len(shape))))}))
    if draw(st.booleans()):
        codecs.append(CodecSpec("gzip", {"level": draw(st.integers(0, 9))}))
    fill = draw(elements(data_type)) if draw(st.booleans()) else bytes(data_type.itemsize)
    return ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=RegularGrid(chunks),
        chunk_key_encoding=draw(st.sampled_from(KEY_ENCODINGS)),
        fill_value=fill,
        codecs=tuple(codecs),
    )


def for_dialect(dialect: Dialect, drawn: ArrayMetadata) -> ArrayMetadata:
    """Return ``drawn`` on the dialect's own grid, and with one of its data types where these are few."""
    metadata = replace(drawn, chunk_grid=dialect.chunk_grid(drawn.chunk_grid.largest, drawn.shape))
    if dialect.data_types is None or drawn.data_type.name in dialect.data_types:
        return metadata
    data_type = from_name(dialect.data_types[sum(drawn.shape) % len(dialect.data_types)])
    return replace(metadata, data_type=data_type, fill_value=bytes(data_type.itemsize), codecs=(bytes_codec(data_type, "little"),))


def bytes_codec(data_type: DataType, endian: str) -> CodecSpec:
    """Return `bytes`, with a byte order for the types that have one."""
    return CodecSpec("bytes", {"endian": endian} if data_type.dtype.newbyteorder() != data_type.dtype else {})


def said(layout: Layout, node: ArrayNode) -> dict[Key, bytes]:
    """Return the documents of ``node``. Skips the test for a read-only dialect.

    They have the first key encoding, compressor and order of dimensions that the dialect can represent.
    """
    drawn, dialect = node.metadata, layout.dialect
    if not dialect.writable:
        pytest.skip("documents of this dialect are only read")
    on_array = tuple(spec for spec in drawn.codecs if spec.name in ("transpose", "bytes"))
    if any(issubclass(lookup.class_of(spec), ArrayBytesCodec) for spec in dialect.new_codecs):
        # These convert elements to bytes themselves.
        on_array = on_array[:-1]
    chains = [drawn.codecs, (*on_array, *dialect.new_codecs), (*on_array[-1:], *dialect.new_codecs), dialect.new_codecs]
    for codecs, encoding in itertools.product(chains, [drawn.chunk_key_encoding, dialect.chunk_key_encoding, *KEY_ENCODINGS]):
        try:
            return layout.format(replace(node, metadata=replace(drawn, chunk_key_encoding=encoding, codecs=codecs)))
        except NotRepresentable:
            continue
    assume(False)
    raise AssertionError


def group_said(layout: Layout, node: GroupNode) -> dict[Key, bytes]:
    """Return the documents of a group. Skips the test, after checking the refusal, for a dialect without groups."""
    if layout.dialect.has_groups:
        return layout.format(node)
    with pytest.raises(NotRepresentable):
        layout.format(node)
    pytest.skip("this dialect has no groups")


def plain_fill(metadata: ArrayMetadata) -> Any:
    """Return a fill value without parts that differ between dialects: the payload of a NaN, unused bits."""
    fill = metadata.fill_value
    if fill is None:
        return None
    if metadata.data_type.dtype.kind not in "fc":
        return fill
    value = to_json(metadata.data_type, fill)
    parts = ["NaN" if str(part).startswith("0x") else part for part in (value if isinstance(value, list) else [value])]
    return from_json(metadata.data_type, parts if isinstance(value, list) else parts[0])


def parsed(layout: Layout, path: NodePath, documents: dict[Key, bytes]) -> Any:
    """Return the node at ``path`` as a hierarchy would read it: from the documents that the layout requests."""
    keys = layout.document_keys(path)
    return layout.parse(path, {key: documents[key] for key in keys if key in documents})


def emptily_consolidated(layout: Layout) -> dict[Key, bytes] | None:
    """Return the documents of a root group with an empty consolidated copy; None for a dialect without such copies."""
    match layout.dialect.name:
        case "v2":
            group = {layout.prefix.key(".zgroup"): b'{"zarr_format": 2}'}
            return group | {layout.prefix.key(".zmetadata"): b'{"zarr_consolidated_format": 1, "metadata": {}}'}
        case "v3":
            copy = {"kind": "inline", "must_understand": False, "metadata": {}}
            group = {"zarr_format": 3, "node_type": "group", "consolidated_metadata": copy}
            return {layout.prefix.key("zarr.json"): json.dumps(group, indent=2).encode()}
        case "v3_2022" if layout.consolidated_keys(ROOT):
            empty = dict.fromkeys(layout.consolidated_keys(ROOT), b'{"zarr_consolidated_format": 1, "metadata": {}}')
            return layout.entry_documents() | empty
    return None


def copied(layout: Layout, path: NodePath, documents: dict[Key, bytes]) -> Any:
    """Return the node at ``path`` from the consolidated copy; None if it is missing, or a group implied by its members."""
    keys = layout.dialect.root_keys(layout.prefix)
    root = {key: value for key, value in documents.items() if key in keys}
    keys = (*keys, *layout.dialect.further_keys(layout.prefix, root))
    opened = layout.dialect.open(layout.prefix, {key: value for key, value in documents.items() if key in keys})
    assert opened is not None
    node = opened.parse(path, {})
    return None if isinstance(node, GroupNode) and not node.explicit else node


class DialectConformance:
    """The suite. ``dialect`` is parametrised by the module that collects it."""

    @unhurried
    @given(prefix=PREFIXES, path=PATHS, attributes=ATTRIBUTES)
    def test_a_group_is_read_as_it_was_written(
        self, dialect: Dialect, prefix: Prefix, path: NodePath, attributes: dict[str, Any]
    ) -> None:
        layout = dialect.create(prefix)
        node = GroupNode(path=path, dialect=dialect.name, attributes=attributes)
        documents = group_said(layout, node)
        assert parsed(layout, path, documents) == node
        assert set(documents) <= set(layout.document_keys(path))

    @unhurried
    @given(prefix=PREFIXES, path=PATHS, metadata=array_metadata(), attributes=ATTRIBUTES)
    def test_an_array_is_read_as_it_was_written(
        self, dialect: Dialect, prefix: Prefix, path: NodePath, metadata: ArrayMetadata, attributes: dict[str, Any]
    ) -> None:
        metadata = for_dialect(dialect, metadata)
        layout = dialect.create(prefix)
        node = ArrayNode(
            path=path, dialect=dialect.name, metadata=metadata, chunk_prefix=layout.chunk_prefix(path), attributes=attributes
        )
        documents = said(layout, node)
        read = parsed(layout, path, documents)
        assert (read.path, read.dialect, read.chunk_prefix) == (path, dialect.name, layout.chunk_prefix(path))
        assert read.attributes == attributes
        assert read.metadata.shape == metadata.shape
        assert read.metadata.chunk_grid == metadata.chunk_grid
        assert read.metadata.data_type.dtype == metadata.data_type.dtype
        assert plain_fill(read.metadata) == plain_fill(metadata)
        again = layout.format(read)
        assert again == documents
        assert parsed(layout, path, again) == read

    @unhurried
    @given(prefix=PREFIXES, path=PATHS, metadata=array_metadata(), before=ATTRIBUTES, after=ATTRIBUTES, grow=st.integers(0, 9))
    def test_an_edit_changes_what_was_asked_and_nothing_else(
        self,
        dialect: Dialect,
        prefix: Prefix,
        path: NodePath,
        metadata: ArrayMetadata,
        before: dict[str, Any],
        after: dict[str, Any],
        grow: int,
    ) -> None:
        metadata = for_dialect(dialect, metadata)
        layout = dialect.create(prefix)
        node = ArrayNode(
            path=path, dialect=dialect.name, metadata=metadata, chunk_prefix=layout.chunk_prefix(path), attributes=before
        )
        documents = said(layout, node)
        read = parsed(layout, path, documents)
        shape = tuple(extent + grow for extent in metadata.shape)

        edited = layout.amend(path, documents, Edit(attributes=after))
        assert parsed(layout, path, documents | edited) == replace(read, attributes=after)
        reshaped = layout.amend(path, documents, Edit(shape=shape))
        expected = replace(read, metadata=replace(read.metadata, shape=shape))
        assert parsed(layout, path, documents | reshaped) == expected
        both = layout.amend(path, documents, Edit(attributes=after, shape=shape))
        assert parsed(layout, path, documents | both) == replace(expected, attributes=after)
        assert layout.amend(path, documents, Edit()) == {}

    @unhurried
    @given(prefix=PREFIXES, path=PATHS, metadata=array_metadata(), attributes=ATTRIBUTES, grow=st.integers(0, 9))
    def test_an_undefined_fill_value_is_defined(
        self,
        dialect: Dialect,
        prefix: Prefix,
        path: NodePath,
        metadata: ArrayMetadata,
        attributes: dict[str, Any],
        grow: int,
    ) -> None:
        if not dialect.has_undefined_fill:
            pytest.skip("this dialect cannot leave a fill value undefined")
        layout = dialect.create(prefix)
        node = ArrayNode(path=path, dialect=dialect.name, metadata=metadata, chunk_prefix=layout.chunk_prefix(path))
        expected = parsed(layout, path, said(layout, node))
        undefined = said(layout, replace(node, metadata=replace(metadata, fill_value=None)))
        assert parsed(layout, path, undefined).metadata.fill_value is None
        fill_value, shape = expected.metadata.fill_value, tuple(extent + grow for extent in metadata.shape)
        defined = layout.amend(path, undefined, Edit(fill_value=fill_value))
        assert parsed(layout, path, undefined | defined) == expected
        both = layout.amend(path, undefined, Edit(attributes=attributes, shape=shape, fill_value=fill_value))
        reshaped = replace(expected, metadata=replace(expected.metadata, shape=shape), attributes=attributes)
        assert parsed(layout, path, undefined | both) == reshaped

    @unhurried
    @given(path=PATHS, attributes=ATTRIBUTES)
    def test_the_attributes_of_a_group_are_edited(self, dialect: Dialect, path: NodePath, attributes: dict[str, Any]) -> None:
        layout = dialect.create(Prefix(""))
        node = GroupNode(path=path, dialect=dialect.name, attributes={"was": 1})
        documents = group_said(layout, node)
        edited = layout.amend(path, documents, Edit(attributes=attributes))
        assert parsed(layout, path, documents | edited) == replace(node, attributes=attributes)
        with pytest.raises(MetadataError):
            layout.amend(path, documents, Edit(shape=(1,)))

    @unhurried
    @given(prefix=PREFIXES, path=PATHS, metadata=array_metadata(), attributes=ATTRIBUTES, changed=ATTRIBUTES)
    def test_consolidated_copies_hold_what_the_nodes_say(
        self,
        dialect: Dialect,
        prefix: Prefix,
        path: NodePath,
        metadata: ArrayMetadata,
        attributes: dict[str, Any],
        changed: dict[str, Any],
    ) -> None:
        """An empty copy gets the nodes one by one, and each is the same as in its own documents; then they are removed."""
        metadata = for_dialect(dialect, metadata)
        layout = dialect.create(prefix)
        array, group = path.child("array"), path.child("group")
        documents = emptily_consolidated(layout)
        if documents is None:
            pytest.skip("this dialect has no consolidated copy")
        node = ArrayNode(path=array, dialect=dialect.name, metadata=metadata, chunk_prefix=layout.chunk_prefix(array))
        for each in (
            said(layout, replace(node, attributes=attributes)),
            layout.format(GroupNode(path=group, dialect=dialect.name)),
        ):
            documents |= each
        for each in (array, group):
            documents |= layout.copies_with([each], documents)
        for each in (array, group):
            assert copied(layout, each, documents) == parsed(layout, each, documents)

        documents |= layout.amend(array, documents, Edit(attributes=changed))
        assert copied(layout, array, documents) == parsed(layout, array, documents)
        assert layout.copies_with([array, group], documents).items() <= documents.items()

        documents |= layout.copies_without(array, documents)
        assert copied(layout, array, documents) is None
        assert copied(layout, group, documents) == parsed(layout, group, documents)
        assert layout.copies_without(array, documents) == {}
        documents |= layout.copies_without(path if path != ROOT else group, documents)
        assert copied(layout, group, documents) is None

    @pytest.mark.parametrize("prefix", [Prefix(""), Prefix("some/where/")])
    def test_a_new_copy_is_empty(self, dialect: Dialect, prefix: Prefix) -> None:
        layout = dialect.create(prefix)
        documents = group_said(layout, GroupNode(path=ROOT, dialect=dialect.name))
        made = layout.new_copy(ROOT, documents)
        if emptily_consolidated(layout) is None:
            assert made == {} and layout.copy_key(ROOT) is None
            return
        opened = dialect.open(prefix, layout.entry_documents() | documents | made)
        assert opened is not None and opened.consolidated_names(ROOT) == set()
        node = parsed(opened, ROOT, documents | made)
        assert isinstance(node, GroupNode) and node.has_copy == (layout.copy_key(ROOT) is None)
        assert layout.copies_with([ROOT], documents | made) == layout.copies_with([ROOT], documents | made | made)

    @unhurried
    @given(path=PATHS, data=st.data())
    def test_a_copy_that_cannot_be_read_is_left_alone(self, dialect: Dialect, path: NodePath, data: st.DataObject) -> None:
        layout = dialect.create(Prefix(""))
        path = path.child("g")
        documents = group_said(layout, GroupNode(path=path, dialect=dialect.name))
        documents |= {key: data.draw(st.binary(max_size=9) | st.just(b"[]")) for key in layout.consolidated_keys(path)}
        assert layout.copies_with([path], documents) == {}
        assert layout.copies_without(path, documents) == {}

    def test_what_is_not_there_is_not_edited(self, dialect: Dialect) -> None:
        with pytest.raises(MetadataError):
            dialect.create(Prefix("")).amend(NodePath("/a"), {}, Edit(attributes={"x": 1}))

    @unhurried
    @given(prefix=PREFIXES, path=PATHS)
    def test_document_keys_and_nodes_agree(self, dialect: Dialect, prefix: Prefix, path: NodePath) -> None:
        layout = dialect.create(prefix)
        for key in layout.document_keys(path):
            assert layout.node_of_document(key) == path
        for key in layout.consolidated_keys(path):
            assert layout.node_of_document(key) in (ROOT, *path.ancestors(), path)

    @given(path=PATHS)
    def test_names_of_documents_are_those_of_their_keys(self, dialect: Dialect, path: NodePath) -> None:
        layout = dialect.create(Prefix(""))
        assert bool(layout.document_names) <= layout.per_node
        if layout.document_names and path != ROOT:
            assert set(layout.document_keys(path)) == {path.prefix.key(name) for name in layout.document_names}

    @unhurried
    @given(prefix=PREFIXES, path=PATHS, encoding=st.sampled_from(KEY_ENCODINGS), coords=st.lists(st.integers(0, 99), max_size=3))
    def test_a_chunk_is_no_document(
        self, dialect: Dialect, prefix: Prefix, path: NodePath, encoding: chunk_key.ChunkKeyEncoding, coords: list[int]
    ) -> None:
        layout = dialect.create(prefix)
        assert layout.node_of_document(layout.chunk_prefix(path).key(encoding.encode(tuple(coords)))) is None

    @pytest.mark.parametrize("key", ["elsewhere", "a//b/.zarray", "../.zarray", "some/../zarr.json", "\0", "a/\udcff"])
    def test_a_foreign_key_is_no_document(self, dialect: Dialect, key: str) -> None:
        assert dialect.create(Prefix("some/where/")).node_of_document(Key(key)) is None
        dialect.create(Prefix("")).node_of_document(Key(key))

    @unhurried
    @given(path=PATHS, metadata=array_metadata(), data=st.data())
    def test_junk_raises_metadata_error_alone(
        self, dialect: Dialect, path: NodePath, metadata: ArrayMetadata, data: st.DataObject
    ) -> None:
        metadata = for_dialect(dialect, metadata)
        layout = dialect.create(Prefix(""))
        node = ArrayNode(path=path, dialect=dialect.name, metadata=metadata, chunk_prefix=layout.chunk_prefix(path))
        documents = said(layout, node) if dialect.writable else at(layout, path, data.draw(st.sampled_from(dialect.examples)))
        key = data.draw(st.sampled_from(sorted(documents)))
        documents[key] = data.draw(JUNK | spoilt(json.loads(documents[key])))
        for action in (
            lambda: parsed(layout, path, documents),
            lambda: layout.amend(path, documents, Edit({"a": 1}, metadata.shape)),
        ):
            with contextlib.suppress(MetadataError):
                action()

    @unhurried
    @given(data=st.data())
    def test_a_junk_root_still_opens(self, dialect: Dialect, data: st.DataObject) -> None:
        prefix = data.draw(PREFIXES)
        documents = {key: data.draw(JUNK) for key in dialect.root_keys(prefix) if data.draw(st.booleans())}
        layout = dialect.open(prefix, documents)
        if layout is None:
            return
        layout.consolidated_names(ROOT)
        with contextlib.suppress(MetadataError):
            parsed(layout, ROOT, documents)

    def test_an_empty_store_is_of_no_dialect(self, dialect: Dialect) -> None:
        assert dialect.open(Prefix(""), {}) is None
        assert dialect.open(Prefix("x/"), {Key(".zgroup"): b'{"zarr_format": 2}', Key("zarr.json"): b"{}"}) is None

    @unhurried
    @given(prefix=PREFIXES, root_is_array=st.booleans(), metadata=array_metadata())
    def test_a_root_that_was_written_is_opened(
        self, dialect: Dialect, prefix: Prefix, root_is_array: bool, metadata: ArrayMetadata
    ) -> None:
        metadata = for_dialect(dialect, metadata)
        layout = dialect.create(prefix)
        array = ArrayNode(path=ROOT, dialect=dialect.name, metadata=metadata, chunk_prefix=layout.chunk_prefix(ROOT))
        root_is_array = root_is_array or not dialect.has_groups
        documents = said(layout, array) if root_is_array else group_said(layout, GroupNode(path=ROOT, dialect=dialect.name))
        documents |= layout.entry_documents()
        opened = dialect.open(prefix, {key: value for key, value in documents.items() if key in dialect.root_keys(prefix)})
        assert opened is not None
        assert type(parsed(opened, ROOT, documents)) is (ArrayNode if root_is_array else GroupNode)

    @pytest.mark.parametrize("prefix", [Prefix(""), Prefix("some/where/")])
    def test_examples_of_what_is_only_read_are_arrays(self, dialect: Dialect, prefix: Prefix) -> None:
        assert bool(dialect.examples) != dialect.writable
        for example in dialect.examples:
            layout = dialect.create(prefix)
            documents = at(layout, ROOT, example)
            node = parsed(layout, ROOT, documents)
            assert isinstance(node, ArrayNode) and node.dialect == dialect.name
            opened = dialect.open(prefix, {key: value for key, value in documents.items() if key in dialect.root_keys(prefix)})
            assert opened is not None and parsed(opened, ROOT, documents) == node
            with pytest.raises(NotRepresentable):
                layout.format(node)
            with pytest.raises(MetadataError):
                layout.amend(ROOT, documents, Edit(shape=node.metadata.shape))

    def test_parents_come_first(self, dialect: Dialect) -> None:
        required = dialect.create(Prefix("")).required_groups(NodePath("/a/b/c"))
        assert list(required) == [path for path in ("/", "/a", "/a/b") if path in required]
        assert dialect.create(Prefix("")).required_groups(ROOT) == ()

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
    def test_names_that_no_node_can_have(self, dialect: Dialect, name: str) -> None:
        with pytest.raises(NameInvalid):
            dialect.create(Prefix("")).check_name(name)

    @pytest.mark.parametrize("name", ["a", "Temp_2m", "x.y", "c-1"])
    def test_names_that_every_node_can_have(self, dialect: Dialect, name: str) -> None:
        dialect.create(Prefix("")).check_name(name)


def at(layout: Layout, path: NodePath, example: Mapping[str, bytes]) -> dict[Key, bytes]:
    """Return the documents of an example, as those of the node at ``path``."""
    return {Prefix(layout.prefix + path.prefix).key(name): value for name, value in example.items()}


def spoilt(document: Any) -> st.SearchStrategy[bytes]:
    """Return ``document`` with one of its values, at any depth, replaced or removed."""
    places = list(_places(document, ()))

    def spoil(place: tuple[Any, ...], value: Any, remove: bool) -> bytes:
        copy = json.loads(json.dumps(document))
        at = copy
        for step in place[:-1]:
            at = at[step]
        if remove:
            del at[place[-1]]
        else:
            at[place[-1]] = value
        return json.dumps(copy).encode()

    likely = st.sampled_from(
        [-1, 0, 2, 1.0, 2**63, 2**200, 1e400, "", "|O", "<f8", "NaN", "0x00", [], {}, [[]], [0], True, {"name": "x"}]
    )
    return st.builds(spoil, st.sampled_from(places), VALUES | likely, st.booleans()) if places else JUNK


def _places(value: Any, here: tuple[Any, ...]) -> Any:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, inner in steps:
        yield (*here, step)
        yield from _places(inner, (*here, step))
