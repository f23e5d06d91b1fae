"""The codec ``sharding_indexed`` in array documents: the rules of its text, and agreement with other software on reads and writes."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given
from hypothesis import strategies as st

from tests.dialects.conformance import spoilt
from tests.support.length import tries, unhurried
from zarrfs.codecs import lookup
from zarrfs.codecs.base import BYTE, BytesBytesCodec
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects.base import Edit
from zarrfs.dialects.v3.dialect import PLUGIN
from zarrfs.errors import MetadataError, MetadataUnsupported
from zarrfs.keys import ROOT, Key, Prefix
from zarrfs.model.chunk_grid import RegularGrid, Shape
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.model.shards import EMPTY, ShardSpec

LAYOUT = PLUGIN.create(Prefix(""))
KEY = Key("zarr.json")
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
CRC = {"name": "crc32c"}
ROUNDED = {"name": "numcodecs.bitround", "configuration": {"keepbits": 5}}
DELTA = {"name": "numcodecs.delta", "configuration": {"dtype": "<f4"}}
Json = dict[str, Any]


def transposed(*order: int) -> Json:
    return {"name": "transpose", "configuration": {"order": list(order)}}


def sharding(*chunk_shape: int, codecs: Any = (LITTLE,), index_codecs: Any = (LITTLE, CRC), **others: Any) -> Json:
    """Return the codec; Ellipsis removes a member."""
    members = {"chunk_shape": list(chunk_shape), "codecs": codecs, "index_codecs": index_codecs, **others}
    return {"name": "sharding_indexed", "configuration": {name: value for name, value in members.items() if value is not ...}}


def document(*codecs: Any, shape: Any = (8, 18), chunks: Any = (4, 6), **members: Any) -> bytes:
    said = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 1.5,
        "codecs": codecs,
    }
    return json.dumps({**said, **members}).encode()


def node_of(data: bytes) -> ArrayNode:
    node = LAYOUT.parse(ROOT, {KEY: data})
    assert isinstance(node, ArrayNode)
    return node


def parsed(*codecs: Any, **members: Any) -> ArrayMetadata:
    return node_of(document(*codecs, **members)).metadata


def formatted(metadata: ArrayMetadata) -> bytes:
    node = ArrayNode(path=ROOT, dialect="v3", metadata=metadata, chunk_prefix=Prefix(""))
    return LAYOUT.format(node)[KEY]


# --- "Configuration parameters" -----------------------------------------------------------------------------------------------------


def test_the_chunks_of_an_array_are_the_inner_ones() -> None:
    metadata = parsed(sharding(2, 3, codecs=[BIG, GZIP]))
    assert metadata.chunk_grid == RegularGrid((2, 3))
    assert metadata.codecs == (CodecSpec("bytes", {"endian": "big"}), CodecSpec("gzip", {"level": 1}))
    assert metadata.shards == (ShardSpec((2, 2), "end", (CodecSpec("bytes", {"endian": "little"}), CodecSpec("crc32c")), (0, 1)),)
    assert (metadata.grid_shape, metadata.stored_grid_shape) == ((4, 6), (2, 3))


def test_the_index_is_at_the_end_unless_it_is_at_the_start() -> None:
    assert parsed(sharding(2, 3)).shards[0].index_location == "end"
    assert parsed(sharding(2, 3, index_location="end")) == parsed(sharding(2, 3))
    assert parsed(sharding(2, 3, index_location="start")).shards[0].index_location == "start"


@pytest.mark.parametrize("location", ["middle", "", None, 0, ["end"], {}])
def test_the_index_is_nowhere_else(location: Any) -> None:
    with pytest.raises(MetadataError):
        parsed(sharding(2, 3, index_location=location))


@pytest.mark.parametrize("name", ["chunk_shape", "codecs", "index_codecs"])
def test_what_a_shard_needs_cannot_be_left_out(name: str) -> None:
    with pytest.raises(MetadataError, match=name):
        parsed(sharding(2, 3, **{name: ...}))


@pytest.mark.parametrize(
    "said", ["sharding_indexed", {"name": "sharding_indexed"}, {"name": "sharding_indexed", "configuration": 3}]
)
def test_the_codec_has_no_short_form(said: Any) -> None:
    with pytest.raises(MetadataError):
        parsed(said)


def test_an_unknown_member_is_refused_unless_it_may_be_ignored() -> None:
    with pytest.raises(MetadataUnsupported, match="strange"):
        parsed(sharding(2, 3, strange=1))
    assert parsed(sharding(2, 3, strange={"must_understand": False})) == parsed(sharding(2, 3))


def test_shards_are_never_ignored() -> None:
    assert parsed({**sharding(2, 3), "must_understand": False}) == parsed(sharding(2, 3))


@pytest.mark.parametrize("chunks", [(3, 3), (2, 4), (8, 6), (0, 3), (2,), (2, 3, 1), (), (2.0, 3), (-2, 3), (True, 3), (4, 2**63)])
def test_chunks_divide_the_shard(chunks: Any) -> None:
    with pytest.raises(MetadataError):
        parsed(sharding(*chunks))


@pytest.mark.parametrize(
    "codecs",
    [
        [],
        [CRC],
        [CRC, LITTLE],
        [LITTLE, LITTLE],
        [LITTLE, CRC, CRC],
        [LITTLE, GZIP],
        [transposed(0, 1, 2), LITTLE],
        [{"name": "bytes"}],
        ["bytes"],
        [{"name": "bytes", "configuration": {"endian": "middle"}}],
        [{"name": "bytes", "configuration": {"dtype": "<u8"}}],
        [sharding(1, 1, 2)],
        [LITTLE, {"name": "crc32c", "configuration": {"x": 1}}],
        [LITTLE, {"name": "no-such-codec"}],
        "bytes",
        None,
        {},
    ],
)
def test_an_index_is_bytes_and_perhaps_a_checksum(codecs: Any) -> None:
    with pytest.raises(MetadataError):
        parsed(sharding(2, 3, index_codecs=codecs))


@pytest.mark.parametrize("codecs", [[LITTLE], [BIG], [LITTLE, CRC], [BIG, "crc32c"]])
def test_each_index_that_programs_write(codecs: Any) -> None:
    names = [each if isinstance(each, str) else each["name"] for each in codecs]
    assert [spec.name for spec in parsed(sharding(2, 3, index_codecs=codecs)).shards[0].index_codecs] == names


@pytest.mark.parametrize(
    "codecs", [[LITTLE, LITTLE], [LITTLE, transposed(1, 0)], [transposed(0, 0), LITTLE], ["x"], [LITTLE, "x"], {}, None, 3]
)
def test_a_bad_inner_chain_is_refused(codecs: Any) -> None:
    with pytest.raises(MetadataError):
        parsed(sharding(2, 3, codecs=codecs))


def test_what_real_software_writes_is_read_inside_of_shards_too() -> None:
    node = node_of(document(sharding(2, 3, codecs=[{"name": "transpose", "configuration": {"order": "F"}}, LITTLE])))
    assert node.metadata.codecs[0] == CodecSpec("transpose", {"order": [1, 0]}) and len(node.quirks) == 1
    node = node_of(document(sharding(2, 3, codecs=[])))
    assert node.metadata.codecs == () and len(node.quirks) == 1
    unknown = {"name": "statistics", "must_understand": False}
    node = node_of(document(sharding(2, 3, codecs=[LITTLE, unknown], index_codecs=[LITTLE, unknown])))
    assert node.metadata == parsed(sharding(2, 3, index_codecs=[LITTLE])) and len(node.quirks) == 2


def test_the_two_limits_are_those_of_chunks_and_of_indexes() -> None:
    big = 2**40
    assert parsed(sharding(2**10, 2**10), shape=(big, big), chunks=(2**20, 2**20)).chunks_per_key == (2**10, 2**10)
    with pytest.raises(MetadataUnsupported, match="chunks of"):
        parsed(sharding(2**15, 2**15), shape=(big, big), chunks=(2**20, 2**20))
    with pytest.raises(MetadataUnsupported, match="shards of"):
        parsed(sharding(1, 1), shape=(big, big), chunks=(2**20, 2**20))


def test_a_dimension_without_elements() -> None:
    for chunks, inner in (((4, 0), (2, 0)), ((4, 0), (2, 3)), ((4, 6), (2, 3))):
        metadata = parsed(sharding(*inner), shape=(8, 0), chunks=chunks)
        assert (metadata.grid_shape, metadata.stored_grid_shape) == ((4, 0), (2, 0))
        assert parse_again(metadata).shards == metadata.shards
    with pytest.raises(MetadataError):
        parsed(sharding(2, 0), shape=(8, 18), chunks=(4, 6))


def test_an_array_without_dimensions() -> None:
    metadata = parsed(sharding(), shape=[], chunks=[])
    assert (metadata.shards[0].chunks, metadata.stored_grid_shape, metadata.grid_shape) == (1, (), ())


@tries(300)
@given(st.data())
def test_a_spoilt_document_raises_metadata_error_alone(data: st.DataObject) -> None:
    nested = sharding(6, 4, codecs=[transposed(1, 0), sharding(2, 3, codecs=[LITTLE, GZIP], index_location="start"), CRC])
    with contextlib.suppress(MetadataError):
        node = node_of(data.draw(spoilt(json.loads(document(transposed(1, 0), nested, chunks=(4, 18))))))
        again = parse_again(node.metadata)
        assert (again.chunk_grid, again.chunks_per_key) == (node.metadata.chunk_grid, node.metadata.chunks_per_key)


# --- nesting --------------------------------------------------------------------------------------------------------------------------


def test_shards_in_shards_are_told_from_the_outside() -> None:
    metadata = parsed(sharding(2, 6, codecs=[sharding(2, 1, codecs=[BIG], index_location="start"), GZIP], index_codecs=[BIG]))
    assert (metadata.chunk_grid, metadata.codecs) == (RegularGrid((2, 1)), (CodecSpec("bytes", {"endian": "big"}),))
    outer, inner = metadata.shards
    assert (outer.chunks_per_shard, outer.index_location, len(outer.index_codecs), outer.codecs) == ((2, 1), "end", 1, ())
    assert (inner.chunks_per_shard, inner.index_location, len(inner.index_codecs)) == ((1, 6), "start", 2)
    assert inner.codecs == (CodecSpec("gzip", {"level": 1}),)
    assert (metadata.grid_shape, metadata.stored_grid_shape) == ((4, 18), (2, 3))


def test_shards_are_nested_as_deep_as_there_is_any_use_for() -> None:
    def nested(levels: int) -> Json:
        return sharding(4, 6, codecs=[LITTLE if levels == 1 else nested(levels - 1)])

    assert len(parsed(nested(8)).shards) == 8
    for levels in (9, 14, 40):
        with pytest.raises(MetadataError):
            parsed(nested(levels))


def test_a_chain_is_as_long_as_its_parts_together() -> None:
    assert len(parsed(*[ROUNDED] * 15, sharding(2, 3, codecs=[*[ROUNDED] * 16, LITTLE])).codecs) == 32
    with pytest.raises(MetadataUnsupported):
        parsed(*[ROUNDED] * 16, sharding(2, 3, codecs=[*[ROUNDED] * 16, LITTLE]))


# --- codecs before and after ----------------------------------------------------------------------------------------------------------


def test_behind_a_transposition_chunks_are_told_in_the_other_order() -> None:
    metadata = parsed(transposed(2, 0, 1), sharding(10, 2, 3), shape=(4, 6, 20), chunks=(4, 6, 20))
    assert metadata.chunk_grid == RegularGrid((2, 3, 10))
    assert metadata.codecs == (CodecSpec("transpose", {"order": [2, 0, 1]}), CodecSpec("bytes", {"endian": "little"}))
    (shard,) = metadata.shards
    assert (shard.chunks_per_shard, shard.axes, shard.index_shape) == ((2, 2, 2), (2, 0, 1), (2, 2, 2, 2))
    # In the order of the transposed dimensions: of the array's, the last is the slowest and the middle one the fastest.
    assert [shard.coords_of((0, 0, 0), place) for place in range(3)] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    with pytest.raises(MetadataError, match="divide"):
        parsed(transposed(2, 0, 1), sharding(2, 3, 10), shape=(4, 6, 20), chunks=(4, 6, 20))


def test_transpositions_of_every_level_count() -> None:
    nested = sharding(6, 20, 4, codecs=[transposed(0, 2, 1), sharding(3, 1, 5)])
    metadata = parsed(transposed(1, 2, 0), nested, shape=(4, 6, 20), chunks=(4, 6, 20))
    assert [shard.axes for shard in metadata.shards] == [(1, 2, 0), (1, 0, 2)]
    assert [shard.chunks_per_shard for shard in metadata.shards] == [(1, 1, 1), (4, 2, 4)]
    assert metadata.chunk_grid == RegularGrid((1, 3, 5))


@pytest.mark.parametrize(
    "codec",
    [
        ROUNDED,
        {"name": "numcodecs.quantize", "configuration": {"digits": 2, "dtype": "<f4"}},
        {"name": "numcodecs.quantize", "configuration": {"digits": 2}},
    ],
)
def test_what_loses_digits_alone_may_stand_before_shards(codec: Any) -> None:
    metadata = parsed(codec, sharding(2, 3))
    assert metadata.codecs[0].name == codec["name"] and metadata.shards == parsed(sharding(2, 3)).shards


@pytest.mark.parametrize(
    "codec",
    [
        DELTA,
        {"name": "numcodecs.quantize", "configuration": {"digits": 2, "dtype": "<f4", "astype": "<f2"}},
        {"name": "numcodecs.quantize", "configuration": {"digits": 2, "dtype": ">f4"}},
        {"name": "numcodecs.astype", "configuration": {"encode_dtype": "<f8", "decode_dtype": "<f4"}},
        {"name": "numcodecs.fixedscaleoffset", "configuration": {"scale": 10, "offset": 0, "dtype": "<f4"}},
    ],
)
def test_what_changes_values_may_not(codec: Any) -> None:
    with pytest.raises(MetadataUnsupported, match="before sharding_indexed"):
        parsed(codec, sharding(2, 3))
    assert parsed(sharding(2, 3, codecs=[codec, LITTLE])).codecs[0].name == codec["name"]


def test_what_a_whole_shard_passes_through() -> None:
    assert parsed(sharding(2, 3), GZIP, CRC).shards[0].codecs == (CodecSpec("gzip", {"level": 1}), CodecSpec("crc32c"))
    for bad in (LITTLE, transposed(1, 0), sharding(2, 3), DELTA, {"name": "gzip", "configuration": {"level": 11}}, "unknown"):
        with pytest.raises(MetadataError):
            parsed(sharding(2, 3), bad)


def test_the_shape_of_a_sharded_array_is_edited() -> None:
    data = document(transposed(1, 0), sharding(3, 2))
    edited = node_of(LAYOUT.amend(ROOT, {KEY: data}, Edit(shape=(9, 1)))[KEY]).metadata
    assert (edited.shape, edited.shards, edited.stored_grid_shape) == ((9, 1), node_of(data).metadata.shards, (3, 1))


# --- written back -----------------------------------------------------------------------------------------------------------------------


def parse_again(metadata: ArrayMetadata) -> ArrayMetadata:
    return node_of(formatted(metadata)).metadata


def divisors(number: int) -> st.SearchStrategy[int]:
    return st.sampled_from([each for each in range(1, number + 1) if number % each == 0])


@st.composite
def bundled(draw: st.DrawFn, levels: int = 2, ours: bool = True) -> tuple[list[Json], tuple[int, ...], int]:
    """Return codecs of a document, the chunk shape they are for, and the number of shard levels.

    ``ours``: also codecs, and codecs after shards, that tensorstore does not support.
    """
    ndim = draw(st.integers(1, 3))
    outer = tuple(draw(st.sampled_from([1, 4, 6, 12])) for _ in range(ndim))
    number = draw(st.integers(0 if ours else 1, levels))

    def level(shape: tuple[int, ...], left: int) -> list[Json]:
        before: list[Json] = []
        for _ in range(draw(st.integers(0, 2))):
            if ours and draw(st.booleans()):
                before.append(ROUNDED)
            else:
                order = draw(st.permutations(range(ndim)))
                before.append(transposed(*order))
                shape = tuple(shape[axis] for axis in order)
        behind = draw(st.sampled_from([[], [GZIP], [CRC], [GZIP, CRC]] if ours or left == 0 else [[]]))
        if left == 0:
            return [*before, draw(st.sampled_from([LITTLE, BIG])), *behind]
        inner = tuple(draw(divisors(length)) for length in shape)
        index = [draw(st.sampled_from([LITTLE, BIG])), *draw(st.sampled_from([[], [CRC]]))]
        location = draw(st.sampled_from(["start", "end"]))
        return [*before, sharding(*inner, codecs=level(inner, left - 1), index_codecs=index, index_location=location), *behind]

    return level(outer, number), outer, number


@unhurried
@given(bundled(levels=3))
def test_what_was_read_is_written_and_read_again(said: tuple[list[Json], tuple[int, ...], int]) -> None:
    codecs, chunks, levels = said
    metadata = parsed(*codecs, shape=[10] * len(chunks), chunks=chunks)
    assert len(metadata.shards) == levels
    assert parse_again(metadata) == metadata
    assert json.loads(formatted(metadata))["chunk_grid"]["configuration"]["chunk_shape"] == list(chunks)


@pytest.mark.parametrize(
    "codecs",
    [
        [sharding(2, 3, codecs=[BIG, GZIP], index_location="start")],
        [transposed(1, 0), sharding(3, 2, codecs=[transposed(1, 0), LITTLE], index_location="end"), GZIP],
        [
            ROUNDED,
            transposed(1, 0),
            sharding(3, 4, codecs=[transposed(1, 0), sharding(2, 3, index_location="end")], index_location="end"),
        ],
    ],
)
def test_a_document_comes_back_as_it_was(codecs: list[Json]) -> None:
    assert json.loads(formatted(parsed(*codecs)))["codecs"] == json.loads(json.dumps(codecs))


def test_a_transposition_that_the_chain_does_not_begin_with_is_made_and_undone() -> None:
    """For an index of transposed dimensions that does not come from such a document."""
    metadata = parsed(transposed(1, 2, 0), sharding(6, 10, 2), shape=(4, 6, 20), chunks=(4, 6, 20))
    plain = ArrayMetadata(
        **{
            name: getattr(metadata, name)
            for name in ("shape", "data_type", "chunk_key_encoding", "fill_value", "chunk_grid", "shards")
        },
        codecs=metadata.codecs[1:],
    )
    again = parse_again(plain)
    assert (again.shards, again.chunk_grid) == (plain.shards, plain.chunk_grid)
    chunk = np.arange(120, dtype="<f4").reshape(2, 6, 10)
    encoded = [bytes(CodecChain.build(each.codecs, each.data_type).encode(chunk)) for each in (plain, again)]
    assert encoded[0] == encoded[1]


# --- other software -----------------------------------------------------------------------------------------------------------------


def elements_of(values: Mapping[str, bytes], metadata: ArrayMetadata) -> np.ndarray[Any, Any]:
    """Return all elements of an array, read the slow way: each shard as a whole, level by level."""
    chunks = metadata.chunk_grid.chunk_shape(())
    chain = CodecChain.build(metadata.codecs, metadata.data_type)
    (fill,) = np.frombuffer(metadata.fill_bytes, metadata.data_type.dtype)
    whole = np.full([count * length for count, length in zip(padded(metadata), chunks, strict=True)], fill)

    def put(data: bytes, coords: Shape, levels: tuple[ShardSpec, ...]) -> None:
        if not levels:
            whole[tuple(slice(i * n, (i + 1) * n) for i, n in zip(coords, chunks, strict=True))] = chain.decode(data, chunks)
            return
        shard = levels[0]
        for spec in reversed(shard.codecs):
            codec = lookup.resolve(spec, BYTE)[1]
            assert isinstance(codec, BytesBytesCodec)
            data = bytes(codec.decode(data, 1 << 20))
        checked = 4 if len(shard.index_codecs) == 2 else 0
        nbytes = 16 * shard.chunks
        index = data[:nbytes] if shard.index_location == "start" else data[len(data) - checked - nbytes :][:nbytes]
        order = ">" if shard.index_codecs[0].configuration["endian"] == "big" else "<"
        for place, (offset, length) in enumerate(np.frombuffer(index, order + "u8").reshape(-1, 2).tolist()):
            if length != EMPTY:
                put(data[offset : offset + length], shard.coords_of(coords, place), levels[1:])

    for coords in itertools.product(*map(range, metadata.stored_grid_shape)):
        key = metadata.chunk_key_encoding.encode(coords)
        if key in values:
            put(values[key], coords, metadata.shards)
    return whole[tuple(slice(extent) for extent in metadata.shape)]


def padded(metadata: ArrayMetadata) -> Shape:
    return tuple(a * b for a, b in zip(metadata.stored_grid_shape, metadata.chunks_per_key, strict=True))


def values_in(folder: Path) -> dict[str, bytes]:
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def with_tensorstore(folder: Path) -> Any:
    return tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}, open=True).result()


@unhurried
@given(said=bundled(ours=False), data=st.data())
def test_what_tensorstore_writes_is_read_and_what_is_written_it_reads(
    said: tuple[list[Json], tuple[int, ...], int], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Transpositions at every level, partial shards at the edges, missing chunks."""
    codecs, chunks, _ = said
    shape = tuple(data.draw(st.integers(1, 15)) for _ in chunks)
    folder = tmp_path_factory.mktemp("tensorstore")
    (folder / "zarr.json").write_bytes(document(*codecs, shape=shape, chunks=chunks))
    array = with_tensorstore(folder)
    expected = np.full(shape, 1.5, "<f4")
    for _ in range(data.draw(st.integers(1, 2))):
        corner = [data.draw(st.integers(0, extent)) for extent in shape]
        part = tuple(slice(start, data.draw(st.integers(start, extent))) for start, extent in zip(corner, shape, strict=True))
        expected[part] = np.arange(expected[part].size).reshape(expected[part].shape)
    array.write(expected).result()
    values = values_in(folder)
    metadata = node_of(values["zarr.json"]).metadata
    assert np.array_equal(elements_of(values, metadata), expected)
    (folder / "zarr.json").write_bytes(formatted(metadata))
    assert np.array_equal(with_tensorstore(folder).read().result(), expected)


@pytest.mark.parametrize(
    "codecs",
    [
        [sharding(6, 4)],
        [sharding(2, 3, codecs=[BIG, GZIP], index_codecs=[BIG], index_location="start"), GZIP],
        [sharding(6, 4, codecs=[sharding(2, 2, codecs=[transposed(1, 0), LITTLE, CRC]), GZIP])],
        # zarr-python compares chunk_shape with the shape of the shard before the transposition, so it has to divide both.
        [transposed(1, 0), sharding(2, 6)],
        [transposed(1, 0), sharding(4, 6, codecs=[transposed(1, 0), sharding(3, 2, index_location="start")])],
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")
def test_zarr_python_and_zarrfs_mean_the_same(codecs: list[Json], tmp_path: Path) -> None:
    (tmp_path / "zarr.json").write_bytes(document(*codecs, shape=(20, 30), chunks=(12, 12), attributes={}))
    array = zarr.open_array(str(tmp_path), mode="r+")
    expected = np.full((20, 30), 1.5, "<f4")
    expected[1:14, 5:30] = np.arange(13 * 25).reshape(13, 25) % 32
    array[...] = expected
    values = values_in(tmp_path)
    metadata = node_of(values["zarr.json"]).metadata
    assert math.prod(metadata.chunks_per_key) > 1
    assert np.array_equal(elements_of(values, metadata), expected)
    (tmp_path / "zarr.json").write_bytes(formatted(metadata))
    assert np.array_equal(zarr.open_array(str(tmp_path), mode="r")[...], expected)


@pytest.mark.filterwarnings("ignore")
def test_zarr_python_reads_lost_digits_before_shards_as_what_is_there(tmp_path: Path) -> None:
    """zarr-python writes them wrong: it stores the bits, as integers, in shards of floats."""
    (tmp_path / "zarr.json").write_bytes(document(transposed(1, 0), sharding(2, 6), shape=(20, 30), chunks=(12, 12)))
    expected = np.linspace(0, 1, 600, dtype="<f4").reshape(20, 30)
    zarr.open_array(str(tmp_path), mode="r+")[...] = expected
    said = document(ROUNDED, transposed(1, 0), sharding(2, 6), shape=(20, 30), chunks=(12, 12))
    (tmp_path / "zarr.json").write_bytes(said)
    assert np.array_equal(zarr.open_array(str(tmp_path), mode="r")[...], expected)
    assert np.array_equal(elements_of(values_in(tmp_path), node_of(said).metadata), expected)
