"""Missing chunks that a folder lists because no document gives the value that they read as (`zarrfs.views.shown_fill`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator

import numpy as np

from zarrfs.arrays.array import Array
from zarrfs.buffers import HoledSize
from zarrfs.errors import ZarrfsError
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.views.shown_fill import LISTED_CHUNKS, LISTED_NBYTES

# One byte of memory per chunk of the grid.
_MAX_CHUNKS = 1 << 24


class MissingChunks:
    """The chunks of an array that a listing has not found yet."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._is_missing = np.ones(array.metadata.grid_shape, np.bool_)

    @classmethod
    def of(cls, array: Array) -> MissingChunks | None:
        """Return all chunks of the grid; None if the grid is too large."""
        return cls(array) if math.prod(array.metadata.grid_shape) <= _MAX_CHUNKS else None

    def remove(self, coords: Coords) -> None:
        """Record that chunk ``coords`` is stored."""
        if self._array.has(coords):
            self._is_missing[coords] = False

    async def files(self, keys: ChunkKeyEncoding) -> AsyncIterator[tuple[str, int]]:
        """Yield the name of each missing chunk, and its bytes; nothing if there are too many.

        Chunks in unreadable shards do not count as missing.
        """
        count = int(np.count_nonzero(self._is_missing))
        if not count or count > LISTED_CHUNKS:
            return
        missing = [tuple(map(int, coords)) for coords in np.argwhere(self._is_missing)]
        grid = self._array.metadata.chunk_grid
        shapes = Counter(map(grid.chunk_shape, missing))
        sizes: dict[Shape, int] = {}
        for coords in missing:
            if (shape := grid.chunk_shape(coords)) not in sizes:
                sizes[shape] = await missing_size(self._array, coords)
                if len(sizes) == len(shapes):
                    break
        if sum(each * sizes[shape] for shape, each in shapes.items()) > LISTED_NBYTES:
            return
        stored = await self._stored_shards()
        for coords in missing:
            if not stored or self._array.chunks.unit(coords) not in stored or await self._is_known_to_be_missing(coords):
                yield keys.encode(coords), sizes[grid.chunk_shape(coords)]

    async def _stored_shards(self) -> set[Coords]:
        chunks = self._array.chunks
        if not self._array.metadata.shards:
            return set()
        while chunks.below is not None:
            chunks = chunks.below
        return {coords async for coords, _, _ in chunks.list()}

    async def _is_known_to_be_missing(self, coords: Coords) -> bool:
        try:
            return await self._array.chunks.stat(coords) is None
        except ZarrfsError:
            return False


async def missing_size(array: Array, coords: Coords) -> int:
    """Return the size in bytes of the file of a missing chunk.

    It is one hole only if every byte is zero, since programs that preserve holes do not read files without blocks.
    """
    metadata = array.metadata
    if array.plain is not None:
        return (await array.filled(coords)).nbytes
    nbytes = metadata.chunk_nbytes(coords)
    return nbytes if any(metadata.fill_bytes) else HoledSize(nbytes, 0)
