"""The layout before Zarr 1.0: the rules of its text, data of zarr 0.3 and 0.4, and invalid data."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

from tests.support.cases import Case, below, cases
from tests.support.old_layouts import decoded, node_of
from zarrfs.dialects.base import Edit
from zarrfs.dialects.v0 import PLUGIN
from zarrfs.errors import MetadataError, MetadataUnsupported, NameInvalid, NotRepresentable
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_numpy
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode
from zarrfs.model.shards import ShardSpec

A = NodePath("/a")
ZMETA, ZATTR = Key("a/__zmeta__"), Key("a/__zattr__")
LAYOUT = PLUGIN.create(Prefix(""))
PLAIN = {"shape": [10, 7], "chunks": [4, 3], "dtype": "<i4", "fill_value": 42, "cname": "lz4", "clevel": 3, "shuffle": 1}
EXAMPLE = """{
    "chunks": [
        10000,
        100
    ],
    "clevel": 3,
    "cname": "lz4",
    "dtype": "<i4",
    "fill_value": 42,
    "shape": [
        1000000,
        1000
    ],
    "shuffle": 1
}"""
ATTRIBUTES = """{
    "bar": 4.2,
    "baz": "quux",
    "foo": 42
}"""
ALL = cases("v0_persistence")
EVERY = pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)


def zmeta(**members: Any) -> bytes:
    """Return a ``__zmeta__`` like `PLAIN`, but with these members; `...` leaves one out."""
    return json.dumps({name: value for name, value in {**PLAIN, **members}.items() if value is not ...}).encode()


def parse(data: bytes, **more: bytes) -> ArrayNode:
    node = LAYOUT.parse(A, {ZMETA: data} | {Key(f"a/{name}"): value for name, value in more.items()})
    assert isinstance(node, ArrayNode)
    return node


def array(**members: Any) -> ArrayMetadata:
    return parse(zmeta(**members)).metadata


def refused(**members: Any) -> str:
    with pytest.raises(MetadataError) as caught:
        array(**members)
    assert caught.value.key == ZMETA
    assert len(str(caught.value)) < 400
    return str(caught.value)


def written(metadata: ArrayMetadata, **attributes: Any) -> dict[Key, bytes]:
    return LAYOUT.format(
        ArrayNode(path=A, dialect="v0", metadata=metadata, chunk_prefix=LAYOUT.chunk_prefix(A), attributes=attributes)
    )


# --- "Configuration metadata" -----------------------------------------------------------------------------------------------------


def test_the_document_of_the_text() -> None:
    metadata = parse(EXAMPLE.encode()).metadata
    assert (metadata.shape, metadata.grid_shape) == ((1000000, 1000), (100, 10))
    assert metadata.fill_value == np.int32(42).tobytes()
    assert metadata.codecs == (
        CodecSpec("bytes", {"endian": "little"}),
        CodecSpec("blosc", {"cname": "lz4", "clevel": 3, "shuffle": "shuffle", "blocksize": 0}),
    )


def test_documents_are_written_as_in_the_text() -> None:
    node = parse(EXAMPLE.encode(), __zattr__=ATTRIBUTES.encode())
    assert LAYOUT.format(node) == {ZATTR: ATTRIBUTES.encode(), ZMETA: EXAMPLE.encode()}
    # The document that makes the array visible comes last.
    assert list(LAYOUT.format(node)) == [ZATTR, ZMETA]


@pytest.mark.parametrize("name", list(PLAIN))
def test_fields_that_are_mandatory(name: str) -> None:
    """Configuration metadata: "Mandatory fields and allowed values are as follows"."""
    assert f"{name} is missing" in refused(**{name: ...})


@pytest.mark.parametrize(
    "members",
    [
        {"shape": "4"},
        {"shape": [4.0, 4]},
        {"shape": [-1, 4]},
        {"shape": [4]},
        {"chunks": [0, 3]},
        {"chunks": [True, 3]},
        {"dtype": "i4"},
        {"dtype": 4},
        {"dtype": []},
        {"dtype": "|O"},
        {"fill_value": "x"},
        {"fill_value": [1]},
        {"fill_value": 2**40},
        {"cname": None},
        {"cname": "gzip"},
        {"clevel": "3"},
        {"clevel": 10},
        {"clevel": -1},
        {"shuffle": 3},
        {"shuffle": True},
        {"shuffle": "shuffle"},
        {"shape": [1] * 33, "chunks": [1] * 33},
        {"chunks": [2**40, 2**20]},
        {"shape": [2**62, 2**62], "chunks": [2**62, 2**62]},
    ],
)
def test_values_that_are_not_allowed(members: dict[str, Any]) -> None:
    refused(**members)


@pytest.mark.parametrize("cname", ["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"])
@pytest.mark.parametrize(("shuffle", "name"), [(0, "noshuffle"), (1, "shuffle"), (2, "bitshuffle")])
@pytest.mark.parametrize("clevel", [0, 9])
def test_blosc_in_every_form(cname: str, shuffle: int, name: str, clevel: int) -> None:
    """Configuration metadata: "shuffle filter (0 = no shuffle, 1 = byte shuffle, 2 = bit shuffle)"."""
    metadata = array(cname=cname, shuffle=shuffle, clevel=clevel)
    assert metadata.codecs[1].configuration == {"cname": cname, "clevel": clevel, "shuffle": name, "blocksize": 0}
    again = json.loads(written(metadata)[ZMETA])
    assert (again["cname"], again["shuffle"], again["clevel"]) == (cname, shuffle, clevel)


def test_a_list_of_fields_is_a_data_type() -> None:
    metadata = array(dtype=[["x", "<f4"], ["y", [["z", ">i2"]]]], fill_value=None)
    assert metadata.data_type.dtype == np.dtype([("x", "<f4"), ("y", [("z", "<i2")])])
    assert json.loads(written(metadata)[ZMETA])["dtype"] == [["x", "<f4"], ["y", [["z", ">i2"]]]]


@pytest.mark.parametrize(
    ("dtype", "text", "element"),
    [
        ("<f4", "NaN", np.float32("nan")),
        ("<f8", "-Infinity", np.float64("-inf")),
        ("<f8", "Infinity", np.float64("inf")),
        (">f8", "0.5", np.float64(0.5)),
        ("|b1", "false", np.bool_(False)),
        ("|b1", "1", np.bool_(True)),
        ("<i8", "-9223372036854775808", np.int64(-(2**63))),
        ("<c8", "NaN", np.complex64(complex(float("nan"), 0))),
        ("<c16", "0", np.complex128(0)),
        ("<M8[ns]", "0", np.datetime64(0, "ns")),
        ("|S3", '"ab"', np.bytes_(b"ab\0")),
        ("|S3", '"abcd"', np.bytes_(b"abc")),
        ("|S3", "0", np.bytes_(b"0\0\0")),
        ("<U2", '"\\u00e9"', np.str_("\u00e9\0")),
    ],
)
def test_fill_values_are_bare_scalars(dtype: str, text: str, element: Any) -> None:
    """As zarr 0.4 wrote them; their meaning is that of NumPy's ndarray.fill."""
    data = zmeta(dtype=dtype, fill_value="?").replace(b'"?"', text.encode())
    metadata = parse(data).metadata
    assert metadata.fill_value == np.array(element).astype(np.dtype(dtype).newbyteorder("<")).tobytes()
    again = written(metadata)[ZMETA]
    assert b'"NaN"' not in again and b'"Infinity"' not in again
    assert parse(again).metadata == metadata


def test_null_is_no_fill_value() -> None:
    assert array(fill_value=None).fill_value is None
    assert json.loads(written(array(fill_value=None))[ZMETA])["fill_value"] is None


@pytest.mark.parametrize(("value", "element"), [(0, b"\0\0\0"), (None, None)])
def test_one_scalar_fills_all_fields(value: Any, element: bytes | None) -> None:
    rgb = [["r", "|u1"], ["g", "|u1"], ["b", "|u1"]]
    metadata = array(dtype=rgb, fill_value=value)
    assert metadata.fill_value == element
    assert json.loads(written(metadata)[ZMETA])["fill_value"] == value
    for bad in ("x", [1, 2, 3], True, float("nan"), 2**70):
        refused(dtype=rgb, fill_value=bad)
    assert array(dtype="|V3", fill_value=0).fill_value == b"\0\0\0"
    assert array(dtype=[["r", "|V1"], ["g", "<u2", [2]]], fill_value=0).fill_value == bytes(5)
    refused(dtype="|V3", fill_value=1)


@pytest.mark.parametrize(
    ("dtype", "element"),
    [("<c8", np.complex64(1j).tobytes()), ("V3", b"abc"), ("V3", b"\0\0\0"), ("S2", b"\xff\0"), ("u1,u1", b"\1\2")],
)
def test_fill_values_that_no_scalar_says(dtype: str, element: bytes) -> None:
    metadata = array(dtype="|u1", fill_value=0)
    data_type = from_numpy(np.dtype(dtype))
    with pytest.raises(NotRepresentable):
        written(changed(metadata, data_type=data_type, fill_value=element, codecs=metadata.codecs[1:]))


def changed(metadata: ArrayMetadata, **members: Any) -> ArrayMetadata:
    names = ("shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs", "dimension_names", "shards")
    return ArrayMetadata(**{name: getattr(metadata, name) for name in names} | members)


def test_what_it_has_no_words_for() -> None:
    metadata = array()
    bytes_, blosc = metadata.codecs
    chains = [
        (bytes_,),
        (bytes_, CodecSpec("gzip", {"level": 1})),
        (bytes_, blosc, CodecSpec("crc32c")),
        (bytes_, blosc, blosc),
        (bytes_, CodecSpec("numcodecs.zlib", {"level": 1})),
        (bytes_, CodecSpec("no.such.codec"), blosc),
        (CodecSpec("transpose", {"order": [1, 0]}), bytes_, blosc),
        (bytes_, CodecSpec("blosc", dict(blosc.configuration) | {"blocksize": 512})),
    ]
    for codecs in chains:
        with pytest.raises(NotRepresentable):
            written(changed(metadata, codecs=codecs))
    shards = ShardSpec(chunks_per_shard=(2, 2), index_location="end", index_codecs=())
    for members in (
        {"chunk_key_encoding": chunk_key.v2(".")},
        {"chunk_key_encoding": chunk_key.default()},
        {"shards": (shards,)},
        {"data_type": from_numpy(np.dtype([("a", "u1", (2, 2))])), "fill_value": None},
    ):
        with pytest.raises(NotRepresentable):
            written(changed(metadata, **members))
    assert written(changed(metadata, codecs=(CodecSpec("transpose", {"order": [0, 1]}), bytes_, blosc))) == written(metadata)


# --- "User metadata (attributes)" -------------------------------------------------------------------------------------------------


def test_attributes_are_in_a_document_of_their_own_that_may_be_absent() -> None:
    assert parse(zmeta()).attributes == {} and not parse(zmeta()).quirks
    assert parse(zmeta(), __zattr__=b'{"x": NaN}').attributes.keys() == {"x"}
    for bad in (b"", b"[]", b'{"x": 1', b'{"x": 1, "x": 2}'):
        with pytest.raises(MetadataError) as caught:
            parse(zmeta(), __zattr__=bad)
        assert caught.value.key == ZATTR


def test_attributes_alone_are_no_array() -> None:
    assert LAYOUT.parse(A, {ZATTR: b'{"x": 1}'}) is None
    assert PLUGIN.open(Prefix("a/"), {ZATTR: b"{}"}) is None


def test_an_edit_leaves_every_other_byte() -> None:
    documents = {ZMETA: b'{ "more": 1.50, ' + zmeta()[1:], ZATTR: b'{"b" :1e2,\n "a": [1,  2],"c":"\\u0041"}'}
    assert LAYOUT.amend(A, documents, Edit(attributes={"b": 1e2, "a": [1, 2], "c": "A"})) == {}
    edited = LAYOUT.amend(A, documents, Edit(attributes={"b": 1e2, "a": [1, 2], "c": "B", "d": None}))
    assert edited == {ZATTR: b'{"b" :1e2,\n "a": [1,  2],"c":"B", "d": null}'}
    assert LAYOUT.amend(A, documents, Edit(attributes={"a": [1, 2]})) == {ZATTR: b'{\n "a": [1,  2]}'}
    # Numbers that compare equal may differ as JSON.
    assert LAYOUT.amend(A, documents, Edit(attributes={"b": 100, "a": [1, 2], "c": "A"}))[ZATTR].startswith(b'{"b" :100,')
    (key,), (value,) = zip(*LAYOUT.amend(A, documents, Edit(shape=(99, 7))).items(), strict=True)
    assert key == ZMETA and value == documents[ZMETA].replace(b"[10, 7]", b"[99, 7]")


def test_the_first_attribute_makes_the_document_and_none_makes_none() -> None:
    documents = {ZMETA: zmeta()}
    assert LAYOUT.amend(A, documents, Edit(attributes={})) == {}
    assert LAYOUT.amend(A, documents, Edit(attributes={"foo": 42})) == {ZATTR: b'{\n    "foo": 42\n}'}
    assert set(written(array())) == {ZMETA}


# --- "Array data" -----------------------------------------------------------------------------------------------------------------


def test_chunk_files_are_named_by_their_indices() -> None:
    """Array data: 'the file "4.2.blosc" stores the chunk in the fifth row third column', in __zdata__."""
    node = parse(zmeta())
    keys = node.metadata.chunk_key_encoding
    assert node.chunk_prefix + keys.encode((4, 2)) == "a/__zdata__/4.2.blosc"
    assert keys.decode("4.2.blosc", 2) == (4, 2)
    for name in ("4.2", "4.2.blosc.lock", "04.2.blosc", "4.2.blosc.blosc", ".blosc", "4.blosc", "4.2.1.blosc"):
        assert keys.decode(name, 2) is None
    assert array(shape=[7], chunks=[2]).chunk_key_encoding.encode((3,)) == "3.blosc"


@EVERY
def test_arrays_that_zarr_0_4_wrote(case: Case) -> None:
    """Array data: a chunk that is not there "should be interpreted as completely filled with" the fill value."""
    node = node_of(case, PLUGIN)
    (expected,) = case.nodes()
    elements = case.expected(expected)
    assert node.attributes == expected["attributes"] and not node.quirks
    assert decoded(case, node).tobytes() == elements.astype(elements.dtype.newbyteorder("<")).tobytes()
    assert len(case.values) - sum("/" not in key for key in case.values) == np.prod(node.metadata.grid_shape) - len(
        expected["missing_chunks"]
    )


@EVERY
def test_what_zarr_0_4_wrote_is_written_the_same_again(case: Case) -> None:
    node = node_of(case, PLUGIN)
    assert LAYOUT.format(node) == {Key(key): case.values[key] for key in ("__zattr__", "__zmeta__") if key in case.values}


# --- nodes ------------------------------------------------------------------------------------------------------------------------


class Canary:
    """A pickle that would create a folder."""

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, ("PICKLE_CANARY",)


@pytest.mark.parametrize(
    "data",
    [
        b"(dp0\nVshape\np1\n(I100\nI100\ntp2\nsVchunks\np3\n(I10\nI10\ntp4\ns.",
        b"(dp1\nS'shape'\np2\n(I100\ntp3\ns.",
        *(pickle.dumps({"shape": (100, 100), "canary": Canary()}, protocol) for protocol in range(6)),
        *(pickle.dumps({}, protocol) for protocol in range(6)),
    ],
)
def test_a_pickle_is_refused_and_never_unpickled(data: bytes, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MetadataUnsupported, match=r"zarr 0\.3\.0") as caught:
        parse(data)
    assert caught.value.key == ZMETA
    with pytest.raises(MetadataUnsupported):
        LAYOUT.amend(A, {ZMETA: data}, Edit(attributes={"a": 1}))
    assert PLUGIN.open(Prefix("a/"), {ZMETA: data}) is not None
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_neither_node_nor_document() -> None:
    keys, prefixes = below("", ["__zattr__.lock", "a/__zmeta__", "a/__zattr__.lock", "b/c/__zmeta__"])
    assert LAYOUT.child_names(ROOT, keys, prefixes) == {"a", "b"}
    assert LAYOUT.node_of_document(Key("a/__zattr__.lock")) is None
    assert LAYOUT.node_of_document(ZMETA) == LAYOUT.node_of_document(ZATTR) == A
    assert LAYOUT.node_of_document(Key("__zmeta__")) == ROOT
    assert LAYOUT.node_of_document(Key("a/__zdata__/0.blosc")) is None


def test_there_are_no_groups() -> None:
    with pytest.raises(NotRepresentable, match="no groups"):
        LAYOUT.format(GroupNode(path=A, dialect="v0"))
    assert LAYOUT.required_groups(NodePath("/a/b")) == ()
    assert LAYOUT.kept_prefixes(GroupNode(path=A, dialect="v0")) == ("a/",)
    assert LAYOUT.kept_prefixes(parse(zmeta())) == ("a/__zdata__/",)


@pytest.mark.parametrize("name", ["__zmeta__", "__zattr__", "__zdata__", "a\\b", "a\0b"])
def test_names_that_no_array_can_have(name: str) -> None:
    with pytest.raises(NameInvalid):
        LAYOUT.check_name(name)


def test_any_other_name_is_one() -> None:
    for name in ("meta", "\u00e9", "x y", ".hidden", "__other__"):
        LAYOUT.check_name(name)
