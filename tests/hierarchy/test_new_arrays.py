"""The stored form of new arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from zarr.core.metadata.v2 import ArrayV2Metadata
from zarr.core.metadata.v3 import ArrayV3Metadata

from zarrfs.dialects.v0 import PLUGIN as V0
from zarrfs.dialects.v1.dialect import PLUGIN as V1
from zarrfs.dialects.v2.dialect import PLUGIN as V2
from zarrfs.dialects.v3.dialect import PLUGIN as V3
from zarrfs.dialects.v3_2019.dialect import PLUGIN as V3_2019
from zarrfs.dialects.v3_2022.dialect import PLUGIN as V3_2022
from zarrfs.errors import NotRepresentable, UsageError
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.data_type import DataType, from_numpy

FLOAT = from_numpy(np.dtype("<f4"))
PATH = NodePath("/a")


def document(
    new: NewArrays, dialect: object, shape: tuple[int, ...], data_type: DataType = FLOAT, **more: object
) -> dict[str, object]:
    layout = dialect.create(Prefix(""))  # type: ignore[attr-defined]
    written = layout.format(new.node(PATH, layout, shape=shape, data_type=data_type, **more))
    found: dict[str, object] = json.loads(list(written.values())[-1])
    return found


def test_by_default_an_array_is_as_zarr_python_makes_it() -> None:
    v3 = document(NewArrays(), V3, (8192, 8192))
    assert v3["chunk_grid"] == {"name": "regular", "configuration": {"chunk_shape": [512, 512]}}
    assert [codec["name"] for codec in v3["codecs"]] == ["bytes", "zstd"]  # type: ignore[attr-defined]
    assert v3["fill_value"] == 0
    v2 = document(NewArrays(), V2, (8192, 8192))
    assert v2["chunks"] == [512, 512]
    assert v2["compressor"]["id"] == "zstd"  # type: ignore[index]
    assert v2["order"] == "C"


def test_zarr_python_reads_new_dates_and_durations_without_a_unit() -> None:
    """It refused dates: their fill value was 0, which is no date without a unit."""
    for code, fill_value in (("<M8", "NaT"), ("<m8", 0)):
        data_type = from_numpy(np.dtype(code))
        v2, v3 = (document(NewArrays(), each, (10,), data_type) for each in (V2, V3))
        assert (v2["fill_value"], v3["fill_value"]) == (fill_value, fill_value)
        assert ArrayV2Metadata.from_dict(v2).dtype.to_native_dtype() == np.dtype(code)
        assert ArrayV3Metadata.from_dict(v3).dtype.to_native_dtype() == np.dtype(code)


def test_fortran_order_is_kept_in_either_dialect() -> None:
    assert document(NewArrays(), V2, (4, 5), order="F")["order"] == "F"
    v3 = document(NewArrays(), V3, (4, 5), order="F")
    assert v3["codecs"][0] == {"name": "transpose", "configuration": {"order": [1, 0]}}  # type: ignore[index]


@pytest.mark.parametrize(
    ("chunks", "shape", "expected"),
    [
        ("64x32", (100, 100), [64, 32]),
        ("64,32", (100, 100), [64, 32]),
        ("64", (100, 50), [64, 50]),
        ("none", (100, 50), [100, 50]),
        ("none", (0, 5), [1, 5]),
        # Chosen for another number of dimensions.
        ("64x32", (10,), [10]),
    ],
)
def test_chosen_chunks_are_clipped_to_the_array(chunks: str, shape: tuple[int, ...], expected: list[int]) -> None:
    v2 = document(NewArrays(chunks=chunks), V2, shape)
    assert v2["chunks"] == expected


def test_codecs_are_names_with_options() -> None:
    v3 = document(NewArrays(codecs="blosc:cname=lz4:clevel=3+crc32c"), V3, (10,))
    names = [codec["name"] for codec in v3["codecs"]]  # type: ignore[attr-defined]
    assert names == ["bytes", "blosc", "crc32c"]
    configuration = v3["codecs"][1]["configuration"]  # type: ignore[index]
    assert (configuration["cname"], configuration["clevel"], configuration["typesize"]) == ("lz4", 3, 4)
    assert document(NewArrays(codecs="none"), V2, (10,))["compressor"] is None


@pytest.mark.parametrize(
    ("codecs", "expected"),
    [
        ("zstd", [("zstd", {"level": 0, "checksum": False})]),
        ("zstd:level=3+crc32c", [("zstd", {"level": 3, "checksum": False}), ("crc32c", {})]),
        ("gzip", [("gzip", {"level": 1})]),
        ("blosc", [("blosc", {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0})]),
        ("zlib", [("numcodecs.zlib", {"level": 1})]),
        ("numcodecs.lz4", [("numcodecs.lz4", {"acceleration": 1})]),
        ("shuffle+bz2:level=9", [("numcodecs.shuffle", {"elementsize": 4}), ("numcodecs.bz2", {"level": 9})]),
    ],
)
def test_omitted_options_have_the_defaults_of_numcodecs_and_are_stored(codecs: str, expected: list[tuple[str, object]]) -> None:
    """`zstd` alone was stored without configuration, which zarr-python and tensorstore do not read; `gzip` and `blosc` were refused."""
    found = document(NewArrays(codecs=codecs), V3, (10,))["codecs"]
    assert [(codec["name"], codec.get("configuration", {})) for codec in found[1:]] == expected  # type: ignore[index]


@pytest.mark.parametrize("name", ["zstd", "gzip", "blosc", "zlib", "bz2", "lzma", "lz4", "shuffle+zstd", "crc32c"])
def test_zarr_python_reads_a_new_array_with_every_codec_named_alone(name: str) -> None:
    metadata = ArrayV3Metadata.from_dict(document(NewArrays(codecs=name), V3, (10,)))  # type: ignore[arg-type]
    assert metadata.shape == (10,)


@pytest.mark.parametrize("codecs", ["zlib", "bz2", "blosc", "lzma:preset=1:check=0", "none"])
def test_every_compressor_of_v1_can_be_chosen(codecs: str) -> None:
    assert document(NewArrays(codecs=codecs), V1, (10,))["compression"] == codecs.partition(":")[0]


@pytest.mark.parametrize("codecs", ["nosuch", "zstd:level", "zstd:level=high", "pickle", "+", "bytes", "", " "])
def test_what_is_no_codec_is_refused_before_anything_is_mounted(codecs: str) -> None:
    with pytest.raises(UsageError, match="new_codecs"):
        NewArrays(codecs=codecs)


@pytest.mark.parametrize("chunks", ["0", "1x", "-1", "axb", ""])
def test_what_is_no_chunk_shape_is_refused_before_anything_is_mounted(chunks: str) -> None:
    with pytest.raises(UsageError, match="new_chunks"):
        NewArrays(chunks=chunks)


@pytest.mark.parametrize(
    ("dialect", "separator", "member", "said"),
    [
        (V2, "/", "dimension_separator", "/"),
        (V3, ".", "chunk_key_encoding", {"name": "default", "configuration": {"separator": "."}}),
        (V3_2022, ".", "chunk_grid", {"type": "regular", "chunk_shape": [2, 2], "separator": "."}),
        (V3_2019, "/", "chunk_grid", {"type": "regular", "chunk_shape": [2, 2], "separator": "/"}),
    ],
)
def test_a_separator_is_an_option_and_a_wish(dialect: object, separator: str, member: str, said: object) -> None:
    assert document(NewArrays(chunks="2", separator=separator), dialect, (4, 4))[member] == said
    assert document(NewArrays(chunks="2"), dialect, (4, 4), separator=separator)[member] == said
    assert document(NewArrays(chunks="2"), dialect, (4, 4)).get(member) != said


@pytest.mark.parametrize("dialect", [V1, V0])
def test_a_layout_with_one_separator_refuses_others(dialect: object) -> None:
    with pytest.raises(NotRepresentable, match="chunk keys"):
        document(NewArrays(separator="/"), dialect, (4, 4))


@pytest.mark.parametrize(("shards", "counts"), [("2", [2, 2]), ("2x3", [2, 3]), ("100", [4, 3]), ("2x2x2", None), ("none", None)])
def test_new_arrays_are_sharded_on_demand(shards: str, counts: list[int] | None) -> None:
    new = NewArrays(chunks="2", shards=shards)
    v3 = document(new, V3, (8, 6))
    drafted = document(new, V3_2022, (8, 6)).get("storage_transformers")
    if counts is None:
        assert v3["codecs"][0]["name"] == "bytes" and drafted is None  # type: ignore[index]
        return
    (sharding,) = v3["codecs"]  # type: ignore[misc]
    assert sharding["configuration"]["chunk_shape"] == [2, 2]  # type: ignore[index]
    assert v3["chunk_grid"]["configuration"]["chunk_shape"] == [2 * count for count in counts]  # type: ignore[index]
    assert drafted[0]["configuration"] == {"chunks_per_shard": counts}  # type: ignore[index]


@pytest.mark.parametrize("dialect", [V2, V3_2019, V1, V0])
def test_a_layout_without_shards_refuses_them(dialect: object) -> None:
    with pytest.raises(NotRepresentable, match="new_shards"):
        document(NewArrays(shards="2"), dialect, (8, 6))
    with pytest.raises(UsageError, match="new_shards: expected none, or numbers of chunks such as 8x8, not '2y2'"):
        NewArrays(shards="2y2")
