"""Zarr v2: each rule of its text, data of real software, and invalid data."""

from __future__ import annotations

import base64
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.storage import MemoryStore as ZarrMemoryStore

from tests.support.cases import Case, below, cases
from tests.support.data_types import elements, variable_types
from tests.support.length import unhurried
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects import json_text
from zarrfs.dialects.base import Edit
from zarrfs.dialects.v2.array import format_array, parse_array
from zarrfs.dialects.v2.dialect import PLUGIN, V2Layout
from zarrfs.dialects.v2.types import dtype_from_json, dtype_to_json, fill_from_json, fill_to_json
from zarrfs.errors import MetadataError, MetadataUnsupported, NameInvalid, NotRepresentable
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_name, from_numpy
from zarrfs.model.metadata import MAX_CHUNK_NBYTES, ArrayMetadata, ArrayNode, GroupNode, Node
from zarrfs.model.shards import ShardSpec

A = NodePath("/a")
ZGROUP = b'{"zarr_format": 2}'
PLAIN = {
    "zarr_format": 2,
    "shape": [20, 30],
    "chunks": [10, 10],
    "dtype": "<i4",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}
V2_CASES = cases("v2")


def layout(**values: bytes) -> V2Layout:
    return PLUGIN.create(Prefix(""))


def zarray(**members: Any) -> bytes:
    """Return a ``.zarray`` like `PLAIN`, but with these members; `...` leaves one out."""
    return json.dumps({name: value for name, value in {**PLAIN, **members}.items() if value is not ...}).encode()


def parse(data: bytes) -> ArrayNode:
    node = layout().parse(A, {Key("a/.zarray"): data})
    assert isinstance(node, ArrayNode)
    return node


def array(**members: Any) -> ArrayMetadata:
    return parse(zarray(**members)).metadata


def refused(**members: Any) -> str:
    with pytest.raises(MetadataError) as caught:
        array(**members)
    assert caught.value.key == "a/.zarray"
    assert len(str(caught.value)) < 400
    return str(caught.value)


# --- "Arrays", Metadata ----------------------------------------------------------------------------------------------------------


def test_the_document_of_the_text() -> None:
    metadata = array(
        chunks=[1000, 1000],
        shape=[10000, 10000],
        compressor={"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
        dtype="<f8",
        fill_value="NaN",
        filters=[{"id": "delta", "dtype": "<f8", "astype": "<f4"}],
    )
    assert metadata.shape == (10000, 10000)
    assert metadata.grid_shape == (10, 10)
    assert metadata.data_type == from_name("float64")
    assert metadata.fill_value == np.float64("nan").tobytes()
    assert [spec.name for spec in metadata.codecs] == ["bytes", "numcodecs.delta", "blosc"]
    assert metadata.codecs[0].configuration == {"endian": "little"}


@pytest.mark.parametrize("name", ["zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order"])
def test_members_that_must_be_present(name: str) -> None:
    """Arrays, Metadata: "The following keys MUST be present within the object"."""
    assert f"{name} is missing" in refused(**{name: ...})


def test_absent_filters_are_none() -> None:
    """The text demands the member; real stores lack it."""
    assert array(filters=...) == array(filters=None) == array(filters=[])


@pytest.mark.parametrize("config", [{"level": 1}, {"id": 7}, "zlib", ["zlib"]])
def test_a_codec_must_have_an_id(config: Any) -> None:
    """Arrays, Metadata, compressor and filters: "MUST contain an "id" key"."""
    refused(compressor=config)
    refused(filters=[config])


def test_a_chain_without_end_is_unsupported() -> None:
    with pytest.raises(MetadataUnsupported, match="33 codecs"):
        array(filters=[{"id": "shuffle", "elementsize": 4}] * 33)


def test_an_unknown_codec_is_unsupported() -> None:
    with pytest.raises(MetadataUnsupported, match="made_up"):
        array(compressor={"id": "made_up"})


@pytest.mark.parametrize(("separator", "key"), [(".", "1.2"), ("/", "1/2"), (..., "1.2")])
def test_the_separator_is_a_period_where_it_is_not_set(separator: Any, key: str) -> None:
    """Arrays, Metadata, dimension_separator: "the default MUST be assumed to be ".""."""
    assert array(dimension_separator=separator).chunk_key_encoding.encode((1, 2)) == key


def test_the_only_chunk_of_a_scalar() -> None:
    assert array(shape=[], chunks=[]).chunk_key_encoding.encode(()) == "0"


def test_other_members_are_ignored() -> None:
    """Arrays, Metadata: "Other keys ... SHOULD be ignored by implementations"; netCDF-C adds some to groups, too."""
    assert array(_NCZARR_ARRAY={"dimrefs": ["/x"]}, zzz=None) == array()
    group = layout().parse(A, {Key("a/.zgroup"): b'{"zarr_format": 2, "_nczarr_group": {}}'})
    assert group == GroupNode(path=A, dialect="v2")


@pytest.mark.parametrize(
    "members",
    [
        {"zarr_format": 3},
        {"zarr_format": "2.0"},
        {"zarr_format": 2.0},
        {"zarr_format": True},
        {"shape": [-4, 1]},
        {"shape": "4"},
        {"shape": [4.0, 4.0]},
        {"shape": [4]},
        {"shape": [2**63, 1]},
        {"chunks": [True, 10]},
        {"chunks": [0, 10]},
        {"chunks": [10, None]},
        {"chunks": 10},
        {"order": "Z"},
        {"order": None},
        {"order": ["C"]},
        {"dimension_separator": ".."},
        {"dimension_separator": []},
        {"filters": {}},
        {"filters": "none"},
    ],
)
def test_members_that_make_no_array(members: dict[str, Any]) -> None:
    refused(**members)


def test_a_chunk_length_of_zero_where_the_dimension_is_empty() -> None:
    assert array(shape=[0, 3], chunks=[0, 3]).grid_shape == (0, 1)


def test_an_array_of_any_size_is_metadata() -> None:
    assert array(shape=[2**62], chunks=[1]).grid_shape == (2**62,)


def test_a_chunk_that_no_memory_holds_is_unsupported() -> None:
    assert array(shape=[1], chunks=[MAX_CHUNK_NBYTES], dtype="|u1")
    for chunks, dtype in [([2**31], "|u1"), ([2**62], "<i4"), ([2**29], "<i4")]:
        with pytest.raises(MetadataUnsupported, match="bytes"):
            array(shape=[1], chunks=chunks, dtype=dtype)
    with pytest.raises(MetadataUnsupported, match="33 dimensions"):
        array(shape=[1] * 33, chunks=[1] * 33)


@pytest.mark.parametrize(("ndim", "codecs"), [(0, ["bytes"]), (1, ["bytes"]), (3, ["transpose", "bytes"])])
def test_the_first_dimension_varies_fastest_in_order_F(ndim: int, codecs: list[str]) -> None:
    """Arrays, Metadata, order."""
    metadata = array(shape=[4] * ndim, chunks=[2] * ndim, order="F")
    assert [spec.name for spec in metadata.codecs] == codecs
    if ndim > 1:
        assert metadata.codecs[0].configuration == {"order": [2, 1, 0]}


# --- "Data type encoding" --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    "|b1 |i1 |u1 <i2 >i4 <i8 >u2 <u4 >u8 <f2 >f4 <f8 <c8 >c16 |S12 <U3 >U1 |V6 <M8[ns] >m8[D] <M8[25s] <m8[Y] <M8[generic]".split(),
)
def test_simple_types_are_those_of_numpy(text: str) -> None:
    stored = dtype_from_json(text)
    assert stored == np.dtype(text)
    assert dtype_to_json(stored) == text
    metadata = array(dtype=text, fill_value=None)
    assert metadata.data_type == from_numpy(np.dtype(text))
    assert metadata.codecs[0].configuration.get("endian") == {"<": "little", ">": "big", "|": None}[text[0]]


@pytest.mark.parametrize("text", ["f8", "=i4", "i1", "|i4", "|f8", "|U3", "|M8[ns]", "b1"])
def test_the_byte_order_must_be_specified(text: str) -> None:
    """Data type encoding: "The byte order MUST be specified"."""
    refused(dtype=text, fill_value=None)


@pytest.mark.parametrize("text", ["<i1", ">u1", "<b1", "<S3", ">V2"])
def test_a_byte_order_that_means_nothing_does_no_harm(text: str) -> None:
    assert array(dtype=text, fill_value=None).codecs == (CodecSpec("bytes"),)


@pytest.mark.parametrize("text", ["M8", "|M8", "<M8[]", "<M8[fortnight]", "<M4[ns]", "<M8[0s]", "<M8[9999999999s]", "<M8[s/3]"])
def test_times_must_have_units(text: str) -> None:
    """Data type encoding: "these MUST also include the units within square brackets"."""
    refused(dtype=text, fill_value=None)


@pytest.mark.parametrize("text", ["<M8", ">m8"])
def test_times_without_a_unit_as_zarr_python_writes_them(text: str) -> None:
    stored: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.create_array(ZarrMemoryStore(stored), shape=(2,), chunks=(2,), dtype=np.dtype(text), zarr_format=2)
    assert json.loads(stored[".zarray"].to_bytes())["dtype"] == text
    metadata = array(dtype=text, fill_value=-(2**63))
    assert metadata.data_type == from_numpy(np.dtype(text)) and metadata.fill_value == bytes(7) + b"\x80"
    assert dtype_to_json(dtype_from_json(text)) == f"{text}[generic]"


SMALL = "bfloat16 int2 int4 float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2 float8_e5m2fnuz float4_e2m1fn".split()


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("number", [1, -1, 0])
def test_tensorstore_reads_the_fill_value_that_an_array_of_a_small_type_gets(name: str, number: int, tmp_path: Path) -> None:
    """It refused the base64 that NumPy's kind of the type suggests: the array could no longer be opened."""
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/"}
    tensorstore.open({**spec, "create": True}, dtype=getattr(tensorstore, name), shape=[2]).result()
    element = np.array(number).astype(from_name(name).dtype)
    key = Key("a/.zarray")
    edited = layout().amend(A, {key: (tmp_path / ".zarray").read_bytes()}, Edit(fill_value=element.tobytes()))
    (tmp_path / ".zarray").write_bytes(edited[key])
    # By their numbers: of a small negative integer, tensorstore fills also the bits that it does not use.
    assert np.asarray(tensorstore.open(spec).result().read().result()).astype(float).tolist() == 2 * [number]
    assert parse(edited[key]).metadata.fill_value == element.tobytes()


@pytest.mark.parametrize("name", SMALL)
def test_small_types_as_tensorstore_writes_them(name: str, tmp_path: Path) -> None:
    """They are not types of Zarr v2: nothing else reads them, and no new array gets one."""
    written = tensorstore.open(
        {"driver": "zarr", "kvstore": f"file://{tmp_path}/", "create": True, "metadata": {"compressor": None}},
        dtype=getattr(tensorstore, name),
        shape=[5],
        chunk_layout=tensorstore.ChunkLayout(read_chunk_shape=[3]),
        fill_value=1,
    ).result()
    elements = np.array([1, 0, 1, 0, -1 if name != "int2" else 1]).astype(from_name(name).dtype)
    written.write(elements).result()
    document = json.loads((tmp_path / ".zarray").read_text())
    assert document["dtype"] == name
    metadata = parse_array(document)
    assert metadata.data_type == from_name(name) and metadata.fill_value == elements[:1].tobytes()
    chain = CodecChain.build(metadata.codecs, metadata.data_type)
    chunks = [chain.decode((tmp_path / str(index)).read_bytes(), (3,)) for index in range(2)]
    assert np.concatenate(chunks)[:5].tobytes() == elements.tobytes()
    with pytest.raises(NotRepresentable):
        format_array(metadata)


NETCDF = b"""{
  "zarr_format":2, "shape":[4], "chunks":[2], "dtype":"<i4", "compressor":null, "filters":null, "fill_value":3.0, "order":"C",
  "_NCZARR_ARRAY":{"dimrefs":["\\/lat"],"storage":"chunked"}, "_nczarr_default_maxstrlen" : 128
}"""


def test_what_netcdf_c_and_gdal_put_in_stays_byte_for_byte() -> None:
    """Members of their own, solidi after backslashes, fractions of integers."""
    key, attributes = Key("a/.zarray"), Key("a/.zattrs")
    said = b'{"_NCZARR_ATTR":{"types":{"u":"<U1"}},"u":"m\\/s"}'
    documents = {key: NETCDF, attributes: said}
    node = layout().parse(NodePath("/a"), documents)
    assert isinstance(node, ArrayNode) and node.metadata.fill_value == b"\3\0\0\0" and node.attributes["u"] == "m/s"
    edited = layout().amend(NodePath("/a"), documents, Edit(shape=(6,), attributes={**node.attributes, "new": 1}))
    assert json.loads(edited[key]) == {**json.loads(NETCDF), "shape": [6]}
    assert b'"dimrefs":["\\/lat"],"storage":"chunked"}, "_nczarr_default_maxstrlen" : 128' in edited[key]
    assert b'"fill_value":3.0' in edited[key]
    assert json.loads(edited[attributes]) == {**json.loads(said), "new": 1}


@pytest.mark.parametrize(
    "value",
    [
        "<f3",
        "<f1",
        "|b2",
        "<i16",
        "|V0",
        "|S0",
        "<U0",
        "<U2147483647",
        "|S99999999999",
        "<q8",
        "",
        7,
        None,
        {},
        "<f8,<f8",
        "<f16",
        "<f٨",
    ],
)
def test_types_that_are_none(value: Any) -> None:
    refused(dtype=value, fill_value=None)


def test_structured_types() -> None:
    """Data type encoding, the text's three examples."""
    rgb = [["r", "|u1"], ["g", "|u1"], ["b", "|u1"]]
    assert dtype_from_json(rgb) == np.dtype([("r", "u1"), ("g", "u1"), ("b", "u1")])
    xyz = [["x", "<f4"], ["y", "<f4"], ["z", "<f4", [2, 2]]]
    assert dtype_from_json(xyz) == np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4", (2, 2))])
    nested = [["foo", "<f4"], ["bar", [["baz", "<f4"], ["qux", "<i4"]]]]
    assert dtype_from_json(nested) == np.dtype([("foo", "<f4"), ("bar", [("baz", "<f4"), ("qux", "<i4")])])
    for descr in (rgb, xyz, nested):
        assert dtype_to_json(dtype_from_json(descr)) == descr


def test_the_byte_order_of_structured_types_is_in_the_codec() -> None:
    assert array(dtype=[["r", "|u1"], ["s", "|S2"]], fill_value=None).codecs == (CodecSpec("bytes"),)
    assert array(dtype=[["x", "<f4"]], fill_value=None).codecs == (CodecSpec("bytes", {"endian": "little"}),)
    descr = [["x", ">f4"], ["in", [["y", "<i2", [2]]]]]
    metadata = array(dtype=descr, fill_value=None)
    assert metadata.codecs == (CodecSpec("bytes", {"dtype": descr}),)
    assert metadata.data_type.dtype == np.dtype([("x", "<f4"), ("in", [("y", "<i2", (2,))])])


@pytest.mark.parametrize(
    "value",
    [
        [],
        [["a"]],
        [["a", "<i4", [2], 1]],
        [["a", "<i4"], ["a", "<f4"]],
        ["<i4"],
        [[1, "<i4"]],
        [[["title", "a"], "<i4"]],
        [["a", "i4"]],
        [["a", []]],
        [["a", "<i4", [0]]],
        [["a", "<i4", [-1]]],
        [["a", "<i4", 2]],
        [["a", "<i4", [2**40, 2**40]]],
        [["\ud800", "<i4"]],
        [[f"f{n}", "|V16000000"] for n in range(20)],
    ],
)
def test_structured_types_that_are_none(value: Any) -> None:
    refused(dtype=value, fill_value=None)


# --- "Fill value encoding" -------------------------------------------------------------------------------------------------------


def fill(dtype: Any, value: Any) -> Any:
    """Return the fill value as NumPy has it."""
    metadata = array(dtype=dtype, fill_value=value)
    assert metadata.fill_value is not None
    return np.frombuffer(metadata.fill_value, metadata.data_type.dtype)[0]


@pytest.mark.parametrize(("value", "number"), [("NaN", np.nan), ("Infinity", np.inf), ("-Infinity", -np.inf)])
@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8"])
def test_floats_that_have_names(dtype: str, value: str, number: float) -> None:
    """Fill value encoding: "the following table MUST be used"."""
    assert np.array_equal(fill(dtype, value), number, equal_nan=True)
    assert fill_to_json(np.dtype(dtype), array(dtype=dtype, fill_value=value).fill_value) == value


def test_bare_tokens_are_floats_too() -> None:
    assert np.isnan(fill("<f8", float("nan")))
    assert fill("<f8", float("-inf")) == -np.inf


def test_fixed_length_strings_are_base64() -> None:
    """Fill value encoding: "MUST be encoded as an ASCII string using the standard Base64 alphabet"."""
    assert fill("|S5", "eno=") == b"zz"
    assert fill("|S5", "") == b""
    for value in ("eno=!", "-", "é", "QUJDREVGRw==", "eno eno eno", 123456, ["eno="]):
        refused(dtype="|S5", fill_value=value)
    assert fill_to_json(np.dtype("|S5"), b"zz\0\0\0") == "eno="


def test_the_number_zero_fills_strings_as_zarr_python_did() -> None:
    assert fill("|S5", 0) == b"0"


@pytest.mark.parametrize("number", [1.5, -2.0, 1e22, float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", ["|S5", "<U5"])
def test_a_number_fills_strings_with_the_text_that_numpy_has_for_it(dtype: str, number: float) -> None:
    whole = np.empty(1, dtype)
    whole.fill(number)
    assert fill(dtype, number) == whole[0]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn"])
@pytest.mark.parametrize("number", [0, 0.0, -0.0, 1.5])
def test_a_number_fills_small_floating_point_types_with_its_sign(name: str, number: float) -> None:
    node = parse(zarray(dtype=name, fill_value=number))
    assert node.metadata.fill_value == np.array(number).astype(getattr(ml_dtypes, name)).tobytes() and not node.quirks


@pytest.mark.parametrize(("name", "number"), [("int4", 0.0), ("int4", -8.0), ("uint2", 3.0), ("int4", 7)])
def test_a_whole_number_fills_small_integers(name: str, number: float) -> None:
    assert fill(name, number) == int(number)


@pytest.mark.parametrize("number", [0, -0.0, 1, 1.5])
def test_a_number_fills_fields_of_small_types_as_numpy_does(number: float) -> None:
    stored = np.dtype([("a", ml_dtypes.bfloat16, (2,)), ("b", "<f4"), ("c", [("d", ml_dtypes.float8_e4m3fn)])])
    whole = np.zeros(1, stored)
    whole.fill(number)
    dtype = [["a", "bfloat16", [2]], ["b", "<f4"], ["c", [["d", "float8_e4m3fn"]]]]
    assert array(dtype=dtype, fill_value=number).fill_value == whole.tobytes()


@pytest.mark.parametrize("dtype", ["<M8", ">M8", "<M8[generic]"])
@pytest.mark.parametrize("text", ["2000-02-29", "2000", "2000-02-29T05"])
def test_a_date_is_no_fill_value_of_a_type_without_a_unit(dtype: str, text: str) -> None:
    refused(dtype=dtype, fill_value=text)


@pytest.mark.parametrize(
    "text",
    ["today", "2000-02-30", "2000-02-29T00", "2000-02-29T00:00:00", " 2000-02-29", "2000-02", "+2000-02-29", "", "7", "20000229"],
)
def test_a_text_that_numpy_does_not_print_for_a_date_is_refused(text: str) -> None:
    refused(dtype="<M8[D]", fill_value=text)


FIELDS = [["a", ">i2", [3]], ["b", [["c", "|b1"]]], ["d", "|V2"], ["e", "|S1"]]


@pytest.mark.parametrize(("dtype", "value"), [("|V3", 1), (FIELDS, 1), (FIELDS, True), (FIELDS[:2], 40000), (FIELDS, "")])
def test_a_number_that_fills_not_every_field_is_refused(dtype: Any, value: Any) -> None:
    refused(dtype=dtype, fill_value=value)


@pytest.mark.parametrize(
    ("choice", "members", "meant"),
    [
        ("zarr_format", {"zarr_format": "2"}, {}),
        ("fill_value", {"fill_value": "0"}, {"fill_value": 0}),
        ("fill_value", {"fill_value": "-7"}, {"fill_value": -7}),
        ("fill_value", {"dtype": "<f4", "fill_value": "0"}, {"dtype": "<f4", "fill_value": 0.0}),
        ("fill_value", {"dtype": ">f8", "fill_value": "-1.5"}, {"dtype": ">f8", "fill_value": -1.5}),
        ("fill_value", {"dtype": "<f4", "fill_value": "9.96921e+36"}, {"dtype": "<f4", "fill_value": 9.96921e36}),
        ("fill_value", {"dtype": "<f8", "fill_value": "-0"}, {"dtype": "<f8", "fill_value": -0.0}),
        ("fill_value", {"dtype": "|S3", "fill_value": 0}, {"dtype": "|S3", "fill_value": "MA=="}),
        ("fill_value", {"dtype": "<U3", "fill_value": 0}, {"dtype": "<U3", "fill_value": "0"}),
        ("fill_value", {"dtype": "<U3", "fill_value": 0.5}, {"dtype": "<U3", "fill_value": "0.5"}),
        ("fill_value", {"dtype": "|S3", "fill_value": "n/a"}, {"dtype": "|S3", "fill_value": "bi9h"}),
        ("fill_value", {"dtype": "<U3", "fill_value": "none"}, {"dtype": "<U3", "fill_value": "non"}),
        ("fill_value", {"dtype": "|V3", "fill_value": 0}, {"dtype": "|V3", "fill_value": "AAAA"}),
        ("fill_value", {"dtype": FIELDS, "fill_value": 0}, {"dtype": FIELDS, "fill_value": "AAAAAAAAAAAAMA=="}),
        ("fill_value", {"dtype": FIELDS[:2], "fill_value": 1}, {"dtype": FIELDS[:2], "fill_value": "AAEAAQABAQ=="}),
        ("fill_value", {"dtype": "<M8[D]", "fill_value": "2000-02-29"}, {"dtype": "<M8[D]", "fill_value": 11016}),
        ("fill_value", {"dtype": ">M8[ns]", "fill_value": "1969-12-31T23:59:59.999999999"}, {"dtype": ">M8[ns]", "fill_value": -1}),
        ("fill_value", {"dtype": "<M8[10s]", "fill_value": "1970-01-01T00:00:20"}, {"dtype": "<M8[10s]", "fill_value": 2}),
        ("fill_value", {"dtype": "<M8[Y]", "fill_value": "-003"}, {"dtype": "<M8[Y]", "fill_value": -1973}),
        ("zstd", {"compressor": {"id": "zstd", "checksum": "NO"}}, {"compressor": {"id": "zstd", "checksum": False}}),
        ("missing", {"filters": ...}, {"filters": None}),
        *(
            ("shuffle", {"compressor": {"id": "blosc", "shuffle": name}}, {"compressor": {"id": "blosc", "shuffle": number}})
            for name, number in (("NONE", 0), ("BYTE", 1), ("SHUFFLE", 1), ("BIT", 2), ("bitshuffle", 2))
        ),
    ],
)
def test_what_software_wrote_otherwise_is_read_and_told_and_can_be_refused(
    choice: str, members: dict[str, Any], meant: dict[str, Any]
) -> None:
    node = parse(zarray(**members))
    assert node.metadata == array(**meant) and len(node.quirks) == 1
    strict = PLUGIN.choosing({choice: "refuse"}).create(Prefix(""))
    with pytest.raises(MetadataError, match=rf"a/\.zarray: .*v2\.{choice}=refuse"):
        strict.parse(A, {Key("a/.zarray"): zarray(**members)})
    others = PLUGIN.choosing({name: "refuse" for name in PLUGIN.choices if name != choice}).create(Prefix(""))
    assert others.parse(A, {Key("a/.zarray"): zarray(**members)}) == node


def test_a_group_whose_format_is_text_is_told_of() -> None:
    documents = {Key("a/.zgroup"): b'{"zarr_format": "2"}'}
    node = layout().parse(A, documents)
    assert isinstance(node, GroupNode) and node.explicit and "zarr_format" in node.quirks[0]
    with pytest.raises(MetadataError, match="zarr_format=refuse"):
        PLUGIN.choosing({"zarr_format": "refuse"}).create(Prefix("")).parse(A, documents)


def test_structured_fills_are_base64_in_stored_byte_order() -> None:
    """Fill value encoding, "or a structured data type"."""
    descr = [["a", "<i4"], ["c", ">f8"], ["d", ">i2", [2]]]
    stored = np.array([(7, -1.5, (1, 2))], dtype=dtype_from_json(descr))
    text = base64.b64encode(stored.tobytes()).decode()
    metadata = array(dtype=descr, fill_value=text)
    assert metadata.fill_value == stored.astype(metadata.data_type.dtype).tobytes()
    assert fill_to_json(stored.dtype, metadata.fill_value) == text
    for value in (2**40, text[4:], [7, -1.5, [1, 2]], {"a": 7}):
        refused(dtype=descr, fill_value=value)


def test_a_number_fills_times_without_a_unit_in_either_byte_order() -> None:
    for order in "<>":
        assert array(dtype=[["a", f"{order}m8"]], fill_value=1).fill_value == (1).to_bytes(8, "little")


def test_void_fills_are_base64() -> None:
    assert fill("|V6", "QUJDREVG").tobytes() == b"ABCDEF"
    refused(dtype="|V6", fill_value="QUJD")
    refused(dtype="|V6", fill_value=[1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("<i4", 3.0, 3),
        (">i8", -(2**63), -(2**63)),
        ("<u8", 2**64 - 1, 2**64 - 1),
        ("<f8", 3, 3.0),
        ("<f4", -0.0, -0.0),
        (">f2", 0.1, np.float16(0.1)),
        ("|b1", True, True),
        ("|b1", 0, False),
        ("|b1", 1.0, True),
        ("<c16", [1.5, -2.5], 1.5 - 2.5j),
        (">c8", ["Infinity", 0], complex(np.inf, 0)),
        ("<c8", 3, 3 + 0j),
        ("<U3", "é", "é"),
        ("<U3", "", ""),
        ("<M8[ns]", 12345, np.datetime64(12345, "ns")),
        ("<m8[D]", -3, np.timedelta64(-3, "D")),
    ],
)
def test_fill_values(dtype: str, value: Any, expected: Any) -> None:
    assert fill(dtype, value) == expected
    assert np.signbit(fill(dtype, value)) == np.signbit(expected) if dtype == "<f4" else True


def test_not_a_time() -> None:
    assert np.isnat(fill("<M8[ns]", "NaT")) and np.isnat(fill(">m8[s]", -(2**63)))


def test_an_undefined_fill_value() -> None:
    """Chunks: "If the "fill_value" field is null then the contents of the chunk are undefined"."""
    assert array(fill_value=None).fill_value is None


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("|u1", 70000),
        ("|u1", -1),
        ("<i4", 3.5),
        ("<i4", {"a": 1}),
        ("<i4", "NaN"),
        ("<i4", float("nan")),
        ("<i4", float("inf")),
        ("<i4", 1e300),
        ("<i4", True),
        ("<i4", "0.5"),
        ("<i4", "x"),
        ("<u1", "256"),
        ("<u8", float(2**64)),
        ("<f8", "3.0f"),
        ("<f8", "nan"),
        ("<f4", "0x7fc00001"),
        ("<f8", True),
        ("<f8", [1.0]),
        ("<f8", 10**400),
        ("|b1", 2),
        ("|b1", "true"),
        ("<c8", [1.0]),
        ("<c8", [1.0, "x"]),
        ("<c8", "NaN!"),
        ("<U3", 1234),
        ("<U3", "\ud800"),
        ("<M8[ns]", "2020-01-01"),
        ("<M8[ns]", 1.5),
        ("<m8[ns]", 2**63),
    ],
)
def test_fill_values_that_are_none(dtype: str, value: Any) -> None:
    refused(dtype=dtype, fill_value=value)


def test_the_text_has_one_nan() -> None:
    assert fill_to_json(np.dtype("<f4"), bytes.fromhex("0100c07f")) == "NaN"
    assert fill_to_json(np.dtype("<c8"), bytes.fromhex("0100c07f0000803f")) == ["NaN", 1.0]


@unhurried
@given(st.sampled_from(["<i4", ">f8", "|b1", "<c8", "|S3", "<U2", "|V5", ">M8[s]"]), st.data())
def test_a_fill_value_is_read_as_it_was_written(text: str, data: st.DataObject) -> None:
    stored = np.dtype(text)
    element = data.draw(st.integers(-100, 100).map(lambda n: np.array(n).astype(stored.newbyteorder("<")).tobytes()))
    element = data.draw(st.binary(min_size=5, max_size=5)) if text == "|V5" else element
    assert fill_from_json(stored, fill_to_json(stored, element)) == element


# --- "Filters" -------------------------------------------------------------------------------------------------------------------


def test_filters_come_before_the_compressor_in_the_order_of_encoding() -> None:
    """Filters: "applied in the order specified ... then ... the primary compressor"."""
    metadata = array(
        order="F",
        filters=[{"id": "delta", "dtype": "<i4", "astype": "<i4"}, {"id": "shuffle", "elementsize": 4}],
        compressor={"id": "zlib", "level": 1},
    )
    assert [spec.name for spec in metadata.codecs] == [
        "transpose",
        "bytes",
        "numcodecs.delta",
        "numcodecs.shuffle",
        "numcodecs.zlib",
    ]


OBJECT_FILTERS = [
    ("string", ["vlen-utf8"], {"id": "vlen-utf8"}),
    ("variable_length_bytes", ["vlen-bytes"], {"id": "vlen-bytes"}),
    ("object", ["numcodecs.vlen-array"], {"id": "vlen-array", "dtype": "<i4"}),
    ("object", ["numcodecs.json2"], {"id": "json2"}),
    ("object", ["numcodecs.msgpack2"], {"id": "msgpack2"}),
    ("string", ["numcodecs.categorize", "bytes"], {"id": "categorize", "labels": ["a"], "dtype": "|O", "astype": "|u1"}),
    ("string", ["numcodecs.categorize", "bytes"], {"id": "categorize", "labels": ["a"], "dtype": "|O", "astype": ">i2"}),
]


@pytest.mark.parametrize(("element", "codecs", "filter_"), OBJECT_FILTERS)
@pytest.mark.parametrize("order", ["C", "F"])
def test_objects_are_what_the_first_filter_says(element: str, codecs: list[str], filter_: dict[str, Any], order: str) -> None:
    zlib = {"id": "zlib", "level": 1}
    metadata = array(dtype="|O", fill_value=None, filters=[filter_], compressor=zlib, order=order, shape=[4, 6], chunks=[2, 3])
    assert metadata.data_type.name == element and metadata.data_type.is_variable
    transpose = ["transpose"] if order == "F" else []
    assert [spec.name for spec in metadata.codecs] == [*transpose, *codecs, "numcodecs.zlib"]
    said = format_array(metadata)
    assert (said["dtype"], said["compressor"], said["order"], said["fill_value"]) == ("|O", zlib, order, None)
    assert said["filters"][0].items() >= filter_.items() and len(said["filters"]) == 1
    assert parse_array(said) == metadata


def test_categories_are_stored_in_the_byte_order_of_their_filter() -> None:
    filter_ = {"id": "categorize", "labels": ["a", "b"], "dtype": "|O", "astype": ">i2"}
    metadata = array(dtype="|O", fill_value=None, filters=[filter_], shape=[3], chunks=[3], compressor=None)
    elements = np.array(["b", "", "a"], object)
    stored = CodecChain.build(metadata.codecs, metadata.data_type).encode(elements)
    assert bytes(stored) == numcodecs.get_codec(filter_).encode(elements).tobytes() == b"\0\2\0\0\0\1"


@pytest.mark.parametrize(
    ("filter_", "written", "fill", "said"),
    [
        ("vlen-utf8", "", b"", ""),
        ("vlen-utf8", 0, b"", ""),
        ("vlen-utf8", "é", "é".encode(), "é"),
        ("vlen-bytes", 0, b"", ""),
        ("vlen-bytes", "AP8=", b"\0\xff", "AP8="),
        ("json2", 0, b"0", 0),
        ("json2", {"a": [None]}, b'{"a":[null]}', {"a": [None]}),
        ("msgpack2", "x", b'"x"', "x"),
    ],
)
def test_fill_values_of_objects(filter_: str, written: Any, fill: bytes, said: Any) -> None:
    metadata = array(dtype="|O", fill_value=written, filters=[{"id": filter_}])
    assert metadata.fill_value == fill
    assert format_array(metadata)["fill_value"] == said


OF_TYPE = {"string": [0, 5, 6], "variable_length_bytes": [1], "object": [2, 3, 4]}


@unhurried
@given(data=st.data())
def test_arrays_of_objects_are_read_as_they_were_written(data: st.DataObject) -> None:
    data_type = data.draw(variable_types().filter(lambda each: each.name in OF_TYPE))
    filter_ = OBJECT_FILTERS[data.draw(st.sampled_from(OF_TYPE[data_type.name]))][2]
    order = data.draw(st.sampled_from("CF"))
    metadata = array(dtype="|O", fill_value=None, filters=[filter_], order=order, shape=[4, 6], chunks=[2, 3])
    fill = data.draw(st.none() | elements(data_type))
    # Null is an undefined fill value, and also the JSON form of a null element.
    metadata = replace(metadata, fill_value=None if fill == b"null" else fill)
    node = node_of(metadata)
    documents = layout().format(node)
    assert layout().parse(node.path, documents) == node
    edited = layout().amend(node.path, documents, Edit(attributes={"a": 1}, shape=(9, 9)))
    assert layout().parse(node.path, documents | edited) == replace(
        node, attributes={"a": 1}, metadata=replace(metadata, shape=(9, 9))
    )


@pytest.mark.parametrize(("filter_", "written"), [("vlen-utf8", 1), ("vlen-utf8", []), ("vlen-bytes", "?"), ("vlen-bytes", [1])])
def test_fill_values_that_no_object_has(filter_: str, written: Any) -> None:
    with pytest.raises(MetadataError, match="fill_value"):
        array(dtype="|O", fill_value=written, filters=[{"id": filter_}])


@pytest.mark.parametrize("first", ["vlen-utf8", "json2"])
def test_fields_that_are_objects_are_unsupported(first: str) -> None:
    with pytest.raises(MetadataUnsupported):
        array(dtype=[["a", "|O"]], fill_value=None, filters=[{"id": first}])


@pytest.mark.parametrize(
    "filters",
    [
        [{"id": "vlen-utf8"}, {"id": "vlen-utf8"}],
        [{"id": "zlib"}, {"id": "vlen-utf8"}],
        [{"id": "delta", "dtype": "<i4"}],
        [{"id": "lookup"}],
    ],
)
def test_chains_of_objects_that_make_no_sense(filters: list[Any]) -> None:
    with pytest.raises(MetadataError):
        array(dtype="|O", fill_value=None, filters=filters)


def test_an_object_filter_on_elements_of_fixed_size_is_refused() -> None:
    with pytest.raises(MetadataError):
        array(dtype="<i4", filters=[{"id": "vlen-utf8"}])


def test_objects_without_a_filter_are_unsupported() -> None:
    with pytest.raises(MetadataUnsupported):
        array(dtype="|O", fill_value=None)
    with pytest.raises(MetadataUnsupported):
        array(dtype="|O", fill_value=None, filters=["x"])


@pytest.mark.parametrize("dtype", ["|O", "<i4"])
def test_pickle_is_refused_with_the_reason(dtype: str) -> None:
    with pytest.raises(MetadataUnsupported, match="unpickling runs code"):
        array(dtype=dtype, fill_value=None, filters=[{"id": "pickle", "protocol": 0}])
    with pytest.raises(MetadataUnsupported, match="unpickling runs code"):
        array(dtype=dtype, fill_value=None, compressor={"id": "pickle", "protocol": 0})


# --- "Logical storage paths" -----------------------------------------------------------------------------------------------------


def test_the_key_prefix_is_the_path_and_a_slash() -> None:
    path = NodePath("/foo/bar")
    assert PLUGIN.create(Prefix("")).document_keys(path) == ("foo/bar/.zarray", "foo/bar/.zgroup", "foo/bar/.zattrs")
    assert PLUGIN.create(Prefix("x.zarr/")).document_keys(ROOT) == ("x.zarr/.zarray", "x.zarr/.zgroup", "x.zarr/.zattrs")
    assert PLUGIN.create(Prefix("x.zarr/")).chunk_prefix(path) == "x.zarr/foo/bar/"
    assert PLUGIN.create(Prefix("x.zarr/")).listing_prefix(path) == "x.zarr/foo/bar/"


@pytest.mark.parametrize("name", ["é", "a\\b", "a\0", ".zarray", ".zgroup", ".zattrs", ".zmetadata"])
def test_names_for_no_new_node(name: str) -> None:
    """Logical storage paths: "A logical path is simply an ASCII string", without separators of its own."""
    with pytest.raises(NameInvalid):
        layout().check_name(name)


def test_a_group_below_the_root_has_a_copy_of_its_own() -> None:
    here, array, group = layout(), NodePath("/g/a"), NodePath("/g")
    made = {Key("g/.zgroup"): b'{"zarr_format": 2}', Key("g/a/.zgroup"): b'{"zarr_format": 2}'}
    made |= {Key(".zmetadata"): b'{"zarr_consolidated_format": 1, "metadata": {}}'}
    made |= here.new_copy(group, made)
    assert here.copy_key(group) == "g/.zmetadata" == here.consolidated_keys(group)[-1]
    made |= here.copies_with([group, array], made)
    made |= here.amend(array, made, Edit(attributes={"x": 1}))
    members = [json.loads(made[Key(key)])["metadata"] for key in (".zmetadata", "g/.zmetadata")]
    inside = {"a/.zgroup": {"zarr_format": 2}, "a/.zattrs": {"x": 1}}
    assert members == [
        {"g/.zgroup": {"zarr_format": 2}} | {f"g/{name}": each for name, each in inside.items()},
        {".zgroup": {"zarr_format": 2}} | inside,
    ]
    made |= here.copies_without(array, made)
    assert json.loads(made[Key("g/.zmetadata")])["metadata"] == {".zgroup": {"zarr_format": 2}}
    # A copy in the group is removed with the group.
    assert here.copies_without(group, made).keys() == {".zmetadata"}


def test_a_document_and_its_node() -> None:
    here = PLUGIN.create(Prefix("x/"))
    assert here.node_of_document(Key("x/a/b/.zattrs")) == "/a/b"
    assert here.node_of_document(Key("x/.zmetadata")) == "/"
    assert here.node_of_document(Key("x/a/.zmetadata")) == "/a"
    for key in (
        ".zgroup",
        "x/a/0.0",
        "x/a\\..\\b/.zarray",
        "x/../.zarray",
        "x//a/.zarray",
        "x/a.zarray",
        "x//.zarray",
        "x//.zmetadata",
    ):
        assert here.node_of_document(Key(key)) is None


# --- "Groups" --------------------------------------------------------------------------------------------------------------------


def test_groups_must_exist_at_all_ancestor_paths() -> None:
    """Groups: "groups MUST also be created at all ancestor paths", for groups and for arrays."""
    assert layout().required_groups(NodePath("/foo/bar/baz")) == ("/", "/foo", "/foo/bar")


@pytest.mark.parametrize("data", [b"{}", b'{"zarr_format": 3}', b"[]", b"", b"null"])
def test_a_group_must_have_its_format(data: bytes) -> None:
    """Groups: "The following keys MUST be present", zarr_format."""
    with pytest.raises(MetadataError, match=r"a/\.zgroup"):
        layout().parse(A, {Key("a/.zgroup"): data})


def test_a_group_says_nothing_else() -> None:
    """Groups: "Other keys MUST NOT be present"."""
    written = layout().format(GroupNode(path=A, dialect="v2"))
    assert {key: json.loads(value) for key, value in written.items()} == {"a/.zgroup": {"zarr_format": 2}}


def test_children_are_prefixes() -> None:
    names = layout().child_names(A, {".zgroup", "README.txt", "0.0"}, {"b", ".hidden", "x\\y", ".zarray", "..", "0"})
    assert names == {"b", ".hidden", "0"}


def test_nothing_is_no_node() -> None:
    assert layout().parse(A, {}) is None
    assert layout().parse(A, {Key("a/.zattrs"): b'{"x": 1}'}) is None


def test_where_an_array_and_a_group_lie_the_array_wins_and_says_so() -> None:
    node = layout().parse(A, {Key("a/.zarray"): zarray(), Key("a/.zgroup"): b"junk"})
    assert isinstance(node, ArrayNode)
    assert len(node.quirks) == 1 and ".zgroup" in node.quirks[0]


# --- "Attributes" ----------------------------------------------------------------------------------------------------------------


def test_absent_attributes_are_empty() -> None:
    """Attributes: "if it is absent the attributes should be treated as empty"."""
    assert parse(zarray()).attributes == {}


def test_attributes() -> None:
    data = {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]}
    documents = {Key("a/.zarray"): zarray(), Key("a/.zattrs"): json.dumps(data).encode()}
    node = layout().parse(A, documents)
    assert isinstance(node, ArrayNode) and node.attributes == data and list(node.attributes) == list(data)
    documents[Key("a/.zattrs")] = b"[1]"
    with pytest.raises(MetadataError, match=r"a/\.zattrs"):
        layout().parse(A, documents)


# --- the consolidated copy -------------------------------------------------------------------------------------------------------


def consolidated(**members: Any) -> V2Layout:
    data = json.dumps(
        {"zarr_consolidated_format": 1, "metadata": {name.replace("__", "/"): each for name, each in members.items()}}
    )
    opened = PLUGIN.open(Prefix(""), {Key(".zmetadata"): data.encode()})
    assert opened is not None and opened.copy is not None
    return opened


COPY = {
    ".zgroup": {"zarr_format": 2},
    ".zattrs": {"c": 1},
    "a/.zarray": PLAIN,
    "a/.zattrs": {"k": "v"},
    "deep/er/b/.zarray": PLAIN,
    "../escape/.zarray": PLAIN,
    "x//y/.zgroup": {"zarr_format": 2},
    "only/.zattrs": {},
    "bad/.zarray": {"zarr_format": 2},
    "worse/.zarray": 7,
    "0.0": {},
}


def test_a_node_known_only_from_the_copy() -> None:
    here = consolidated(**COPY)
    node = here.parse(A, {})
    assert isinstance(node, ArrayNode) and node.metadata == array() and node.attributes == {"k": "v"}
    assert here.parse(ROOT, {}) == GroupNode(path=ROOT, dialect="v2", attributes={"c": 1})
    assert here.parse(NodePath("/only"), {}) is None
    assert here.parse(NodePath("/worse"), {}) is None
    with pytest.raises(MetadataError, match=r"\.zmetadata \(bad/\.zarray\)"):
        here.parse(NodePath("/bad"), {})


def test_a_refused_copy_is_ignored() -> None:
    copy = json.dumps({"zarr_consolidated_format": 1, "metadata": COPY}).encode()
    here = PLUGIN.choosing({"consolidated": "refuse"}).open(
        Prefix(""), {Key(".zmetadata"): copy, Key(".zgroup"): b'{"zarr_format": 2}'}
    )
    assert here is not None and here.copy is None and here.parse(A, {}) is None


def test_children_for_stores_that_cannot_list() -> None:
    here = consolidated(**COPY)
    assert here.consolidated_names(ROOT) == {"a", "deep", "bad"}
    assert here.consolidated_names(NodePath("/deep")) == {"er"}
    assert here.consolidated_names(NodePath("/a")) == set()
    assert layout().consolidated_names(ROOT) is None


def test_parents_in_the_copy_are_implicit_groups() -> None:
    assert consolidated(**COPY).parse(NodePath("/deep/er"), {}) == GroupNode(
        path=NodePath("/deep/er"), dialect="v2", explicit=False
    )


def test_an_implicit_group_is_not_edited() -> None:
    with pytest.raises(MetadataError, match="no documents"):
        consolidated(**COPY).amend(NodePath("/deep/er"), {}, Edit(attributes={"x": 1}))


def test_own_documents_win() -> None:
    here = consolidated(**COPY)
    own = here.parse(A, {Key("a/.zarray"): zarray(shape=[1, 1])})
    assert isinstance(own, ArrayNode) and own.metadata.shape == (1, 1) and own.attributes == {}
    attributed = here.parse(A, {Key("a/.zattrs"): b'{"own": 1}'})
    assert isinstance(attributed, ArrayNode) and attributed.attributes == {"own": 1}


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b'{"zarr_consolidated_format": 2, "metadata": {}}', b'{"zarr_consolidated_format": 1, "metadata": []}', b"\xff"],
)
def test_a_bad_copy_hides_nothing(data: bytes) -> None:
    documents = {Key(".zmetadata"): data, Key(".zgroup"): ZGROUP}
    opened = PLUGIN.open(Prefix(""), documents)
    assert opened is not None and opened.copy is None
    assert opened.consolidated_names(ROOT) is None
    assert isinstance(opened.parse(ROOT, documents), GroupNode)
    edited = opened.amend(ROOT, documents, Edit(attributes={"a": 1}))
    assert set(edited) == {".zattrs"}


# --- edits -----------------------------------------------------------------------------------------------------------------------


ORIGINAL = b"""{
    "zarr_format": 2, "shape": [20, 30],
    "unknown" : {"x": 1.50e3},
    "chunks": [10,10], "dtype": "<f8", "compressor": null, "fill_value": NaN, "order": "C"
}"""


def test_a_new_shape_leaves_every_other_byte() -> None:
    documents = {Key("a/.zarray"): ORIGINAL}
    edited = layout().amend(A, documents, Edit(shape=(21, 30)))
    assert list(edited) == ["a/.zarray"]
    lines = edited[Key("a/.zarray")].split(b"\n")
    assert lines[-3:] == ORIGINAL.split(b"\n")[-3:]
    assert parse(edited[Key("a/.zarray")]).metadata.shape == (21, 30)


@pytest.mark.parametrize("shape", [(20,), (20, 30, 1), (-1, 30), (2**63, 1)])
def test_a_shape_that_cannot_be(shape: tuple[int, ...]) -> None:
    with pytest.raises(MetadataError):
        layout().amend(A, {Key("a/.zarray"): ORIGINAL}, Edit(shape=shape))


def test_empty_attributes_stay_absent() -> None:
    documents = {Key("a/.zarray"): ORIGINAL}
    assert layout().amend(A, documents, Edit(attributes={})) == {}
    documents[Key("a/.zattrs")] = b'{"x": 1}'
    assert layout().amend(A, documents, Edit(attributes={})) == {"a/.zattrs": b"{}"}


def test_the_copy_is_amended_too() -> None:
    copy = json.dumps({"zarr_consolidated_format": 1, "metadata": COPY, "more": 1}, indent=4).encode()
    documents = {Key("a/.zarray"): zarray(), Key(".zmetadata"): copy}
    edited = layout().amend(A, documents, Edit(attributes={"new": [1]}, shape=(5, 5)))
    assert list(edited) == ["a/.zattrs", "a/.zarray", ".zmetadata"]
    expected = {**COPY, "a/.zattrs": {"new": [1]}, "a/.zarray": {**PLAIN, "shape": [5, 5]}}
    assert json.loads(edited[Key(".zmetadata")]) == {"zarr_consolidated_format": 1, "metadata": expected, "more": 1}
    assert edited[Key(".zmetadata")].startswith(copy[:60])


def test_a_fill_value_is_defined_in_the_document_and_in_the_copy() -> None:
    copy = json.dumps({"zarr_consolidated_format": 1, "metadata": COPY}).encode()
    documents = {Key("a/.zarray"): zarray(), Key(".zmetadata"): copy}
    fill_value = np.array(-9999, PLAIN["dtype"]).tobytes()
    edited = layout().amend(A, documents, Edit(fill_value=fill_value))
    assert list(edited) == ["a/.zarray", ".zmetadata"]
    assert json.loads(edited[Key("a/.zarray")]) == {**PLAIN, "fill_value": -9999}
    assert json.loads(edited[Key(".zmetadata")])["metadata"] == {**COPY, "a/.zarray": {**PLAIN, "fill_value": -9999}}


def test_a_node_that_the_copy_does_not_know_stays_unknown_there() -> None:
    documents = {
        Key("new/.zgroup"): ZGROUP,
        Key(".zmetadata"): json.dumps({"zarr_consolidated_format": 1, "metadata": COPY}).encode(),
    }
    assert list(layout().amend(NodePath("/new"), documents, Edit(attributes={"x": 1}))) == ["new/.zattrs"]


def test_attributes_that_the_copy_lacks_are_added_there() -> None:
    copy = b'{"metadata": {"a/.zgroup": {"zarr_format": 2}}, "zarr_consolidated_format": 1}'
    edited = layout().amend(A, {Key("a/.zgroup"): ZGROUP, Key(".zmetadata"): copy}, Edit(attributes={"x": 1}))
    assert json.loads(edited[Key(".zmetadata")])["metadata"] == {"a/.zgroup": {"zarr_format": 2}, "a/.zattrs": {"x": 1}}
    assert Key(".zmetadata") not in layout().amend(A, {Key("a/.zgroup"): ZGROUP, Key(".zmetadata"): copy}, Edit(attributes={}))


# --- writing ---------------------------------------------------------------------------------------------------------------------


def node_of(metadata: ArrayMetadata, **attributes: Any) -> ArrayNode:
    return ArrayNode(path=A, dialect="v2", metadata=metadata, chunk_prefix=Prefix("a/"), attributes=attributes)


def plain(**changes: Any) -> ArrayMetadata:
    values: dict[str, Any] = {
        "shape": (4, 4),
        "data_type": from_name("int32"),
        "chunk_grid": RegularGrid((2, 2)),
        "chunk_key_encoding": chunk_key.v2(),
        "fill_value": bytes(4),
        "codecs": (CodecSpec("bytes", {"endian": "little"}),),
    }
    return ArrayMetadata(**{**values, **changes})


def test_documents_are_written_as_zarr_python_2_wrote_them() -> None:
    written = layout().format(node_of(plain(), b=1, a=2))
    assert list(written) == ["a/.zattrs", "a/.zarray"]
    members = {**PLAIN, "shape": [4, 4], "chunks": [2, 2]}
    assert written[Key("a/.zarray")] == json.dumps(members, indent=4, sort_keys=True, separators=(",", ": ")).encode()
    assert written[Key("a/.zattrs")] == b'{\n    "b": 1,\n    "a": 2\n}'
    assert list(layout().format(node_of(plain()))) == ["a/.zarray"]


@pytest.mark.parametrize(
    "changes",
    [
        {"data_type": from_name("bfloat16"), "fill_value": bytes(2)},
        {"data_type": from_name("int4"), "fill_value": bytes(1)},
        {"chunk_key_encoding": chunk_key.default()},
        {"codecs": (CodecSpec("transpose", {"order": [1, 0]}), CodecSpec("transpose", {"order": [1, 0]}), CodecSpec("bytes"))},
        {"codecs": (CodecSpec("bytes", {"endian": "little"}), CodecSpec("bytes", {"endian": "little"}))},
        {"codecs": (CodecSpec("sharding_indexed", {}),)},
        {"shards": (ShardSpec((2, 1)),)},
        {"codecs": (CodecSpec("bytes", {"dtype": [["a", ">i4"]]}),)},
        {
            "shape": (2, 2, 2),
            "chunk_grid": RegularGrid((1, 1, 1)),
            "codecs": (CodecSpec("transpose", {"order": [1, 0, 2]}), CodecSpec("bytes", {"endian": "little"})),
        },
    ],
)
def test_what_v2_has_no_words_for(changes: dict[str, Any]) -> None:
    with pytest.raises(NotRepresentable):
        layout().format(node_of(plain(**changes)))


def test_a_chain_in_v2_words() -> None:
    def written(*codecs: CodecSpec) -> dict[str, Any]:
        document = layout().format(node_of(plain(codecs=codecs)))[Key("a/.zarray")]
        return {name: json.loads(document)[name] for name in ("order", "dtype", "filters", "compressor")}

    little, delta = CodecSpec("bytes", {"endian": "little"}), CodecSpec("numcodecs.delta", {"dtype": "<i4", "astype": "<i4"})
    as_delta = {"id": "delta", "dtype": "<i4", "astype": "<i4"}
    assert written() == {"order": "C", "dtype": "<i4", "filters": None, "compressor": None}
    assert written(CodecSpec("bytes", {"endian": "big"}))["dtype"] == ">i4"
    assert written(CodecSpec("transpose", {"order": [1, 0]}), little)["order"] == "F"
    assert written(CodecSpec("transpose", {"order": [0, 1]}), little)["order"] == "C"
    only_filter = written(little, delta)
    assert (only_filter["filters"], only_filter["compressor"]) == ([as_delta], None)
    both = written(little, delta, CodecSpec("gzip", {"level": 3}))
    assert (both["filters"], both["compressor"]) == ([as_delta], {"id": "gzip", "level": 3})


@pytest.mark.parametrize(
    "dtype", ["|b1", ">i4", "<u8", "<f2", "<c16", "|S3", "<U2", "|V4", "<M8[ns]", [["a", ">i4"], ["b", "<f4"]]]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_zarr_python_opens_what_is_written(dtype: Any, order: str) -> None:
    metadata = array(dtype=dtype, fill_value=None, order=order, dimension_separator="/", compressor={"id": "zstd", "level": 1})
    written = layout().format(ArrayNode(path=ROOT, dialect="v2", metadata=metadata, chunk_prefix=Prefix(""), attributes={"k": 1}))
    store = ZarrMemoryStore({key: zarr.core.buffer.cpu.Buffer.from_bytes(value) for key, value in written.items()})
    opened = zarr.open_array(store, mode="r", zarr_format=2)
    assert opened.shape == metadata.shape and opened.chunks == (10, 10)
    assert opened.dtype == dtype_from_json(dtype)
    assert dict(opened.attrs) == {"k": 1} and opened.metadata.order == order  # type: ignore[union-attr]


# --- documents of other software -------------------------------------------------------------------------------------------------


def every_array(found: list[Case]) -> list[Any]:
    return [pytest.param(case, node, id=f"{case.name}{node['path']}") for case in found for node in case.nodes("array")]


def opened(case: Case) -> V2Layout:
    values = {key: value for key, value in case.values.items() if key in PLUGIN.root_keys(Prefix(""))}
    found = PLUGIN.open(Prefix(""), values)  # type: ignore[arg-type]
    assert found is not None
    return found


def node_in(case: Case, path: NodePath) -> Node | None:
    here = opened(case)
    return here.parse(path, {key: case.values[key] for key in here.document_keys(path) if key in case.values})


@pytest.mark.parametrize(("case", "expected"), every_array(V2_CASES))
def test_arrays_that_zarr_python_2_wrote(case: Case, expected: dict[str, Any]) -> None:
    if expected["filters"] and expected["filters"][0]["id"] == "pickle":
        with pytest.raises(MetadataUnsupported, match="pickle"):
            node_in(case, NodePath(expected["path"]))
        return
    node = node_in(case, NodePath(expected["path"]))
    if expected["dtype"] == "object":
        # tests/codecs/test_objects.py tests the content of its chunks.
        assert isinstance(node, ArrayNode) and node.metadata.data_type.is_variable
        return
    assert isinstance(node, ArrayNode)
    metadata, stored = node.metadata, dtype_from_json(expected["dtype"])
    assert list(metadata.shape) == expected["shape"]
    assert list(metadata.chunk_grid.chunk_shape((0,) * metadata.ndim)) == expected["chunk_shape"]
    assert metadata.data_type.dtype == stored.newbyteorder("<")
    assert node.attributes == expected["attributes"]
    assert (metadata.codecs[0].name == "transpose") == (expected["order"] == "F" and metadata.ndim > 1)
    assert metadata.fill_value == fill_of_manifest(metadata, expected["fill_value"])
    elements = case.expected(expected)
    assert elements.dtype == dtype_from_json(expected["npy_dtype"])
    chain, chunk_shape = CodecChain.build(metadata.codecs, metadata.data_type), tuple(expected["chunk_shape"])
    for coords in np.ndindex(metadata.grid_shape):
        value = case.values.get(node.chunk_prefix + metadata.chunk_key_encoding.encode(coords))
        assert (value is None) == (list(coords) in expected["missing_chunks"])
        if value is not None:
            chunk = chain.decode(value, chunk_shape)
        elif metadata.fill_value is not None:
            chunk = np.full(chunk_shape, np.frombuffer(metadata.fill_value, metadata.data_type.dtype)[0], metadata.data_type.dtype)
        else:
            continue
        part = elements[tuple(slice(c * n, c * n + n) for c, n in zip(coords, chunk_shape, strict=True))]
        inside = chunk[tuple(slice(0, n) for n in part.shape)]
        assert np.ascontiguousarray(inside).tobytes() == part.astype(metadata.data_type.dtype).tobytes()


@pytest.mark.parametrize(("case", "expected"), every_array(V2_CASES))
def test_what_zarr_python_2_wrote_is_written_the_same_again(case: Case, expected: dict[str, Any]) -> None:
    """Except for edits by hand: members without a meaning, and forms of fill values that zarr-python does not write.

    And for zstd without a checksum, of which zarr-python 3 omits the option, since other software refuses it.
    """
    if expected["dtype"] == "object":
        return
    node = node_in(case, NodePath(expected["path"]))
    assert isinstance(node, ArrayNode)
    key = node.chunk_prefix.key(".zarray")
    ours, theirs = json.loads(opened(case).format(node)[key]), json.loads(case.values[key])
    if case.name == "v2/edited_metadata":
        ours, theirs = (
            {name: each[name] for name in ("shape", "chunks", "dtype", "compressor", "order")} for each in (ours, theirs)
        )
    if case.name == "v2/compressors" and theirs["compressor"] == {"id": "zstd", "level": 3, "checksum": False}:
        del theirs["compressor"]["checksum"]
    assert ours == theirs


def fill_of_manifest(metadata: ArrayMetadata, value: Any) -> bytes | None:
    """Return the manifest's fill value, by NumPy alone."""
    dtype = metadata.data_type.dtype
    match value:
        case None:
            return None
        case {"bytes_hex": text}:
            element = bytes.fromhex(text).ljust(dtype.itemsize, b"\0")
            if dtype.names is not None:
                fields = np.dtype([("a", "<i4"), ("b", "S3"), ("c", ">f8")])
                return np.frombuffer(element, fields).astype(dtype).tobytes()
            return element
        case {"i8": number}:
            return np.int64(number).tobytes()
        case [real, imaginary]:
            return np.array(complex(real, imaginary), dtype).tobytes()
    return np.array(value if not isinstance(value, str) or dtype.kind == "U" else float(value)).astype(dtype).tobytes()


@pytest.mark.parametrize("case", V2_CASES, ids=lambda case: case.name)
def test_groups_that_zarr_python_2_wrote(case: Case) -> None:
    here = opened(case)
    for expected in case.nodes("group"):
        path = NodePath(expected["path"])
        node = node_in(case, path)
        assert isinstance(node, GroupNode) and node.attributes == expected["attributes"]
        names = here.child_names(path, *below(here.listing_prefix(path), case.values))
        assert names == {
            NodePath(each["path"]).name for each in case.nodes() if NodePath(each["path"]).parent == path != each["path"]
        }
        if here.copy is not None:
            assert here.consolidated_names(path) == names
            assert here.parse(path, {}) == node


def test_a_new_shape_changes_one_line_of_a_document_and_of_the_copy() -> None:
    case = next(case for case in V2_CASES if case.name == "v2/consolidated")
    here, path = opened(case), A
    documents = {Key(key): case.values[key] for key in (*here.document_keys(path), ".zmetadata") if key in case.values}
    edited = here.amend(path, documents, Edit(shape=(6,)))
    for key in ("a/.zarray", ".zmetadata"):
        before, after = documents[Key(key)].splitlines(), edited[Key(key)].splitlines()
        assert sum(line != other for line, other in zip(after, before, strict=True)) == 1


# --- invalid documents -----------------------------------------------------------------------------------------------------------


HOSTILE = [case for case in cases("hostile") if ".zgroup" in case.values]
FINE = {"/many_chunks", "/both", "/fmt_string"}
IN_CHUNKS = {"v2_bad_chunks", "dir_symlinks"}


@pytest.mark.parametrize("case", [case for case in HOSTILE if case.folder.name != "zip_paths"], ids=lambda case: case.folder.name)
def test_hostile_nodes_are_refused_and_their_neighbours_are_not(case: Case) -> None:
    ok = node_in(case, NodePath("/ok"))
    assert isinstance(ok, ArrayNode) and ok.metadata.shape == (4,)
    for path in case.manifest["hostile"]["bad_nodes"]:
        if path in FINE or case.folder.name in IN_CHUNKS:
            node_in(case, NodePath(path))
            continue
        with pytest.raises(MetadataError) as caught:
            node_in(case, NodePath(path))
        assert len(str(caught.value)) < 400


def test_names_that_lead_out_of_the_store_are_no_children() -> None:
    case = next(case for case in HOSTILE if case.folder.name == "zip_paths")
    here = opened(case)
    names = here.child_names(ROOT, *below("", case.values))
    assert {"ok", "a"} <= names and not names & {"", ".", ".."} and not any("\\" in name for name in names)
    assert here.child_names(A, *below("a/", case.values)) == set()
    assert isinstance(node_in(case, NodePath("/ok")), ArrayNode)


def test_a_deep_document_is_refused_without_recursion() -> None:
    with pytest.raises(MetadataError, match="nested"):
        parse(b'{"zarr_format": 2, "dtype": ' + b'[["a",' * 500 + b'"<i4"' + b"]]" * 500 + b"}")
    assert json_text.MAX_DEPTH < 100


def test_a_type_of_thousands_of_fields_is_refused_before_numpy_sees_it() -> None:
    with pytest.raises(MetadataUnsupported, match="1001 fields exceed the limit"):
        dtype_from_json([[f"f{number}", "<i4"] for number in range(1001)])
    assert dtype_from_json([[f"f{number}", "<i4"] for number in range(1000)]).itemsize == 4000
