"""Arrays with missing and edge chunks, of every type, filter, order and layout, compared with NumPy; zarr-python reads them, too.

The filter of an array reproduces its elements exactly, so that any difference comes from padding.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import trio
import zarr
from hypothesis import assume, given
from hypothesis import strategies as st
from trio.testing import trio_test

from tests.dialects.conformance import bytes_codec
from tests.support.comparing import in_memory
from tests.support.data_types import CORE, data_types, elements, shapes
from tests.support.length import tries
from tests.support.stores import contents, fill
from tests.support.trees import every_file, load, names, read, tree_over, walk, write
from zarrfs import registry
from zarrfs.dialects.base import Dialect, Layout
from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType, from_name
from zarrfs.model.fill_value import NAT
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import File, OpenFlags
from zarrfs.views.shown_fill import says_what_is_missing

PATH = NodePath("/a")
LAYOUTS = sorted(registry.plugins("zarrfs.dialects"), key=lambda dialect: dialect.name)
SPECIAL = (math.nan, 9.969209968386869e36, -3.4e38, math.inf)

Chunk = tuple[int, ...]
Numbers = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Example:
    """An array, its document's keys and values, and the elements of its chunks at full shape; None for a chunk that is not stored."""

    metadata: ArrayMetadata
    filter: CodecSpec | None
    documents: dict[Any, bytes]
    layout: Layout
    chunks: dict[Chunk, Numbers | None]

    @property
    def elements(self) -> Numbers:
        """The elements that every reader has to see."""
        metadata = self.metadata
        whole = np.empty([count * n for count, n in zip(metadata.grid_shape, self.shape, strict=True)], metadata.data_type.dtype)
        for coords, chunk in self.chunks.items():
            box = tuple(slice(i * n, (i + 1) * n) for i, n in zip(coords, self.shape, strict=True))
            whole[(*box, ...)] = chunk if chunk is not None else fill_of(metadata)
        return np.ascontiguousarray(whole[(*map(slice, metadata.shape), ...)]).reshape(metadata.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every chunk."""
        assert isinstance(self.metadata.chunk_grid, RegularGrid)
        return self.metadata.chunk_grid.chunks

    def inside(self, coords: Chunk) -> tuple[Any, ...]:
        """Return the part of a chunk within the array."""
        ends = zip(self.metadata.shape, coords, self.shape, strict=True)
        return (*(slice(0, extent - i * n) for extent, i, n in ends), ...)


def fill_of(metadata: ArrayMetadata) -> Numbers:
    """Return one element that can be broadcast: the fill value; where it is undefined, zero, or NaT for times."""
    dtype = metadata.data_type.dtype
    undefined = np.array("NaT", dtype).tobytes() if dtype.kind in "mM" else bytes(dtype.itemsize)
    return np.frombuffer(metadata.fill_value or undefined, f"|V{dtype.itemsize}").view(dtype)[0]


def filters_of(data_type: DataType) -> st.SearchStrategy[CodecSpec | None]:
    """Return every filter that accepts elements of a type, and none."""
    dtype = data_type.dtype
    found = [CodecSpec("numcodecs.shuffle", {"elementsize": dtype.itemsize})]
    if dtype.kind in "iuf" and dtype.itemsize > 1:
        found += [CodecSpec("numcodecs.delta", {"dtype": dtype.str})] * 3
        found.append(CodecSpec("numcodecs.fixedscaleoffset", {"offset": 1, "scale": 2, "dtype": dtype.str, "astype": "<i4"}))
        found.append(CodecSpec("numcodecs.astype", {"encode_dtype": "<i8", "decode_dtype": dtype.str}))
    if dtype.kind in "iu" and dtype.itemsize > 1:
        found += [CodecSpec("numcodecs.delta", {"dtype": dtype.str, "astype": "<i2"})] * 3
    if dtype.kind == "f":
        found += [
            CodecSpec("numcodecs.bitround", {"keepbits": 8}),
            CodecSpec("numcodecs.quantize", {"digits": 2, "dtype": dtype.str}),
        ]
    if data_type.name == "bool":
        found.append(CodecSpec("numcodecs.packbits"))
    return st.none() | st.sampled_from(found)


def fills_of(data_type: DataType) -> st.SearchStrategy[bytes]:
    """Return any element, and special ones."""
    dtype = data_type.dtype
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return elements(data_type) | st.sampled_from([np.array(each).astype(dtype).tobytes() for each in SPECIAL])
    return st.just(NAT.to_bytes(8, "little", signed=True)) | elements(data_type) if dtype.kind in "mM" else elements(data_type)


@st.composite
def examples(draw: st.DrawFn) -> Example:
    dialect = draw(st.sampled_from(LAYOUTS), label="layout")
    data_type = draw(st.sampled_from(CORE).map(from_name) | data_types(), label="type")
    dtype = data_type.dtype
    shape = draw(shapes(max_ndim=3, max_extent=5, min_extent=1), label="shape")
    chunks = tuple(draw(st.integers(1, 4)) for _ in shape)
    sieve = draw(filters_of(data_type), label="filter")
    endian = bytes_codec(data_type, "little" if sieve else draw(st.sampled_from(["little", "big"])))
    order = [CodecSpec("transpose", {"order": list(reversed(range(len(shape))))})] if draw(st.booleans(), label="F") else []
    compressed = draw(st.booleans(), label="compressed")
    shards = tuple(draw(st.integers(1, 2)) for _ in shape) if draw(st.booleans(), label="sharded") else ()
    metadata = ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=RegularGrid(chunks),
        chunk_key_encoding=dialect.chunk_key_encoding,
        fill_value=draw(st.none() | fills_of(data_type), label="fill value"),
        codecs=(),
        shards=(ShardSpec(shards),) if shards else (),
    )
    layout = dialect.create(Prefix(""))
    rest = dialect.new_codecs if compressed else ()
    for front, back in itertools.product((order, []), (rest, dialect.new_codecs)):
        for chain in ([sieve, endian], [endian, sieve]):
            codecs = (*front, *filter(None, chain), *back)
            node = ArrayNode(
                path=PATH,
                dialect=dialect.name,
                metadata=replace(metadata, codecs=codecs),
                chunk_prefix=layout.chunk_prefix(PATH),
            )
            try:
                documents = layout.format(node)
                parsed = layout.parse(PATH, {key: documents[key] for key in layout.document_keys(PATH) if key in documents})
            except (NotRepresentable, MetadataError):
                continue
            assert isinstance(parsed, ArrayNode)
            break
        else:
            continue
        break
    else:
        assume(False)
    # Some layouts have only one NaN, and in some a fill value that they cannot represent is undefined.
    metadata = parsed.metadata
    assert (
        metadata.fill_value is None
        or dtype.kind in "fc"
        or metadata.fill_value == (node.metadata.fill_value or fill_of(node.metadata).tobytes())
    )

    def chunk() -> Numbers:
        count = math.prod(chunks)
        if sieve is not None and dtype.kind in "iuf":
            return np.array(draw(st.lists(st.integers(0, 100), min_size=count, max_size=count)), dtype).reshape(chunks)
        drawn = draw(st.lists(elements(data_type), min_size=count, max_size=count))
        return np.frombuffer(b"".join(drawn), dtype).reshape(chunks)

    stored = {coords: chunk() if draw(st.integers(0, 3)) else None for coords in np.ndindex(*metadata.grid_shape)}
    return Example(metadata, sieve, {**layout.entry_documents(), **documents}, layout, stored)


@tries(250)
@given(example=examples(), how=st.sampled_from(["chunks", "parts", "npy"]))
def test_edge_and_missing_chunks_hold_what_was_written_and_else_the_fill_value(example: Example, how: str) -> None:
    metadata = example.metadata

    async def main() -> None:
        store = MemoryStore()
        await fill(store, {str(key): value for key, value in example.documents.items()})
        whole = example.elements
        async with tree_over(store, shard_delay="0") as tree:
            if how == "npy":
                await write_whole(tree, example)
            else:
                for coords, chunk in example.chunks.items():
                    if chunk is None:
                        continue
                    path = f"chunks/a/{'.'.join(map(str, coords)) or '0'}"
                    await write(tree, path, chunk.tobytes())
                    if how == "parts":
                        await write_part(tree, path, chunk)
            assert same(await load(tree, "npy/a.npy"), whole)
        # Read from the store by a new tree.
        async with tree_over(store) as tree:
            assert same(await load(tree, "npy/a.npy"), whole)
            listed = await names(tree, "chunks/a")
            node = await tree.hierarchy.node(NodePath("/a"))
            assert isinstance(node, ArrayNode)
            lists_missing = not says_what_is_missing(node)
            for coords, chunk in example.chunks.items():
                name = ".".join(map(str, coords)) or "0"
                if how != "npy":
                    assert (name in listed) == (chunk is not None or lists_missing)
                if name not in listed:
                    continue
                found = np.frombuffer(await read(tree, f"chunks/a/{name}"), metadata.data_type.dtype).reshape(example.shape)
                expected = chunk if chunk is not None else np.broadcast_to(fill_of(metadata), example.shape)
                assert same(found[example.inside(coords)], expected[example.inside(coords)])
        if is_for_zarr(example):
            found = np.asarray(zarr.open_array(in_memory(await contents(store)), path="a", mode="r")[...])
            assert same(found.astype(found.dtype.newbyteorder("<")), whole)

    trio.run(main)


def is_for_zarr(example: Example) -> bool:
    """Return True if zarr-python reads such an array: it flattens the result of a transposition in memory order."""
    metadata, dialect = example.metadata, example.layout.dialect.name
    has_order = any(spec.name == "transpose" for spec in metadata.codecs)
    is_known = metadata.data_type.name in CORE or metadata.data_type.dtype.kind in "mM"
    return is_known and (dialect == "v2" or (dialect == "v3" and not (has_order and example.filter)))


async def write_part(tree: Any, path: str, chunk: Numbers) -> None:
    """Write the second half of a chunk again."""
    data = chunk.tobytes()
    await change(tree, path, len(data) // 2, data[len(data) // 2 :])


async def change(tree: Any, path: str, offset: int, data: bytes) -> None:
    """Write a part of a file."""
    file = await walk(tree, path)
    assert isinstance(file, File)
    handle = await file.open(OpenFlags(write=True))
    await handle.write(offset, data)
    await handle.flush()
    await handle.release()


async def write_whole(tree: Any, example: Example) -> None:
    """Write every element outside of missing chunks, through the file of the array."""
    metadata = example.metadata
    file = await walk(tree, "npy/a.npy")
    assert isinstance(file, File)
    size = (await file.attributes()).size
    handle = await file.open(OpenFlags(write=True))
    offset = size - metadata.nbytes
    data = example.elements.tobytes()
    itemsize = metadata.data_type.itemsize
    for number, each in enumerate(np.ndindex(*metadata.shape)):
        if example.chunks[tuple(i // n for i, n in zip(each, example.shape, strict=True))] is not None:
            await handle.write(offset + number * itemsize, data[number * itemsize : (number + 1) * itemsize])
    await handle.flush()
    await handle.release()


def same(ours: Numbers, theirs: Numbers) -> bool:
    """Return True if elements are equal bit for bit; types that `.npy` cannot name are void there."""
    return ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("dialect", [pytest.param(each, id=each.name) for each in LAYOUTS])
@pytest.mark.parametrize("name", ["bool", "int64", "float32", "complex64", "datetime64", "string"])
@trio_test
async def test_a_scalar_whose_fill_value_is_null_is_read_in_every_view(dialect: Dialect, name: str) -> None:
    """With its chunk stored and not; and likewise an array of one dimension."""
    types = {
        "datetime64": from_name("numpy.datetime64", {"unit": "s", "scale_factor": 1}),
        "string": from_name("null_terminated_bytes", {"length_bytes": 3}),
    }
    data_type = types.get(name) or from_name(name)
    dtype, layout = data_type.dtype, dialect.create(Prefix(""))
    zero = np.array("NaT", dtype) if dtype.kind == "M" else np.zeros((), dtype)
    for shape in ((), (1,)):
        metadata = ArrayMetadata(
            shape=shape,
            data_type=data_type,
            chunk_grid=RegularGrid(shape),
            chunk_key_encoding=dialect.chunk_key_encoding,
            fill_value=None,
            codecs=(bytes_codec(data_type, "little"), *dialect.new_codecs),
        )
        node = ArrayNode(path=PATH, dialect=dialect.name, metadata=metadata, chunk_prefix=layout.chunk_prefix(PATH))
        try:
            documents = {str(key): json.loads(value) for key, value in layout.format(node).items()}
        except NotRepresentable:
            return
        documents = {key: said | ({"fill_value": None} if "fill_value" in said else {}) for key, said in documents.items()}
        store = MemoryStore()
        entries = {str(key): value for key, value in layout.entry_documents().items()}
        await fill(store, entries | {key: json.dumps(said).encode() for key, said in documents.items()})
        async with tree_over(store, fill="true") as tree:
            one = np.frombuffer(b"\1".ljust(dtype.itemsize, b"\0"), dtype).reshape(())
            for expected in (zero, one):
                assert same(await load(tree, "npy/a.npy"), np.broadcast_to(expected, shape))
                assert await read(tree, "chunks/a/0") == expected.tobytes()
                shown = {path[6:]: await read(tree, path) async for path in every_file(tree, "zarr3")}
                found = np.asarray(zarr.open_array(in_memory(shown), path="a", mode="r")[...])
                assert found.astype(dtype).tobytes() == expected.tobytes()
                await change(tree, "chunks/a/0", 0, one.tobytes())
