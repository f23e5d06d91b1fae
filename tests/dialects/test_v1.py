"""Zarr v1: each rule of its text, data of zarr 1.0 and 1.1, and invalid data."""

from __future__ import annotations

import dataclasses
import json
import lzma
from typing import Any

import numpy as np
import pytest

from tests.dialects.conformance import DialectConformance
from tests.support.cases import Case, below, cases
from tests.support.old_layouts import decoded, node_of
from zarrfs.dialects.base import Edit
from zarrfs.dialects.v1.dialect import PLUGIN
from zarrfs.errors import MetadataError, MetadataUnsupported, NameInvalid, NotRepresentable, UsageError
from zarrfs.hierarchy.roots import dialects
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_name, from_numpy
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode
from zarrfs.model.shards import ShardSpec

A = NodePath("/a")
META, ATTRS = Key("a/meta"), Key("a/attrs")
LAYOUT = PLUGIN.create(Prefix(""))
AS_TEXT = PLUGIN.choosing({"order": "text"})
BLOSC = {"clevel": 5, "cname": "lz4", "shuffle": 1}
PLAIN = {
    "zarr_format": 1,
    "shape": [20, 30],
    "chunks": [10, 10],
    "dtype": "<i4",
    "compression": "blosc",
    "compression_opts": BLOSC,
    "fill_value": 0,
    "order": "C",
}
EXAMPLE = """{
    "chunks": [
        10,
        10
    ],
    "compression": "zlib",
    "compression_opts": 1,
    "dtype": "<i4",
    "fill_value": 42,
    "order": "C",
    "shape": [
        20,
        20
    ],
    "zarr_format": 1
}"""
ATTRIBUTES = """{
    "bar": "apples",
    "baz": [
        1,
        2,
        3,
        4
    ],
    "foo": 42
}"""
ALL = cases("v1")
EVERY = pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)


def meta(**members: Any) -> bytes:
    """Return a ``meta`` like `PLAIN`, but with these members; `...` leaves one out."""
    return json.dumps({name: value for name, value in {**PLAIN, **members}.items() if value is not ...}).encode()


def parse(data: bytes, *, attrs: bytes | None = b"{}", dialect: Any = PLUGIN) -> ArrayNode:
    documents = {META: data} | ({ATTRS: attrs} if attrs is not None else {})
    node = dialect.create(Prefix("")).parse(A, documents)
    assert isinstance(node, ArrayNode)
    return node


def array(**members: Any) -> ArrayMetadata:
    return parse(meta(**members)).metadata


def refused(**members: Any) -> str:
    with pytest.raises(MetadataError) as caught:
        array(**members)
    assert caught.value.key == META
    assert len(str(caught.value)) < 400
    return str(caught.value)


def written(metadata: ArrayMetadata) -> dict[str, Any]:
    node = ArrayNode(path=A, dialect="v1", metadata=metadata, chunk_prefix=LAYOUT.chunk_prefix(A))
    return dict(json.loads(LAYOUT.format(node)[META]))


# --- "Metadata" -------------------------------------------------------------------------------------------------------------------


def test_the_document_of_the_text() -> None:
    metadata = array(shape=[10000, 10000], chunks=[1000, 1000], dtype="<f8", fill_value=None)
    assert (metadata.shape, metadata.grid_shape) == ((10000, 10000), (10, 10))
    assert metadata.data_type == from_name("float64") and metadata.fill_value is None
    assert metadata.codecs == (
        CodecSpec("bytes", {"endian": "little"}),
        CodecSpec("blosc", {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}),
    )


def test_documents_are_written_as_in_the_text() -> None:
    """Example: "Initialize the store", "Modify the array attributes"."""
    node = parse(EXAMPLE.encode(), attrs=ATTRIBUTES.encode())
    # The document that makes the array visible comes last.
    assert list(LAYOUT.format(node).items()) == [(ATTRS, ATTRIBUTES.encode()), (META, EXAMPLE.encode())]


@pytest.mark.parametrize("name", list(PLAIN))
def test_keys_that_must_be_present(name: str) -> None:
    """Metadata: "The following keys MUST be present within the object"."""
    assert f"{name} is missing" in refused(**{name: ...})


def test_other_keys_must_not_alter_the_rest() -> None:
    """Metadata: "Other keys MAY be present ... however they MUST NOT alter the interpretation of the required fields"."""
    more = {"filters": [{"id": "delta"}], "compressor": None, "dimension_separator": "/", "zzz": {}}
    assert array(**more) == array()


@pytest.mark.parametrize(
    "members",
    [
        {"zarr_format": 2},
        {"zarr_format": "1"},
        {"zarr_format": True},
        {"zarr_format": 1.0},
        {"shape": [-4, 1]},
        {"shape": "4"},
        {"shape": [4.0, 4.0]},
        {"shape": [4]},
        {"shape": [2**63, 1]},
        {"chunks": [True, 10]},
        {"chunks": [0, 10]},
        {"chunks": 10},
        {"chunks": [2**40, 2**20]},
        {"shape": [1] * 33, "chunks": [1] * 33},
        {"order": "Z"},
        {"order": None},
        {"order": ["C"]},
        {"dtype": "|O"},
        {"dtype": {}},
        {"fill_value": "x"},
        {"fill_value": {}},
        {"compression": 1},
        {"compression": ["zlib"]},
        {"compression": "zlib", "compression_opts": {}},
        {"compression": "zlib", "compression_opts": 10},
        {"compression": "zlib", "compression_opts": -1},
        {"compression": "zlib", "compression_opts": "fast"},
        {"compression": "zlib", "compression_opts": True},
        {"compression": "zlib", "compression_opts": 1.0},
        {"compression": "bz2", "compression_opts": 0},
        {"compression": "none", "compression_opts": 1},
        {"compression": None, "compression_opts": {}},
        {"compression_opts": 5},
        {"compression_opts": "lz4"},
        {"compression_opts": BLOSC | {"cname": "gzip"}},
        {"compression_opts": BLOSC | {"clevel": 10}},
        {"compression_opts": BLOSC | {"shuffle": -1}},
        {"compression_opts": BLOSC | {"shuffle": True}},
        {"compression": "lzma", "compression_opts": {"preset": 1000}},
        {"compression": "lzma", "compression_opts": {"filters": [{"id": 33, "dict_size": 2**40}]}},
        {"compression": "lzma", "compression_opts": 1},
    ],
)
def test_members_that_make_no_array(members: dict[str, Any]) -> None:
    refused(**members)


@pytest.mark.parametrize(
    "members", [{"compression": "zstd"}, {"compression": "default"}, {"compression_opts": BLOSC | {"more": 1}}]
)
def test_what_is_not_known_is_unsupported(members: dict[str, Any]) -> None:
    with pytest.raises(MetadataUnsupported):
        array(**members)


BYTES = CodecSpec("bytes", {"endian": "little"})


@pytest.mark.parametrize(
    ("name", "options", "codec", "again"),
    [
        ("zlib", 6, CodecSpec("numcodecs.zlib", {"level": 6}), ("zlib", 6)),
        ("zlib", "6", CodecSpec("numcodecs.zlib", {"level": 6}), ("zlib", 6)),
        ("zlib", None, CodecSpec("numcodecs.zlib", {"level": 1}), ("zlib", 1)),
        ("gzip", 3, CodecSpec("numcodecs.zlib", {"level": 3}), ("zlib", 3)),
        ("bz2", 9, CodecSpec("numcodecs.bz2", {"level": 9}), ("bz2", 9)),
        ("bz2", None, CodecSpec("numcodecs.bz2", {"level": 1}), ("bz2", 1)),
        ("blosc", None, CodecSpec("blosc", {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}), ("blosc", BLOSC)),
        (
            "blosc",
            {"cname": "zstd"},
            CodecSpec("blosc", {"cname": "zstd", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}),
            ("blosc", BLOSC | {"cname": "zstd"}),
        ),
        (
            "lzma",
            {"check": 0, "filters": None, "format": 1, "preset": 1},
            CodecSpec("numcodecs.lzma", {"format": 1, "check": 0, "preset": 1, "filters": None}),
            ("lzma", {"check": 0, "filters": None, "format": 1, "preset": 1}),
        ),
        (
            "lzma",
            None,
            CodecSpec("numcodecs.lzma", {"format": 1, "check": 0, "preset": 1, "filters": None}),
            ("lzma", {"check": 0, "filters": None, "format": 1, "preset": 1}),
        ),
        (
            "lzma",
            {"filters": [{"id": 3, "dist": 4}, {"id": 33, "preset": 1}], "preset": None, "format": 3, "check": 0},
            CodecSpec(
                "numcodecs.lzma",
                {"format": 3, "check": 0, "preset": None, "filters": [{"id": 3, "dist": 4}, {"id": 33, "preset": 1}]},
            ),
            ("lzma", {"filters": [{"id": 3, "dist": 4}, {"id": 33, "preset": 1}], "preset": None, "format": 3, "check": 0}),
        ),
        ("none", None, None, ("none", None)),
        (None, None, None, ("none", None)),
    ],
)
def test_compression_with_options_of_every_kind(name: Any, options: Any, codec: CodecSpec | None, again: Any) -> None:
    """Metadata, compression_opts: "An integer, string or dictionary"; null where zarr 1.1 fills in its default."""
    metadata = array(compression=name, compression_opts=options)
    assert metadata.codecs == (BYTES, *((codec,) if codec else ()))
    document = written(metadata)
    assert (document["compression"], document["compression_opts"]) == again


def test_lzma_as_zarr_1_1_wrote_it_is_decoded() -> None:
    node = parse(meta(compression="lzma", compression_opts={"check": 0, "filters": None, "format": 1, "preset": 1}, chunks=[2, 3]))
    elements = np.arange(6, dtype="<i4").reshape(2, 3)
    stored = lzma.compress(elements.tobytes(), format=1, check=0, preset=1)
    case = _Stored({"a/0.0": stored})
    assert (decoded(case, node)[:2, :3] == elements).all()  # type: ignore[arg-type]


@dataclasses.dataclass
class _Stored:
    values: dict[str, bytes]


def test_what_it_has_no_words_for() -> None:
    metadata = array()
    blosc = metadata.codecs[1]
    transpose = CodecSpec("transpose", {"order": [1, 0]})
    for codecs in (
        (BYTES, CodecSpec("gzip", {"level": 1})),
        (BYTES, CodecSpec("zstd", {"level": 1, "checksum": False})),
        (BYTES, blosc, CodecSpec("crc32c")),
        (BYTES, CodecSpec("numcodecs.delta", {"dtype": "<i4", "astype": "<i4"}), blosc),
        (BYTES, CodecSpec("numcodecs.zlib", {"level": -1})),
        (BYTES, CodecSpec("numcodecs.lzma", {"format": 1, "check": -1, "preset": None, "filters": None})),
        (BYTES, CodecSpec("blosc", dict(blosc.configuration) | {"blocksize": 512})),
        (BYTES, CodecSpec("no.such.codec")),
        # In this order, programs would read them differently.
        (transpose, BYTES),
        (transpose, BYTES, CodecSpec("numcodecs.zlib", {"level": 1})),
    ):
        with pytest.raises(NotRepresentable):
            written(dataclasses.replace(metadata, codecs=codecs))
    shards = ShardSpec(chunks_per_shard=(2, 2), index_location="end", index_codecs=())
    for members in (
        {"chunk_key_encoding": chunk_key.v2("/")},
        {"chunk_key_encoding": chunk_key.default()},
        {"shards": (shards,)},
        {"data_type": from_numpy(np.dtype([("a", "u1", (2, 2))])), "fill_value": None},
        {"data_type": from_name("bfloat16"), "fill_value": None},
    ):
        with pytest.raises(NotRepresentable):
            written(dataclasses.replace(metadata, **members))  # type: ignore[arg-type]


def test_a_small_type_has_a_number_as_its_fill_value() -> None:
    for number, element in ((-0.0, b"\x00\x80"), (1.5, b"\xc0\x3f"), (0, bytes(2))):
        assert parse(meta(dtype="bfloat16", fill_value=number)).metadata.fill_value == element


# --- "Metadata", order ------------------------------------------------------------------------------------------------------------

TRANSPOSE = CodecSpec("transpose", {"order": [1, 0]})
OTHERS = [("zlib", 1), ("bz2", 1), ("lzma", {"preset": 1}), ("none", None)]


@pytest.mark.parametrize("dialect", [PLUGIN, AS_TEXT])
def test_with_blosc_F_is_F(dialect: Any) -> None:
    """Metadata, order: "'F' means column-major order"."""
    node = parse(meta(order="F"), dialect=dialect)
    assert node.metadata.codecs[0] == TRANSPOSE and not node.quirks
    assert written(node.metadata)["order"] == "F"


@pytest.mark.parametrize(("name", "options"), OTHERS)
def test_with_others_F_is_what_software_wrote_or_what_the_text_says(name: str, options: Any) -> None:
    data = meta(order="F", compression=name, compression_opts=options)
    node, as_text = parse(data), parse(data, dialect=AS_TEXT)
    assert node.metadata.codecs[0] == BYTES and as_text.metadata.codecs[:2] == (TRANSPOSE, BYTES)
    assert "v1.order=text" in node.quirks[0] and "in F order, as specified" in as_text.quirks[0]
    assert (node.warnings, as_text.warnings) == (node.quirks, as_text.quirks)
    assert written(node.metadata)["order"] == "C"
    # Unchanged members keep their spelling.
    edited = LAYOUT.amend(A, {META: data, ATTRS: b"{}"}, Edit(shape=(40, 30)))
    assert json.loads(edited[META]) == json.loads(data) | {"shape": [40, 30]}


@pytest.mark.parametrize(("name", "options"), OTHERS)
@pytest.mark.parametrize("shape", [[], [4]])
def test_nobody_doubts_the_order_of_one_dimension(name: str, options: Any, shape: list[int]) -> None:
    for dialect in (PLUGIN, AS_TEXT):
        node = parse(meta(order="F", compression=name, compression_opts=options, shape=shape, chunks=shape), dialect=dialect)
        assert node.metadata.codecs[0] == BYTES and not node.quirks and not node.warnings


@pytest.mark.parametrize("dialect", [pytest.param(AS_TEXT, id="v1 as the text says")])
class TestAsTheTextSays(DialectConformance):
    """The other choice is a dialect like any."""


def test_the_choice_is_found_by_its_name() -> None:
    (default,) = (each for each in dialects() if each.name == "v1")
    (chosen,) = (each for each in dialects(["v1.order=text"]) if each.name == "v1")
    assert (default, chosen) == (PLUGIN, AS_TEXT)
    for bad in ("v1.order=F", "v1.other=text", "v0.order=text"):
        with pytest.raises(UsageError):
            dialects([bad])


# --- "Data type encoding" ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", "|b1 |i1 |u1 <i2 >i4 <i8 >u2 <u4 >u8 <f2 >f4 <f8 <c8 >c16 |S12 <U3 |V6 <M8[ns] >m8[D]".split())
def test_simple_types(text: str) -> None:
    """Data type encoding: "following the NumPy array protocol type string (typestr) format"."""
    metadata = array(dtype=text, fill_value=None)
    assert metadata.data_type == from_numpy(np.dtype(text))
    assert metadata.codecs[0].configuration.get("endian") == {"<": "little", ">": "big", "|": None}[text[0]]
    assert written(metadata)["dtype"] == text


@pytest.mark.parametrize("text", ["f8", "=i4", "i1", "|i4", "|f8", "|U3", "|M8[ns]", "b1", "int32", "", "<f8 ", "<x4"])
def test_the_byte_order_must_be_specified(text: str) -> None:
    """Data type encoding: "The byte order MUST be specified"."""
    refused(dtype=text, fill_value=None)


def test_structured_types_are_lists_of_pairs() -> None:
    """Data type encoding: "a list of two-element lists"."""
    rgb = [["r", "|u1"], ["g", "|u1"], ["b", "|u1"]]
    metadata = array(dtype=rgb, fill_value=None)
    assert metadata.data_type.dtype == np.dtype([("r", "u1"), ("g", "u1"), ("b", "u1")])
    assert written(metadata)["dtype"] == rgb
    for bad in ([], [["r"]], [["r", "u1"]], [["r", "|u1"], ["r", "|u1"]], ["r", "|u1"], [[1, "|u1"]], [["r", "|O"]]):
        refused(dtype=bad, fill_value=None)


@pytest.mark.parametrize(("token", "value"), [("NaN", "nan"), ("Infinity", "inf"), ("-Infinity", "-inf")])
def test_fill_values_that_are_bare_tokens(token: str, value: str) -> None:
    data = meta(dtype="<f8", fill_value="?").replace(b'"?"', token.encode())
    node = parse(data)
    assert node.metadata.fill_value == np.float64(value).tobytes()
    assert f'"fill_value": {token},'.encode() in LAYOUT.format(node)[META]


# --- "Chunks" ---------------------------------------------------------------------------------------------------------------------


def test_chunk_keys_are_indices_joined_by_periods() -> None:
    """Chunks: "the chunk with indices (2, 4) ... is stored under the key '2.4'"."""
    node = parse(meta())
    assert node.chunk_prefix + node.metadata.chunk_key_encoding.encode((2, 4)) == "a/2.4"
    assert node.metadata.chunk_key_encoding.decode("2.4", 2) == (2, 4)
    for name in ("meta", "attrs", "2", "2/4", "2.4.0", "02.4"):
        assert node.metadata.chunk_key_encoding.decode(name, 2) is None


@EVERY
def test_arrays_that_zarr_1_1_wrote(case: Case) -> None:
    """Chunks: "An uninitialized chunk MUST be treated as if it was uniformly filled with the value of the 'fill_value' field"."""
    node = node_of(case, AS_TEXT if case.name == "v1/spec_example_defaults" else PLUGIN)
    (expected,) = case.nodes()
    elements = case.expected(expected)
    assert node.attributes == expected["attributes"]
    assert bool(node.quirks) == ("ambiguous" in case.manifest or "order_quirk" in expected)
    assert decoded(case, node).tobytes() == elements.astype(elements.dtype.newbyteorder("<")).tobytes()


@EVERY
def test_what_zarr_1_1_wrote_is_written_the_same_again(case: Case) -> None:
    node = node_of(case, PLUGIN)
    theirs = {Key(key): case.values[key] for key in ("attrs", "meta")}
    if node.quirks:
        # The order that the chunks have, not the one in the document.
        theirs[Key("meta")] = theirs[Key("meta")].replace(b'"F"', b'"C"')
    assert {key: value.rstrip() for key, value in LAYOUT.format(node).items()} == {k: v.rstrip() for k, v in theirs.items()}


# --- "Attributes" -----------------------------------------------------------------------------------------------------------------


def test_attrs_must_be_present_even_when_it_is_empty() -> None:
    """Attributes: "Even if the attributes are empty, the 'attrs' key MUST be present within an array store"."""
    node = parse(meta())
    assert LAYOUT.format(node)[ATTRS] == b"{}"
    documents = {META: meta(), ATTRS: b'{"x": 1}'}
    assert json.loads(LAYOUT.amend(A, documents, Edit(attributes={}))[ATTRS]) == {}
    # If it is missing, the array is read all the same, with a remark, and gets it by the next edit.
    node = parse(meta(), attrs=None)
    assert node.attributes == {} and node.quirks == ("attrs is missing",) and not node.warnings
    assert LAYOUT.amend(A, {META: meta()}, Edit(attributes={})) == {ATTRS: b"{}"}


@pytest.mark.parametrize("attrs", [b"", b"[]", b"{", b'{"a": 1, "a": 2}', b"\xff"])
def test_attributes_must_be_an_object(attrs: bytes) -> None:
    """Attributes: "encoded as a JSON object"."""
    with pytest.raises(MetadataError) as caught:
        parse(meta(), attrs=attrs)
    assert caught.value.key == ATTRS


def test_an_edit_leaves_every_other_byte() -> None:
    attrs = b'{"b" :1e2,\n "a": [1,  2]}'
    documents = {META: b'{ "more": 1.50, ' + meta()[1:], ATTRS: attrs}
    assert LAYOUT.amend(A, documents, Edit(attributes={"b": 1e2, "a": [1, 2]})) == {}
    assert LAYOUT.amend(A, documents, Edit(attributes={"b": 1e2, "a": [1, 2], "d": None})) == {
        ATTRS: b'{"b" :1e2,\n "a": [1,  2], "d": null}'
    }
    assert LAYOUT.amend(A, documents, Edit(shape=(99, 30))) == {META: documents[META].replace(b"[20, 30]", b"[99, 30]")}
    with pytest.raises(MetadataError):
        LAYOUT.amend(A, documents, Edit(shape=(99, 30, 1)))


# --- detection of arrays ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data", [b"", b"some notes", b"[1, 2]", b'"x"', b"{}", b'{"title": "mine"}', b'{"shape": [1]}', b"\xff\xfe"]
)
def test_a_file_called_meta_is_no_array_unless_it_looks_like_one(data: bytes) -> None:
    assert LAYOUT.parse(A, {META: data}) is None
    assert PLUGIN.open(Prefix("a/"), {META: data}) is None
    with pytest.raises(MetadataError):
        LAYOUT.amend(A, {META: data}, Edit(attributes={"a": 1}))
    # With attributes beside it, it is a bad array.
    with pytest.raises(MetadataError):
        LAYOUT.parse(A, {META: data, ATTRS: b"{}"})


@pytest.mark.parametrize("data", [meta()[:-9], meta(zarr_format=...), meta(zarr_format=7), b'{"zarr_format": 1}', b"{" * 9999])
def test_a_bad_document_of_an_array_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataError):
        LAYOUT.parse(A, {META: data})
    assert PLUGIN.open(Prefix("a/"), {META: data}) is not None


def test_attributes_alone_are_no_array() -> None:
    assert LAYOUT.parse(A, {ATTRS: b"{}"}) is None
    assert PLUGIN.open(Prefix("a/"), {ATTRS: b"{}"}) is None


def test_there_are_no_groups() -> None:
    with pytest.raises(NotRepresentable, match="no groups"):
        LAYOUT.format(GroupNode(path=A, dialect="v1"))
    assert LAYOUT.required_groups(NodePath("/a/b")) == ()
    assert LAYOUT.kept_prefixes(GroupNode(path=A, dialect="v1")) == ("a/",)
    assert LAYOUT.kept_prefixes(parse(meta())) == ()


def test_children_are_folders() -> None:
    keys, prefixes = below("", ["meta", "a/meta", "b/c/meta", "meta/x/meta", "n\\o/meta"])
    assert LAYOUT.child_names(ROOT, keys, prefixes) == {"a", "b", "meta"}
    assert LAYOUT.node_of_document(Key("meta")) == ROOT
    assert LAYOUT.node_of_document(META) == LAYOUT.node_of_document(ATTRS) == A
    assert LAYOUT.node_of_document(Key("a/0.0")) is None


def test_a_key_is_an_ascii_string() -> None:
    """Storage: "where a key is an ASCII string"."""
    for name in ("\u00e9", "a\\b", "a\0b"):
        with pytest.raises(NameInvalid):
            LAYOUT.check_name(name)
    for name in ("meta", "attrs", "x y", ".hidden"):
        LAYOUT.check_name(name)
