"""An array of a hierarchy: its metadata, its codec chain, and its chunks, decoded and encoded."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from zarrfs import threads
from zarrfs.arrays.booleans import has_booleans, invalid_boolean
from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.arrays.counters import HierarchyCounters
from zarrfs.arrays.live_node import with_memory
from zarrfs.arrays.padding import encode_padded
from zarrfs.codecs.chain import CodecChain
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, ChunkError, ChunkSizeMismatch, NodeMoving, TooLarge, ZarrfsError
from zarrfs.keys import ByteRange, NodePath
from zarrfs.memory import spill
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.model.chunk_grid import Coords, Shape, in_grid
from zarrfs.model.chunk_plan import Selection
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.model.variable_fill import element
from zarrfs.stores.values import Buffer, Generation, KeyStat

Elements = np.ndarray[Any, np.dtype[Any]]

E = TypeVar("E", bound=ZarrfsError)

_serials = itertools.count(1)


class ChunkPart(NamedTuple):
    """The part ``selection`` of chunk ``coords``, wanted in ``out``, which has its shape; where there is a ``where``, only those elements
    of it."""

    coords: Coords
    out: Elements
    selection: Selection
    where: Elements | None = None


class Array:
    """One array as its documents described it when it was opened. A changed document makes a new object, with a new ``serial``.

    Safe for concurrent use. Elements are NumPy arrays of ``metadata.data_type.dtype``, little-endian. Where elements have no fixed size,
    a whole chunk is the bytes that the ``plain`` chain makes of them (`zarrfs.codecs.chain.PLAIN_OBJECTS`), as an array of bytes.
    """

    def __init__(
        self, node: ArrayNode, chunks: ChunkStore, counters: HierarchyCounters, budget: MemoryBudget | None = None
    ) -> None:
        self.node = node
        self.chunks = chunks
        self.chain = CodecChain.build(node.metadata.codecs, node.metadata.data_type, node.metadata.fill_value)
        self.plain = CodecChain.build((), node.metadata.data_type) if node.metadata.data_type.is_variable else None
        self.serial = next(_serials)
        self._has_booleans = has_booleans(node.metadata.data_type.dtype)
        self._counters = counters
        self._budget = budget if budget is not None else MemoryBudget(UNLIMITED)

    @property
    def path(self) -> NodePath:
        """The node's path."""
        return self.node.path

    @property
    def metadata(self) -> ArrayMetadata:
        """What the documents say."""
        return self.node.metadata

    def has(self, coords: Coords) -> bool:
        """Whether the grid has such a chunk, stored or not."""
        return in_grid(coords, self.metadata.grid_shape)

    async def read_chunk(self, coords: Coords, generation: Generation | None = None) -> Elements | None:
        """A chunk at its full shape; None when it is not stored. Raises `ChunkDecodeError` naming the chunk, and `GenerationMismatch`
        when it is no longer the ``generation`` that the caller named."""
        while True:
            await self.chunks.settled()
            async with self._budget.working(self._reading_nbytes([coords])):
                try:
                    data = (await self._stored([coords], generation))[0]
                except NodeMoving:
                    continue
                if data is None:
                    return None
                if isinstance(data, ZarrfsError):
                    raise data
                return await self._decoded(coords, data)

    async def stored_chunk(self, coords: Coords) -> tuple[Buffer, KeyStat] | None:
        """A chunk as it is stored, for `decode_chunk`, and what is known of it; None when it is not stored."""
        return await self.chunks.get_with_stat(coords, ByteRange(0, self.encoded_limit(coords) + 1))

    async def decode_chunk(self, coords: Coords, data: Buffer) -> Elements:
        """The elements of a chunk that is stored as ``data``, at its full shape. Raises `ChunkDecodeError` naming it."""
        async with self._budget.working(self._decoding_nbytes(coords)):
            return await self._decoded(coords, data)

    async def filled(self, coords: Coords) -> Elements:
        """A chunk that is not stored, as `read_chunk` gives one that is."""
        async with self._budget.working(spill.in_memory(self._cost(coords))):
            return await threads.cpu(self._cost(coords), self._filled, coords)

    async def read_chunks_into(self, parts: Sequence[ChunkPart]) -> list[bool | ZarrfsError]:
        """Decode several chunks, and put the part that was asked for of each into its place; for each whether it is stored, or why it
        could not be read. They are got in one store operation and decoded in one thread: few hops where chunks are small."""
        if not parts:
            return []
        coords = [part.coords for part in parts]
        while True:
            await self.chunks.settled()
            async with self._budget.working(self._reading_nbytes(coords)):
                try:
                    stored = await self._stored(coords)
                except NodeMoving:
                    continue
                nbytes = sum(map(self._cost, coords))
                results = await threads.cpu(nbytes, self._decode_into, parts, stored)
                break
        self._counters.chunks_decoded += sum(result is True for result in results)
        return results

    async def write_chunk(self, coords: Coords, data: Buffer) -> None:
        """Encode and store a chunk; ``data`` is all its elements in C order, little-endian, at the full chunk shape.

        What lies beyond the array's edge is replaced by the fill value. Raises `ChunkSizeMismatch` before anything is stored; where
        elements have no fixed size, `ChunkDecodeError` for what holds none, and `ChunkEncodeError` for what the codecs cannot take.
        """
        async with self.chunks.holding(), self.encoding([coords]):
            encoded = await self.encode_chunk(coords, data)
            await self.chunks.update({coords: encoded})

    async def write_encoded(self, coords: Coords, data: Buffer) -> None:
        """Store a chunk that is encoded already: these very bytes. Raises `ChunkDecodeError`, before anything is stored, when they are
        no chunk of this array."""
        async with self.chunks.holding(), self._budget.working(len(data) + self._decoding_nbytes(coords)):
            encoded = data if spill.is_mapped(data) else bytes(data)
            elements = await self._decoded(coords, encoded)
            if (why := await self.invalid(coords, elements)) is not None:
                raise self.naming(ChunkDecodeError(why), "decoding", coords)
            await self.chunks.update({coords: encoded})

    async def encode_chunk(self, coords: Coords, data: Buffer) -> Buffer:
        """The encoded form of a chunk; see `write_chunk`."""
        return (await self.encode_chunks([(coords, data)]))[0]

    async def encode_chunks(self, chunks: Sequence[tuple[Coords, Buffer]]) -> list[Buffer]:
        """The encoded forms of several chunks, made in one thread: few hops where chunks are small. See `write_chunk`."""
        nbytes = 0
        for coords, data in chunks:
            expected = self._cost(coords)
            if self.plain is None and len(data) != expected:
                raise ChunkSizeMismatch(
                    f"chunk {coords} of {self.path} has exactly {expected} bytes, not {len(data)}: nothing was stored",
                    key=self.path,
                )
            nbytes += expected
        encoded: list[Buffer] = await threads.cpu(nbytes, self._encode_several, chunks)
        self._counters.chunks_encoded += len(encoded)
        return encoded

    def encoding(self, coords: Sequence[Coords]) -> AbstractAsyncContextManager[None]:
        """The memory for encoding these chunks and storing them, to be held until they are stored."""
        nbytes = sum(spill.in_memory(self.encoded_limit(each)) for each in coords)
        each = max(map(self._decoding_nbytes, coords), default=0)
        # What such a chain made of an edge chunk is decoded again (`zarrfs.arrays.padding`).
        return self._budget.working(min(nbytes, spill.large_nbytes()) + each * (2 if self.chain.after_another else 1))

    def merging(self, coords: Sequence[Coords]) -> AbstractAsyncContextManager[None]:
        """The memory for getting these chunks together, changing them one after the other, and storing them together."""
        nbytes = sum(spill.in_memory(self.encoded_limit(each)) for each in coords)
        # What is there, and what is put into it.
        each = max(map(self._decoding_nbytes, coords), default=0)
        return self._budget.working(2 * (min(nbytes, spill.large_nbytes()) + each))

    async def invalid(self, coords: Coords, elements: Elements) -> str | None:
        """Why ``elements``, a decoded chunk, are none of the array's type: `zarrfs.arrays.booleans`. None where they are."""
        if not self._has_booleans:
            return None
        return await threads.cpu(self._cost(coords), invalid_boolean, part(elements, self.inside(coords)))

    def encode_now(self, coords: Coords, elements: Elements, *, whole: bool = False) -> Buffer:
        """As `encode_chunk`, of elements that nobody changes afterwards; ``whole``: what lies beyond the array's edge is right. In a
        thread."""
        try:
            if whole:
                return self.chain.encode(elements, self.inside(coords))
            return self._encode(coords, elements.reshape(-1).view(np.uint8).data if elements.size else b"")
        except ZarrfsError as error:
            raise self.naming(error, "encoding", coords) from error

    def count(self, *, decoded: int, encoded: bool) -> None:
        """Chunks that were decoded, and encoded, by others."""
        self._counters.chunks_decoded += decoded
        self._counters.chunks_encoded += encoded

    def encoded_limit(self, coords: Coords) -> int:
        """The most bytes that a chunk can be stored in."""
        return self.chain.encoded_limit(self.metadata.chunk_grid.chunk_shape(coords))

    def inside(self, coords: Coords) -> Selection:
        """The part of a chunk that lies within the array."""
        metadata = self.metadata
        spans = [metadata.chunk_grid.span(axis, index) for axis, index in enumerate(coords)]
        return tuple(slice(0, min(end, extent) - begin) for (begin, end), extent in zip(spans, metadata.shape, strict=True))

    def oversized(self, coords: Coords, limit: int) -> ChunkDecodeError:
        """The error for a chunk that is stored in more bytes than any can have."""
        return ChunkDecodeError(
            f"chunk {coords} of {self.path} is stored in more than {limit} bytes: no such chunk has so many",
            key=self.chunks.keys(coords)[0],
        )

    def naming(self, error: E, doing: str, coords: Coords) -> E:
        """The same error, of this chunk."""
        return type(error)(f"{doing} chunk {coords} of {self.path}: {error}", key=self.chunks.keys(coords)[0])

    def _reading_nbytes(self, coords: Sequence[Coords]) -> int:
        """Bytes of memory, at most, for getting these chunks together and decoding them one after the other."""
        nbytes = sum(spill.in_memory(self.encoded_limit(each)) for each in coords)
        if len(coords) == 1:
            return min(nbytes, spill.large_nbytes()) + self._decoding_nbytes(coords[0])
        metadata = self.metadata
        decoded = metadata.max_chunk_nbytes if self.plain is None else MAX_VARIABLE_NBYTES
        return (
            min(nbytes, spill.large_nbytes()) + self.chain.decoding_nbytes(metadata.chunk_grid.largest) + spill.in_memory(decoded)
        )

    def _decoding_nbytes(self, coords: Coords) -> int:
        return self.chain.decoding_nbytes(self.metadata.chunk_grid.chunk_shape(coords)) + spill.in_memory(self._cost(coords))

    async def _decoded(self, coords: Coords, data: Buffer) -> Elements:
        shape = self.metadata.chunk_grid.chunk_shape(coords)
        try:
            elements: Elements = await threads.cpu(self._cost(coords), self._decode, data, shape)
        except (ChunkDecodeError, TooLarge) as error:
            raise self.naming(error, "decoding", coords) from error
        self._counters.chunks_decoded += 1
        return elements

    def _cost(self, coords: Coords) -> int:
        """Over how many bytes a chunk is decoded or encoded: the most there may be, where nothing tells."""
        return self.metadata.chunk_nbytes(coords) if self.plain is None else MAX_VARIABLE_NBYTES

    def _filled(self, coords: Coords) -> Elements:
        elements = spill.array(self.metadata.chunk_grid.chunk_shape(coords), self.metadata.data_type.dtype)
        fill(self.metadata, elements)
        return elements if self.plain is None else np.frombuffer(self.plain.encode(elements), np.uint8)

    def _decode(self, data: Buffer, shape: Shape) -> Elements:
        if self.plain is None:
            # Whoever takes parts of it may be the event loop, which has no time for another order of dimensions.
            return spill.contiguous(self.chain.decode(data, shape))
        try:
            return np.frombuffer(self.chain.transcode(data, shape, self.plain), np.uint8)
        except ChunkEncodeError as error:
            raise ChunkDecodeError(str(error)) from error

    async def _stored(self, coords: Sequence[Coords], generation: Generation | None = None) -> list[Buffer | ChunkError | None]:
        """The stored bytes of chunks, of which no more are read than a chunk of this shape can have; ``generation`` is for one. For
        who has taken the memory for them: raises `NodeMoving` rather than to wait."""
        limit = max(map(self.encoded_limit, coords))
        part = ByteRange(0, limit + 1)
        values: list[Buffer | ChunkError | None]
        with with_memory():
            if generation is None:
                values = await self.chunks.get_several(coords, part)
            else:
                values = [*await self.chunks.get_parts(coords[0], [part], generation)]
        return [
            self.oversized(each, limit)
            if value is not None and not isinstance(value, ChunkError) and len(value) > limit
            else self.naming(value, "reading", each)
            if isinstance(value, ChunkError)
            else value
            for each, value in zip(coords, values, strict=True)
        ]

    def _decode_into(self, parts: Sequence[ChunkPart], stored: Sequence[Buffer | ChunkError | None]) -> list[bool | ZarrfsError]:
        results: list[bool | ZarrfsError] = []
        for part, data in zip(parts, stored, strict=True):
            if data is None or isinstance(data, ChunkError):
                results.append(data if data is not None else False)
                continue
            try:
                shape = self.metadata.chunk_grid.chunk_shape(part.coords)
                if part.where is None:
                    self.chain.decode_into(data, shape, part.out, part.selection)
                else:
                    np.copyto(part.out, spill.contiguous(self.chain.decode(data, shape))[part.selection], where=part.where)
            except (ChunkDecodeError, TooLarge) as error:
                results.append(self.naming(error, "decoding", part.coords))
            else:
                results.append(True)
        return results

    def _encode_several(self, chunks: Sequence[tuple[Coords, Buffer]]) -> list[Buffer]:
        encoded = []
        buffers = spill.Buffers()
        for coords, data in chunks:
            try:
                if self._has_booleans:
                    self._check_booleans(coords, data)
                encoded.append(buffers.kept(self._encode(coords, data)))
            except ZarrfsError as error:
                raise self.naming(error, "encoding", coords) from error
        return encoded

    def _check_booleans(self, coords: Coords, data: Buffer) -> None:
        metadata = self.metadata
        elements = np.frombuffer(data, metadata.data_type.dtype).reshape(metadata.chunk_grid.chunk_shape(coords))
        if (why := invalid_boolean(part(elements, self.inside(coords)))) is not None:
            raise ChunkEncodeError(why)

    def _encode(self, coords: Coords, data: Buffer) -> Buffer:
        metadata = self.metadata
        shape = metadata.chunk_grid.chunk_shape(coords)
        inside = self.inside(coords)
        is_padded = any(part.stop < length for part, length in zip(inside, shape, strict=True))
        elements: Elements
        if is_padded and self.chain.after_another:
            if self.plain is not None:
                elements = self.plain.decode(data, shape)
            else:
                elements = np.frombuffer(data, metadata.data_type.dtype).reshape(shape)
            padded = spill.array(shape, elements.dtype)
            fill(metadata, padded)
            padded[inside] = elements[inside]
            return encode_padded(self.chain, padded, inside)
        if self.plain is not None:
            keep, padding = None, None
            if is_padded:
                padding = element(metadata.data_type, metadata.fill_bytes)
                keep = spill.array(shape, np.dtype(bool))
                keep[...] = False
                keep[inside] = True
                keep = keep.reshape(-1)
            return self.plain.transcode(data, shape, self.chain, keep, padding)
        elements = np.frombuffer(data, metadata.data_type.dtype).reshape(shape)
        if is_padded:
            padded = spill.array(shape, elements.dtype)
            fill(metadata, padded)
            padded[inside] = elements[inside]
            elements = padded
        encoded = self.chain.encode(elements, inside if is_padded else None)
        # The staging buffer may change again as soon as this returns: the encoded form must not be a view of it.
        return spill.copied(encoded) if isinstance(encoded, memoryview) and _shares(encoded, data) else encoded


def _shares(encoded: Buffer, data: Buffer) -> bool:
    """Whether the bytes of one lie among those of the other."""
    if not len(encoded) or not len(data):
        return False
    first, begin = (np.frombuffer(each, np.uint8).ctypes.data for each in (encoded, data))
    return bool(first < begin + len(data) and begin < first + len(encoded))


def part(elements: Elements, selection: Selection) -> Elements:
    """A view of what ``selection`` names. The ellipsis keeps the element of a 0-dimensional array an array, which can be written to."""
    index: Any = (*selection, ...)
    view: Elements = elements[index]
    return view


def fill(metadata: ArrayMetadata, out: Elements) -> None:
    """Set every element of ``out`` to what a chunk that is not stored reads as, bit for bit."""
    if out.size == 0:
        return
    if metadata.data_type.is_variable:
        # An array of no dimensions: NumPy would take a list for elements.
        one = np.empty((), object)
        one[()] = element(metadata.data_type, metadata.fill_bytes)
        out[...] = one
        return
    # Through bytes, not through the type: assigning a NaN element may lose its payload, and void types do not assign scalars.
    pattern = np.frombuffer(metadata.fill_bytes, np.uint8)
    if not pattern.any() and out.flags.c_contiguous:
        # Flat first: an array of no dimensions has no other view.
        out.reshape(-1).view(np.uint8)[...] = 0
        return
    out[...] = np.frombuffer(metadata.fill_bytes, f"|V{pattern.size}").view(out.dtype)[0]


# Elements are compared with the fill value so many bytes at a time.
_COMPARED_NBYTES = 4 * 1024 * 1024


def is_filled(metadata: ArrayMetadata, elements: Elements) -> bool:
    """Whether all of ``elements`` are what a chunk that is not stored reads as, bit for bit. An undefined fill value equals nothing."""
    if metadata.fill_value is None:
        return False
    if elements.size == 0:
        return True
    pattern = np.frombuffer(metadata.fill_bytes, np.uint8)
    corner = elements[(slice(0, 1),) * elements.ndim]
    if not np.array_equal(np.ascontiguousarray(corner).reshape(-1).view(np.uint8), pattern):
        return False
    rows = spill.contiguous(elements).reshape(-1).view(np.uint8).reshape(-1, pattern.size)
    step = max(1, _COMPARED_NBYTES // pattern.size)
    return all((rows[start : start + step] == pattern).all() for start in range(0, len(rows), step))


def is_resized(before: ArrayMetadata, now: ArrayMetadata) -> bool:
    """Whether nothing but the shape, or what missing chunks read as, is another: then a chunk that is stored in both is the same."""
    if before.ndim != now.ndim:
        return False
    resized = replace(before, shape=now.shape, chunk_grid=before.chunk_grid.resized(now.shape), fill_value=now.fill_value)
    return resized.stores_as(now)
