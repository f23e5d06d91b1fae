"""The protocol draft of 2019: the rules of the text by section, stores of zarrita, and new and edited documents."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.dialects.conformance import ATTRIBUTES, PATHS, PREFIXES
from tests.support.cases import Case, below, cases
from tests.support.data_types import elements
from tests.support.length import unhurried
from zarrfs.dialects.base import Edit
from zarrfs.dialects.drafts import name_in_uri, protocol_version
from zarrfs.dialects.v3_2019.array import CHUNK_KEYS
from zarrfs.dialects.v3_2019.dialect import PLUGIN, V32019Layout
from zarrfs.errors import MetadataError, MetadataUnsupported, NameInvalid, NotRepresentable
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_name, from_numpy
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode

PROTOCOL = "https://purl.org/zarr/spec/protocol/core/3.0"
ENTRY = {"zarr_format": PROTOCOL, "metadata_encoding": "application/json", "extensions": []}
GZIP = {"codec": "http://purl.org/zarr/spec/codec/gzip", "configuration": {"level": 1}}
# The first example of section "Array metadata".
ARRAY = {
    "shape": [10000, 1000],
    "data_type": "<f8",
    "chunk_grid": {"type": "regular", "chunk_shape": [1000, 100]},
    "chunk_memory_layout": "C",
    "compressor": GZIP,
    "fill_value": "NaN",
    "extensions": [],
    "attributes": {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]},
}
DATETIME = {
    "extension": "http://purl.org/zarr/spec/protocol/extensions/datetime-dtypes/1.0",
    "type": "<M8[ns]",
    "fallback": "<i8",
}
IGNORED = {"extension": "http://example.org/x", "must_understand": False, "configuration": {"foo": "bar"}}
DEMANDED = {"extension": "http://example.org/x", "must_understand": True}
PATH = NodePath("/foo/baz")
KEY = Key("meta/root/foo/baz.array")
LAYOUT = PLUGIN.create(Prefix(""))
LITTLE = CodecSpec("bytes", {"endian": "little"})


def dumped(document: Any) -> bytes:
    return json.dumps(document, indent=4).encode()


def array(**members: Any) -> ArrayNode:
    """Return the array of the example with other ``members``; Ellipsis removes one."""
    document = {name: value for name, value in {**ARRAY, **members}.items() if value is not ...}
    node = LAYOUT.parse(PATH, {KEY: dumped(document)})
    assert isinstance(node, ArrayNode)
    return node


def opened(**members: Any) -> V32019Layout | None:
    """Return the hierarchy of an entry point with other ``members``."""
    document = {name: value for name, value in {**ENTRY, **members}.items() if value is not ...}
    return PLUGIN.open(Prefix(""), {Key("zarr.json"): dumped(document)})


def refused(**members: Any) -> str:
    """Return the reason for which a hierarchy with such an entry point is refused, at the root and at every node."""
    layout = opened(**members)
    assert layout is not None
    with pytest.raises(MetadataError) as checked:
        layout.check()
    with pytest.raises(MetadataError) as parsed:
        layout.parse(PATH, {KEY: dumped(ARRAY)})
    assert str(checked.value) == str(parsed.value)
    return type(checked.value).__name__


# --- "Bootstrap metadata" -------------------------------------------------------------------------------------------------------


def test_a_hierarchy_is_known_by_its_entry_point() -> None:
    assert PLUGIN.root_keys(Prefix("a/")) == ("a/zarr.json",)
    assert opened() == V32019Layout(Prefix(""))
    assert LAYOUT.entry_documents() == {"zarr.json": dumped(ENTRY)}
    assert LAYOUT.own_names == {"meta", "data"}


@pytest.mark.parametrize("version", ["3.0", "3.1", "3.17"])
@pytest.mark.parametrize("scheme", ["https", "http"])
def test_every_version_3_is_read(scheme: str, version: str) -> None:
    layout = opened(zarr_format=f"{scheme}://purl.org/zarr/spec/protocol/core/{version}")
    assert layout is not None
    layout.check()


@pytest.mark.parametrize("version", ["2.0", "4.0", "30.0"])
def test_other_major_versions_are_refused(version: str) -> None:
    assert refused(zarr_format=f"https://purl.org/zarr/spec/protocol/core/{version}") == "MetadataUnsupported"


@pytest.mark.parametrize("format_", [3, "3", None, ..., "https://example.org/core/3.0", PROTOCOL + "/x", [PROTOCOL]])
def test_documents_of_others_are_left_to_them(format_: Any) -> None:
    assert opened(zarr_format=format_) is None


@pytest.mark.parametrize(
    "members",
    [
        {"metadata_encoding": PROTOCOL, "metadata_key_suffix": ".json"},
        {"metadata_encoding": PROTOCOL},
        {"metadata_encoding": {"type": "json"}},
        {"metadata_key_suffix": ".json"},
    ],
)
def test_the_draft_of_2022_is_told_apart_by_its_encoding(members: Any) -> None:
    assert opened(**members) is None


@pytest.mark.parametrize(
    ("encoding", "why"), [("application/cbor", "MetadataUnsupported"), (..., "MetadataError"), (None, "MetadataError")]
)
def test_the_encoding_is_json(encoding: Any, why: str) -> None:
    assert refused(metadata_encoding=encoding) == why


def test_a_mime_type_may_have_parameters() -> None:
    layout = opened(metadata_encoding="application/json; charset=utf-8")
    assert layout is not None
    layout.check()


def test_extensions_of_the_hierarchy_that_must_be_understood_end_it() -> None:
    assert refused(extensions=[IGNORED, DEMANDED]) == "MetadataUnsupported"
    layout = opened(extensions=[IGNORED])
    assert layout is not None
    node = layout.parse(PATH, {KEY: dumped(ARRAY)})
    assert isinstance(node, ArrayNode)
    assert any("http://example.org/x" in quirk for quirk in node.quirks)


@pytest.mark.parametrize(
    "extension",
    [{"extension": "http://x"}, {"must_understand": False}, {"extension": 1, "must_understand": False}, "x", None]
    + [{"extension": "http://x", "must_understand": value} for value in (None, 0, 1, "false", [])],
)
def test_an_extension_says_what_it_is_and_whether_it_must_be_understood(extension: Any) -> None:
    assert refused(extensions=[extension]) == "MetadataError"
    with pytest.raises(MetadataError):
        array(extensions=[extension])


def test_members_that_are_not_known_may_be_ignored() -> None:
    """ "Implementations may ... interpret metadata as defined in this specification, ignoring any name/value pairs ..."."""
    layout = opened(from_version_3_1=True)
    assert layout is not None
    layout.check()
    node = array(from_version_3_1=True)
    assert node.metadata == array().metadata
    assert any("from_version_3_1" in quirk for quirk in node.quirks)


@pytest.mark.parametrize("junk", [b"", b"[]", b"{", b"\xff", b'{"zarr_format": 3, "node_type": "group"}'])
def test_a_document_that_says_nothing_is_nobodys(junk: bytes) -> None:
    assert PLUGIN.open(Prefix(""), {Key("zarr.json"): junk}) is None


# --- "Storage keys" -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "some/where/"])
def test_keys_are_those_of_the_text(prefix: str) -> None:
    layout = PLUGIN.create(Prefix(prefix))
    assert layout.document_keys(NodePath("/foo/bar"))[:2] == (
        f"{prefix}meta/root/foo/bar.array",
        f"{prefix}meta/root/foo/bar.group",
    )
    assert layout.document_keys(ROOT) == (f"{prefix}meta/root.array", f"{prefix}meta/root.group")
    assert layout.chunk_prefix(NodePath("/foo/baz")) == f"{prefix}data/foo/baz/"
    assert layout.chunk_prefix(ROOT) == f"{prefix}data/"
    assert layout.listing_prefix(NodePath("/foo")) == f"{prefix}meta/root/foo/"
    assert layout.listing_prefix(ROOT) == f"{prefix}meta/root/"


def test_chunks_are_named_by_their_coordinates() -> None:
    """ "The data key for the chunk with grid coordinates (0, 0) is data/foo/baz/0.0"."""
    node = array()
    encoding = node.metadata.chunk_key_encoding
    assert encoding.key(node.chunk_prefix, (0, 0)) == "data/foo/baz/0.0"
    assert encoding.encode((1, 23)) == "1.23"
    assert encoding.decode("1.23", 2) == (1, 23)


def test_the_chunk_of_a_scalar_has_no_identifier() -> None:
    node = array(shape=[], chunk_grid={"type": "regular", "chunk_shape": []}, fill_value=0)
    assert node.metadata.chunk_key_encoding.key(node.chunk_prefix, ()) == "data/foo/baz"
    layout = PLUGIN.create(Prefix("x/"))
    assert node.metadata.chunk_key_encoding.key(layout.chunk_prefix(ROOT), ()) == "x/data"


@pytest.mark.parametrize("separator", ["/", ".", "-", "_"])
def test_the_separator_is_configured_in_the_chunk_grid(separator: str) -> None:
    node = array(chunk_grid={**ARRAY["chunk_grid"], "separator": separator})  # type: ignore[dict-item]
    assert node.metadata.chunk_key_encoding.encode((1, 23)) == f"1{separator}23"
    (document,) = LAYOUT.format(node).values()
    assert json.loads(document)["chunk_grid"].get("separator", ".") == separator


@pytest.mark.parametrize("separator", ["", "..", "0", "x", None, 1, ["."]])
def test_other_separators_are_bad(separator: Any) -> None:
    with pytest.raises(MetadataError):
        array(chunk_grid={**ARRAY["chunk_grid"], "separator": separator})  # type: ignore[dict-item]


def test_the_formula_of_the_text_is_read_where_it_can_be_told_apart() -> None:
    """ "meta", P and ".array" by the formula, ``meta/root/foo/baz.array`` by the example that follows it."""
    other = Key("meta/foo/baz.array")
    assert other in LAYOUT.document_keys(PATH)
    node = LAYOUT.parse(PATH, {other: dumped(ARRAY)})
    assert isinstance(node, ArrayNode)
    assert node.metadata == array().metadata
    assert any("formula" in quirk for quirk in node.quirks)
    assert LAYOUT.node_of_document(other) == PATH
    assert LAYOUT.listing_prefixes(NodePath("/foo")) == ("meta/root/foo/", "meta/foo/")
    # The form of the example has precedence if both exist.
    both = LAYOUT.parse(PATH, {KEY: dumped({**ARRAY, "fill_value": 1}), other: dumped(ARRAY)})
    assert isinstance(both, ArrayNode)
    assert both.metadata.fill_value == np.float64(1).tobytes()
    # A key that begins with /root could be either, and is the software's.
    assert LAYOUT.node_of_document(Key("meta/root/x.array")) == "/x"
    assert LAYOUT.document_keys(NodePath("/root/x")) == ("meta/root/root/x.array", "meta/root/root/x.group")
    assert LAYOUT.node_of_document(Key("meta/root.array")) == ROOT
    # There is no such form for groups.
    assert LAYOUT.node_of_document(Key("meta/foo.group")) is None


def test_a_document_in_the_other_form_is_changed_where_it_is() -> None:
    other = Key("meta/foo/baz.array")
    assert list(LAYOUT.amend(PATH, {other: dumped(ARRAY)}, Edit(attributes={"a": 1}))) == [other]


# --- "Protocol operations" ------------------------------------------------------------------------------------------------------


def test_children_are_discovered_as_the_text_has_it() -> None:
    keys = ["meta/root/foo/bar.group", "meta/root/foo/baz/qux.array", "data/foo/baz/qux/0", "zarr.json"]
    assert LAYOUT.child_names(NodePath("/foo"), *below("meta/root/foo/", keys)) == {"bar", "baz"}
    assert LAYOUT.child_names(NodePath("/foo/baz"), *below("meta/root/foo/baz/", keys)) == {"qux"}
    assert LAYOUT.child_names(ROOT, ["x.txt", ".array", "..group"], ["..", ""]) == set()


def test_groups_above_need_no_documents() -> None:
    """ "It is not necessary to create or check for the existence of metadata documents for groups at any of the ancestor paths"."""
    assert LAYOUT.required_groups(NodePath("/a/b/c")) == ()
    assert LAYOUT.parse(NodePath("/a"), {}) is None


def test_an_array_hides_a_group_of_its_name() -> None:
    group = Key("meta/root/foo/baz.group")
    node = LAYOUT.parse(PATH, {KEY: dumped(ARRAY), group: dumped({"extensions": [], "attributes": {"of": "the group"}})})
    assert isinstance(node, ArrayNode)
    assert node.attributes == ARRAY["attributes"]
    assert "a group exists at the same path" in node.quirks


@unhurried
@given(prefix=PREFIXES, path=PATHS)
def test_listed_places_and_groups_agree(prefix: Prefix, path: NodePath) -> None:
    layout = PLUGIN.create(prefix)
    for place in layout.listing_prefixes(path):
        assert layout.node_of_prefix(place) == path
    assert layout.node_of_prefix(Prefix(f"{prefix}data/x/")) is None


# --- "Array metadata" -----------------------------------------------------------------------------------------------------------


def test_the_example_of_the_text() -> None:
    node = array()
    assert node.quirks == ()
    assert node.attributes == {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]}
    assert node.metadata == ArrayMetadata(
        shape=(10000, 1000),
        data_type=from_name("float64"),
        chunk_grid=RegularGrid((1000, 100)),
        chunk_key_encoding=CHUNK_KEYS,
        fill_value=np.float64("nan").tobytes(),
        codecs=(LITTLE, CodecSpec("gzip", {"level": 1})),
    )
    assert node.metadata.grid_shape == (10, 10)


@pytest.mark.parametrize("name", ["shape", "data_type", "chunk_grid", "chunk_memory_layout", "fill_value"])
def test_mandatory_members_cannot_be_left_out(name: str) -> None:
    with pytest.raises(MetadataError):
        array(**{name: ...})


@pytest.mark.parametrize("shape", [[-1, 6], [4.0, 6], ["4", 6], [True, 6], [2**63, 6], 4, None, {}, [4], [4, 6, 1], [1] * 40])
def test_shape_is_one_length_for_each_dimension(shape: Any) -> None:
    with pytest.raises(MetadataError):
        array(shape=shape)


TABLE = {"bool": "bool", "i1": "int8", "u1": "uint8"}
TABLE |= {f"{end}i{n}": f"int{8 * n}" for end in "<>" for n in (2, 4, 8)}
TABLE |= {f"{end}u{n}": f"uint{8 * n}" for end in "<>" for n in (2, 4, 8)}
TABLE |= {f"{end}f{n}": f"float{8 * n}" for end in "<>" for n in (2, 4, 8)}


@pytest.mark.parametrize("identifier", TABLE)
def test_data_types_of_the_table_and_big_endian_unsigned_ones(identifier: str) -> None:
    node = array(data_type=identifier, fill_value=None)
    assert node.metadata.data_type == from_name(TABLE[identifier])
    order = {"<": {"endian": "little"}, ">": {"endian": "big"}}.get(identifier[0], {})
    assert node.metadata.codecs[0] == CodecSpec("bytes", order)
    assert node.quirks == ()
    (document,) = LAYOUT.format(node).values()
    assert json.loads(document)["data_type"] == identifier


@pytest.mark.parametrize(("spelled", "name"), [("|b1", "bool"), ("|i1", "int8"), ("|u1", "uint8")])
def test_types_of_one_byte_as_numpy_spells_them(spelled: str, name: str) -> None:
    node = array(data_type=spelled, fill_value=None)
    assert node.metadata.data_type == from_name(name)
    assert spelled in node.quirks[0]


@pytest.mark.parametrize("identifier", ["float64", "f8", "<i1", "<b1", "<f16", "<c8", "|S3", "<M8[ns]", "", "|O", 1, None, ["<f8"]])
def test_other_identifiers_are_refused(identifier: Any) -> None:
    with pytest.raises(MetadataError):
        array(data_type=identifier, fill_value=None)


def test_the_example_of_an_extension_type() -> None:
    node = array(data_type=DATETIME, fill_value=None)
    assert node.metadata.data_type == from_numpy(np.dtype("<M8[ns]"))
    assert node.metadata.fill_value is None
    assert node.quirks == ()
    (document,) = LAYOUT.format(node).values()
    assert json.loads(document)["data_type"] == DATETIME


@pytest.mark.parametrize("text", [">M8[D]", "<m8[10us]", "<M8[generic]", "<m8"])
def test_other_times_are_known(text: str) -> None:
    node = array(data_type={"extension": "http://example.org/times", "type": text}, fill_value="NaT")
    assert node.metadata.data_type.dtype == np.dtype(text).newbyteorder("<")
    assert node.metadata.fill_value == np.int64(-(2**63)).tobytes()


def test_complex_numbers_are_an_extension() -> None:
    node = array(data_type={"extension": "http://example.org/complex", "type": ">c8"}, fill_value=[1.5, "-Infinity"])
    assert node.metadata.data_type == from_name("complex64")
    assert node.metadata.fill_value == np.array([1.5, -np.inf], "<f4").tobytes()


def test_an_extension_type_that_is_not_known_is_its_fallback() -> None:
    node = array(data_type={"extension": "http://example.org/u", "type": {"any": "value"}, "fallback": ">i8"}, fill_value=4)
    assert node.metadata.data_type == from_name("int64")
    assert node.metadata.codecs[0] == CodecSpec("bytes", {"endian": "big"})
    assert len(node.warnings) == 1 and "fallback" in node.warnings[0]
    assert set(node.warnings) <= set(node.quirks)


def test_fallbacks_can_be_refused() -> None:
    known, unknown = (
        dumped({**ARRAY, "data_type": DATETIME, "fill_value": None}),
        {"extension": "http://example.org/u", "type": "z"},
    )
    layout = PLUGIN.choosing({"fallback": "refuse"}).open(Prefix(""), {Key("zarr.json"): dumped(ENTRY)})
    assert layout is not None
    assert isinstance(layout.parse(PATH, {KEY: known}), ArrayNode)
    with pytest.raises(MetadataUnsupported, match="unknown"):
        layout.parse(PATH, {KEY: dumped({**ARRAY, "data_type": {**unknown, "fallback": "<i8"}, "fill_value": 0})})
    # A hierarchy that is opened again keeps the choice.
    assert layout.dialect.open(Prefix(""), {Key("zarr.json"): dumped(ENTRY)}) == layout
    assert PLUGIN.choosing({"fallback": "use"}).fallbacks


@pytest.mark.parametrize(
    "members",
    [
        {"extension": "http://example.org/u", "type": "zzz"},
        {"extension": "http://example.org/u", "type": "zzz", "fallback": None},
        {"extension": "http://example.org/u", "type": "zzz", "fallback": "zzz"},
        {"extension": "http://example.org/u", "type": "zzz", "fallback": DATETIME},
        {"type": "<M8[ns]", "fallback": "<i8"},
        {"extension": "http://example.org/u", "fallback": "<i8"},
        {"extension": 1, "type": "zzz", "fallback": "<i8"},
        {"extension": "http://example.org/u", "type": "<M8[0ns]"},
    ],
)
def test_extension_types_that_nothing_can_be_made_of(members: Any) -> None:
    with pytest.raises(MetadataError):
        array(data_type=members, fill_value=None)


@pytest.mark.parametrize(
    "grid",
    [
        {"type": "rectilinear", "chunk_shape": [1000, 100]},
        {"extension": "http://example.org/grid", "type": "regular", "chunk_shape": [1000, 100]},
        {"extension": "http://example.org/grid", "type": {"any": "value"}},
    ],
)
def test_chunk_grids_that_are_not_known_are_refused(grid: Any) -> None:
    with pytest.raises(MetadataUnsupported):
        array(chunk_grid=grid)


@pytest.mark.parametrize("chunks", [[1000], [0, 100], [-1, 100], [1.0, 100], None, ..., [1000, 100, 1], [2**40, 2**40]])
def test_chunk_shapes_fit_the_array(chunks: Any) -> None:
    grid = {"type": "regular"} | ({} if chunks is ... else {"chunk_shape": chunks})
    with pytest.raises(MetadataError):
        array(chunk_grid=grid)


def test_memory_layouts() -> None:
    assert array(chunk_memory_layout="C").metadata.codecs[0] == LITTLE
    node = array(chunk_memory_layout="F")
    assert node.metadata.codecs[:2] == (CodecSpec("transpose", {"order": [1, 0]}), LITTLE)
    (document,) = LAYOUT.format(node).values()
    assert json.loads(document)["chunk_memory_layout"] == "F"
    flat = array(shape=[4], chunk_grid={"type": "regular", "chunk_shape": [2]}, chunk_memory_layout="F")
    assert flat.metadata.codecs[0] == LITTLE


@pytest.mark.parametrize("layout", ["A", "c", None, 1, []])
def test_other_memory_layouts_are_bad(layout: Any) -> None:
    with pytest.raises(MetadataError):
        array(chunk_memory_layout=layout)


def test_memory_layouts_of_extensions_are_refused() -> None:
    with pytest.raises(MetadataUnsupported):
        array(chunk_memory_layout={"extension": "http://example.org/layout", "type": "zcurve"})


@pytest.mark.parametrize(
    "uri",
    [
        "http://purl.org/zarr/spec/codec/gzip",
        "https://purl.org/zarr/spec/codec/gzip",
        "https://purl.org/zarr/spec/codec/gzip/1.0",
        "http://purl.org/zarr/spec/codecs/gzip/1",
    ],
)
def test_codecs_are_known_by_the_name_in_their_uri(uri: str) -> None:
    assert array(compressor={**GZIP, "codec": uri}).metadata.codecs[-1] == CodecSpec("gzip", {"level": 1})


@pytest.mark.parametrize("none", [None, ...])
def test_there_may_be_no_compressor(none: Any) -> None:
    assert array(compressor=none).metadata.codecs == (LITTLE,)


@pytest.mark.parametrize(
    "compressor",
    [
        {"codec": "https://purl.org/zarr/spec/codec/nonsense/1.0"},
        {"codec": "https://purl.org/zarr/spec/codec/pickle/1.0"},
        {"codec": "https://example.org/zarr/spec/codec/gzip/1.0"},
        {"codec": "https://purl.org/zarr/spec/layout/gzip/1.0"},
        {"codec": "gzip"},
    ],
)
def test_codecs_that_are_not_known_are_refused(compressor: Any) -> None:
    with pytest.raises(MetadataUnsupported):
        array(compressor=compressor)


@pytest.mark.parametrize("compressor", [{}, "gzip", [GZIP], {"codec": None}, {**GZIP, "configuration": []}, 0, False])
def test_a_compressor_is_an_object_with_a_uri(compressor: Any) -> None:
    with pytest.raises(MetadataError):
        array(compressor=compressor)


def test_extensions_of_an_array_or_a_group_that_must_be_understood_end_it() -> None:
    with pytest.raises(MetadataUnsupported):
        array(extensions=[IGNORED, DEMANDED])
    assert any("ignored" in quirk for quirk in array(extensions=[IGNORED]).quirks)
    key = Key("meta/root/foo/baz.group")
    with pytest.raises(MetadataUnsupported):
        LAYOUT.parse(PATH, {key: dumped({"extensions": [DEMANDED], "attributes": {}})})
    assert LAYOUT.parse(PATH, {key: dumped({"extensions": [IGNORED], "attributes": {}})}) == GroupNode(path=PATH, dialect="v3_2019")


@pytest.mark.parametrize(
    ("identifier", "value", "element"),
    [
        ("bool", True, b"\1"),
        ("bool", 0, b"\0"),
        ("i1", -128, b"\x80"),
        (">u2", 65535, b"\xff\xff"),
        ("<i4", 3.0, b"\3\0\0\0"),
        ("<f4", 1, np.float32(1).tobytes()),
        (">f8", 1.5, np.float64(1.5).tobytes()),
        ("<f8", "Infinity", np.float64("inf").tobytes()),
        ("<f8", "+Infinity", np.float64("inf").tobytes()),
        ("<f2", "-Infinity", np.float16("-inf").tobytes()),
        ("<f8", float("nan"), np.float64("nan").tobytes()),
        ("<f8", float("-inf"), np.float64("-inf").tobytes()),
        ("<f8", None, None),
        ("bool", None, None),
    ],
)
def test_fill_values(identifier: str, value: Any, element: bytes | None) -> None:
    assert array(data_type=identifier, fill_value=value).metadata.fill_value == element


@pytest.mark.parametrize(
    ("identifier", "value"),
    [
        ("bool", 2),
        ("bool", "true"),
        ("i1", 128),
        ("u1", -1),
        ("<i4", 1.5),
        ("<i4", True),
        ("<i4", "3"),
        ("<f8", "0x7ff8000000000000"),
        ("<f8", "nan"),
        ("<f8", True),
        ("<f8", []),
        (">u8", 2**64),
    ],
)
def test_fill_values_of_another_type_are_bad(identifier: str, value: Any) -> None:
    with pytest.raises(MetadataError):
        array(data_type=identifier, fill_value=value)


@pytest.mark.parametrize("attributes", [[], "x", 1, False])
def test_attributes_are_an_object_and_the_error_names_their_document(attributes: Any) -> None:
    group, other = Key("meta/root/foo/baz.group"), Key("meta/foo/baz.array")
    of_group, of_array = dumped({"extensions": [], "attributes": attributes}), dumped({**ARRAY, "attributes": attributes})
    for documents, key in (
        ({KEY: of_array}, KEY),
        ({group: of_group}, group),
        # An array in the form of the formula, beside a group.
        ({group: dumped({"extensions": [], "attributes": {}}), other: of_array}, other),
    ):
        with pytest.raises(MetadataError, match=f"^{key}: attributes must be an object"):
            LAYOUT.parse(PATH, documents)


@pytest.mark.parametrize("none", [None, ...])
def test_no_attributes_as_zarrita_wrote_them(none: Any) -> None:
    node = array(attributes=none)
    assert node.attributes == {}
    assert node.quirks
    changed = LAYOUT.amend(
        PATH, {KEY: dumped({k: v for k, v in {**ARRAY, "attributes": none}.items() if v is not ...})}, Edit({"a": 1})
    )
    assert json.loads(changed[KEY]) == {**ARRAY, "attributes": {"a": 1}}


# --- "Node names" ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "A-Z_0.9", ".x", "-", "_", "a..", "x" * 255, "root", "meta", "0"])
def test_names_that_a_node_may_have(name: str) -> None:
    LAYOUT.check_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "...", "x" * 256, "a b", "a/b", "é", "a\n", "a~1", "x:y", "\0"])
def test_names_that_a_node_may_not_have(name: str) -> None:
    with pytest.raises(NameInvalid):
        LAYOUT.check_name(name)


def test_siblings_differ_in_more_than_case() -> None:
    assert PLUGIN.names_fold_case


# --- new and edited documents ---------------------------------------------------------------------------------------------------

KINDS = [from_name(TABLE[identifier]) for identifier in ("bool", "i1", "u1", "<i8", "<u2", "<f2", "<f8")]
KINDS += [from_name("complex128"), from_numpy(np.dtype("<M8[ns]")), from_numpy(np.dtype("<m8[3D]"))]
COMPRESSORS = [(), (CodecSpec("gzip", {"level": 5}),), (CodecSpec("gzip", {"level": 1}),)]


@st.composite
def nodes(draw: st.DrawFn) -> ArrayNode:
    """Return any array that the draft can represent."""
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    data_type = draw(st.sampled_from(KINDS))
    order = {"endian": draw(st.sampled_from(["little", "big"]))} if data_type.itemsize > 1 else {}
    transposed = len(shape) > 1 and draw(st.booleans())
    fill = draw(st.none() | elements(data_type))
    if fill is not None and np.isnan(np.frombuffer(fill, data_type.dtype)).any() and data_type.dtype.kind in "fc":
        fill = bytes(data_type.itemsize)
    metadata = ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=RegularGrid(tuple(draw(st.integers(1, 5)) for _ in shape)),
        chunk_key_encoding=replace(CHUNK_KEYS, separator=draw(st.sampled_from(["/", ".", "-", "_"]))),
        fill_value=fill,
        codecs=(
            *([CodecSpec("transpose", {"order": list(reversed(range(len(shape))))})] * transposed),
            CodecSpec("bytes", order),
            *draw(st.sampled_from(COMPRESSORS)),
        ),
    )
    path = draw(PATHS)
    chunk_prefix = LAYOUT.chunk_prefix(path)
    return ArrayNode(path=path, dialect="v3_2019", metadata=metadata, chunk_prefix=chunk_prefix, attributes=draw(ATTRIBUTES))


@unhurried
@given(node=nodes())
def test_what_is_written_is_read_back_whole(node: ArrayNode) -> None:
    assert LAYOUT.parse(node.path, LAYOUT.format(node)) == node


@unhurried
@given(node=nodes(), attributes=ATTRIBUTES)
def test_an_edit_leaves_every_other_byte(node: ArrayNode, attributes: dict[str, Any]) -> None:
    (key, data), *_ = LAYOUT.format(node).items()
    data = data.replace(b'"extensions": []', b'"extensions":  [ ],\n  "later": {"of": [1e0, 2]}')
    edited = LAYOUT.amend(node.path, {key: data}, Edit(attributes=attributes)).get(key, data)
    at = data.index(b'"attributes"')
    assert edited[:at] == data[:at]
    assert json.loads(edited)["attributes"] == attributes


def test_documents_are_as_zarrita_writes_them() -> None:
    (case,) = [case for case in cases("v3_2019") if case.name.endswith("/hierarchy")]
    for key in ("meta/root/foo/bar.array", "meta/root/foo/nocomp.array", "meta/root/foo.group", "meta/root.group"):
        path = LAYOUT.node_of_document(Key(key))
        assert path is not None
        node = LAYOUT.parse(path, {Key(key): case.values[key]})
        assert isinstance(node, ArrayNode | GroupNode)
        assert LAYOUT.format(node) == {key: case.values[key]}
    assert LAYOUT.entry_documents() == {"zarr.json": case.values["zarr.json"]}


@pytest.mark.parametrize(
    "changes",
    [
        {"data_type": from_name("bfloat16"), "fill_value": None},
        {"data_type": from_name("r24"), "fill_value": None},
        {"data_type": from_numpy(np.dtype("<U3")), "fill_value": None},
        {"data_type": from_numpy(np.dtype([("x", "<i2")])), "fill_value": None},
        {"chunk_key_encoding": chunk_key.default("/")},
        {"codecs": (LITTLE, CodecSpec("gzip", {"level": 1}), CodecSpec("crc32c"))},
        {"codecs": (LITTLE, CodecSpec("numcodecs.delta", {"dtype": "<f8"}), CodecSpec("gzip", {"level": 1}))},
        {"codecs": (CodecSpec("transpose", {"order": [0, 2, 1]}), LITTLE)},
    ],
)
def test_what_the_draft_has_no_words_for(changes: dict[str, Any]) -> None:
    metadata = ArrayMetadata(
        **{
            "shape": (4, 4, 4),
            "data_type": from_name("float64"),
            "chunk_grid": RegularGrid((2, 2, 2)),
            "chunk_key_encoding": CHUNK_KEYS,
            "fill_value": None,
            "codecs": (LITTLE,),
            **changes,
        }
    )
    node = ArrayNode(path=PATH, dialect="v3_2019", metadata=metadata, chunk_prefix=LAYOUT.chunk_prefix(PATH))
    with pytest.raises(NotRepresentable):
        LAYOUT.format(node)


def test_uris_are_matched_whole() -> None:
    assert protocol_version(PROTOCOL) == (3, 0)
    assert protocol_version(f"{PROTOCOL}.1") is None
    assert name_in_uri("https://purl.org/zarr/spec/codec/gzip/1.0", ("codec",)) == "gzip"
    assert name_in_uri("https://purl.org/zarr/spec/codec/", ("codec",)) is None
    assert name_in_uri("https://purl.org/zarr/spec/codec/gzip?x", ("codec",)) is None
    assert name_in_uri(None, ("codec",)) is None


# --- stores of others -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("v3_2019"), ids=lambda case: case.name)
def test_stores_of_others_are_parsed(case: Case) -> None:
    layout = PLUGIN.open(Prefix(""), {Key("zarr.json"): case.values["zarr.json"]})
    assert layout is not None
    for each in case.nodes():
        path = NodePath(each["path"])
        documents = {key: case.values[key] for key in layout.document_keys(path) if key in case.values}
        node = layout.parse(path, documents)
        if each["kind"] == "group":
            implied = each.get("implicit", False)
            assert node is None if implied else node == GroupNode(path=path, dialect="v3_2019", attributes=each["attributes"])
            continue
        assert isinstance(node, ArrayNode)
        assert node.metadata.shape == tuple(each["shape"])
        assert node.metadata.chunk_grid == RegularGrid(tuple(each["chunk_shape"]))
        assert node.attributes == each["attributes"]
        assert node.metadata.data_type.dtype == np.dtype(each["dtype"]).newbyteorder("<")
        assert (node.metadata.fill_value is None) == (each["fill_value"] is None)
        for coords in np.ndindex(*each["chunk_grid_shape"]):
            key = node.metadata.chunk_key_encoding.key(node.chunk_prefix, coords)
            assert (key in case.values) == (list(coords) not in each["missing_chunks"]), key
