"""An array -> bytes codec from one file of a test: arrays with it are read, written and created."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.framed_codec import Framed
from tests.support.plugged import plugins
from tests.support.trees import load, names, read, tree_over, walk, write
from zarrfs.codecs.base import ChunkSpec
from zarrfs.codecs.vlen_utf8 import PLUGIN as VlenUtf8
from zarrfs.errors import UsageError
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory

ELEMENTS = (np.arange(35) * 3 - 9).reshape(5, 7)
CHUNKS = (2, 4)
TYPES = pytest.mark.parametrize("dtype", ["|u1", "<i4", "<f8"])
CHAINS = pytest.mark.parametrize("gzipped", [False, True])


codec = plugins(
    {"zarrfs.codecs": "tests.support.framed_codec:PLUGIN"},
    {"zarrfs.codecs": "tests.support.lines_codec:PLUGIN"},
)


def encoded(row: int, column: int, dtype: str, gzipped: bool, order: str = "C") -> bytes:
    """Return a chunk as another program encodes it."""
    chunk = np.zeros(CHUNKS, dtype)
    inside = ELEMENTS[row * 2 : row * 2 + 2, column * 4 : column * 4 + 4]
    chunk[: inside.shape[0], : inside.shape[1]] = inside
    data = bytes(Framed().encode(chunk.T if order == "F" else chunk))
    return gzip.compress(data, mtime=0) if gzipped else data


async def store_of(format: int, dtype: str, gzipped: bool, order: str = "C") -> MemoryStore:
    """Return a store of the array, in the form of Zarr v2 or v3."""
    store = MemoryStore()
    if format == 3:
        document: dict[str, Any] = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": [5, 7],
            "data_type": np.dtype(dtype).name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": CHUNKS}},
            "chunk_key_encoding": {"name": "v2"},
            "codecs": [
                {"name": "test.framed", "configuration": {"level": 1}},
                *([{"name": "gzip", "configuration": {"level": 1}}] if gzipped else []),
            ],
            "fill_value": 0,
        }
    else:
        framed = {"id": "test_framed", "level": 1}
        document = {"zarr_format": 2, "shape": [5, 7], "chunks": CHUNKS, "dtype": dtype, "fill_value": 0, "order": order}
        document |= {"filters": [framed] if gzipped else None, "compressor": {"id": "gzip", "level": 1} if gzipped else framed}
    await store.set(Key("a/zarr.json" if format == 3 else "a/.zarray"), json.dumps(document).encode())
    for row in range(3):
        for column in range(2):
            await store.set(Key(f"a/{row}.{column}"), encoded(row, column, dtype, gzipped, order))
    return store


@TYPES
@CHAINS
@pytest.mark.parametrize(("format", "order"), [(3, "C"), (2, "C"), (2, "F")])
@trio_test
async def test_an_array_with_it_is_read_and_written(format: int, order: str, gzipped: bool, dtype: str) -> None:
    store = await store_of(format, dtype, gzipped, order)
    elements = ELEMENTS.astype(dtype)
    async with tree_over(store) as tree:
        assert (await load(tree, "npy/a.npy")).tolist() == elements.tolist()
        assert await read(tree, "chunks/a/1.1") == np.pad(elements[2:4, 4:], ((0, 0), (0, 1))).tobytes()
        shown = json.loads(await read(tree, "zarr3/a/zarr.json"))
        assert "test.framed" in [codec["name"] for codec in shown["codecs"]]
        name = "zarr3/a/1.1" if format == 3 else "zarr3/a/c/1/1"
        assert await read(tree, name) == encoded(1, 1, dtype, gzipped, order)
        # Through each view, and as other programs read it.
        elements[:2, :4] = 8
        await write(tree, "chunks/a/0.0", elements[:2, :4].tobytes())
        elements[4] = 99
        file = io.BytesIO()
        np.save(file, elements)
        await write(tree, "npy/a.npy", file.getvalue())
        stored = bytes(await store.get(Key("a/2.0")) or b"")
        chunk = np.pad(elements[4:, :4], ((0, 1), (0, 0)))
        assert (gzip.decompress(stored) if gzipped else stored) == Framed().encode(chunk.T if order == "F" else chunk)
        assert (await load(tree, "npy/a.npy")).tolist() == elements.tolist()


@trio_test
async def test_a_chunk_that_is_no_frame_is_an_error_that_names_it() -> None:
    store = await store_of(3, "|u1", False)
    await store.set(Key("a/1.1"), bytes(8))
    async with tree_over(store) as tree:
        with pytest.raises(Exception, match=r"decoding chunk \(1, 1\) of /a: test.framed: not a frame"):
            await read(tree, "chunks/a/1.1")


@trio_test
async def test_behind_big_endian_elements_it_is_refused_with_the_reason() -> None:
    async with tree_over(await store_of(2, ">i4", False)) as tree:
        assert await names(tree, "npy") == {"a.unsupported.txt"}
        assert b"big-endian" in await read(tree, "npy/a.unsupported.txt")


@TYPES
@pytest.mark.parametrize("codecs", ["test.framed", "test.framed:level=3+gzip:level=1"])
@pytest.mark.parametrize("dialect", ["v2", "v3"])
@trio_test
async def test_new_arrays_are_made_with_it(dialect: str, codecs: str, dtype: str) -> None:
    elements = ELEMENTS.astype(dtype)
    store = MemoryStore()
    async with tree_over(store, new_dialect=dialect, new_codecs=codecs, new_chunks="2x4") as tree:
        file = io.BytesIO()
        np.save(file, elements)
        await write(tree, "npy/a.npy", file.getvalue())
        assert (await load(tree, "npy/a.npy")).tolist() == elements.tolist()
        await mkdir(tree, "chunks", "b")
        document = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": dtype, "fill_value": 0, "order": "C"}
        document |= {"filters": None, "compressor": None}
        await write(tree, "chunks/b/.zarray", json.dumps(document).encode())
        await write(tree, "chunks/b/0", elements[0, :4].tobytes())
        for name, chunk in (("a", elements[:2, :4]), ("b", elements[0, :4])):
            if dialect == "v3":
                said = json.loads(await store.get(Key(f"{name}/zarr.json")) or b"")
                chain = [codec["name"] for codec in said["codecs"]]
                key = f"{name}/c/{'/'.join('0' * chunk.ndim)}"
            else:
                said = json.loads(await store.get(Key(f"{name}/.zarray")) or b"")
                chain = [codec["id"].replace("_", ".") for codec in (*(said["filters"] or ()), said["compressor"]) if codec]
                key = f"{name}/{'.'.join('0' * chunk.ndim)}"
            assert chain == ["test.framed", *(["gzip"] if "gzip" in codecs else [])]
            stored = bytes(await store.get(Key(key)) or b"")
            level = 3 if "level=3" in codecs else 1
            assert (gzip.decompress(stored) if "gzip" in codecs else stored) == Framed(level).encode(chunk)


@pytest.mark.parametrize("dialect", ["v2", "v3"])
@trio_test
async def test_a_document_written_in_zarr3_asks_for_it(dialect: str) -> None:
    document = json.loads(await (await store_of(3, "<i4", True)).get(Key("a/zarr.json")) or b"")
    document["chunk_key_encoding"] = {"name": "default"}
    async with tree_over(store := MemoryStore(), new_dialect=dialect) as tree:
        await mkdir(tree, "zarr3", "a")
        await write(tree, "zarr3/a/zarr.json", json.dumps(document).encode())
        await mkdir(tree, "zarr3/a", "c")
        await mkdir(tree, "zarr3/a/c", "0")
        await write(tree, "zarr3/a/c/0/0", encoded(0, 0, "<i4", True))
        assert await store.get(Key("a/c/0/0" if dialect == "v3" else "a/0.0")) == encoded(0, 0, "<i4", True)
        assert (await load(tree, "npy/a.npy"))[:2, :4].tolist() == ELEMENTS[:2, :4].tolist()


@pytest.mark.parametrize("format", [2, 3])
@trio_test
async def test_text_of_any_length_may_have_one_too(format: int) -> None:
    store = MemoryStore()
    document: dict[str, Any] = {"zarr_format": format, "shape": [3], "fill_value": ""}
    if format == 2:
        document |= {"chunks": [2], "dtype": "|O", "filters": [{"id": "test_lines"}], "compressor": None, "order": "C"}
    else:
        grid = {"name": "regular", "configuration": {"chunk_shape": [2]}}
        document |= {"node_type": "array", "data_type": "string", "chunk_grid": grid, "codecs": [{"name": "test.lines"}]}
        document |= {"chunk_key_encoding": {"name": "v2"}}
    await store.set(Key("a/zarr.json" if format == 3 else "a/.zarray"), json.dumps(document).encode())
    await store.set(Key("a/0"), b"one%20two\n\n")
    plain = VlenUtf8()
    spec = ChunkSpec((2,), np.dtype(object))
    async with tree_over(store) as tree:
        assert plain.decode(await read(tree, "chunks/a/0"), spec).tolist() == ["one two", ""]
        await write(tree, "chunks/a/0", bytes(plain.encode(np.array(["a b", "c"], object))))
        assert await store.get(Key("a/0")) == b"a%20b\nc\n"
        assert b"test.lines" in await read(tree, "zarr3/a/zarr.json")


@trio_test
async def test_chunks_of_shards_have_it() -> None:
    elements = ELEMENTS.astype("|u1")
    store = MemoryStore()
    async with tree_over(store, new_codecs="test.framed", new_chunks="2x4", new_shards="2x2") as tree:
        file = io.BytesIO()
        np.save(file, elements)
        await write(tree, "npy/a.npy", file.getvalue())
        assert (await load(tree, "npy/a.npy")).tolist() == elements.tolist()
        assert await read(tree, "zarr3/a/c/0/1") == Framed().encode(np.pad(elements[:2, 4:], ((0, 0), (0, 1))))
    async with tree_over(store) as tree:
        assert (await load(tree, "npy/a.npy")).tolist() == elements.tolist()
        assert b"sharding_indexed" in await read(tree, "raw/a/zarr.json")


def test_one_that_takes_no_elements_of_any_kind_is_refused_by_the_option() -> None:
    NewArrays(codecs="test.framed")
    with pytest.raises(UsageError, match="level"):
        NewArrays(codecs="test.framed:level=11")
    with pytest.raises(UsageError, match="cannot precede"):
        NewArrays(codecs="gzip:level=1+test.framed")


async def mkdir(tree: Any, folder: str, name: str) -> None:
    parent = await walk(tree, folder)
    assert isinstance(parent, Directory)
    await parent.mkdir(name)
