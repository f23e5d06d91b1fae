"""Missing chunks of very many elements of variable size: 2^25 references to the fill value took 0.5 GB, and other requests waited."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from trio.testing import trio_test

from tests.support.hostile_stores import array3
from tests.support.stores import fill
from tests.support.trees import read, tree_over
from zarrfs.arrays import filling
from zarrfs.arrays.array import Array
from zarrfs.buffers import same_bytes
from zarrfs.errors import ChunkEncodeError
from zarrfs.keys import NodePath
from zarrfs.stores.memory import MemoryStore

COUNT = 200_000


def document(shape: list[int], chunks: list[int], data_type: str = "string", fill_value: str = "ab") -> bytes:
    codec = "vlen-utf8" if data_type == "string" else "vlen-bytes"
    return array3(shape, chunks, [codec], data_type, fill_value=fill_value)


@trio_test
async def test_a_missing_chunk_of_very_many_texts_takes_little_memory() -> None:
    store = MemoryStore()
    await fill(store, {"zarr.json": b'{"zarr_format":3,"node_type":"group"}', "a/zarr.json": document([COUNT], [COUNT])})
    async with tree_over(store, "memory:") as tree:
        tracemalloc.start()
        try:
            data = await read(tree, "chunks/a/0")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert data == struct.pack("<I", COUNT) + (struct.pack("<I", 2) + b"ab") * COUNT
    # The content, and copies of it, but no references to the elements.
    assert peak < 6 * len(data), f"{peak / len(data):.1f} times the content"


@trio_test
@pytest.mark.parametrize(("data_type", "fill_value"), [("string", "abcde"), ("variable_length_bytes", "YWJjZGU=")])
async def test_fill_values_that_no_chunk_can_have_are_refused_before_they_are_encoded(data_type: str, fill_value: str) -> None:
    """Each look at such a chunk took twenty seconds, and a file of 256 MiB."""
    store, count = MemoryStore(), 2**25
    await fill(store, {"a/zarr.json": document([count], [count], data_type, fill_value)})
    async with tree_over(store, "memory:") as tree:
        node = await tree.hierarchy.array(NodePath("/a"))
        assert node is not None
        with pytest.raises(ChunkEncodeError, match=f"{count} fill values of {9 * count} bytes exceed"):
            await node.array.filled((0,))


def test_large_values_are_compared_in_pieces() -> None:
    """The result of a comparison of bytes takes as much memory as the bytes, which are in a file."""
    one, other = bytes(32 << 20), bytearray(32 << 20)
    tracemalloc.start()
    try:
        assert same_bytes(one, other)
        peak = tracemalloc.get_traced_memory()[1]
        other[-1] = 1
        assert not same_bytes(one, other)
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


@trio_test
@pytest.mark.parametrize(("data_type", "fill_value", "value"), [("string", "ab", b"c"), ("variable_length_bytes", "YWI=", b"c")])
async def test_many_elements_are_filled_as_few(
    data_type: str, fill_value: str, value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    await fill(store, {"a/zarr.json": document([3, 5], [2, 4], data_type, fill_value)})
    async with tree_over(store, "memory:") as tree:
        node = await tree.hierarchy.array(NodePath("/a"))
        assert node is not None
        array: Array = node.array
        few = [bytes(await array.filled((1, 1), each)) for each in (None, value)]
        monkeypatch.setattr(filling, "is_much", lambda count, nbytes: True)
        assert [bytes(await array.filled((1, 1), each)) for each in (None, value)] == few
    assert few[0] == struct.pack("<I", 8) + (struct.pack("<I", 2) + b"ab") * 8
    assert few[1] == few[0].replace(struct.pack("<I", 2) + b"ab", struct.pack("<I", 1) + b"c", 1)
