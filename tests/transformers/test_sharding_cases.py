"""Shards written by zarr-python 2.16, and some after the text of 2022, read and written by their chunks' own keys."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from typing import Any

import numcodecs
import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.cases import Case, cases
from tests.support.sharding import Grid
from tests.support.stores import contents, fill, names
from zarrfs.keys import WHOLE, Key, Prefix
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.sharding import ShardingStore

LAYOUTS = {"v3_draft2022_zarrpython": "root/", "v3_draft2022_seed": ""}
"""The part of a key between ``meta/`` or ``data/`` and a node's path."""

ARRAYS = [
    pytest.param(case, node, id=f"{case.name}{node['path']}")
    for layout in LAYOUTS
    for case in cases(layout)
    for node in case.nodes("array")
    if case.name.endswith("/sharded")
]


def array_of(case: Case, node: dict[str, Any]) -> tuple[Grid, dict[str, Any]]:
    """Return the grid of an array, and its document."""
    path = LAYOUTS[case.name.partition("/")[0]] + node["path"][1:]
    document = json.loads(case.values[f"meta/{path}.array.json"])
    (transformer,) = document["storage_transformers"]
    chunk_shape = document["chunk_grid"]["chunk_shape"]
    shape = tuple(-(-extent // length) for extent, length in zip(document["shape"], chunk_shape, strict=True))
    levels = (tuple(transformer["configuration"]["chunks_per_shard"]),)
    return Grid(shape, levels, f"data/{path}/", document["chunk_grid"]["separator"]), document


def decoded(document: dict[str, Any], value: bytes) -> bytes:
    (codec,) = document.get("codecs") or [document.get("compressor")]
    match codec and (codec.get("type") or codec["codec"]).rsplit("/", 2)[-2]:
        case None:
            return value
        case "gzip":
            return gzip.decompress(value)
        case "blosc":
            return bytes(numcodecs.Blosc().decode(value))
    raise NotImplementedError(codec)


def transformed(inner: MemoryStore, grid: Grid) -> ShardingStore:
    encoding = ChunkKeyEncoding(grid.before, grid.separator, grid.scalar)
    return ShardingStore(inner, Prefix(grid.prefix), encoding, grid.shape, ShardSpec(grid.levels[0]))


@pytest.mark.parametrize(("case", "node"), ARRAYS)
@trio_test
async def test_every_chunk_has_the_elements_that_its_producer_read(case: Case, node: dict[str, Any]) -> None:
    inner = MemoryStore()
    await fill(inner, case.values)
    grid, document = array_of(case, node)
    store = transformed(inner, grid)
    values = await store.get_partial_values([(Key(key), WHOLE) for key in grid.by_key()])
    missing = {coords for coords, value in zip(grid.coords(), values, strict=True) if value is None}
    assert missing == set(map(tuple, node["missing_chunks"]))
    expected = case.expected(node)
    chunk_shape = document["chunk_grid"]["chunk_shape"]
    for coords, value in zip(grid.coords(), values, strict=True):
        place = tuple(slice(i * n, (i + 1) * n) for i, n in zip(coords, chunk_shape, strict=True))
        if value is None:
            fill_value = np.array(float(document["fill_value"]), expected.dtype)
            np.testing.assert_array_equal(expected[place], np.broadcast_to(fill_value, expected[place].shape))
        else:
            elements = np.frombuffer(decoded(document, bytes(value)), node["npy_dtype"])
            assert elements.size == math.prod(chunk_shape)
            chunk = elements.reshape(chunk_shape, order=document["chunk_memory_layout"])
            inside = tuple(slice(length) for length in expected[place].shape)
            np.testing.assert_array_equal(chunk[inside], expected[place])


@pytest.mark.parametrize(("case", "node"), ARRAYS)
@trio_test
async def test_every_key_is_listed_and_what_is_set_anew_is_a_shard(case: Case, node: dict[str, Any]) -> None:
    inner = MemoryStore()
    await fill(inner, case.values)
    grid, _ = array_of(case, node)
    store = transformed(inner, grid)
    chunks = await contents(store, grid.prefix)
    assert chunks == grid.decoded(case.values)
    beside = {key: value for key, value in case.values.items() if not key.startswith(grid.prefix)}
    assert await contents(store) == chunks | beside
    first = {key[len(grid.prefix) :].partition("/")[::2] for key in chunks}
    assert set(await names(store, grid.prefix)) == {(name, bool(rest)) for name, rest in first}
    # Write all chunks again, backwards.
    for key, value in reversed(chunks.items()):
        await store.erase(Key(key))
        await store.set(Key(key), value)
    assert await contents(store) == chunks | beside
    assert grid.decoded(await contents(inner)) == chunks


def test_there_are_such_cases() -> None:
    assert {id for each in ARRAYS if (id := each.id)} >= {
        f"{layout}/sharded{path}"
        for layout, path in itertools.chain(
            itertools.product(["v3_draft2022_zarrpython"], ["/grp/s", "/grp/s_3d", "/grp/s_dot_nocomp"]),
            itertools.product(["v3_draft2022_seed"], ["/plain", "/gaps_reversed", "/dot_1d"]),
        )
    }
