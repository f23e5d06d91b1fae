"""A fill value that is a NaN with a payload: Zarr v2 has one name for every NaN, so ``chunks/`` shows such missing chunks as files."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.comparing import in_memory
from tests.support.stores import contents, fill
from tests.support.trees import names, read, tree_over, walk, write
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory

zarr = pytest.importorskip("zarr")

PAYLOAD = "0x7fc00001"
V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [6],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
}
URI = "https://purl.org/zarr/spec/protocol/core/3.0"
V3_2022 = {
    "shape": [6],
    "data_type": "<f4",
    "chunk_grid": {"type": "regular", "chunk_shape": [2], "separator": "/"},
    "chunk_memory_layout": "C",
    "fill_value": PAYLOAD,
    "extensions": [],
    "attributes": {},
}
ENTRY_POINT = {"zarr_format": URI, "metadata_encoding": URI, "metadata_key_suffix": ".json", "extensions": []}


def v3(**members: Any) -> dict[str, bytes]:
    return {"a/zarr.json": json.dumps(V3 | members).encode()}


STORES = pytest.mark.parametrize(
    ("values", "dtype"),
    [
        pytest.param(v3(fill_value=PAYLOAD), "<f4", id="v3"),
        pytest.param(v3(fill_value="0xffc00000"), "<f4", id="sign"),
        pytest.param(v3(data_type="complex64", fill_value=[1.5, PAYLOAD]), "<c8", id="complex"),
        pytest.param(v3(fill_value=PAYLOAD, attributes={"_FillValue": "AAAAAAAA+H8="}), "<f4", id="_FillValue"),
        pytest.param(
            {"zarr.json": json.dumps(ENTRY_POINT).encode(), "meta/root/a.array.json": json.dumps(V3_2022).encode()},
            "<f4",
            id="2022",
        ),
    ],
)


async def elements(tree: Directory) -> tuple[bytes, bytes]:
    """Return the elements of ``a`` as readers of Zarr v2 find them in ``chunks/``, and as ``npy/`` has them."""
    files = {name: await read(tree, f"chunks/a/{name}") for name in await names(tree, "chunks/a")}
    array = zarr.open_array(in_memory(files), mode="r", zarr_format=2)
    return array[...].tobytes(), np.load(io.BytesIO(await read(tree, "npy/a.npy"))).tobytes()


@STORES
@trio_test
async def test_readers_of_v2_find_the_bits_of_missing_elements(values: dict[str, bytes], dtype: str) -> None:
    store = MemoryStore()
    await fill(store, values)
    async with tree_over(store) as tree:
        in_chunks, in_npy = await elements(tree)
        assert in_chunks == in_npy
        await write(tree, "chunks/a/1", np.array([1, 2], dtype).tobytes())
        in_chunks, in_npy = await elements(tree)
        assert in_chunks == in_npy


@STORES
@trio_test
async def test_a_chunk_that_is_removed_has_the_nan_that_its_reader_knows(values: dict[str, bytes], dtype: str) -> None:
    store = MemoryStore()
    await fill(store, values)
    async with tree_over(store) as tree:
        before, shown = await contents(store), json.loads(await read(tree, "chunks/a/.zarray"))["fill_value"]
        folder = await walk(tree, "chunks/a")
        assert isinstance(folder, Directory)
        await folder.unlink("0")
        assert len(await contents(store)) == len(before) + 1
        known = np.array(complex(*map(float, shown)) if isinstance(shown, list) else float(shown), dtype)
        array = np.load(io.BytesIO(await read(tree, "npy/a.npy")))
        assert array[:2].tobytes() == known.tobytes() * 2
        assert array[2:].tobytes() != known.tobytes() * 4


@pytest.mark.parametrize("fill_value", ["NaN", "0x7fc00000"])
@trio_test
async def test_the_nan_that_v2_names_needs_no_files(fill_value: str) -> None:
    store = MemoryStore()
    await fill(store, v3(fill_value=fill_value))
    async with tree_over(store) as tree:
        assert await names(tree, "chunks/a") == {".zarray"}
