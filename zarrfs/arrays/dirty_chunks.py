"""Chunks with writes that are not yet stored: their elements, and which of these were written.

Neighbouring chunks first written together share one allocation (`DirtyRun`), so that a row is copied into any number of them at once.
Chunks under one store key form a `DirtyUnit`: they are stored together.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from zarrfs import threads
from zarrfs.arrays.failed_chunk import FailedChunk
from zarrfs.buffers import Buffer, Mask, NDArray
from zarrfs.memory import spill
from zarrfs.memory.budget import MemoryBudget
from zarrfs.memory.spill import array, next_nbytes, refusal_of, reserve_shared
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.spans import Spans

# Chunks that get no memory go to mapped files of up to about this size, many in one: each file costs a descriptor.
_FILE_NBYTES = 64 * 1024 * 1024
_MAX_PLACES = 1024
# Resident mapped pages are dropped after this many bytes; the page cache keeps them.
_TRIM_NBYTES = 32 * 1024 * 1024
# Markers: the written elements are not a leading part but spans; they are too scattered for spans.
_IN_SPANS = -1
_IN_MASK = -2
_FEW_SPANS = 64


OBJECTS_NBYTES = 600
"""Memory of a dirty chunk besides its elements: coordinates, table entries, a unit. Of chunks of some bytes it is the greater part."""

_FileRange = tuple[mmap.mmap, int]


class RunLayout(NamedTuple):
    """Common properties of the chunks of a run: full ``shape``, the part of it ``inside`` the array, the element type."""

    shape: Shape
    inside: Shape
    dtype: np.dtype[Any]

    @property
    def chunk_nbytes(self) -> int:
        """Size of one chunk in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


class DirtyUnit:
    """The dirty chunks under one store key, where the array has ``count``; ``whole`` of them were written completely."""

    __slots__ = ("chunks", "coords", "count", "whole")

    def __init__(self, coords: Coords, count: int) -> None:
        self.coords = coords
        self.count = count
        self.whole = 0
        self.chunks: dict[Coords, DirtyChunk] = {}

    @property
    def complete(self) -> bool:
        """True if no stored element of it remains."""
        return self.whole == self.count


class DirtyRun:
    """Chunks that were added together.

    ``memory`` has their elements at full shape, along its first axis; ``units`` has the unit of each. The run records which elements
    inside the array were written, counted in the order of the written file (C order of ``inside``, or of its transpose).
    """

    __slots__ = ("_fronts", "_gone", "_masks", "_spans", "failed", "file_range", "memory", "run_layout", "size", "units")

    def __init__(self, units: Sequence[DirtyUnit], run_layout: RunLayout, memory: NDArray, file_range: _FileRange | None) -> None:
        self.units = units
        self.run_layout = run_layout
        self.memory = memory
        self.file_range = file_range
        self.size = math.prod(run_layout.inside)
        # A sequential pass writes the elements of a chunk from first to last: one number then records them.
        self._fronts = [0] * len(units)
        self._spans: dict[int, Spans] = {}
        self._masks: dict[int, Mask] = {}
        self._gone: set[int] = set()
        self.failed: dict[int, FailedChunk] = {}
        """Chunks whose storing has failed."""
        if self.size == 0:
            for unit in units:
                unit.whole += 1

    def reach(self, index: int, most: int, busy: Container[Coords]) -> int:
        """Return how many chunks from ``index``, at most ``most``, are dirty and in no ``busy`` unit; the first one is."""
        stop = min(index + most, len(self.units))
        if self._gone or busy:
            for each in range(index + 1, stop):
                if each in self._gone or self.units[each].coords in busy:
                    return each - index
        return stop - index

    def wrote(self, index: int, count: int, start: int, stop: int) -> list[DirtyUnit]:
        """Record a write of elements ``start`` to ``stop`` of ``count`` chunks from ``index``; return the units it completed."""
        fronts = self._fronts
        front = fronts[index]
        completed: list[DirtyUnit] = []
        if self.failed:
            for each in range(index, index + count):
                if (failed := self.failed.get(each)) is not None:
                    failed.wrote(self.size, start, stop)
        if front >= start and (count == 1 or fronts[index : index + count].count(front) == count):
            if stop > front:
                fronts[index : index + count] = [stop] * count
                if stop == self.size:
                    for each in range(index, index + count):
                        self._became_whole(each, completed)
        else:
            for each in range(index, index + count):
                self._wrote(each, start, stop, completed)
        return completed

    def wrote_selected(self, index: int, start: int, selected: Mask) -> list[DirtyUnit]:
        """Run `wrote` for the ``selected`` elements of one chunk, the first flag for element ``start``."""
        completed: list[DirtyUnit] = []
        if (failed := self.failed.get(index)) is not None:
            failed.wrote(self.size, start, start + len(selected), selected)
        edges = np.flatnonzero(np.diff(selected, prepend=False, append=False))
        if len(edges) <= 2 * _FEW_SPANS:
            for first, stop in edges.reshape(-1, 2).tolist():
                self._wrote(index, start + first, start + stop, completed)
        elif not self.is_whole(index):
            self._in_mask(index)[start : start + len(selected)] |= selected
            self._end_mask_if_whole(index, completed)
        return completed

    def _in_mask(self, index: int) -> Mask:
        if self._fronts[index] != _IN_MASK:
            self._masks[index] = self.mask(index, 0, self.size)
            self._spans.pop(index, None)
            self._fronts[index] = _IN_MASK
        return self._masks[index]

    def _end_mask_if_whole(self, index: int, completed: list[DirtyUnit]) -> None:
        if self._masks[index].all():
            del self._masks[index]
            self._fronts[index] = self.size
            self._became_whole(index, completed)

    def _became_whole(self, index: int, completed: list[DirtyUnit]) -> None:
        unit = self.units[index]
        unit.whole += 1
        if unit.complete:
            completed.append(unit)

    def _wrote(self, index: int, start: int, stop: int, completed: list[DirtyUnit]) -> None:
        front = self._fronts[index]
        if front == _IN_MASK:
            self._masks[index][start:stop] = True
            self._end_mask_if_whole(index, completed)
            return
        if front >= start:
            front = max(front, stop)
        elif stop > start:
            spans = self._spans.get(index)
            if spans is None:
                spans = self._spans[index] = Spans()
                spans.add(0, front)
            spans.add(start, stop)
            if spans.covers(0, self.size):
                del self._spans[index]
                front = self.size
            else:
                front = _IN_SPANS
        before, self._fronts[index] = self._fronts[index], front
        if front == self.size != before:
            self._became_whole(index, completed)

    def covers(self, index: int, start: int, stop: int) -> bool:
        """Return True if elements ``start`` to ``stop`` of a chunk were all written."""
        if self._fronts[index] == _IN_MASK:
            return bool(self._masks[index][start:stop].all())
        return self._fronts[index] >= stop or (self._fronts[index] == _IN_SPANS and self._spans[index].covers(start, stop))

    def mask(self, index: int, start: int, stop: int) -> Mask:
        """Return a mask of the written elements from ``start`` to ``stop`` of a chunk."""
        mask = array((stop - start,), np.dtype(bool))
        mask[...] = False
        if self._fronts[index] == _IN_SPANS:
            self._spans[index].mask(start, stop, mask)
        elif self._fronts[index] == _IN_MASK:
            mask[...] = self._masks[index][start:stop]
        else:
            mask[: max(0, self._fronts[index] - start)] = True
        return mask

    def is_whole(self, index: int) -> bool:
        """Return True if every element of a chunk inside the array was written."""
        return self._fronts[index] == self.size

    def removed(self, index: int) -> bool:
        """Record that a chunk is no longer dirty; return True if none is left."""
        unit = self.units[index]
        unit.whole -= self.is_whole(index)
        self._masks.pop(index, None)
        self._gone.add(index)
        return len(self._gone) == len(self.units)


class DirtyChunk(NamedTuple):
    """The chunk at index ``number`` of its run."""

    run: DirtyRun
    number: int

    @property
    def unit(self) -> DirtyUnit:
        """The unit of the chunk."""
        return self.run.units[self.number]

    @property
    def elements(self) -> NDArray:
        """Elements at full shape."""
        elements: NDArray = self.run.memory[self.number, ...]
        return elements

    @property
    def inside(self) -> Shape:
        """Shape of the part within the array, in the axis order of the file."""
        return self.run.run_layout.inside

    @property
    def in_file(self) -> bool:
        """True if its elements are in a mapped file."""
        return self.run.file_range is not None

    @property
    def whole(self) -> bool:
        """True if every element within the array was written."""
        return self.run.is_whole(self.number)

    @property
    def failed(self) -> FailedChunk | None:
        """The chunk that was stored when storing this one failed; None if that has not happened, or is not known."""
        return self.run.failed.get(self.number)


class DirtyChunks:
    """The dirty chunks of one file, in memory up to ``budget``, else in files in ``directory``."""

    def __init__(self, budget: MemoryBudget, directory: str | None) -> None:
        self._budget = budget
        self._directory = directory
        self._chunks: dict[Coords, DirtyChunk] = {}
        self._files: list[mmap.mmap] = []
        self._free: dict[int, list[_FileRange]] = {}
        self._unused: tuple[mmap.mmap, int] | None = None
        self._since_trim = 0
        self.units: dict[Coords, DirtyUnit] = {}
        """Units that have dirty chunks."""
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Coords]:
        return iter(self._chunks)

    def get(self, coords: Coords) -> DirtyChunk | None:
        """Return the chunk if it is dirty."""
        return self._chunks.get(coords)

    def unit(self, coords: Coords, count: int) -> DirtyUnit:
        """Return the unit with these coordinates, of which the array has ``count`` chunks; a new one if none of it is dirty."""
        found = self.units.get(coords)
        return found if found is not None else DirtyUnit(coords, count)

    def add_in_memory(self, coords: Sequence[Coords], units: Sequence[DirtyUnit], run_layout: RunLayout) -> DirtyRun | None:
        """Add dirty chunks with their units, elements still undefined; return None if there is no memory for them."""
        if not self._budget.take(nbytes := len(coords) * (run_layout.chunk_nbytes + OBJECTS_NBYTES)):
            return None
        try:
            elements: NDArray = np.empty((len(coords), *run_layout.shape), run_layout.dtype)
        except MemoryError:
            self._budget.give(nbytes)
            return None
        return self._added(coords, DirtyRun(units, run_layout, elements, None))

    async def add_in_file(self, coords: Sequence[Coords], units: Sequence[DirtyUnit], run_layout: RunLayout) -> DirtyRun:
        """Add dirty chunks in a file. Raises `StoreFull` and `OutOfMemory` if there is no room for them."""
        nbytes = len(coords) * run_layout.chunk_nbytes
        mapping, offset = file_range = await self._allocate(nbytes)
        self.used(nbytes)
        shape = (len(coords), *run_layout.shape)
        elements: NDArray = np.frombuffer(mapping, run_layout.dtype, math.prod(shape), offset).reshape(shape)
        return self._added(coords, DirtyRun(units, run_layout, elements, file_range))

    def fail(self, coords: Coords, base: Buffer | None) -> bool:
        """Record the chunk that is stored where storing this one has failed; return False if there is no memory for that."""
        chunk = self._chunks.get(coords)
        if chunk is None:
            return True
        nbytes = OBJECTS_NBYTES + (len(base) if base is not None else 0)
        if not self._budget.take(nbytes):
            return False
        chunk.run.failed[chunk.number] = FailedChunk(base, nbytes)
        return True

    def failed(self, coords: Coords) -> FailedChunk | None:
        """Return the chunk that was stored when storing this one failed; None if that has not happened, or is not known."""
        chunk = self._chunks.get(coords)
        return chunk.failed if chunk is not None else None

    def forget_failed(self) -> None:
        """Forget what was stored where storing has failed: the chunks go elsewhere."""
        for chunk in self._chunks.values():
            self._forget_failed(chunk)

    def _forget_failed(self, chunk: DirtyChunk) -> None:
        if (failed := chunk.run.failed.pop(chunk.number, None)) is not None:
            self._budget.give(failed.nbytes)

    def remove(self, coords: Coords) -> None:
        """Remove a chunk that is stored or obsolete. A current reader keeps its memory, which a later chunk may reuse."""
        chunk = self._chunks.pop(coords, None)
        if chunk is None:
            return
        self._forget_failed(chunk)
        run, unit = chunk.run, chunk.unit
        self.nbytes -= run.run_layout.chunk_nbytes
        del unit.chunks[coords]
        if not unit.chunks:
            self.units.pop(unit.coords, None)
        if not run.removed(chunk.number):
            return
        nbytes = run.memory.nbytes
        if run.file_range is None:
            self._budget.give(nbytes + len(run.units) * OBJECTS_NBYTES)
        else:
            self._free.setdefault(nbytes, []).append(run.file_range)
            self.used(nbytes)

    def used(self, nbytes: int) -> None:
        """Record that ``nbytes`` of chunks in files were written or read; from time to time drop their resident pages."""
        self._since_trim += nbytes
        if self._since_trim >= _TRIM_NBYTES:
            self._since_trim = 0
            for mapping in self._files:
                mapping.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Remove all chunks."""
        for coords in list(self._chunks):
            self.remove(coords)
        # Unmapped when the last reader has released its elements.
        self._files.clear()
        self._free.clear()
        self._unused = None

    def _added(self, coords: Sequence[Coords], run: DirtyRun) -> DirtyRun:
        for index, (each, unit) in enumerate(zip(coords, run.units, strict=True)):
            self._chunks[each] = unit.chunks[each] = DirtyChunk(run, index)
            self.units[unit.coords] = unit
        self.nbytes += run.memory.nbytes
        return run

    async def _allocate(self, nbytes: int) -> _FileRange:
        if released := self._free.get(nbytes):
            return released.pop()
        if self._unused is None or self._unused[1] + nbytes > len(self._unused[0]):
            most = next_nbytes(sum(map(len, self._files)), min(_FILE_NBYTES, nbytes * _MAX_PLACES))
            whole = most // max(1, nbytes) * nbytes
            try:
                mapping = await threads.io(reserve_shared, self._directory, nbytes, whole)
            except OSError as error:
                raise refusal_of(error)(f"dirty chunks: reserving {nbytes} bytes of staging failed: {error}") from error
            self._files.append(mapping)
            self._unused = (mapping, 0)
        mapping, offset = self._unused
        self._unused = (mapping, offset + nbytes)
        return mapping, offset


def refuse_lost(chunks: Iterable[DirtyChunk]) -> None:
    """Raise `StoreError` if elements of those in files may have been lost by now, since the disk has not taken them."""
    spill.refuse_lost(*(run.memory for run, _ in chunks if run.file_range is not None))
