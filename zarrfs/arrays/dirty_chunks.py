"""Chunks that were written to and are not yet stored: their elements, and which of these were written.

Neighbours that are first written together lie together (`DirtyRun`), so that the part of a row that concerns them is put in at once,
however many they are. Chunks under one key of the store are one `DirtyUnit`: they are stored together.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from zarrfs import threads
from zarrfs.arrays.array import Elements
from zarrfs.errors import StoreFull
from zarrfs.memory.budget import MemoryBudget
from zarrfs.memory.spill import array, reserve
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.spans import Spans

# Chunks that find no memory lie in mapped files of about this size, many in one: each costs a descriptor.
_FILE_NBYTES = 64 * 1024 * 1024
_MAX_PLACES = 1024
# Mapped pages are dropped from our resident ones after so many bytes were put there; the page cache keeps them.
_TRIM_NBYTES = 32 * 1024 * 1024
# For a chunk of which not just the first elements were written; for one of which they are too scattered for spans.
_IN_SPANS = -1
_IN_MASK = -2
_FEW_SPANS = 64

Mask = np.ndarray[Any, np.dtype[np.bool_]]

_Place = tuple[mmap.mmap, int]


class RunLayout(NamedTuple):
    """What chunks of a run have in common: their full ``shape``, the part of it ``inside`` the array, the type of elements."""

    shape: Shape
    inside: Shape
    dtype: np.dtype[Any]

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one chunk."""
        return math.prod(self.shape) * self.dtype.itemsize


class DirtyUnit:
    """The dirty chunks that lie under one key of the store, where the array has ``count``; ``whole`` of them were written whole."""

    __slots__ = ("chunks", "coords", "count", "whole")

    def __init__(self, coords: Coords, count: int) -> None:
        self.coords = coords
        self.count = count
        self.whole = 0
        self.chunks: dict[Coords, DirtyChunk] = {}

    @property
    def complete(self) -> bool:
        """Whether nothing of what is stored is left in it."""
        return self.whole == self.count


class DirtyRun:
    """Some chunks that were added together: ``memory`` has their elements at full shape, along its first axis; ``units`` each one's.

    Of each is known which elements inside the array were written, counted in the order of the file that is written (C order of
    ``inside``, or of its transpose).
    """

    __slots__ = ("_fronts", "_gone", "_masks", "_spans", "file_place", "form", "memory", "size", "units")

    def __init__(self, units: Sequence[DirtyUnit], form: RunLayout, memory: Elements, file_place: _Place | None) -> None:
        self.units = units
        self.form = form
        self.memory = memory
        self.file_place = file_place
        self.size = math.prod(form.inside)
        # A pass writes the elements of a chunk from the first to the last: then one number tells which.
        self._fronts = [0] * len(units)
        self._spans: dict[int, Spans] = {}
        self._masks: dict[int, Mask] = {}
        self._gone: set[int] = set()
        if self.size == 0:
            for unit in units:
                unit.whole += 1

    def reach(self, place: int, most: int, busy: Container[Coords]) -> int:
        """How many chunks from ``place`` on, at most so many, are still dirty and in none of the ``busy`` units; the first is."""
        stop = min(place + most, len(self.units))
        if self._gone or busy:
            for each in range(place + 1, stop):
                if each in self._gone or self.units[each].coords in busy:
                    return each - place
        return stop - place

    def wrote(self, place: int, count: int, start: int, stop: int) -> list[DirtyUnit]:
        """Elements ``start`` to ``stop`` of ``count`` chunks from ``place`` on were written; the units that became complete by that."""
        fronts = self._fronts
        front = fronts[place]
        completed: list[DirtyUnit] = []
        if front >= start and (count == 1 or fronts[place : place + count].count(front) == count):
            if stop > front:
                fronts[place : place + count] = [stop] * count
                if stop == self.size:
                    for each in range(place, place + count):
                        self._became_whole(each, completed)
        else:
            for each in range(place, place + count):
                self._wrote(each, start, stop, completed)
        return completed

    def wrote_some(self, place: int, start: int, which: Mask) -> list[DirtyUnit]:
        """Of the elements of one chunk from ``start`` on those that ``which`` names were written; as `wrote`."""
        completed: list[DirtyUnit] = []
        edges = np.flatnonzero(np.diff(which, prepend=False, append=False))
        if len(edges) <= 2 * _FEW_SPANS:
            for first, stop in edges.reshape(-1, 2).tolist():
                self._wrote(place, start + first, start + stop, completed)
        elif not self.is_whole(place):
            self._in_mask(place)[start : start + len(which)] |= which
            self._look_whether_whole(place, completed)
        return completed

    def _in_mask(self, place: int) -> Mask:
        if self._fronts[place] != _IN_MASK:
            self._masks[place] = self.mask(place, 0, self.size)
            self._spans.pop(place, None)
            self._fronts[place] = _IN_MASK
        return self._masks[place]

    def _look_whether_whole(self, place: int, completed: list[DirtyUnit]) -> None:
        if self._masks[place].all():
            del self._masks[place]
            self._fronts[place] = self.size
            self._became_whole(place, completed)

    def _became_whole(self, place: int, completed: list[DirtyUnit]) -> None:
        unit = self.units[place]
        unit.whole += 1
        if unit.complete:
            completed.append(unit)

    def _wrote(self, place: int, start: int, stop: int, completed: list[DirtyUnit]) -> None:
        front = self._fronts[place]
        if front == _IN_MASK:
            self._masks[place][start:stop] = True
            self._look_whether_whole(place, completed)
            return
        if front >= start:
            front = max(front, stop)
        elif stop > start:
            spans = self._spans.get(place)
            if spans is None:
                spans = self._spans[place] = Spans()
                spans.add(0, front)
            spans.add(start, stop)
            if spans.covers(0, self.size):
                del self._spans[place]
                front = self.size
            else:
                front = _IN_SPANS
        before, self._fronts[place] = self._fronts[place], front
        if front == self.size != before:
            self._became_whole(place, completed)

    def covers(self, place: int, start: int, stop: int) -> bool:
        """Whether elements ``start`` to ``stop`` of a chunk were all written."""
        if self._fronts[place] == _IN_MASK:
            return bool(self._masks[place][start:stop].all())
        return self._fronts[place] >= stop or (self._fronts[place] == _IN_SPANS and self._spans[place].covers(start, stop))

    def mask(self, place: int, start: int, stop: int) -> Mask:
        """For each of elements ``start`` to ``stop`` of a chunk whether it was written."""
        mask = array((stop - start,), np.dtype(bool))
        mask[...] = False
        if self._fronts[place] == _IN_SPANS:
            self._spans[place].mask(start, stop, mask)
        elif self._fronts[place] == _IN_MASK:
            mask[...] = self._masks[place][start:stop]
        else:
            mask[: max(0, self._fronts[place] - start)] = True
        return mask

    def is_whole(self, place: int) -> bool:
        """Whether every element of a chunk that is inside the array was written."""
        return self._fronts[place] == self.size

    def removed(self, place: int) -> bool:
        """A chunk is not dirty any more; whether none is."""
        unit = self.units[place]
        unit.whole -= self.is_whole(place)
        self._masks.pop(place, None)
        self._gone.add(place)
        return len(self._gone) == len(self.units)


class DirtyChunk(NamedTuple):
    """One chunk: the one at ``place`` in its run."""

    run: DirtyRun
    place: int

    @property
    def unit(self) -> DirtyUnit:
        """The unit that it lies in."""
        return self.run.units[self.place]

    @property
    def elements(self) -> Elements:
        """At its full shape."""
        elements: Elements = self.run.memory[self.place, ...]
        return elements

    @property
    def inside(self) -> Shape:
        """The shape of the part within the array, as the file sees it."""
        return self.run.form.inside

    @property
    def in_file(self) -> bool:
        """Whether its elements lie in a mapped file."""
        return self.run.file_place is not None

    @property
    def whole(self) -> bool:
        """Whether every element within the array was written."""
        return self.run.is_whole(self.place)


class DirtyChunks:
    """The dirty chunks of one file, in memory as far as ``budget`` goes, else in files in ``directory``."""

    def __init__(self, budget: MemoryBudget, directory: str | None) -> None:
        self._budget = budget
        self._directory = directory
        self._chunks: dict[Coords, DirtyChunk] = {}
        self._files: list[mmap.mmap] = []
        self._free: dict[int, list[_Place]] = {}
        self._unused: tuple[mmap.mmap, int] | None = None
        self._since_trim = 0
        self.units: dict[Coords, DirtyUnit] = {}
        """Those that have dirty chunks."""
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._chunks)

    def __iter__(self) -> Iterator[Coords]:
        return iter(self._chunks)

    def get(self, coords: Coords) -> DirtyChunk | None:
        """The chunk, if it is dirty."""
        return self._chunks.get(coords)

    def unit(self, coords: Coords, count: int) -> DirtyUnit:
        """The unit with these coordinates, of which the array has ``count`` chunks; a new one when none of it is dirty."""
        found = self.units.get(coords)
        return found if found is not None else DirtyUnit(coords, count)

    def add_in_memory(self, coords: Sequence[Coords], units: Sequence[DirtyUnit], form: RunLayout) -> DirtyRun | None:
        """New dirty chunks, and the unit of each, whose elements are not defined yet; None when there is no memory for them."""
        if not self._budget.take(len(coords) * form.chunk_nbytes):
            return None
        return self._added(coords, DirtyRun(units, form, np.empty((len(coords), *form.shape), form.dtype), None))

    async def add_in_file(self, coords: Sequence[Coords], units: Sequence[DirtyUnit], form: RunLayout) -> DirtyRun:
        """New dirty chunks in a file. Raises `StoreFull` when there is no room for them."""
        nbytes = len(coords) * form.chunk_nbytes
        mapping, offset = place = await self._place(nbytes)
        self.used(nbytes)
        shape = (len(coords), *form.shape)
        elements: Elements = np.frombuffer(mapping, form.dtype, math.prod(shape), offset).reshape(shape)
        return self._added(coords, DirtyRun(units, form, elements, place))

    def remove(self, coords: Coords) -> None:
        """The chunk is stored, or of no use any more. Whoever reads it now keeps its elements, but they may be another's soon."""
        chunk = self._chunks.pop(coords, None)
        if chunk is None:
            return
        run, unit = chunk.run, chunk.unit
        self.nbytes -= run.form.chunk_nbytes
        del unit.chunks[coords]
        if not unit.chunks:
            self.units.pop(unit.coords, None)
        if not run.removed(chunk.place):
            return
        nbytes = run.memory.nbytes
        if run.file_place is None:
            self._budget.give(nbytes)
        else:
            self._free.setdefault(nbytes, []).append(run.file_place)
            self.used(nbytes)

    def used(self, nbytes: int) -> None:
        """So many bytes of chunks in files were written or read: their pages are ours no longer from time to time."""
        self._since_trim += nbytes
        if self._since_trim >= _TRIM_NBYTES:
            self._since_trim = 0
            for mapping in self._files:
                mapping.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Let go of all of them."""
        for coords in list(self._chunks):
            self.remove(coords)
        # Unmapped when the last reader has let go of its elements.
        self._files.clear()
        self._free.clear()
        self._unused = None

    def _added(self, coords: Sequence[Coords], run: DirtyRun) -> DirtyRun:
        for place, (each, unit) in enumerate(zip(coords, run.units, strict=True)):
            self._chunks[each] = unit.chunks[each] = DirtyChunk(run, place)
            self.units[unit.coords] = unit
        self.nbytes += run.memory.nbytes
        return run

    async def _place(self, nbytes: int) -> _Place:
        if places := self._free.get(nbytes):
            return places.pop()
        if self._unused is None or self._unused[1] + nbytes > len(self._unused[0]):
            whole = max(nbytes, min(_FILE_NBYTES, nbytes * _MAX_PLACES) // max(1, nbytes) * nbytes)
            try:
                mapping = await threads.io(reserve, self._directory, whole)
            except OSError as error:
                raise StoreFull(f"no room to stage what was written: {error}") from error
            self._files.append(mapping)
            self._unused = (mapping, 0)
        mapping, offset = self._unused
        self._unused = (mapping, offset + nbytes)
        return mapping, offset
