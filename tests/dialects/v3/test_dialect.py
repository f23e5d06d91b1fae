"""The final Zarr v3: the rules of the text by section, data of real software, and our documents as read by zarr-python."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from zarr.core.buffer.cpu import Buffer
from zarr.storage import MemoryStore

from tests.dialects.conformance import array_metadata
from tests.support.cases import Case, below, cases
from tests.support.data_types import elements, variable_types
from tests.support.length import unhurried
from zarrfs.codecs import lookup
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects.base import Edit
from zarrfs.dialects.v3.dialect import PLUGIN, V3Layout
from zarrfs.errors import MetadataError, MetadataUnsupported, NameInvalid, NotRepresentable
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import OBJECT, STRING, from_name, from_numpy
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ARRAY = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4, 6],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [LITTLE],
}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
GROUP = {"zarr_format": 3, "node_type": "group"}
LAYOUT = PLUGIN.create(Prefix(""))
ROOT_KEY = Key("zarr.json")


def dumped(document: Any) -> bytes:
    return json.dumps(document).encode()


def parse(document: Any) -> Any:
    return LAYOUT.parse(ROOT, {ROOT_KEY: dumped(document)})


def array(**members: Any) -> ArrayNode:
    """Return the array of the example with other ``members``; Ellipsis removes one."""
    document = {name: value for name, value in {**ARRAY, **members}.items() if value is not ...}
    node = parse(document)
    assert isinstance(node, ArrayNode)
    return node


def node_of(metadata: ArrayMetadata, attributes: dict[str, Any] | None = None) -> ArrayNode:
    return ArrayNode(path=ROOT, dialect="v3", metadata=metadata, chunk_prefix=Prefix(""), attributes=attributes or {})


def plain(**members: Any) -> ArrayMetadata:
    """Return metadata of a small array."""
    return ArrayMetadata(
        **{
            "shape": (4, 6),
            "data_type": from_name("int32"),
            "chunk_grid": RegularGrid((2, 3)),
            "chunk_key_encoding": chunk_key.default(),
            "fill_value": bytes(4),
            "codecs": (CodecSpec("bytes", {"endian": "little"}),),
            **members,
        }
    )


# --- "Array metadata" -------------------------------------------------------------------------------------------------------------


def test_an_array_is_what_its_document_says() -> None:
    node = array(dimension_names=["y", None], attributes={"a": [1, None]}, storage_transformers=[])
    assert node == node_of(plain(dimension_names=("y", None)), {"a": [1, None]})
    assert array() == node_of(plain())


@pytest.mark.parametrize("name", ["shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "node_type"])
def test_mandatory_members_cannot_be_left_out(name: str) -> None:
    with pytest.raises(MetadataError):
        array(**{name: ...})


@pytest.mark.parametrize("version", [2, 4, "3", 3.0, True, None, [3], ...])
def test_zarr_format_is_the_integer_3(version: Any) -> None:
    with pytest.raises(MetadataError):
        array(zarr_format=version)


@pytest.mark.parametrize("node_type", ["widget", "Array", None, 1, ["array"], {}])
def test_node_type_is_array_or_group(node_type: Any) -> None:
    with pytest.raises(MetadataError):
        array(node_type=node_type)


@pytest.mark.parametrize("shape", [[-1, 6], [4.0, 6], ["4", 6], [True, 6], [2**63, 6], 4, None, {}, [4], [4, 6, 1], [1] * 40])
def test_shape_is_one_length_for_each_dimension(shape: Any) -> None:
    with pytest.raises(MetadataError):
        array(shape=shape)


@pytest.mark.parametrize("names", [["y"], ["y", "x", "z"], ["y", 1], "yx", {}])
def test_dimension_names_are_strings_or_null_for_each_dimension(names: Any) -> None:
    with pytest.raises(MetadataError):
        array(dimension_names=names)


def test_dimension_names_may_be_null_as_a_whole_and_need_not_differ() -> None:
    assert array(dimension_names=None).metadata.dimension_names is None
    assert array(dimension_names=["x", "x"]).metadata.dimension_names == ("x", "x")


@pytest.mark.parametrize("attributes", [None, [], "x", 1])
@pytest.mark.parametrize("document", [ARRAY, GROUP])
def test_attributes_are_an_object(document: Any, attributes: Any) -> None:
    with pytest.raises(MetadataError):
        parse({**document, "attributes": attributes})


@pytest.mark.parametrize("transformers", [None, [], [{"name": "x", "must_understand": False}]])
def test_storage_transformers_that_are_none_or_may_be_ignored(transformers: Any) -> None:
    assert array(storage_transformers=transformers) == array()


@pytest.mark.parametrize("transformers", [["x"], [{"name": "x"}], [{"name": "x", "must_understand": True}], {}, "x", [3]])
def test_other_storage_transformers_are_refused(transformers: Any) -> None:
    with pytest.raises(MetadataError):
        array(storage_transformers=transformers)


# --- "Chunk grids", "Chunk key encoding" -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [[0, 3], [-1, 3], [2], [2, 3, 1], [2.0, 3], None, "2", [2**62, 1], [2**31, 1]])
def test_chunk_lengths_are_greater_than_zero_and_as_many_as_dimensions(chunks: Any) -> None:
    with pytest.raises(MetadataError):
        array(chunk_grid={"name": "regular", "configuration": {"chunk_shape": chunks}})


@pytest.mark.parametrize(
    "grid", ["regular", {"name": "regular"}, {"name": "regular", "configuration": {}}, {"configuration": {"chunk_shape": [2, 3]}}]
)
def test_a_regular_grid_needs_its_chunk_shape(grid: Any) -> None:
    with pytest.raises(MetadataError):
        array(chunk_grid=grid)


@pytest.mark.parametrize("name", ["rectilinear", "rectangular", "hexagonal"])
def test_other_grids_are_unsupported(name: str) -> None:
    with pytest.raises(MetadataUnsupported, match=name):
        array(chunk_grid={"name": name, "configuration": {"kind": "inline", "chunk_shapes": [[4], [2, 4]]}})


def test_a_chunk_length_of_zero_is_taken_where_there_are_no_elements() -> None:
    node = array(shape=[0, 6], chunk_grid={"name": "regular", "configuration": {"chunk_shape": [0, 3]}})
    assert node.metadata.grid_shape == (0, 2) and len(node.quirks) == 1
    (document,) = LAYOUT.format(node).values()
    assert json.loads(document)["chunk_grid"]["configuration"]["chunk_shape"] == [1, 3]


@pytest.mark.parametrize(
    ("said", "key"),
    [
        ("default", "c/1/2"),
        ({"name": "default"}, "c/1/2"),
        ({"name": "default", "configuration": {}}, "c/1/2"),
        ({"name": "default", "configuration": None}, "c/1/2"),
        ({"name": "default", "configuration": {"separator": "."}}, "c.1.2"),
        ("v2", "1.2"),
        ({"name": "v2"}, "1.2"),
        ({"name": "v2", "configuration": {"separator": "/"}}, "1/2"),
    ],
)
def test_the_separator_of_chunk_keys_has_a_default(said: Any, key: str) -> None:
    node = array(chunk_key_encoding=said)
    assert node.metadata.chunk_key_encoding.encode((1, 2)) == key


@pytest.mark.parametrize("separator", ["-", "", None, 1, "//", ["/"]])
def test_the_separator_is_a_slash_or_a_period(separator: Any) -> None:
    with pytest.raises(MetadataError):
        array(chunk_key_encoding={"name": "default", "configuration": {"separator": separator}})


@pytest.mark.parametrize("said", ["fanout", {"name": "default", "configuration": {"separator": "/", "x": 1}}])
def test_other_chunk_key_encodings_are_unsupported(said: Any) -> None:
    with pytest.raises(MetadataUnsupported):
        array(chunk_key_encoding=said)


# --- "Data types", "Permitted fill values" ----------------------------------------------------------------------------------------------


def test_a_data_type_may_be_an_object() -> None:
    assert array(data_type={"name": "int32"}) == array()


@pytest.mark.parametrize(
    ("name", "codec"), [("string", "vlen-utf8"), ("bytes", "vlen-bytes"), ("variable_length_bytes", "vlen-bytes")]
)
def test_elements_of_variable_length(name: str, codec: str) -> None:
    """zarr-extensions, data types ``string`` and ``bytes``, and the codecs for them."""
    metadata = array(data_type=name, codecs=[{"name": codec}], fill_value="").metadata
    assert (metadata.data_type.name, metadata.fill_value, metadata.codecs) == (name, b"", (CodecSpec(codec),))
    for other in ({"name": "bytes", "configuration": {"endian": "little"}}, {"name": "numcodecs.json2"}, {"name": "vlen-x"}):
        with pytest.raises(MetadataError):
            array(data_type=name, codecs=[other], fill_value="")
    wrong = "vlen-bytes" if codec == "vlen-utf8" else "vlen-utf8"
    with pytest.raises(MetadataError, match="does not accept"):
        array(data_type=name, codecs=[{"name": wrong}], fill_value="")


@pytest.mark.parametrize("name", ["int128", "r7", "<i4", "", None, 1, ["int32"], {"name": "r24", "configuration": {"x": 1}}])
def test_an_unknown_data_type_is_refused(name: Any) -> None:
    with pytest.raises(MetadataError):
        array(data_type=name)


def test_a_field_has_no_shape() -> None:
    fields = {"name": "structured", "configuration": {"fields": [["a", "int8", [2]]]}}
    with pytest.raises(MetadataError):
        array(data_type=fields, fill_value="AAA=", codecs=["bytes"])


@pytest.mark.parametrize("value", [1.5, "0.5", "0x0", "2147483648", True, 2**31, [0], {}])
def test_a_fill_value_that_is_none_of_the_type_is_refused(value: Any) -> None:
    with pytest.raises(MetadataError):
        array(fill_value=value)


def test_an_integer_fill_value_written_with_a_fraction_is_read_and_noted() -> None:
    node = array(fill_value=3.0)
    assert node.metadata.fill_value == b"\3\0\0\0" and len(node.quirks) == 1


def test_a_fill_value_of_null_is_undefined_and_written_as_zeros() -> None:
    node = array(fill_value=None)
    assert node.metadata.fill_value is None and len(node.quirks) == 1
    (document,) = LAYOUT.format(node).values()
    assert json.loads(document)["fill_value"] == 0


def test_base64_of_fields_has_the_byte_order_of_the_bytes_codec() -> None:
    fields = {"name": "structured", "configuration": {"fields": [["a", "int16"], ["b", "uint8"]]}}
    big = {"name": "bytes", "configuration": {"endian": "big"}}
    said = {"data_type": fields, "fill_value": "AQID"}
    assert array(**said, codecs=["bytes"]).metadata.fill_value == b"\1\2\3"
    node = array(**said, codecs=[big])
    assert node.metadata.fill_value == b"\2\1\3"
    (document,) = LAYOUT.format(node).values()
    assert json.loads(document)["fill_value"] == "AQID"


# --- "Codecs" -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "codecs",
    [
        [{"name": "gzip", "configuration": {"level": 1}}, LITTLE],
        [LITTLE, LITTLE],
        [LITTLE, {"name": "transpose", "configuration": {"order": [1, 0]}}],
        [{"name": "transpose", "configuration": {"order": [0, 0]}}, LITTLE],
        [{"name": "transpose", "configuration": {"order": [0, -3]}}, LITTLE],
        [{"name": "transpose", "configuration": {"order": "K"}}, LITTLE],
        [{"name": "bytes", "configuration": {"endian": "middle"}}],
        [{"name": "bytes", "configuration": {"dtype": "<i4"}}],
        [LITTLE, {"name": "no-such-codec"}],
        [LITTLE, {"name": "gzip", "configuration": []}],
        [LITTLE, {"configuration": {}}],
        [LITTLE, 3],
        [LITTLE, None],
        [LITTLE, *[{"name": "gzip", "configuration": {"level": 1}}] * 5000],
        {},
        "bytes",
        None,
    ],
)
def test_a_chain_is_arrays_then_bytes_once_then_bytes(codecs: Any) -> None:
    with pytest.raises(MetadataError):
        array(codecs=codecs)


@pytest.mark.parametrize(
    ("choice", "members", "meant"),
    [
        ("codecs", {"codecs": ...}, {"codecs": [LITTLE]}),
        ("codecs", {"codecs": [GZIP]}, {"codecs": [LITTLE, GZIP]}),
        ("codecs", {"codecs": [TRANSPOSE, GZIP]}, {"codecs": [TRANSPOSE, LITTLE, GZIP]}),
        ("fill_value", {"fill_value": "7"}, {"fill_value": 7}),
    ],
)
def test_what_software_wrote_otherwise_is_read_and_told_and_can_be_refused(
    choice: str, members: dict[str, Any], meant: dict[str, Any]
) -> None:
    node = array(**members)
    assert node.metadata == array(**meant).metadata and len(node.quirks) == 1
    strict = PLUGIN.choosing({choice: "refuse"}).create(Prefix(""))
    document = {name: value for name, value in {**ARRAY, **members}.items() if value is not ...}
    with pytest.raises(MetadataError, match=rf"v3\.{choice}=refuse"):
        strict.parse(ROOT, {ROOT_KEY: json.dumps(document).encode()})


def test_an_empty_chain_is_refused_by_choice() -> None:
    strict = PLUGIN.choosing({"codecs": "refuse"}).create(Prefix(""))
    with pytest.raises(MetadataError, match=r"v3\.codecs=refuse"):
        strict.parse(ROOT, {ROOT_KEY: json.dumps({**ARRAY, "codecs": []}).encode()})


def test_an_empty_chain_is_taken_for_plain_little_endian() -> None:
    node = array(codecs=[])
    assert node.metadata.codecs == () and len(node.quirks) == 1
    (document,) = LAYOUT.format(node).values()
    assert json.loads(document)["codecs"] == [LITTLE]


@pytest.mark.parametrize(("order", "axes"), [("C", [0, 1]), ("F", [1, 0])])
def test_transpose_by_letter_is_read_as_a_list(order: str, axes: list[int]) -> None:
    node = array(codecs=[{"name": "transpose", "configuration": {"order": order}}, LITTLE])
    assert node.metadata.codecs[0] == CodecSpec("transpose", {"order": axes}) and len(node.quirks) == 1


def test_a_byte_order_of_single_bytes_is_no_matter() -> None:
    assert array(data_type="uint8").metadata.codecs == (CodecSpec("bytes", {"endian": "little"}),)


# --- "Extension definition" -------------------------------------------------------------------------------------------------------------


def test_short_hand_names_stand_for_objects() -> None:
    node = array(data_type="uint8", codecs=["bytes", "crc32c"], chunk_key_encoding="v2")
    assert node.metadata.codecs == (CodecSpec("bytes"), CodecSpec("crc32c"))


def test_an_unknown_codec_that_may_be_ignored_is_left_out() -> None:
    node = array(codecs=[LITTLE, {"name": "statistics", "configuration": {"x": 1}, "must_understand": False}])
    assert node.metadata.codecs == array().metadata.codecs and "statistics" in node.quirks[0]
    known = array(codecs=[LITTLE, {"name": "gzip", "configuration": {"level": 1}, "must_understand": False}])
    assert known.metadata.codecs[1] == CodecSpec("gzip", {"level": 1}) and not known.quirks


@pytest.mark.parametrize("must_understand", [True, None, 1, "false"])
def test_an_unknown_codec_is_refused_otherwise(must_understand: Any) -> None:
    with pytest.raises(MetadataError):
        array(codecs=[LITTLE, {"name": "statistics", "must_understand": must_understand}])


@pytest.mark.parametrize("name", ["data_type", "chunk_grid", "chunk_key_encoding"])
def test_types_grids_and_key_encodings_cannot_be_ignored(name: str) -> None:
    with pytest.raises(MetadataUnsupported):
        array(**{name: {"name": "strange", "must_understand": False}})


@pytest.mark.parametrize("document", [ARRAY, GROUP])
def test_an_unknown_member_must_say_that_it_may_be_ignored(document: Any) -> None:
    assert parse({**document, "strange": {"must_understand": False, "x": 1}}) == parse(document)
    for value in ({"must_understand": True}, {"must_understand": 0}, {"x": 1}, {}, [], None, 1, "x"):
        with pytest.raises(MetadataUnsupported, match="strange"):
            parse({**document, "strange": value})


def test_an_unknown_member_of_an_extension_object_is_refused() -> None:
    with pytest.raises(MetadataUnsupported):
        array(codecs=[{"name": "bytes", "endian": "little"}])


# --- "Stored representation", "Node names", "Storage" -----------------------------------------------------------------------------------


def test_documents_and_chunks_lie_in_the_folder_of_the_node() -> None:
    path, layout = NodePath("/foo/baz"), PLUGIN.create(Prefix("x.zarr/"))
    assert LAYOUT.document_keys(ROOT) == ("zarr.json",)
    assert layout.document_keys(path) == ("x.zarr/foo/baz/zarr.json",)
    assert layout.chunk_prefix(path).key(chunk_key.default().encode((1, 0))) == "x.zarr/foo/baz/c/1/0"
    assert layout.listing_prefix(ROOT) == "x.zarr/"


def test_a_document_leads_to_its_node() -> None:
    layout = PLUGIN.create(Prefix("x/"))
    assert layout.node_of_document(Key("x/zarr.json")) == ROOT
    assert layout.node_of_document(Key("x/a/b/zarr.json")) == "/a/b"
    for key in ("zarr.json", "x/a/c/0", "x/a/zarr.jsonx", "x//zarr.json", "x/a//zarr.json", "x/../zarr.json", "x/__a/zarr.json"):
        assert layout.node_of_document(Key(key)) is None


BAD_NAMES = ["", ".", "..", "...", "a/b", "__a", "__", "__zarr", "zarr.json", "\udc80"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_the_text_forbids(name: str) -> None:
    with pytest.raises(NameInvalid):
        LAYOUT.check_name(name)
    assert name not in LAYOUT.child_names(ROOT, [], [name])


@pytest.mark.parametrize("name", ["a", "A", "_a", ".a", "a.", "é", "c", "0", "zarr.json.bak", " "])
def test_names_that_the_text_allows(name: str) -> None:
    LAYOUT.check_name(name)
    assert LAYOUT.child_names(ROOT, [name], []) == set()
    assert LAYOUT.child_names(ROOT, [], [name]) == {name}


def test_no_node_has_a_reserved_name() -> None:
    assert LAYOUT.parse(NodePath("/__a/b"), {Key("__a/b/zarr.json"): dumped(GROUP)}) is None


def test_a_prefix_without_a_document_is_no_node_of_its_own() -> None:
    assert LAYOUT.parse(NodePath("/a"), {}) is None
    assert LAYOUT.required_groups(NodePath("/a/b")) == ("/", "/a")


# --- detection of our documents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        {"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0", "metadata_encoding": "application/json", "extensions": []},
        {"zarr_format": 2},
        {},
    ],
)
def test_the_entry_point_of_an_older_layout_is_not_ours(document: Any) -> None:
    assert PLUGIN.open(Prefix(""), {ROOT_KEY: dumped(document)}) is None
    assert parse(document) is None


@pytest.mark.parametrize(
    "data", [dumped(GROUP), dumped(ARRAY), dumped({"zarr_format": 3}), dumped({"node_type": "x"}), b"{", b"\xff", b""]
)
def test_whatever_else_lies_there_is_ours_good_or_bad(data: bytes) -> None:
    assert PLUGIN.open(Prefix(""), {ROOT_KEY: data}) == V3Layout(Prefix(""))


def test_a_bad_root_document_is_told_when_it_is_parsed() -> None:
    for data in (dumped({"zarr_format": 3}), b"{", dumped({**GROUP, "consolidated_metadata": 3})):
        layout = PLUGIN.open(Prefix(""), {ROOT_KEY: data})
        assert layout is not None
        with pytest.raises(MetadataError, match=r"zarr\.json"):
            layout.parse(ROOT, {ROOT_KEY: data})


# --- "Additional fields": the consolidated copy -------------------------------------------------------------------------------------


def consolidated(metadata: Any) -> dict[str, Any]:
    return {**GROUP, "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": metadata}}


def opened(document: Any) -> V3Layout:
    layout = PLUGIN.open(Prefix(""), {ROOT_KEY: dumped(document)})
    assert layout is not None
    return layout


def test_the_copy_serves_who_cannot_list() -> None:
    layout = opened(consolidated({"a": ARRAY, "g": GROUP, "g/h/b": ARRAY}))
    assert layout.consolidated_names(ROOT) == {"a", "g"}
    assert layout.consolidated_names(NodePath("/g")) == {"h"}
    assert layout.consolidated_names(NodePath("/a")) == set()
    assert isinstance(layout.parse(NodePath("/a"), {}), ArrayNode)
    assert layout.parse(NodePath("/g"), {}) == GroupNode(path=NodePath("/g"), dialect="v3")
    assert layout.parse(NodePath("/g/h"), {}) == GroupNode(path=NodePath("/g/h"), dialect="v3", explicit=False)
    assert layout.parse(NodePath("/g/x"), {}) is None


def test_a_nodes_own_document_wins_over_the_copy() -> None:
    layout = opened(consolidated({"a": ARRAY}))
    node = layout.parse(NodePath("/a"), {Key("a/zarr.json"): dumped({**GROUP, "attributes": {"own": 1}})})
    assert node == GroupNode(path=NodePath("/a"), dialect="v3", attributes={"own": 1})


def test_without_a_copy_nothing_is_known() -> None:
    assert opened(GROUP).consolidated_names(ROOT) is None
    assert opened({**GROUP, "consolidated_metadata": None}).consolidated_names(ROOT) is None
    assert opened({**GROUP, "consolidated_metadata": {"kind": "x", "must_understand": False}}).consolidated_names(ROOT) is None


def test_a_bad_copy_of_a_node_spoils_that_node_alone() -> None:
    layout = opened(
        consolidated({"a": ARRAY, "b": 3, "c": {**ARRAY, "shape": None}, "../d": ARRAY, "e//f": ARRAY, "": ARRAY, "__g": ARRAY})
    )
    assert layout.consolidated_names(ROOT) == {"a", "b", "c"}
    for name in "bc":
        with pytest.raises(MetadataError, match=f"consolidated_metadata of /{name}"):
            layout.parse(NodePath(f"/{name}"), {})


@pytest.mark.parametrize("copy", [3, [], {"kind": "x"}, {"kind": "inline"}, {"kind": "inline", "metadata": []}])
def test_a_copy_is_an_object_of_kind_inline(copy: Any) -> None:
    with pytest.raises(MetadataError):
        parse({**GROUP, "consolidated_metadata": copy})


# --- amend ------------------------------------------------------------------------------------------------------------------------------


def test_an_edit_leaves_everything_else_as_it_was_written() -> None:
    document = b'{"zarr_format":3, "node_type":"array",\t"x": {"must_understand": false, "n": 1.50},"shape":[4,6],' + dumped(
        {name: ARRAY[name] for name in ("data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs")}
    ).lstrip(b"{")
    amended = LAYOUT.amend(ROOT, {ROOT_KEY: document}, Edit(shape=(8, 6)))
    assert amended == {ROOT_KEY: document.replace(b"[4,6]", b"[8, 6]")}
    with_attributes = LAYOUT.amend(ROOT, {ROOT_KEY: document}, Edit(attributes={"a": 1}))[ROOT_KEY]
    assert with_attributes == document[:-1] + b', "attributes": {"a": 1}}'


def test_an_edit_reaches_every_copy() -> None:
    path = NodePath("/g/b")
    root, group = consolidated({"g": GROUP, "g/b": ARRAY, "z": ARRAY}), consolidated({"b": ARRAY, "c": ARRAY})
    documents = {Key("zarr.json"): dumped(root), Key("g/zarr.json"): dumped(group), Key("g/b/zarr.json"): dumped(ARRAY)}
    assert LAYOUT.consolidated_keys(path) == ("zarr.json", "g/zarr.json")
    amended = LAYOUT.amend(path, documents, Edit(attributes={"n": 1}, shape=(8, 6)))
    changed = {**ARRAY, "shape": [8, 6], "attributes": {"n": 1}}
    assert json.loads(amended[Key("g/b/zarr.json")]) == changed
    assert json.loads(amended[Key("zarr.json")]) == consolidated({"g": GROUP, "g/b": changed, "z": ARRAY})
    assert json.loads(amended[Key("g/zarr.json")]) == consolidated({"b": changed, "c": ARRAY})


@pytest.mark.parametrize("root", [GROUP, consolidated({"b": ARRAY}), consolidated({"a": 3}), {"zarr_format": 2}, 3])
def test_a_parent_without_a_copy_of_the_node_is_left_alone(root: Any) -> None:
    documents = {Key("zarr.json"): dumped(root), Key("a/zarr.json"): dumped(ARRAY)}
    assert set(LAYOUT.amend(NodePath("/a"), documents, Edit(attributes={}))) == {"a/zarr.json"}


@pytest.mark.parametrize("shape", [(8,), (-1, 6), (8, 6, 1)])
def test_an_edit_that_makes_a_bad_document_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(MetadataError):
        LAYOUT.amend(ROOT, {ROOT_KEY: dumped(ARRAY)}, Edit(shape=shape))


@pytest.mark.parametrize("document", [{"zarr_format": 2}, {}, 3])
def test_what_is_not_ours_is_not_edited(document: Any) -> None:
    with pytest.raises(MetadataError):
        LAYOUT.amend(ROOT, {ROOT_KEY: dumped(document)}, Edit(attributes={"a": 1}))


# --- format -----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        plain(chunk_key_encoding=ChunkKeyEncoding("c", "/", "c0")),
        plain(chunk_key_encoding=ChunkKeyEncoding("", ".", "0", ".blosc")),
        plain(codecs=(CodecSpec("bytes", {"dtype": [["f0", ">i2"], ["f1", "<i2"]]}),), data_type=from_numpy(np.dtype("<i2,<i2"))),
        plain(data_type=from_numpy(np.dtype([("a", "<i2", (2,))]))),
        plain(data_type=from_name("fixed_length_utf32", {"length_bytes": 4}), fill_value=b"\xff\xff\xff\xff"),
    ],
)
def test_what_v3_has_no_words_for(metadata: ArrayMetadata) -> None:
    with pytest.raises(NotRepresentable):
        LAYOUT.format(node_of(metadata))


@pytest.mark.parametrize(
    ("given_codecs", "written"),
    [
        ((), [LITTLE]),
        ((CodecSpec("gzip", {"level": 1}),), [LITTLE, {"name": "gzip", "configuration": {"level": 1}}]),
        (
            (CodecSpec("transpose", {"order": [1, 0]}), CodecSpec("crc32c")),
            [{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE, {"name": "crc32c"}],
        ),
    ],
)
def test_a_chain_that_never_makes_bytes_gets_the_codec_for_it(given_codecs: Any, written: Any) -> None:
    (document,) = LAYOUT.format(node_of(plain(codecs=given_codecs))).values()
    assert json.loads(document)["codecs"] == written


@unhurried
@given(data=st.data())
def test_arrays_of_variable_length_are_read_as_they_were_written(data: st.DataObject) -> None:
    data_type = data.draw(variable_types())
    fill = data.draw(elements(data_type))
    codec = CodecSpec("vlen-utf8" if data_type == STRING else "vlen-bytes")
    order = data.draw(st.sampled_from([(), (CodecSpec("transpose", {"order": [1, 0]}),)]))
    codecs = (*order, codec, CodecSpec("gzip", {"level": 1}))
    if data_type == OBJECT:
        with pytest.raises(NotRepresentable, match="objects of any kind"):
            LAYOUT.format(node_of(plain(data_type=data_type, fill_value=fill, codecs=())))
        return
    metadata = plain(data_type=data_type, fill_value=fill, codecs=codecs)
    documents = LAYOUT.format(node_of(metadata))
    node = LAYOUT.parse(ROOT, documents)
    assert isinstance(node, ArrayNode) and node.metadata == metadata
    edited = LAYOUT.amend(ROOT, documents, Edit(attributes={"a": 1}, shape=(9, 9)))
    node = LAYOUT.parse(ROOT, edited)
    assert isinstance(node, ArrayNode) and node.metadata == replace(metadata, shape=(9, 9))


SMALL = "int2 int4 bfloat16 float8_e3m4 float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2 float8_e5m2fnuz float4_e2m1fn"


@pytest.mark.parametrize("name", SMALL.split())
def test_small_types_are_stored_as_tensorstore_stores_them(name: str, tmp_path: Path) -> None:
    """A byte for each element, however few bits it has, as zarr-extensions defines it; the high bits repeat the sign."""
    if not hasattr(tensorstore, name):
        pytest.skip("this tensorstore lacks it")
    where = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/"}
    written = tensorstore.open({**where, "create": True}, dtype=getattr(tensorstore, name), shape=[4], fill_value=1).result()
    numbers = [1, 0, -1 if name != "int2" else -2, 1]
    given_elements = np.array(numbers).astype(from_name(name).dtype)
    written.write(given_elements).result()
    documents = {ROOT_KEY: (tmp_path / "zarr.json").read_bytes()}
    node = LAYOUT.parse(ROOT, documents)
    assert isinstance(node, ArrayNode) and node.metadata.data_type == from_name(name)
    assert node.metadata.fill_value == given_elements[:1].tobytes()
    chain = CodecChain.build(node.metadata.codecs, node.metadata.data_type)
    stored = (tmp_path / "c" / "0").read_bytes()
    assert chain.decode(stored, (4,)).tobytes() == given_elements.tobytes()
    # And back: tensorstore reads the document and chunk written here.
    (tmp_path / "zarr.json").write_bytes(LAYOUT.format(node)[ROOT_KEY])
    (tmp_path / "c" / "0").write_bytes(bytes(chain.encode(given_elements[::-1].copy())))
    again = tensorstore.open({**where, "open": True}).result().read().result()
    assert again.tobytes() == given_elements[::-1].tobytes()


def test_every_codec_of_numcodecs_that_zarr_python_names_is_known_or_left_out_for_a_reason() -> None:
    """``numcodecs.zfpy`` and ``numcodecs.pcodec`` need libraries that are not dependencies: a lossy one, and one in another language."""
    from zarr.codecs import numcodecs as theirs

    named = {getattr(theirs, each).codec_name for each in theirs.__all__ if not each.startswith("_")}
    unknown = set()
    for name in named:
        try:
            lookup.class_of(CodecSpec(name))
        except MetadataUnsupported:
            unknown.add(name)
    assert len(named) >= 20 and unknown == {"numcodecs.zfpy", "numcodecs.pcodec"}


# --- real software ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("v3_final"), ids=lambda case: case.name)
def test_stores_of_other_software_mean_what_their_writers_say(case: Case) -> None:
    values = case.values
    layout = PLUGIN.open(Prefix(""), {Key(k): values[k] for k in PLUGIN.root_keys(Prefix("")) if k in values})
    assert layout is not None
    for said in case.nodes():
        path = NodePath(said["path"])
        documents = {key: values[key] for key in layout.document_keys(path) if key in values}
        if said.get("implicit"):
            assert layout.parse(path, documents) is None
            continue
        if "expected_json" in said:
            node = layout.parse(path, documents)
            # tests/codecs/test_objects.py tests the content of its chunks.
            assert isinstance(node, ArrayNode) and node.metadata.data_type == STRING
            continue
        node = layout.parse(path, documents)
        assert node is not None and node.path == path
        if isinstance(node, GroupNode):
            assert said["kind"] == "group" and node.attributes == said["attributes"]
            keys, prefixes = below(layout.listing_prefix(path), values)
            names = {NodePath(each["path"]).name for each in case.nodes() if NodePath(each["path"]).parent == path != each["path"]}
            assert layout.child_names(path, keys, prefixes) == names
            continue
        assert isinstance(node, ArrayNode) and not node.quirks and said["kind"] == "array"
        metadata, expected = node.metadata, case.expected(said)
        stored = said["chunk_shape"]
        chunks = said.get("innermost_chunk_shape") or said.get("inner_chunk_shape") or stored
        assert (list(metadata.shape), list(metadata.chunk_grid.chunk_shape(()))) == (said["shape"], chunks)
        assert metadata.chunks_per_key == tuple(whole // part for whole, part in zip(stored, chunks, strict=True))
        assert len(metadata.shards) == sum(bool(said.get(name)) for name in ("inner_chunk_shape", "innermost_chunk_shape"))
        assert metadata.data_type.npy_dtype == expected.dtype.newbyteorder("<")
        assert list(metadata.stored_grid_shape) == said["chunk_grid_shape"]
        assert node.attributes == said.get("attributes", {})
        assert metadata.dimension_names == (tuple(said["dimension_names"]) if "dimension_names" in said else None)
        for coords in said["missing_chunks"][:1]:
            corner = tuple(index * length for index, length in zip(coords, stored, strict=True))
            element = expected[corner] if corner else expected[()]
            assert np.asarray(element, expected.dtype.newbyteorder("<")).tobytes() == metadata.fill_value


@pytest.mark.parametrize("case", [case for case in cases("hostile") if "v3" in case.name], ids=lambda case: case.name)
def test_hostile_documents_are_refused_one_by_one(case: Case) -> None:
    values = case.values
    _, names = below("", values)
    for name in names:
        documents = {key: values[key] for key in LAYOUT.document_keys(NodePath(f"/{name}")) if key in values}
        if name in ("ok", "no_bytes_codec") or case.name == "hostile/v3_bad_shards":
            assert isinstance(LAYOUT.parse(NodePath(f"/{name}"), documents), ArrayNode)
            continue
        with pytest.raises(MetadataError) as caught:
            LAYOUT.parse(NodePath(f"/{name}"), documents)
        assert len(str(caught.value)) < 500


TYPES = [
    "?",
    "i1",
    ">i2",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    "c16",
    "V5",
    "S3",
    "U2",
    "M8[10us]",
    "m8[s]",
    [("a", "i4"), ("b", [("c", "f4")])],
]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_arrays_of_zarr_python_are_read_and_ours_are_read_by_it(dtype: Any) -> None:
    store: dict[str, Any] = {}
    fill = (
        np.array(1, dtype)[()] if dtype in ("U2", "?") else np.frombuffer(bytes(range(1, 1 + np.dtype(dtype).itemsize)), dtype)[0]
    )
    theirs = zarr.create_array(
        MemoryStore(store),
        name="a",
        shape=(5, 4),
        chunks=(2, 3),
        dtype=dtype,
        fill_value=fill,
        filters=[zarr.codecs.TransposeCodec(order=(1, 0))],
        compressors=[zarr.codecs.GzipCodec(level=1), zarr.codecs.Crc32cCodec()],
        attributes={"é": [1.5, None]},
        dimension_names=["y", None],
        chunk_key_encoding={"name": "default", "separator": "."},
    )
    document = store["a/zarr.json"].to_bytes()
    node = LAYOUT.parse(NodePath("/a"), {Key("a/zarr.json"): document})
    assert isinstance(node, ArrayNode) and not node.quirks
    assert node.metadata.fill_value == np.asarray(theirs.fill_value).astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    (ours,) = LAYOUT.format(node).values()
    if node.metadata.data_type.name == "structured":
        # The extension's text demands the byte order that zarr-python leaves out.
        assert json.loads(ours)["codecs"][1] == LITTLE
    else:
        assert ours == document


@given(array_metadata())
@settings(suppress_health_check=[HealthCheck.filter_too_much])
@pytest.mark.filterwarnings("ignore")
def test_zarr_python_opens_what_is_written(metadata: ArrayMetadata) -> None:
    data_type = metadata.data_type
    # zarr-python 3.1 supports neither ml_dtypes, nor r<N>, nor the registered name of structured types.
    assume(data_type.dtype == data_type.npy_dtype and not re.search(r'"struct"|"r[0-9]+"', json.dumps(data_type.v3_name)))
    (document,) = LAYOUT.format(node_of(metadata, {"a": 1})).values()
    theirs = zarr.open_array(MemoryStore({"zarr.json": Buffer.from_bytes(document)}), mode="r")
    assert (theirs.shape, theirs.chunks, dict(theirs.attrs)) == (metadata.shape, metadata.chunk_grid.chunk_shape(()), {"a": 1})
    assert theirs.dtype.newbyteorder("<") == data_type.dtype
    key = theirs.metadata.encode_chunk_key((7,) * metadata.ndim)
    assert metadata.chunk_key_encoding.decode(key, metadata.ndim) == (7,) * metadata.ndim
    if data_type.name != "structured":
        assert np.asarray(theirs.fill_value).astype(data_type.dtype).tobytes() == metadata.fill_value
