"""Metadata that an array keeps when another shape or type is saved over it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from zarrfs.dialects.v2.dialect import PLUGIN as V2
from zarrfs.dialects.v3.dialect import PLUGIN as V3
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.hierarchy.replacing_arrays import kept_attributes, replacing
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.data_type import from_name, from_numpy
from zarrfs.model.metadata import ArrayNode

PATH = NodePath("/a")
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
GZIP = {"name": "gzip", "configuration": {"level": 3}}
OLD = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [100, 100],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10, 20]}},
    "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}},
    "fill_value": -9999.0,
    "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, GZIP],
    "dimension_names": ["y", "x"],
    "attributes": {"units": "m"},
}


def saved_over(document: dict[str, Any], shape: tuple[int, ...], dtype: str, order: str = "C", **options: str) -> dict[str, Any]:
    layout = V3.create(Prefix(""))
    old = layout.parse(PATH, {Key("a/zarr.json"): json.dumps(document).encode()})
    assert isinstance(old, ArrayNode)
    data_type = from_name(dtype) if dtype == "bfloat16" else from_numpy(np.dtype(dtype))
    new = replacing(old, PATH, layout, NewArrays(**options), shape=shape, data_type=data_type, order=order)
    (written,) = layout.format(new).values()
    found: dict[str, Any] = json.loads(written)
    assert found["shape"] == list(shape)
    return found


@pytest.mark.parametrize("order", ["C", "F"])
def test_another_shape_keeps_everything_else(order: str) -> None:
    found = saved_over(OLD, (7, 300), "<f4", order, codecs="none", chunks="5")
    kept = ("data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs", "dimension_names")
    assert {name: found[name] for name in kept} == {name: OLD[name] for name in kept}


@pytest.mark.parametrize(
    ("shape", "chunks", "new", "expected"),
    [
        # `numpy.save` of one element, and of many over it, made a chunk, and so a file, for each of these.
        ([1], [1], (3000,), [3000]),
        ([0], [1], (3000,), [3000]),
        ([1, 7], [1, 7], (300, 70), [300, 70]),
        ([2, 7], [1, 7], (4, 7), [1, 7]),
        ([2], [3], (4,), [3]),
    ],
)
def test_one_chunk_of_the_former_shape_says_nothing_on_those_of_another(
    shape: list[int], chunks: list[int], new: tuple[int, ...], expected: list[int]
) -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    old = {name: value for name, value in OLD.items() if name != "dimension_names"} | {"shape": shape, "chunk_grid": grid}
    found = saved_over(old, new, "<f4")
    assert found["chunk_grid"]["configuration"]["chunk_shape"] == expected
    assert (found["codecs"], found["fill_value"]) == (OLD["codecs"], -9999.0)
    assert saved_over(old, tuple(shape), "<f8")["chunk_grid"] == grid


def test_another_type_keeps_what_holds_for_every_type() -> None:
    found = saved_over(OLD, (100, 100), "<i8")
    assert (found["data_type"], found["fill_value"]) == ("int64", -9999)
    for name in ("chunk_grid", "chunk_key_encoding", "codecs", "dimension_names"):
        assert found[name] == OLD[name]


def test_another_number_of_dimensions_keeps_codecs_and_fill_value() -> None:
    found = saved_over({**OLD, "codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, *OLD["codecs"]]}, (5,), "<f4")
    assert "dimension_names" not in found and found["chunk_grid"]["configuration"]["chunk_shape"] == [5]
    assert (found["codecs"], found["fill_value"], found["chunk_key_encoding"]) == (
        OLD["codecs"],
        -9999.0,
        OLD["chunk_key_encoding"],
    )


@pytest.mark.parametrize(
    ("fill", "dtype", "expected"),
    [
        (-9999.0, "<f8", -9999.0),
        (-9999.0, "|u1", 0),
        (-9999.0, "<c8", [-9999.0, 0.0]),
        (0.1, "<f8", 0.10000000149011612),
        (1e30, "<f2", 0.0),
        ("NaN", "<f8", "NaN"),
        ("NaN", "<i4", 0),
        (255.0, "|u1", 255),
        (2.0, "|b1", False),
        (1.0, "|S3", ""),
    ],
)
def test_a_fill_value_stays_where_the_type_can_hold_it(fill: float | str, dtype: str, expected: object) -> None:
    assert saved_over({**OLD, "fill_value": fill}, (3, 3), dtype)["fill_value"] == expected


def sharded(inner: list[dict[str, Any]]) -> dict[str, Any]:
    index = [LITTLE, {"name": "crc32c"}]
    configuration = {"chunk_shape": [5, 5], "codecs": inner, "index_codecs": index, "index_location": "start"}
    return {**OLD, "codecs": [{"name": "sharding_indexed", "configuration": configuration}]}


def test_shards_stay_where_the_number_of_dimensions_does() -> None:
    old = sharded([LITTLE, GZIP])
    assert saved_over(old, (33, 1), "<f4")["codecs"] == old["codecs"]
    assert saved_over(old, (33, 1), "<i2")["codecs"] == old["codecs"]
    assert saved_over(old, (33,), "<f4")["codecs"] == [LITTLE, GZIP]


def test_filters_on_elements_go_with_their_type() -> None:
    delta = {"name": "numcodecs.delta", "configuration": {"dtype": "<f4"}}
    old = {**OLD, "codecs": [delta, LITTLE, GZIP]}
    assert [codec["name"] for codec in saved_over(old, (3, 3), "<f4")["codecs"]] == ["numcodecs.delta", "bytes", "gzip"]
    assert saved_over(old, (3, 3), "<i8")["codecs"] == [LITTLE, GZIP]


def test_structures_are_little_endian_as_all_software_reads_them() -> None:
    """zarr-python 3.1 ignores the byte order of `bytes` in arrays of structures; tensorstore follows it."""
    fields = "i2,f8"
    assert saved_over(OLD, (3, 3), fields)["codecs"] == [LITTLE, GZIP]
    big = sharded(list(OLD["codecs"]))
    inner = saved_over(big, (3, 3), fields)["codecs"][0]["configuration"]["codecs"]
    assert inner == [LITTLE, GZIP]
    assert saved_over(big, (3, 3), "<U2")["codecs"] == big["codecs"]


def test_a_codec_is_told_the_new_size_of_elements() -> None:
    blosc = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0}
    old = {**OLD, "codecs": [LITTLE, {"name": "blosc", "configuration": blosc}]}
    assert saved_over(old, (3, 3), "<f8")["codecs"][1]["configuration"]["typesize"] == 8


def test_a_type_that_numpy_lacks_stays() -> None:
    old = {**OLD, "data_type": "bfloat16", "fill_value": 0.0}
    assert saved_over(old, (3, 3), "bfloat16")["data_type"] == "bfloat16"


def test_chunks_of_length_0_are_chosen_anew() -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": [0, 20]}}
    found = saved_over({**OLD, "shape": [0, 100], "chunk_grid": grid}, (6, 100), "<f4")
    assert found["chunk_grid"]["configuration"]["chunk_shape"] == [6, 20]


def test_chunks_that_would_be_larger_than_any_are_chosen_anew() -> None:
    grid = {"name": "regular", "configuration": {"chunk_shape": [20_000, 20_000]}}
    found = saved_over(
        {**OLD, "shape": [20_000, 20_000], "chunk_grid": grid, "data_type": "uint8", "fill_value": 7}, (9, 9), "<c16"
    )
    assert found["chunk_grid"]["configuration"]["chunk_shape"] == [9, 9]
    assert found["dimension_names"] == ["y", "x"]


def test_an_undefined_fill_value_stays_undefined() -> None:
    layout = V2.create(Prefix(""))
    zarray = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": ">i4", "compressor": {"id": "zlib", "level": 1}}
    zarray |= {"fill_value": None, "order": "C", "filters": None}
    old = layout.parse(PATH, {Key("a/.zarray"): json.dumps(zarray).encode()})
    assert isinstance(old, ArrayNode)
    new = replacing(old, PATH, layout, NewArrays(), shape=(9,), data_type=from_numpy(np.dtype("<i4")), order="C")
    found = json.loads(next(iter(layout.format(new).values())))
    assert found == zarray | {"shape": [9]}


@pytest.mark.parametrize(("fill", "dtype", "expected"), [(-9999, "|u1", None), (-9999, "<i2", -9999), (-9999, "<f4", -9999.0)])
def test_zeros_do_not_become_missing_data_by_another_type(fill: int, dtype: str, expected: float | None) -> None:
    """Readers of Zarr v2 take ``fill_value`` for missing data."""
    layout = V2.create(Prefix(""))
    zarray = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i4", "compressor": None}
    zarray |= {"fill_value": fill, "order": "C", "filters": None}
    attributes = {"_ARRAY_DIMENSIONS": ["x"], "_FillValue": fill}
    documents = {Key("a/.zarray"): json.dumps(zarray).encode(), Key("a/.zattrs"): json.dumps(attributes).encode()}
    old = layout.parse(PATH, documents)
    assert isinstance(old, ArrayNode)
    new = replacing(old, PATH, layout, NewArrays(), shape=(4,), data_type=from_numpy(np.dtype(dtype)), order="C")
    assert json.loads(next(iter(layout.format(new).values())))["fill_value"] == expected
    assert kept_attributes(old, new, V2).get("_FillValue") == (None if expected is None else fill)


def kept(attributes: dict[str, Any], shape: tuple[int, ...] = (100, 100), dtype: str = "<f4") -> dict[str, Any]:
    layout = V3.create(Prefix(""))
    old = layout.parse(PATH, {Key("a/zarr.json"): json.dumps(OLD | {"attributes": attributes}).encode()})
    assert isinstance(old, ArrayNode)
    new = replacing(old, PATH, layout, NewArrays(), shape=shape, data_type=from_numpy(np.dtype(dtype)), order="C")
    return kept_attributes(old, new, V3)


def test_names_of_dimensions_in_attributes_stay_with_their_number() -> None:
    attributes = {"_ARRAY_DIMENSIONS": ["y", "x"], "units": "m"}
    assert kept(attributes) == attributes
    assert kept(attributes, (5,)) == {"units": "m"}
    assert kept({"_ARRAY_DIMENSIONS": "mine"}, (5,)) == {"_ARRAY_DIMENSIONS": "mine"}


@pytest.mark.parametrize(
    ("value", "dtype", "stays"),
    [
        ("AAAAAICHw8A=", "<f4", "AAAAAICHw8A="),
        ("AAAAAICHw8A=", "<f8", "AAAAAICHw8A="),
        ("AAAAAICHw8A=", "<i2", -9999),
        (-9999, "<i2", -9999),
        ("AAAAAICHw8A=", "<u1", None),
        ("AAAAAAAA+H8=", "<i4", None),
        (-9999, "<f8", -9999),
        ("what no type holds", "<i4", "what no type holds"),
    ],
)
def test_the_mark_of_missing_data_stays_where_the_type_holds_it(value: Any, dtype: str, stays: Any) -> None:
    """This holds for a value as xarray writes it for the type, and for a plain number."""
    assert kept({"_FillValue": value}, dtype=dtype).get("_FillValue") == stays


def test_the_mark_of_missing_data_has_the_form_of_the_type() -> None:
    """xarray writes a number for integers, and cannot open an array of floats with one."""
    layout = V3.create(Prefix(""))
    document = OLD | {"data_type": "int16", "fill_value": 0, "attributes": {"_FillValue": -9999}}
    old = layout.parse(PATH, {Key("a/zarr.json"): json.dumps(document).encode()})
    assert isinstance(old, ArrayNode)
    for dtype, stays in (("<i4", -9999), ("<f4", "AAAAAICHw8A="), ("<c8", ["AAAAAICHw8A=", "AAAAAAAAAAA="])):
        new = replacing(old, PATH, layout, NewArrays(), shape=(5, 5), data_type=from_numpy(np.dtype(dtype)), order="C")
        assert kept_attributes(old, new, V3)["_FillValue"] == stays
