"""An array of a hierarchy: its metadata, its codec chain, and its decoded and encoded chunks."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from zarrfs import threads
from zarrfs.arrays.booleans import has_booleans, invalid_boolean
from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.filling import encode_filled, fill, is_filled, part
from zarrfs.arrays.live_node import with_memory
from zarrfs.arrays.padding import encode_padded
from zarrfs.arrays.small_chunks import BlockPart, decode_blocks
from zarrfs.buffers import Buffer, NDArray, same_bytes
from zarrfs.codecs.chain import CodecChain
from zarrfs.errors import (
    ChunkDecodeError,
    ChunkEncodeError,
    ChunkError,
    ChunkSizeMismatch,
    NodeMoving,
    StoreError,
    TooLarge,
    ZarrfsError,
)
from zarrfs.keys import ByteRange, NodePath
from zarrfs.memory import spill
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.model.chunk_grid import Coords, Shape, in_grid
from zarrfs.model.chunk_plan import Selection
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.model.variable_fill import element
from zarrfs.stores.values import Generation, KeyStat

E = TypeVar("E", bound=ZarrfsError)
T = TypeVar("T")

_serials = itertools.count(1)
# Decoding a chunk of a few bytes takes as long as decoding this many.
_MIN_NBYTES = 64


class ChunkPart(NamedTuple):
    """The part ``selection`` of chunk ``coords``, to be decoded into ``out``, which has its shape.

    With ``where`` (same shape), only the elements that it selects are set.
    """

    coords: Coords
    out: NDArray
    selection: Selection
    where: NDArray | None = None


class Array:
    """One array as described by its documents when it was opened. A changed document gives a new object, with a new ``serial``.

    Safe for concurrent use. Elements are NumPy arrays of ``metadata.data_type.dtype``, little-endian. For elements of variable size, a
    whole chunk is its encoding by the ``plain`` chain (`zarrfs.codecs.chain.PLAIN_OBJECTS`), as an array of bytes.
    """

    def __init__(self, node: ArrayNode, chunks: ChunkStore, counters: WorkCounters, budget: MemoryBudget | None = None) -> None:
        self.node = node
        self.chunks = chunks
        self.chain = CodecChain.build(node.metadata.codecs, node.metadata.data_type, node.metadata.fill_value)
        self.plain = CodecChain.build((), node.metadata.data_type) if node.metadata.data_type.is_variable else None
        self.serial = next(_serials)
        self._has_booleans = has_booleans(node.metadata.data_type.dtype)
        self._counters = counters
        self._budget = budget or MemoryBudget(UNLIMITED)

    def resized(self, node: ArrayNode) -> Array:
        """Return the same array in the shape of ``node``."""
        return Array(node, self.chunks, self._counters, self._budget)

    @property
    def path(self) -> NodePath:
        """Path of the node."""
        return self.node.path

    @property
    def metadata(self) -> ArrayMetadata:
        """Metadata from the documents."""
        return self.node.metadata

    def has(self, coords: Coords) -> bool:
        """Return True if the grid has such a chunk, stored or not."""
        return in_grid(coords, self.metadata.grid_shape)

    async def read_chunk(self, coords: Coords, generation: Generation | None = None) -> NDArray | None:
        """Return a chunk at its full shape; None if it is not stored.

        Raises `ChunkDecodeError`, naming the chunk, and `GenerationMismatch` if it is no longer of the requested ``generation``.
        """

        async def decoded(stored: Sequence[Buffer | ChunkError | None]) -> NDArray | None:
            data = stored[0]
            if isinstance(data, ZarrfsError):
                raise data
            return None if data is None else await self._decoded(coords, data)

        return await self._with_stored([coords], 0, decoded, generation)

    async def stored_chunk(self, coords: Coords) -> tuple[Buffer, KeyStat] | None:
        """Return the encoded chunk, for `decode_chunk`, and its stat; None if it is not stored."""
        return await self.chunks.get_with_stat(coords, ByteRange(0, self.encoded_limit(coords) + 1))

    async def decode_chunk(self, coords: Coords, data: Buffer) -> NDArray:
        """Return the elements of a chunk stored as ``data``, at its full shape. Raises `ChunkDecodeError`, naming the chunk."""
        try:
            async with self._budget.working(self._decoding_nbytes(coords)):
                return await self._decoded(coords, data)
        except ChunkError:
            await self.chunks.confirm()
            raise

    async def filled(self, coords: Coords, value: bytes | None = None) -> NDArray:
        """Return the fill values of a chunk that is not stored, in the form of `read_chunk`; with ``value`` inside the array instead."""
        async with self._budget.working(spill.in_memory(self._cost(coords))):
            return await threads.cpu(self._cost(coords), self._filled, coords, value)

    async def holds_only(self, coords: Coords, value: bytes) -> bool:
        """Return True if all elements of a stored chunk inside the array are ``value``."""
        if (elements := await self.read_chunk(coords)) is None:
            return False
        if self.plain is not None:
            return await threads.cpu(elements.nbytes, same_bytes, elements, await self.filled(coords, value))
        inside = part(elements, self.inside(coords))
        return await threads.cpu(elements.nbytes, is_filled, replace(self.metadata, fill_value=value), inside)

    async def read_chunks_into(self, parts: Sequence[ChunkPart]) -> list[bool | ZarrfsError]:
        """Decode several chunks into the outputs of ``parts``; return for each True if stored, False if not, or its error.

        The chunks are got in one store operation and decoded in one thread, to save thread hops for small chunks.
        """
        if not parts:
            return []
        coords = [part.coords for part in parts]
        cost = sum(map(self._cost, coords))
        results = await self._with_stored(coords, 0, lambda stored: threads.cpu(cost, self._decode_into, parts, stored))
        self._counters.chunks_decoded += sum(result is True for result in results)
        if any(isinstance(result, ChunkError) for result in results):
            await self.chunks.confirm()
        return results

    async def read_blocks_into(
        self, parts: Sequence[BlockPart], known: Mapping[Coords, NDArray | None], decoded_ones: list[Coords] | None = None
    ) -> dict[Coords, ZarrfsError]:
        """Decode small chunks (`zarrfs.arrays.small_chunks.are_small`) into the outputs of ``parts``; return the errors of some.

        ``known``: chunks that are not read, by their elements; None if missing. Missing chunks are filled. One store operation gets the
        others, as in `read_chunks_into`; ``decoded_ones`` receives those of them that are stored.
        """
        coords = [each for part in parts for each in part.coords if each not in known]
        nbytes = sum(len(part.coords) for part in parts) * max(_MIN_NBYTES, self.metadata.max_chunk_nbytes)
        elements = {each: value for each, value in known.items() if value is not None}

        async def decoded(values: Sequence[Buffer | ChunkError | None]) -> dict[Coords, ZarrfsError]:
            found = dict(zip(coords, values, strict=True))
            failed: dict[Coords, ZarrfsError] = {each: error for each, error in found.items() if isinstance(error, ZarrfsError)}
            stored = {each: value for each, value in found.items() if not (value is None or isinstance(value, ZarrfsError))}
            undecoded = await threads.cpu(nbytes, decode_blocks, self.chain, self.metadata, parts, stored, elements)
            self._counters.chunks_decoded += len(stored) - len(undecoded)
            if decoded_ones is not None:
                decoded_ones.extend(each for each in stored if each not in undecoded)
            return failed | {each: self.naming(error, "decoding", each) for each, error in undecoded.items()}

        failed = await self._with_stored(coords, nbytes, decoded)
        if any(isinstance(error, ChunkError) for error in failed.values()):
            await self.chunks.confirm()
        return failed

    async def write_chunk(self, coords: Coords, data: Buffer) -> None:
        """Encode and store a chunk; ``data`` is all its elements in C order, little-endian, at the full chunk shape.

        Elements beyond the array's edge are replaced by the fill value. Raises `ChunkSizeMismatch` before anything is stored; for
        elements of variable size, `ChunkDecodeError` if ``data`` is not their encoding, and `ChunkEncodeError` if the codecs cannot
        represent them.
        """
        async with self.chunks.holding(), self.encoding([coords]):
            encoded = await self.encode_chunk(coords, data)
            await self.chunks.update({coords: encoded})

    async def write_encoded(self, coords: Coords, data: Buffer) -> None:
        """Store an encoded chunk, byte for byte. Raises `ChunkDecodeError`, before any store, if it is no chunk of this array."""
        async with self.chunks.holding(), self._budget.working(len(data) + self._decoding_nbytes(coords)):
            encoded = data if spill.is_mapped(data) else bytes(data)
            elements = await self._decoded(coords, encoded)
            if (why := await self.invalid(coords, elements)) is not None:
                raise self.naming(ChunkDecodeError(why), "decoding", coords)
            await self.chunks.update({coords: encoded})

    async def encode_chunk(self, coords: Coords, data: Buffer) -> Buffer:
        """Return the encoded form of a chunk; see `write_chunk`."""
        return (await self.encode_chunks([(coords, data)]))[0]

    async def encode_chunks(self, chunks: Sequence[tuple[Coords, Buffer]]) -> list[Buffer]:
        """Return the encoded forms of several chunks, from one thread: few hops where chunks are small. See `write_chunk`."""
        nbytes = 0
        for coords, data in chunks:
            expected = self._cost(coords)
            if self.plain is None and len(data) != expected:
                raise ChunkSizeMismatch(
                    f"chunk {coords} of {self.path}: size is {len(data)} bytes instead of {expected}; nothing was stored",
                    key=self.path,
                )
            nbytes += expected
        encoded: list[Buffer] = await threads.cpu(nbytes, self._encode_several, chunks)
        self._counters.chunks_encoded += len(encoded)
        return encoded

    def encoding(self, coords: Sequence[Coords]) -> AbstractAsyncContextManager[None]:
        """Reserve the memory for encoding and storing these chunks; the caller holds it until they are stored."""
        nbytes = sum(spill.in_memory(self.encoded_limit(each)) for each in coords)
        each = max(map(self._decoding_nbytes, coords), default=0)
        # Such a chain decodes an encoded edge chunk again (`zarrfs.arrays.padding`).
        return self._budget.working(min(nbytes, spill.large_nbytes()) + each * (2 if self.chain.after_another else 1))

    def merging(self, coords: Sequence[Coords]) -> AbstractAsyncContextManager[None]:
        """Reserve the memory for getting these chunks together, changing them one after the other, and storing them together."""
        nbytes = sum(spill.in_memory(self.encoded_limit(each)) for each in coords)
        # The stored chunk, and the elements merged into it.
        each = max(map(self._decoding_nbytes, coords), default=0)
        return self._budget.working(2 * (min(nbytes, spill.large_nbytes()) + each))

    async def invalid(self, coords: Coords, elements: NDArray) -> str | None:
        """Return why ``elements``, a decoded chunk, are not of the array's type (`zarrfs.arrays.booleans`); None if they are."""
        if not self._has_booleans:
            return None
        return await threads.cpu(self._cost(coords), invalid_boolean, part(elements, self.inside(coords)))

    def encode_now(self, coords: Coords, elements: NDArray, *, whole: bool = False) -> Buffer:
        """Return the result of `encode_chunk`, for elements that do not change afterwards. Runs in a thread.

        ``whole``: the elements beyond the array's edge are already correct.
        """
        try:
            if whole:
                return self.chain.encode(elements, self.inside(coords))
            return self._encode(coords, elements.reshape(-1).view(np.uint8).data if elements.size else b"")
        except ZarrfsError as error:
            raise self.naming(error, "encoding", coords) from error

    def count(self, *, decoded: int, encoded: bool) -> None:
        """Add to the counters chunks that the caller decoded, and encoded, itself."""
        self._counters.chunks_decoded += decoded
        self._counters.chunks_encoded += encoded

    def encoded_limit(self, coords: Coords) -> int:
        """Return the maximum size of the encoded chunk, in bytes."""
        return self.chain.encoded_limit(self.metadata.chunk_grid.chunk_shape(coords))

    def inside(self, coords: Coords) -> Selection:
        """Return the part of a chunk that is within the array."""
        metadata = self.metadata
        spans = [metadata.chunk_grid.span(axis, index) for axis, index in enumerate(coords)]
        return tuple(slice(0, min(end, extent) - begin) for (begin, end), extent in zip(spans, metadata.shape, strict=True))

    def oversized(self, coords: Coords, limit: int) -> ChunkDecodeError:
        """Return the error for a chunk whose stored size exceeds the maximum."""
        return ChunkDecodeError(
            f"chunk {coords} of {self.path}: stored size exceeds the maximum of {limit} bytes",
            key=self.chunks.keys(coords)[0],
        )

    def naming(self, error: E, doing: str, coords: Coords) -> E:
        """Return the same error with the chunk in its message and as its key."""
        return type(error)(f"{doing} chunk {coords} of {self.path}: {error}", key=self.chunks.keys(coords)[0])

    def _reading_nbytes(self, coords: Sequence[Coords]) -> int:
        """Return the maximum memory, in bytes, for getting these chunks together and decoding them one after the other."""
        if self.metadata.chunk_grid.is_uniform:
            nbytes = len(coords) * spill.in_memory(self.encoded_limit(coords[0]))
        else:
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

    async def _decoded(self, coords: Coords, data: Buffer) -> NDArray:
        shape = self.metadata.chunk_grid.chunk_shape(coords)
        try:
            elements: NDArray = await threads.cpu(self._cost(coords), self._decode, data, shape)
        except (ChunkDecodeError, StoreError, TooLarge) as error:
            raise self.naming(error, "decoding", coords) from error
        self._counters.chunks_decoded += 1
        return elements

    def _cost(self, coords: Coords) -> int:
        """Return the decoded size of a chunk, in bytes; for elements of variable size its upper bound."""
        return self.metadata.chunk_nbytes(coords) if self.plain is None else MAX_VARIABLE_NBYTES

    def _filled(self, coords: Coords, value: bytes | None = None) -> NDArray:
        shape, inside, plain = self.metadata.chunk_grid.chunk_shape(coords), self.inside(coords), self.plain
        if plain is not None:
            return np.frombuffer(encode_filled(self.metadata, plain, shape, value, inside), np.uint8)
        elements = spill.array(shape, self.metadata.data_type.dtype)
        fill(self.metadata, elements)
        if value is not None:
            fill(replace(self.metadata, fill_value=value), part(elements, inside))
        return elements

    def _decode(self, data: Buffer, shape: Shape) -> NDArray:
        if self.plain is None:
            # Parts may be copied out on the event loop, which cannot afford to reorder dimensions.
            elements = spill.contiguous(self.chain.decode(data, shape))
        else:
            try:
                elements = np.frombuffer(self.chain.transcode(data, shape, self.plain), np.uint8)
            except ChunkEncodeError as error:
                raise ChunkDecodeError(str(error)) from error
        spill.refuse_lost(data)
        return elements

    async def _with_stored(
        self,
        coords: Sequence[Coords],
        nbytes: int,
        decoded: Callable[[Sequence[Buffer | ChunkError | None]], Awaitable[T]],
        generation: Generation | None = None,
    ) -> T:
        """Return the result of ``decoded`` for these chunks, with the memory for both and ``nbytes`` more; retry while the node moves."""
        while True:
            await self.chunks.wait_stable()
            try:
                async with self._budget.working(nbytes + (self._reading_nbytes(coords) if coords else 0)):
                    return await decoded(await self._stored(coords, generation) if coords else [])
            except NodeMoving:
                continue
            except ChunkError:
                await self.chunks.confirm()
                raise

    async def _stored(self, coords: Sequence[Coords], generation: Generation | None = None) -> list[Buffer | ChunkError | None]:
        """Return the stored bytes of chunks, read up to one byte past the maximum size; ``generation`` applies to a single chunk.

        The caller has reserved the memory for them: raises `NodeMoving` instead of waiting.
        """
        limit = max(map(self.encoded_limit, coords[:1] if self.metadata.chunk_grid.is_uniform else coords))
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
        for each, data in zip(parts, stored, strict=True):
            if data is None or isinstance(data, ChunkError):
                results.append(data if data is not None else False)
                continue
            try:
                shape = self.metadata.chunk_grid.chunk_shape(each.coords)
                if each.where is None:
                    self.chain.decode_into(data, shape, each.out, each.selection)
                else:
                    elements = part(spill.contiguous(self.chain.decode(data, shape)), each.selection)
                    np.copyto(each.out, elements, where=each.where)
                spill.refuse_lost(data)
            except (ChunkDecodeError, StoreError, TooLarge) as error:
                results.append(self.naming(error, "decoding", each.coords))
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
                spill.refuse_lost(data)
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
        elements: NDArray
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
        # The staging buffer may change as soon as this returns: the encoded form must not be a view of it.
        return spill.copied(encoded) if isinstance(encoded, memoryview) and _shares(encoded, data) else encoded


def _shares(encoded: Buffer, data: Buffer) -> bool:
    """Return True if the two buffers overlap in memory."""
    if not len(encoded) or not len(data):
        return False
    first, begin = (np.frombuffer(each, np.uint8).ctypes.data for each in (encoded, data))
    return bool(first < begin + len(data) and begin < first + len(encoded))
