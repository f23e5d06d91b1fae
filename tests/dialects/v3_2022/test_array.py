"""Array documents of the core draft of 2022: the rules of its text by section, and documents of real software."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.dialects.conformance import array_metadata
from tests.support.length import unhurried
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects.base import Edit
from zarrfs.dialects.v3_2022.dialect import PLUGIN, V3Draft2022Layout
from zarrfs.dialects.v3_2022.entry_point import EntryPoint
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_name, from_numpy
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.model.shards import ShardSpec

TEXT = V3Draft2022Layout(PLUGIN, Prefix(""), EntryPoint(software=False))
SOFTWARE = V3Draft2022Layout(PLUGIN, Prefix(""), EntryPoint())
PATH = NodePath("/a")
ARRAY: dict[str, Any] = {
    "shape": [10, 7],
    "data_type": "int32",
    "chunk_grid": {"type": "regular", "chunk_shape": [4, 3], "separator": "/"},
    "chunk_memory_layout": "C",
    "fill_value": 0,
    "extensions": [],
    "attributes": {},
}
GZIP = {"type": "https://purl.org/zarr/spec/codecs/gzip/1.0", "configuration": {"level": 1}}
COMPRESSOR = {"codec": "https://purl.org/zarr/spec/codec/gzip/1.0", "configuration": {"level": 1}}
SHARDING = {
    "extension": "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0",
    "type": "indexed",
    "configuration": {"chunks_per_shard": [2, 2]},
}
DELTA = {"id": "delta", "dtype": "<i4"}
FORMS = pytest.mark.parametrize("layout", [pytest.param(TEXT, id="text"), pytest.param(SOFTWARE, id="software")])


def array(layout: V3Draft2022Layout = TEXT, **members: Any) -> ArrayNode:
    """Return the array of the example with other ``members``; Ellipsis removes one."""
    document = {name: value for name, value in {**ARRAY, **members}.items() if value is not ...}
    node = layout.parse(PATH, {layout.document_keys(PATH)[0]: json.dumps(document).encode()})
    assert isinstance(node, ArrayNode)
    return node


def names(node: ArrayNode) -> list[str]:
    return [spec.name for spec in node.metadata.codecs]


def written(layout: V3Draft2022Layout, metadata: ArrayMetadata, **attributes: Any) -> dict[str, Any]:
    node = ArrayNode(path=PATH, dialect="v3_2022", metadata=metadata, chunk_prefix=layout.chunk_prefix(PATH), attributes=attributes)
    ((key, value),) = layout.format(node).items()
    assert key == layout.document_keys(PATH)[0]
    return dict(json.loads(value))


# --- array metadata -------------------------------------------------------------------------------------------------------


def test_the_examples_of_the_text() -> None:
    """The second example names a type in a form that the text's first rules do not have."""
    example = {
        "shape": [10000, 1000],
        "data_type": "<f8",
        "chunk_grid": {"type": "regular", "chunk_shape": [1000, 100], "separator": "/"},
        "codecs": [GZIP],
        "fill_value": "NaN",
        "attributes": {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]},
    }
    node = array(**example)
    assert (node.metadata.shape, node.metadata.grid_shape) == ((10000, 1000), (10, 10))
    assert node.metadata.data_type.name == "float64"
    assert node.attributes == example["attributes"]
    assert node.quirks == ()
    dates = {"extension": "https://purl.org/zarr/spec/extensions/data-types/datetime/1.0", "type": "<M8[ns]", "fallback": "<i8"}
    node = array(**{**example, "data_type": dates, "fill_value": None})
    assert node.metadata.data_type.dtype == np.dtype("<M8[ns]")
    assert node.metadata.fill_value is None
    assert node.quirks == ("fill_value is null: undefined",)


@FORMS
@pytest.mark.parametrize("name", ["shape", "data_type", "chunk_grid", "chunk_memory_layout", "fill_value"])
def test_array_metadata_mandatory_names(layout: V3Draft2022Layout, name: str) -> None:
    with pytest.raises(MetadataError, match=f"{name} is missing"):
        array(layout, **{name: ...})


@pytest.mark.parametrize("name", ["extensions", "attributes"])
def test_array_metadata_what_says_nothing_of_elements_may_be_missing(name: str) -> None:
    assert array(**{name: ...}).quirks == (f"{name} is missing",)
    with pytest.raises(MetadataError):
        array(**{name: 1})


@FORMS
def test_array_metadata_other_names_are_refused(layout: V3Draft2022Layout) -> None:
    for name in ("zarr_format", "dimension_names", "filters", "order", "x"):
        with pytest.raises(MetadataUnsupported, match=name):
            array(layout, **{name: None})


def test_array_metadata_extensions_must_be_understood() -> None:
    known = {"extension": "http://example.org/foo", "must_understand": False}
    assert any("http://example.org/foo" in quirk for quirk in array(extensions=[known]).quirks)
    for bad in (known | {"must_understand": True}, {"extension": "x"}, {"must_understand": False}, [], "x"):
        with pytest.raises(MetadataError):
            array(extensions=[bad])


@pytest.mark.parametrize("shape", [[-1, 2], [1.5, 2], "10", [True, 1], [2**63, 1], None])
def test_array_metadata_shape_is_integers(shape: Any) -> None:
    with pytest.raises(MetadataError):
        array(shape=shape)


# --- chunk grid -----------------------------------------------------------------------------------------------------------


def test_chunk_grid_regular() -> None:
    metadata = array(chunk_grid={"type": "regular", "chunk_shape": [4, 3], "separator": "."}).metadata
    assert metadata.chunk_grid == RegularGrid((4, 3))
    assert metadata.chunk_key_encoding.encode((1, 23)) == "c1.23"
    assert array().metadata.chunk_key_encoding.encode((1, 23)) == "c1/23"


@pytest.mark.parametrize(
    "grid",
    [
        {"type": "rectilinear", "chunk_shape": [4, 3], "separator": "/"},
        {"extension": "http://example.org/grid", "type": "regular", "chunk_shape": [4, 3], "separator": "/"},
        {"type": "regular", "chunk_shape": [4, 3], "separator": "_"},
        {"type": "regular", "chunk_shape": [4, 3], "separator": ["/"]},
        {"type": "regular", "chunk_shape": [4], "separator": "/"},
        {"type": "regular", "chunk_shape": [0, 3], "separator": "/"},
        {"type": "regular", "separator": "/"},
        {"chunk_shape": [4, 3], "separator": "/"},
        {"type": "regular", "chunk_shape": [4, 3], "separator": "/", "more": 1},
        7,
    ],
)
def test_chunk_grid_must_be_one_that_is_known(grid: Any) -> None:
    with pytest.raises(MetadataError):
        array(chunk_grid=grid)


def test_chunk_grid_separator_is_what_zarr_python_wrote_in_its_places() -> None:
    plain = {"type": "regular", "chunk_shape": [4, 3]}
    for members in (
        {"chunk_grid": plain | {"separator": "."}, "dimension_separator": "."},
        {"chunk_grid": plain | {"dimension_separator": "."}},
        {"chunk_grid": plain, "dimension_separator": "."},
    ):
        node = array(SOFTWARE, **members)
        assert node.metadata.chunk_key_encoding.separator == "."
        assert any("dimension_separator" in quirk for quirk in node.quirks)
    assert array(SOFTWARE, chunk_grid=plain).metadata.chunk_key_encoding.separator == "/"
    with pytest.raises(MetadataError, match="differ"):
        array(SOFTWARE, chunk_grid=plain | {"separator": "/"}, dimension_separator=".")


def test_chunk_grid_a_scalar_has_the_key_of_its_form() -> None:
    scalar = {"shape": [], "chunk_grid": {"type": "regular", "chunk_shape": [], "separator": "/"}}
    assert array(TEXT, **scalar).metadata.chunk_key_encoding.encode(()) == "c"
    assert array(SOFTWARE, **scalar).metadata.chunk_key_encoding.encode(()) == "c0"
    for layout, names in (TEXT, ["c", "c0"]), (SOFTWARE, ["c0", "c"]):
        assert [each.scalar for each in layout.chunk_key_encodings(array(layout, **scalar), {})] == names


# --- chunk memory layout --------------------------------------------------------------------------------------------------


def test_chunk_memory_layout_f_reverses_the_dimensions_before_the_codecs() -> None:
    """ "Determination of encoded representations"."""
    assert array(chunk_memory_layout="F").metadata.codecs[0] == CodecSpec("transpose", {"order": [1, 0]})
    big = {"type": "https://purl.org/zarr/spec/codecs/endian/1.0", "configuration": {"endian": "big"}}
    metadata = array(chunk_memory_layout="F", codecs=[big]).metadata
    chunk = np.arange(12, dtype="<i4").reshape(4, 3)
    stored = bytes(CodecChain.build(metadata.codecs, metadata.data_type).encode(chunk))
    assert stored == chunk.T.astype(">i4").tobytes()


@pytest.mark.parametrize("value", ["A", None, 1, {"extension": "http://example.org/l", "type": "C"}])
def test_chunk_memory_layout_is_c_or_f(value: Any) -> None:
    with pytest.raises(MetadataError):
        array(chunk_memory_layout=value)


# --- codecs ---------------------------------------------------------------------------------------------------------------


def test_codecs_absent_and_empty_are_the_same() -> None:
    assert array().metadata == array(codecs=[]).metadata == array(compressor=None).metadata
    assert array().metadata.codecs == (CodecSpec("bytes", {"endian": "little"}),)


@FORMS
@pytest.mark.parametrize(
    "uri",
    [
        "https://purl.org/zarr/spec/codecs/gzip/1.0",
        "http://purl.org/zarr/spec/codecs/gzip/1.0",
        "https://purl.org/zarr/spec/codec/gzip/1.0",
        "https://purl.org/zarr/spec/codec/gzip",
        "http://purl.org/zarr/spec/codec/gzip",
    ],
)
def test_codecs_are_matched_by_the_name_in_the_path(layout: V3Draft2022Layout, uri: str) -> None:
    expected = (CodecSpec("bytes", {"endian": "little"}), CodecSpec("gzip", {"level": 1}))
    assert array(layout, codecs=[{"type": uri, "configuration": {"level": 1}}]).metadata.codecs == expected
    assert array(layout, compressor={"codec": uri, "configuration": {"level": 1}}).metadata.codecs == expected


@pytest.mark.parametrize("name", ["blosc", "zlib", "bz2", "lz4", "lzma", "zstd"])
def test_codecs_of_zarr_python(name: str) -> None:
    configuration = {"blosc": {"cname": "lz4", "clevel": 1, "shuffle": 1, "blocksize": 0}, "lz4": {"acceleration": 1}}.get(name, {})
    if name == "lzma":
        configuration = {"format": 1, "check": -1, "preset": None, "filters": None}
    compressor = {"codec": f"https://purl.org/zarr/spec/codec/{name}/1.0", "configuration": configuration}
    metadata = array(SOFTWARE, compressor=compressor).metadata
    chain = CodecChain.build(metadata.codecs, metadata.data_type)
    chunk = np.arange(12, dtype="<i4").reshape(4, 3)
    assert np.array_equal(chain.decode(chain.encode(chunk), (4, 3)), chunk)
    assert written(SOFTWARE, metadata)["compressor"]["codec"] == compressor["codec"]


def test_a_shuffle_by_name_is_read_and_told_and_can_be_refused() -> None:
    uri = "https://purl.org/zarr/spec/codec/blosc/1.0"
    compressor = {"codec": uri, "configuration": {"cname": "lz4", "clevel": 1, "shuffle": "BIT"}}
    node = array(SOFTWARE, compressor=compressor)
    assert node.metadata.codecs[1].configuration["shuffle"] == "bitshuffle" and "shuffle" in node.quirks[0]
    strict = replace(SOFTWARE, dialect=PLUGIN.choosing({"shuffle": "refuse"}))
    with pytest.raises(MetadataError, match=r"v3_2022\.shuffle=refuse"):
        array(strict, compressor=compressor)


def test_codecs_zstd_of_zarr_python_has_no_name() -> None:
    node = array(SOFTWARE, compressor={"codec": "https://purl.org/zarr/spec/codec/", "configuration": {"level": 3}})
    assert names(node) == ["bytes", "zstd"]
    assert any("zstd" in quirk for quirk in node.quirks)
    for configuration in ({}, {"level": 3, "x": 1}, {"cname": "lz4"}):
        with pytest.raises(MetadataUnsupported):
            array(SOFTWARE, compressor={"codec": "https://purl.org/zarr/spec/codec/", "configuration": configuration})


@pytest.mark.parametrize(
    "codec",
    [
        {"type": "https://purl.org/zarr/spec/codecs/unheard/1.0"},
        {"type": "https://example.org/codecs/gzip/1.0"},
        {"type": "gzip"},
        {"configuration": {}},
        {"type": 7},
        {**GZIP, "configuration": 1},
        {**GZIP, "more": 1},
        {**GZIP, "configuration": {"level": 77}},
        "gzip",
        {"type": "https://purl.org/zarr/spec/codecs/endian/1.0", "configuration": {"endian": "middle"}},
        {"type": "https://purl.org/zarr/spec/codecs/endian/1.0"},
        {"type": "https://purl.org/zarr/spec/codecs/pickle/1.0"},
    ],
)
def test_codecs_that_are_not_known_are_refused(codec: Any) -> None:
    with pytest.raises(MetadataError):
        array(codecs=[codec])


def test_codecs_beside_a_compressor_are_refused() -> None:
    with pytest.raises(MetadataError, match="compressor"):
        array(codecs=[GZIP], compressor=COMPRESSOR)


def test_codec_endian() -> None:
    big = {"type": "https://purl.org/zarr/spec/codecs/endian/1.0", "configuration": {"endian": "big"}}
    little = {"type": "https://purl.org/zarr/spec/codecs/endian/1.0", "configuration": {"endian": "little"}}
    assert array(codecs=[big, GZIP]).metadata.codecs[0] == CodecSpec("bytes", {"endian": "big"})
    assert array(codecs=[little, GZIP]).metadata == array(codecs=[GZIP]).metadata
    assert array(data_type="uint8", codecs=[big]).metadata.codecs == (CodecSpec("bytes"),)
    assert array(data_type=">i4", codecs=[little]).metadata == array().metadata
    for codecs in ([GZIP, big], [big, little]):
        with pytest.raises(MetadataUnsupported, match="after another codec"):
            array(codecs=codecs)


# --- filters in the attributes --------------------------------------------------------------------------------------------


def test_filters_in_the_attributes_are_applied() -> None:
    node = array(SOFTWARE, compressor=COMPRESSOR, attributes={"filters": [DELTA], "x": 1})
    assert names(node) == ["bytes", "numcodecs.delta", "gzip"]
    assert node.attributes == {"filters": [DELTA], "x": 1}
    assert names(array(SOFTWARE, attributes={"filters": [DELTA]})) == ["bytes", "numcodecs.delta"]


@pytest.mark.parametrize("filters", ["ugriz", [], ["g", "r"], [{"name": "g"}], {"id": "delta"}])
def test_filters_that_are_none_are_the_user_s(filters: Any) -> None:
    assert names(array(SOFTWARE, compressor=COMPRESSOR, attributes={"filters": filters})) == ["bytes", "gzip"]


def test_filters_in_the_form_of_the_text_are_the_user_s() -> None:
    node = array(TEXT, codecs=[GZIP], attributes={"filters": [DELTA]})
    assert names(node) == ["bytes", "gzip"]
    assert written(TEXT, node.metadata, filters=[DELTA])["attributes"] == {"filters": [DELTA]}


def test_filters_that_are_not_known_are_refused() -> None:
    with pytest.raises(MetadataError, match="unheard"):
        array(SOFTWARE, attributes={"filters": [{"id": "unheard"}]})
    with pytest.raises(MetadataError):
        array(SOFTWARE, attributes={"filters": [{"id": 7}]})


def test_filters_survive_an_edit_and_cannot_be_edited() -> None:
    key = SOFTWARE.document_keys(PATH)[0]
    documents = {key: json.dumps({**ARRAY, "compressor": COMPRESSOR, "attributes": {"filters": [DELTA], "x": 1}}).encode()}
    for attributes in ({"y": 2}, {"y": 2, "filters": [DELTA]}):
        amended = SOFTWARE.amend(PATH, documents, Edit(attributes=attributes))
        assert json.loads(amended[key])["attributes"] == {"filters": [DELTA], "y": 2}
    with pytest.raises(MetadataError, match="filters"):
        SOFTWARE.amend(PATH, documents, Edit(attributes={"filters": [{"id": "shuffle", "elementsize": 4}]}))
    with pytest.raises(MetadataError, match="filters"):
        SOFTWARE.amend(PATH, documents, Edit(attributes={"filters": "none"}))
    plain = {key: json.dumps(ARRAY).encode()}
    # The codecs of another array, from which these attributes were copied.
    amended = SOFTWARE.amend(PATH, plain, Edit(attributes={"filters": [DELTA], "y": 2}))
    assert json.loads(amended[key])["attributes"] == {"y": 2}
    assert b"ugriz" in SOFTWARE.amend(PATH, plain, Edit(attributes={"filters": "ugriz"}))[key]


def test_filters_are_written_into_the_attributes() -> None:
    node = array(SOFTWARE, compressor=COMPRESSOR, attributes={"filters": [DELTA]})
    said = written(SOFTWARE, node.metadata, x=1)
    assert [each["id"] for each in said["attributes"]["filters"]] == ["delta"]
    assert said["attributes"]["x"] == 1
    # Filters of the array that the attributes came from do not apply to another one.
    assert "filters" not in written(SOFTWARE, array().metadata, filters=[DELTA])["attributes"]
    # The text can represent them, but has no URI for them.
    with pytest.raises(NotRepresentable, match=r"codec 'delta' has no URI.* zstd"):
        written(TEXT, node.metadata)


OBJECT = {"extension": "TODO: object array protocol URL", "fallback": None, "type": "|O"}


@pytest.mark.parametrize(
    ("filters", "name", "chain"),
    [
        ([{"id": "vlen-utf8"}], "string", ["vlen-utf8"]),
        ([{"id": "vlen-bytes"}], "variable_length_bytes", ["vlen-bytes"]),
        ([{"id": "json2", "encoding": "utf-8"}], None, ["json2"]),
        ([{"id": "categorize", "labels": ["a", "b"], "dtype": "|O", "astype": "|u1"}], "string", ["categorize", "bytes"]),
    ],
)
def test_objects_are_told_by_the_first_of_the_hidden_filters(filters: list[Any], name: str | None, chain: list[str]) -> None:
    node = array(SOFTWARE, data_type=OBJECT, compressor=COMPRESSOR, attributes={"filters": filters})
    assert node.metadata.data_type.is_variable
    assert name is None or node.metadata.data_type.name == name
    assert [each.removeprefix("numcodecs.") for each in names(node)] == [*chain, "gzip"]
    # zarr-python wrote 0 where no fill value was chosen.
    assert node.metadata.fill_value == (b"" if name else b"0")
    said = written(SOFTWARE, node.metadata, filters=filters)
    assert (said["data_type"], said["compressor"], said["attributes"]) == (OBJECT, COMPRESSOR, {"filters": filters})
    assert SOFTWARE.parse(PATH, SOFTWARE.format(node)) == node
    with pytest.raises(NotRepresentable):
        written(TEXT, node.metadata)


@pytest.mark.parametrize("filters", [[{"id": "pickle"}], [{"id": "delta", "dtype": "<i4"}], [], ["vlen-utf8"]])
def test_objects_that_nothing_safe_tells_are_refused(filters: list[Any]) -> None:
    with pytest.raises(MetadataUnsupported):
        array(SOFTWARE, data_type=OBJECT, attributes={"filters": filters})
    with pytest.raises(MetadataUnsupported):
        array(TEXT, data_type=OBJECT, attributes={"filters": [{"id": "vlen-utf8"}]})


# --- storage transformers -------------------------------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize(
    "uri",
    [
        "https://purl.org/zarr/spec/extensions/storage_transformers/sharding/1.0",
        "https://purl.org/zarr/spec/extensions/storage-transformers/sharding/1.0",
        "https://purl.org/zarr/spec/storage_transformers/sharding/1.0",
        "http://purl.org/zarr/spec/storage-transformers/sharding/1.0",
    ],
)
def test_storage_transformers_sharding(layout: V3Draft2022Layout, uri: str) -> None:
    metadata = array(layout, storage_transformers=[SHARDING | {"extension": uri}]).metadata
    assert metadata.shards == (ShardSpec((2, 2)),)
    assert metadata.chunk_grid == RegularGrid((4, 3))
    assert metadata.stored_grid_shape == (2, 2)
    assert array(layout, storage_transformers=[]).metadata == array(layout).metadata


def test_storage_transformers_are_a_stack_the_first_next_to_the_array() -> None:
    outer = SHARDING | {"configuration": {"chunks_per_shard": [3, 1]}}
    metadata = array(storage_transformers=[SHARDING, outer]).metadata
    assert metadata.shards == (ShardSpec((3, 1)), ShardSpec((2, 2)))
    assert metadata.chunks_per_key == (6, 2)
    said = written(TEXT, metadata)["storage_transformers"]
    assert [each["configuration"]["chunks_per_shard"] for each in said] == [[2, 2], [3, 1]]


@pytest.mark.parametrize(
    "transformer",
    [
        SHARDING | {"type": "other"},
        SHARDING | {"extension": "https://purl.org/zarr/spec/storage_transformers/caching/1.0"},
        SHARDING | {"extension": "https://example.org/storage_transformers/sharding/1.0"},
        SHARDING | {"configuration": {"chunks_per_shard": [2]}},
        SHARDING | {"configuration": {"chunks_per_shard": [0, 2]}},
        SHARDING | {"configuration": {"chunks_per_shard": [2**40, 2**40]}},
        SHARDING | {"configuration": {"chunks_per_shard": [2, 2], "index_location": "start"}},
        SHARDING | {"configuration": {}},
        SHARDING | {"must_understand": False},
        {"type": "indexed", "configuration": {"chunks_per_shard": [2, 2]}},
        "sharding",
    ],
)
def test_storage_transformers_that_are_not_known_are_refused(transformer: Any) -> None:
    with pytest.raises(MetadataError):
        array(storage_transformers=[transformer])


def test_storage_transformers_cannot_say_what_the_final_shards_say() -> None:
    metadata = array().metadata
    for spec in (ShardSpec((2, 2), "start"), ShardSpec((2, 2), index_codecs=(CodecSpec("bytes", {"endian": "big"}),))):
        with pytest.raises(NotRepresentable):
            written(TEXT, replace(metadata, shards=(spec,)))


# --- writing --------------------------------------------------------------------------------------------------------------


def test_the_forms_in_which_an_array_is_written() -> None:
    metadata = ArrayMetadata(
        shape=(10, 7),
        data_type=from_name("float64"),
        chunk_grid=RegularGrid((4, 3)),
        chunk_key_encoding=PLUGIN.chunk_key_encoding,
        fill_value=struct.pack("<d", float("inf")),
        codecs=(CodecSpec("transpose", {"order": [1, 0]}), CodecSpec("bytes", {"endian": "big"}), CodecSpec("gzip", {"level": 1})),
        shards=(ShardSpec((2, 2)),),
    )
    common = {
        "shape": [10, 7],
        "chunk_memory_layout": "F",
        "extensions": [],
        "attributes": {"x": 1},
        "chunk_grid": ARRAY["chunk_grid"],
    }
    big = {"type": "https://purl.org/zarr/spec/codecs/endian/1.0", "configuration": {"endian": "big"}}
    assert written(TEXT, metadata, x=1) == common | {
        "data_type": "float64",
        "fill_value": "+Infinity",
        "codecs": [big, GZIP],
        "storage_transformers": [SHARDING],
    }
    sharding = SHARDING | {"extension": "https://purl.org/zarr/spec/storage_transformers/sharding/1.0"}
    assert written(SOFTWARE, metadata, x=1) == common | {
        "data_type": ">f8",
        "fill_value": "Infinity",
        "compressor": COMPRESSOR,
        "storage_transformers": [sharding],
    }
    dotted = replace(metadata, chunk_key_encoding=replace(metadata.chunk_key_encoding, separator="."))
    assert written(SOFTWARE, dotted)["dimension_separator"] == written(SOFTWARE, dotted)["chunk_grid"]["separator"] == "."
    assert "dimension_separator" not in written(TEXT, dotted)


@FORMS
def test_what_there_are_no_words_for(layout: V3Draft2022Layout) -> None:
    metadata = array(layout).metadata
    for changed in (
        {"chunk_key_encoding": chunk_key.default()},
        {"chunk_key_encoding": chunk_key.v2()},
        {"data_type": from_name("bfloat16"), "codecs": ()},
        {"codecs": (CodecSpec("transpose", {"order": [1, 0]}), CodecSpec("transpose", {"order": [1, 0]}), CodecSpec("bytes"))},
        {"codecs": (CodecSpec("bytes", {"endian": "little"}), CodecSpec("unheard"))},
    ):
        with pytest.raises(NotRepresentable):
            written(layout, replace(metadata, **changed))


@pytest.mark.parametrize(
    ("codec", "uri"),
    [
        # Defined by the text.
        (CodecSpec("gzip", {"level": 1}), "https://purl.org/zarr/spec/codecs/gzip/1.0"),
        (
            CodecSpec("blosc", {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 8, "blocksize": 0}),
            "https://purl.org/zarr/spec/codecs/blosc/1.0",
        ),
        # Written by zarr-python 2.13 to 2.18.
        (CodecSpec("zstd", {"level": 1, "checksum": False}), "https://purl.org/zarr/spec/codec/zstd/1.0"),
        *(
            (CodecSpec(f"numcodecs.{name}", config), f"https://purl.org/zarr/spec/codec/{name}/1.0")
            for name, config in (
                ("zlib", {"level": 1}),
                ("bz2", {"level": 1}),
                ("lz4", {"acceleration": 1}),
                ("lzma", {"format": 1, "check": -1, "preset": None, "filters": None}),
            )
        ),
        # In neither of them.
        (CodecSpec("crc32c"), None),
        (CodecSpec("numcodecs.shuffle", {"elementsize": 8}), None),
        (CodecSpec("numcodecs.fletcher32"), None),
    ],
    ids=lambda value: value.name if isinstance(value, CodecSpec) else "",
)
def test_the_form_of_the_text_has_codecs_of_the_text_and_of_the_software_of_its_time(codec: CodecSpec, uri: str | None) -> None:
    metadata = replace(array().metadata, codecs=(CodecSpec("bytes", {"endian": "little"}), codec))
    if uri is None:
        with pytest.raises(NotRepresentable, match="has no URI"):
            written(TEXT, metadata)
        return
    (said,) = written(TEXT, metadata)["codecs"]
    assert said["type"] == uri
    (_, read) = array(codecs=[said]).metadata.codecs
    assert read.name == codec.name


def test_an_edit_changes_the_shape_and_every_other_byte_stays() -> None:
    key = Key("meta/a.array.json")
    data = json.dumps({**ARRAY, "attributes": {"x": 1.50}}, indent=3).replace("1.5", "1.50").encode()
    amended = TEXT.amend(PATH, {key: data}, Edit(shape=(12, 7)))
    document = json.loads(amended[key])
    assert document == {**ARRAY, "attributes": {"x": 1.5}, "shape": [12, 7]}
    assert b"1.50" in amended[key]
    assert amended[key].split(b'"data_type"')[1] == data.split(b'"data_type"')[1]
    with pytest.raises(MetadataError):
        TEXT.amend(PATH, {key: data}, Edit(shape=(12,)))


@unhurried
@given(metadata=array_metadata(), software=st.booleans(), counts=st.integers(1, 3), sharded=st.booleans())
def test_an_array_is_read_as_it_was_written(metadata: ArrayMetadata, software: bool, counts: int, sharded: bool) -> None:
    layout = SOFTWARE if software else TEXT
    shards = (ShardSpec((counts,) * metadata.ndim),) if sharded else ()
    metadata = replace(metadata, chunk_key_encoding=PLUGIN.chunk_key_encoding, shards=shards)
    node = ArrayNode(path=PATH, dialect="v3_2022", metadata=metadata, chunk_prefix=layout.chunk_prefix(PATH))
    try:
        documents = layout.format(node)
    except NotRepresentable:
        assume(False)
    read = layout.parse(PATH, documents)
    assert isinstance(read, ArrayNode)
    assert read.quirks == ()
    assert layout.parse(PATH, layout.format(read)) == read
    assert read.metadata.shards == shards
    assert read.metadata.data_type == from_numpy(metadata.data_type.dtype)
    # The stored bytes are the same.
    chain, again = (CodecChain.build(each.codecs, each.data_type) for each in (metadata, read.metadata))
    chunk = np.zeros(tuple(max(1, n) for n in metadata.chunk_grid.chunks), metadata.data_type.dtype)
    if not any(spec.name == "gzip" for spec in metadata.codecs):
        chunk = np.frombuffer(bytes(n % 2 for n in range(chunk.nbytes)), chunk.dtype).reshape(chunk.shape)
        assert bytes(chain.encode(chunk)) == bytes(again.encode(chunk))
    if not software:
        assert read.metadata.fill_value == metadata.fill_value
