"""Chunks that were written to and are not yet stored: their elements, and which of these were written."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np

from zarrfs import threads
from zarrfs.errors import StoreFull
from zarrfs.hierarchy.arrays import Elements
from zarrfs.hierarchy.mapped import reserve
from zarrfs.memory import MemoryBudget
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.spans import Spans

# Chunks that find no memory lie in mapped files of about this size, many in one: each costs a descriptor.
_FILE_NBYTES = 64 * 1024 * 1024
_MAX_PLACES = 1024
# Mapped pages are dropped from our resident ones after so many bytes were put there; the page cache keeps them.
_TRIM_NBYTES = 32 * 1024 * 1024

_Place = tuple[mmap.mmap, int]


class DirtyChunk:
    """One chunk: ``elements`` at its full shape, of which ``inside`` is the part within the array. ``written`` counts elements of that
    part in the order of the file that is written (C order of ``inside``, or of its transpose)."""

    __slots__ = ("elements", "inside", "place", "written")

    def __init__(self, elements: Elements, inside: Shape, place: _Place | None) -> None:
        self.elements = elements
        self.inside = inside
        self.place = place
        self.written = Spans()

    @property
    def whole(self) -> bool:
        """Whether every element within the array was written."""
        return self.written.covers(0, math.prod(self.inside))


class DirtyChunks:
    """The dirty chunks of one file, in memory as far as ``budget`` goes, else in files in ``directory``."""

    def __init__(self, budget: MemoryBudget, directory: str | None) -> None:
        self._budget = budget
        self._directory = directory
        self._chunks: dict[Coords, DirtyChunk] = {}
        self._files: list[mmap.mmap] = []
        self._free: dict[int, list[_Place]] = {}
        self._since_trim = 0
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Coords]:
        return iter(self._chunks)

    def get(self, coords: Coords) -> DirtyChunk | None:
        """The chunk, if it is dirty."""
        return self._chunks.get(coords)

    def add_in_memory(self, coords: Coords, shape: Shape, inside: Shape, dtype: np.dtype[Any]) -> DirtyChunk | None:
        """A new dirty chunk whose elements are not defined yet; None when there is no memory for it."""
        nbytes = math.prod(shape) * dtype.itemsize
        if not self._budget.take(nbytes):
            return None
        return self._added(coords, DirtyChunk(np.empty(shape, dtype), inside, None))

    async def add_in_file(self, coords: Coords, shape: Shape, inside: Shape, dtype: np.dtype[Any]) -> DirtyChunk:
        """A new dirty chunk in a file. Raises `StoreFull` when there is no room for one."""
        nbytes = math.prod(shape) * dtype.itemsize
        places = self._free.setdefault(nbytes, [])
        if not places:
            count = min(max(1, _FILE_NBYTES // max(1, nbytes)), _MAX_PLACES)
            try:
                mapping = await threads.io(reserve, self._directory, count * nbytes)
            except OSError as error:
                raise StoreFull(f"no room to stage what was written: {error}") from error
            self._files.append(mapping)
            places.extend((mapping, number * nbytes) for number in reversed(range(count)))
        mapping, offset = place = places.pop()
        self._trim(nbytes)
        elements: Elements = np.frombuffer(mapping, dtype, math.prod(shape), offset).reshape(shape)
        return self._added(coords, DirtyChunk(elements, inside, place))

    def remove(self, coords: Coords) -> None:
        """The chunk is stored, or of no use any more. Whoever reads it now keeps its elements, but they may be another's soon."""
        chunk = self._chunks.pop(coords, None)
        if chunk is None:
            return
        nbytes = chunk.elements.nbytes
        self.nbytes -= nbytes
        if chunk.place is None:
            self._budget.give(nbytes)
        else:
            self._free[nbytes].append(chunk.place)
            self._trim(nbytes)

    def close(self) -> None:
        """Let go of all of them."""
        for coords in list(self._chunks):
            self.remove(coords)
        # Unmapped when the last reader has let go of its elements.
        self._files.clear()
        self._free.clear()

    def _added(self, coords: Coords, chunk: DirtyChunk) -> DirtyChunk:
        self._chunks[coords] = chunk
        self.nbytes += chunk.elements.nbytes
        return chunk

    def _trim(self, nbytes: int) -> None:
        self._since_trim += nbytes
        if self._since_trim >= _TRIM_NBYTES:
            self._since_trim = 0
            for mapping in self._files:
                mapping.madvise(mmap.MADV_DONTNEED)
