"""Chunks of an array as encoded bytes: where they lie in a store, and which exist.

A `ChunkStore` maps chunk coordinates to encoded bytes; what is in the bytes is the codec chain's business. `StoredChunks` is the plain
one: one store key a chunk.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Mapping, Sequence

from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.model.chunk_grid import Coords, in_grid
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.base import Buffer, Generation, KeyStat, Store

StoredChunk = tuple[Coords, int, int | None]
"""Coordinates, stored bytes, mtime_ns (None where the store keeps none)."""


class ChunkStore(abc.ABC):
    """Encoded chunks by coordinates. Coordinates are inside the grid; the caller checks."""

    @abc.abstractmethod
    async def get(self, coords: Coords, byte_range: ByteRange = WHOLE) -> Buffer | None:
        """The encoded chunk, or a part of it; None when it is not stored."""

    @abc.abstractmethod
    async def get_at(self, coords: Coords, generation: Generation, byte_range: ByteRange = WHOLE) -> Buffer:
        """As `get`, of the generation that `stat` told. Raises `GenerationMismatch` when that is no longer there."""

    async def get_several(self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE) -> list[Buffer | None]:
        """Several encoded chunks, or the same part of each, in the order asked for. This fallback gets one after the other."""
        return [await self.get(each, byte_range) for each in coords]

    @abc.abstractmethod
    async def stat(self, coords: Coords) -> KeyStat | None:
        """Stored size, time and generation; None when it is not stored."""

    @abc.abstractmethod
    def list(self, *, outside: bool = False) -> AsyncIterator[StoredChunk]:
        """Every chunk inside the grid that is stored, in no particular order; with ``outside``, those outside the grid too."""

    @abc.abstractmethod
    async def update(self, chunks: Mapping[Coords, Buffer | None]) -> None:
        """Store these encoded chunks; None erases one."""

    @abc.abstractmethod
    def keys(self, coords: Coords) -> tuple[Key, ...]:
        """Store keys that hold the chunk: what a sync of it has to sync."""


class StoredChunks(ChunkStore):
    """One store key for each chunk: the node's chunk prefix and the metadata's chunk key encoding."""

    def __init__(self, store: Store, node: ArrayNode) -> None:
        self._store = store
        self._node = node
        self._encoding = node.metadata.chunk_key_encoding
        self._grid_shape = node.metadata.grid_shape

    def key(self, coords: Coords) -> Key:
        """The store key of a chunk."""
        return self._node.chunk_prefix.key(self._encoding.encode(coords))

    def keys(self, coords: Coords) -> tuple[Key, ...]:
        return (self.key(coords),)

    async def get(self, coords: Coords, byte_range: ByteRange = WHOLE) -> Buffer | None:
        key = self.key(coords)
        if byte_range == WHOLE:
            return await self._store.get(key)
        return (await self._store.get_partial_values([(key, byte_range)]))[0]

    async def get_at(self, coords: Coords, generation: Generation, byte_range: ByteRange = WHOLE) -> Buffer:
        values = await self._store.get_partial_values([(self.key(coords), byte_range)], if_generation=generation)
        assert values[0] is not None
        return values[0]

    async def get_several(self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE) -> list[Buffer | None]:
        return await self._store.get_partial_values([(self.key(each), byte_range) for each in coords])

    async def stat(self, coords: Coords) -> KeyStat | None:
        return await self._store.stat(self.key(coords))

    async def update(self, chunks: Mapping[Coords, Buffer | None]) -> None:
        for coords, value in chunks.items():
            if value is None:
                await self._store.erase(self.key(coords))
            else:
                await self._store.set(self.key(coords), value)

    async def list(self, *, outside: bool = False) -> AsyncIterator[StoredChunk]:
        # Keys with a separator of "/" lie in nested prefixes; every part but the first can only be an index.
        depth = len(self._node.metadata.shape) if self._encoding.separator == "/" else 1
        depth += self._encoding.prefix.count("/")
        async for chunk in self._below(self._node.chunk_prefix, "", depth):
            if outside or in_grid(chunk[0], self._grid_shape):
                yield chunk

    async def _below(self, prefix: Prefix, relative: str, depth: int) -> AsyncIterator[StoredChunk]:
        ndim = len(self._grid_shape)
        async for name, is_prefix, size, mtime_ns in self._store.list_dir(prefix):
            if not is_prefix:
                coords = self._encoding.decode(relative + name, ndim)
                if coords is not None:
                    yield coords, size, mtime_ns
            elif depth > 1 and (name.isdecimal() or f"{relative}{name}/" == self._encoding.prefix):
                async for chunk in self._below(prefix.child(name), f"{relative}{name}/", depth - 1):
                    yield chunk
