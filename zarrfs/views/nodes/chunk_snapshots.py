"""Values of chunk files: decoded, or encoded as stored."""

from __future__ import annotations

import numpy as np

from zarrfs.arrays.chunk_cache import Encoded
from zarrfs.buffers import Buffer, NDArray
from zarrfs.errors import GenerationMismatch, StaleEntry
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.keys import WHOLE, ByteRange
from zarrfs.memory.budget import MemoryBudget
from zarrfs.memory.spill import contiguous
from zarrfs.model.chunk_grid import Coords
from zarrfs.stores.values import KeyStat
from zarrfs.vfs.content import Snapshot
from zarrfs.vfs.kept import Kept, intact, kept
from zarrfs.vfs.node import Attributes

# Encoded chunks up to this size are read whole, once; larger ones in the requested ranges.
_WHOLE_NBYTES = 8 * 1024 * 1024
IN_FILE_NBYTES = 1024 * 1024
"""An open file keeps a chunk of at least this size in a spill file if memory is short; a smaller one is decoded again."""


_PAGE_NBYTES = 4096


class CachedPages:
    """Pages of one value that the kernel has read, and therefore may cache: those of the value read last at an open."""

    def __init__(self) -> None:
        self._generation: str | None = None
        self._nbytes = 0
        # One bit for each page.
        self._missing = -1

    def begin(self, generation: str | None, nbytes: int) -> None:
        """Record that the value of this generation was read; the pages of an earlier value are forgotten."""
        if self._missing < 0 or (generation, nbytes) != (self._generation, self._nbytes):
            self._generation, self._nbytes = generation, nbytes
            self._missing = (1 << -(-nbytes // _PAGE_NBYTES)) - 1

    def add(self, generation: str | None, offset: int, nbytes: int) -> None:
        """Record that the kernel has read these bytes."""
        if generation == self._generation and self._missing > 0:
            first, stop = -(-offset // _PAGE_NBYTES), offset + nbytes
            last = -(-stop // _PAGE_NBYTES) if stop >= self._nbytes else stop // _PAGE_NBYTES
            if first < last:
                self._missing &= ~((1 << last) - (1 << first))

    @property
    def is_whole(self) -> bool:
        """True if the kernel has read all of the value."""
        return not self._missing

    def are_of(self, generation: str | None) -> bool:
        """Return True if the kernel has read all of the value of this generation."""
        return self.is_whole and generation == self._generation


class DecodedSnapshot(Snapshot):
    """A decoded chunk at one generation; ``stored``: its encoded bytes, if read already, and `Encoded.since`."""

    def __init__(
        self,
        open_array: OpenArray,
        coords: Coords,
        nbytes: int,
        mtime_ns: int | None,
        generation: str | None,
        room: MemoryBudget,
        cached_pages: CachedPages,
        *,
        data: Kept | None = None,
        stored: tuple[Kept, int] | None = None,
    ) -> None:
        self._open_array = open_array
        self._coords = coords
        self._generation = generation
        self._room = room
        self._cached_pages = cached_pages
        self._data = data
        self._stored = stored
        self.attributes = Attributes(False, nbytes, mtime_ns, generation=generation)

    def held(self) -> Buffer | None:
        return intact(self._data)

    async def at_hand(self) -> Buffer | None:
        """Return the chunk, if no request to the store is needed."""
        if self._data is None and self._stored is None:
            return None
        return await self._read(0, self.attributes.size)

    async def read(self, offset: int, size: int) -> Buffer:
        data = await self._read(offset, size)
        self._cached_pages.add(self._generation, offset, len(data))
        return data

    async def _read(self, offset: int, size: int) -> Buffer:
        if self._data is not None and self._data.is_intact:
            return self._data.data[offset : offset + size]
        data = as_bytes(await self._elements())
        # A small chunk is decoded again if there is no room for it.
        self._data = kept(data, self._room, in_file=len(data) >= IN_FILE_NBYTES)
        if self._data is not None:
            self._stored = None
        return data[offset : offset + size]

    async def _elements(self) -> NDArray:
        if self._generation is not None:
            stored = Encoded(self._stored[0].data, self._stored[1]) if self._stored is not None else None
            try:
                elements = await self._open_array.reader.chunk(self._coords, self._generation, stored)
            except GenerationMismatch as error:
                raise _replaced(self._open_array, self._coords) from error
            if elements is not None:
                return elements
        # It may be stored by now.
        return await self._open_array.array.filled(self._coords)

    async def aclose(self) -> None:
        self._data = self._stored = None


class EncodedSnapshot(Snapshot):
    """An encoded chunk at one generation."""

    def __init__(
        self,
        open_array: OpenArray,
        coords: Coords,
        stat: KeyStat,
        mtime_ns: int | None,
        room: MemoryBudget,
        cached_pages: CachedPages,
    ) -> None:
        self._open_array = open_array
        self._coords = coords
        self._generation = stat.generation
        self._room = room
        self._cached_pages = cached_pages
        self._data: Kept | None = None
        self.attributes = Attributes(False, stat.size, mtime_ns, generation=stat.generation)

    def held(self) -> Buffer | None:
        return intact(self._data)

    async def take(self) -> None:
        """Read the value, if there is room for it."""
        await self._read(0, 1)

    async def read(self, offset: int, size: int) -> Buffer:
        data = await self._read(offset, size)
        self._cached_pages.add(self._generation, offset, len(data))
        return data

    async def _read(self, offset: int, size: int) -> Buffer:
        nbytes = self.attributes.size
        if offset >= nbytes or not size:
            return b""
        if self._data is not None and not self._data.is_intact:
            self._data = None
        if self._data is None and nbytes <= _WHOLE_NBYTES and self._room.has(nbytes):
            self._data = kept(await self._part(WHOLE), self._room)
        if self._data is None:
            return await self._part(ByteRange(offset, min(size, nbytes - offset)))
        return self._data.data[offset : offset + size]

    async def aclose(self) -> None:
        self._data = None

    async def _part(self, byte_range: ByteRange) -> Buffer:
        try:
            parts = await self._open_array.array.chunks.get_parts(self._coords, [byte_range], self._generation)
        except GenerationMismatch as error:
            raise _replaced(self._open_array, self._coords) from error
        if not parts:
            raise _replaced(self._open_array, self._coords)
        return parts[0]


def _replaced(open_array: OpenArray, coords: Coords) -> StaleEntry:
    path = open_array.array.path
    return StaleEntry(f"chunk {coords} of {path} was replaced before it was read", key=path)


def as_bytes(elements: NDArray) -> Buffer:
    """Return the elements as bytes in C order."""
    return contiguous(elements).reshape(-1).view(np.uint8).data.toreadonly() if elements.size else b""
