"""Writes of array elements in C order, for whole-array files.

Written elements are in dirty chunks until they are published. A partly written chunk is read when it is published, once: the written
elements are merged into its present value (docs/design/020-two-writers.md). A pass in pieces of any size reads no chunk that it covers
whole. A chunk that equals the fill value bit for bit is erased, since a missing chunk reads as just that (docs/SEMANTICS.md, "Whole
arrays").

The content of one store key, a chunk or the chunks of a shard, is stored in one step (`ChunkStore.unit`).
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import trio

from zarrfs.arrays.array import Array
from zarrfs.arrays.concurrency import for_each
from zarrfs.arrays.dirty_chunks import OBJECTS_NBYTES, DirtyChunk, DirtyChunks, RunLayout, refuse_lost
from zarrfs.arrays.filling import part
from zarrfs.arrays.merging import of_elements, put
from zarrfs.arrays.reader import ArrayReader
from zarrfs.arrays.reader_pool import StartSoon
from zarrfs.arrays.write_back import WriteBack
from zarrfs.buffers import Buffer, Mask, NDArray
from zarrfs.errors import ZarrfsError
from zarrfs.keys import Key
from zarrfs.memory import spill
from zarrfs.memory.budget import MemoryBudget
from zarrfs.model.chunk_grid import ChunkGrid, Coords, Shape
from zarrfs.model.chunk_plan import Box, ChunkPlan, ChunkProjection, Selection, product
from zarrfs.model.chunk_runs import ChunkRun, runs
from zarrfs.model.chunk_set import ChunkSet
from zarrfs.threads import CPU_THREADS

log = logging.getLogger(__name__)

_WIDTH = CPU_THREADS + 1
# Maximum memory of neighbours that are added together, which is released when the last of them is stored; those of one unit are stored
# together.
_RUN_NBYTES = 1024 * 1024
_UNIT_RUN_NBYTES = 4 * 1024 * 1024
# Units that no node has yet are stored once this much is dirty, however much memory is left: the next chunks get their memory, not fresh
# pages, and the encoders work while the program writes (docs/design/005-array-writes.md).
_APART_NBYTES = 4 * 1024 * 1024
# Chunks without writes that are dirty together: some kilobytes each, however small they are.
_UNWRITTEN_CHUNKS = 4096


@dataclass(frozen=True, slots=True)
class FileOrder:
    """The element order of the file being written: ``dtype`` (same size, perhaps another byte order), and Fortran or C order."""

    dtype: np.dtype[Any]
    fortran: bool = False


class ArrayWriter:
    """The elements of one array, written as a byte sequence.

    ``reader`` supplies unwritten elements; None for a new array, where they are zeros. ``start_soon`` starts background stores of
    completely written units before `publish`, when memory runs short; if None, such units go to a file in ``directory``. ``on_stored``
    receives the keys of every unit that was stored or erased. ``is_apart``: until `publish` no node has the chunks that are stored, so
    that they are stored early. One task at a time calls mutators.
    """

    def __init__(
        self,
        array: Array,
        reader: ArrayReader | None,
        *,
        budget: MemoryBudget,
        directory: str | None,
        start_soon: StartSoon | None,
        file_order: FileOrder | None = None,
        on_stored: Callable[[Sequence[Key]], None] | None = None,
        is_apart: bool = False,
    ) -> None:
        metadata = array.metadata
        self.array = array
        self._reader = reader
        self._position = reader.new_position() if reader is not None else None
        self._dirty = DirtyChunks(budget, directory)
        self._budget = budget
        self._start_soon = start_soon
        self._most_dirty = min(budget.limit // 2, _APART_NBYTES) if is_apart else budget.limit // 2
        self._ready: deque[Coords] = deque()
        """Units that were written completely."""
        self._storing: dict[Coords, trio.Event] = {}
        """Units that are being stored."""
        self._order = file_order if file_order is not None else FileOrder(metadata.data_type.dtype)
        self._itemsize = metadata.data_type.itemsize
        self._shape: Shape = metadata.shape[::-1] if self._order.fortran else metadata.shape
        self._grid: ChunkGrid = metadata.chunk_grid.reversed() if self._order.fortran else metadata.chunk_grid
        self._storage = WriteBack(array, self._dirty, is_new=reader is None, fortran=self._order.fortran, on_stored=on_stored)

    @property
    def stored(self) -> ChunkSet:
        """Chunks that this writer stored and has not erased since."""
        return self._storage.stored

    @property
    def may_be_stored(self) -> ChunkSet:
        """`stored`, and chunks whose store has failed or was given up."""
        return self._storage.stored.union(self._storage.attempted)

    def has_stored_in(self, unit: Coords) -> bool:
        """Return True if a chunk of this unit is in `stored`."""
        return self._storage.has_stored_in(unit)

    @property
    def nbytes(self) -> int:
        """Size of the dirty chunks in bytes."""
        return self._dirty.nbytes

    @property
    def dirty(self) -> list[Coords]:
        """Chunks with writes that are not stored."""
        return [coords for unit in self._dirty.units.values() for coords in unit.chunks]

    def redirect(self, array: Array) -> None:
        """Direct further stores to ``array``, which has the same metadata."""
        self.array = array
        self._storage.redirect(array)

    def in_place(self) -> None:
        """Record that the new array, all of which was stored, is in its place: it may have other writers now."""
        self._storage.in_place()

    async def write(self, offset: int, data: Buffer, changed: Mask | None = None) -> None:
        """Write ``data`` at byte ``offset`` of the elements; the caller has checked that both are within the array.

        ``changed`` marks the changed bytes; an element without one is not written, and changes to it by others stay. Raises `StoreFull`
        if there is no room to stage more; elements staged before stay staged.
        """
        selected: Mask | None = None
        if changed is not None:
            begin = offset % self._itemsize
            flags = of_elements(changed, begin, self._itemsize)
            indices = np.flatnonzero(flags)
            if not len(indices):
                return
            # From the first changed element to the last one.
            low, high = int(indices[0]), int(indices[-1]) + 1
            skipped = max(0, low * self._itemsize - begin)
            data = memoryview(data)[skipped : high * self._itemsize - begin]
            offset += skipped
            selected = None if len(indices) == high - low else flags[low:high]
        first, stop = offset // self._itemsize, -(-(offset + len(data)) // self._itemsize)
        if offset % self._itemsize or (offset + len(data)) % self._itemsize:
            # Partial elements at the ends: their other bytes come from the present value.
            begin = offset - first * self._itemsize
            whole = bytearray(len(data) + begin + (-(begin + len(data)) % self._itemsize))
            whole[: self._itemsize] = await self.read(first * self._itemsize, self._itemsize)
            whole[-self._itemsize :] = await self.read((stop - 1) * self._itemsize, self._itemsize)
            whole[begin : begin + len(data)] = data
            data = whole
        values = np.frombuffer(data, self._order.dtype)
        for box in ChunkPlan(self._shape, self._grid, first, stop).boxes():
            source = values[box.offset : box.offset + box.size].reshape(box.shape)
            in_box = selected[box.offset : box.offset + box.size].reshape(box.shape) if selected is not None else None
            for run in runs(self._grid, box):
                if in_box is None:
                    await self._write(run, part(source, run.box_selection))
                else:
                    await self._write_selected(run, part(source, run.box_selection), part(in_box, run.box_selection))
        if self._budget.nbytes > self._most_dirty:
            self._store_ahead()

    async def read(self, offset: int, size: int) -> Buffer:
        """Return ``size`` bytes from byte ``offset`` of the elements: the written ones over the stored ones."""
        first, stop = offset // self._itemsize, -(-(offset + size) // self._itemsize)
        pieces = list(self._plan(first, stop))
        while True:
            before = [self._dirty.get(projection.coords) for _, projection in pieces]
            whole = all(
                chunk is not None and chunk.run.covers(chunk.number, *_span(projection.chunk_selection, chunk.inside))
                for chunk, (_, projection) in zip(before, pieces, strict=True)
            )
            out = spill.zeros(stop - first, self._order.dtype) if whole else await self._base(first, stop, pieces)
            if all(self._dirty.get(projection.coords) is chunk for chunk, (_, projection) in zip(before, pieces, strict=True)):
                break
            # A chunk was stored or became dirty meanwhile: the result mixes two states.
        for chunk, (box, projection) in zip(before, pieces, strict=True):
            if chunk is not None:
                target = part(out[box.offset : box.offset + box.size].reshape(box.shape), projection.box_selection)
                written = chunk.run.mask(chunk.number, *_span(projection.chunk_selection, chunk.inside)).reshape(target.shape)
                target[written] = part(self._view(chunk.elements), projection.chunk_selection)[written]
                refuse_lost([chunk])
        begin = offset - first * self._itemsize
        return out.view(np.uint8).data[begin : begin + size]

    async def publish(self) -> None:
        """Store every dirty chunk. If it raises, chunks that were not stored are still dirty."""
        await self._idle()
        async with self.array.chunks.holding(), self._storage.attempt():
            await self._store_all()
            await self._storage.publish()

    async def publish_whole(self) -> None:
        """Publish a new array over one of the same metadata, of which nothing stays. Unwritten elements are zeros."""
        await self._idle()
        async with self.array.chunks.holding():
            await self._publish_whole()

    async def _publish_whole(self) -> None:
        metadata, storage = self.array.metadata, self._storage
        if any(metadata.fill_bytes):
            await self._store_unwritten()
        await self._store_all()
        # If everything was replaced, nothing is listed: a listing reads the index of every shard.
        if (len(storage.stored) if storage.single else len(storage.replaced)) < math.prod(metadata.stored_grid_shape):
            left, units = ChunkSet(metadata.grid_shape), ChunkSet(metadata.stored_grid_shape)
            async for coords, _, _ in self.array.chunks.list():
                if coords not in storage.stored:
                    left.add(coords)
                    units.add(self.array.chunks.unit(coords))
            await for_each(units, lambda unit: storage.erase(unit, left), _WIDTH, completes=True)
        await self._storage.publish()

    async def _store_unwritten(self) -> None:
        """Store zeros in the chunks of which nothing was written, each unit in one step, with what else is dirty.

        A sparse file of a few bytes may have millions of them, which are not all dirty at the same time.
        """
        storage = self._storage
        for number, unit in enumerate(product(list(map(range, self.array.metadata.stored_grid_shape)))):
            for coords in product(storage.ranges_of(unit)):
                if coords not in storage.stored and coords not in storage.as_fill and self._dirty.get(coords) is None:
                    run = (await self._add([coords])).run
                    run.memory.reshape(-1).view(np.uint8)[...] = 0
                    run.wrote(0, 1, 0, run.size)
            if len(self._dirty) >= _UNWRITTEN_CHUNKS or self._dirty.nbytes > self._most_dirty:
                await self._store_all()
            elif not number % _UNWRITTEN_CHUNKS:
                await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Release the dirty chunks, after background stores have ended."""
        await self._idle()
        self._dirty.close()
        if self._reader is not None and self._position is not None:
            self._reader.closed(self._position)
            self._position = None

    async def store_no_more(self) -> None:
        """Stop background stores: further writes go to memory and files. Returns when none is running."""
        self._start_soon = None
        await self._idle()

    async def _idle(self) -> None:
        """Return when no background store is running: it may wait for the node, which the caller is about to hold."""
        self._ready.clear()
        while self._storing:
            await next(iter(self._storing.values())).wait()

    # --- dirty chunks -------------------------------------------------------------------------------------------------------

    def _plan(self, first: int, stop: int) -> Iterator[tuple[Box, ChunkProjection]]:
        """Yield the parts of chunks that hold elements ``first`` to ``stop`` of the file; coordinates are the array's."""
        plan = ChunkPlan(self._shape, self._grid, first, stop)
        for box in plan.boxes():
            for projection in plan.projections(box):
                if self._order.fortran:
                    projection = ChunkProjection(projection.coords[::-1], projection.chunk_selection, projection.box_selection)
                yield box, projection

    def _view(self, elements: NDArray) -> NDArray:
        """Return a chunk in the axis order of the file."""
        return elements.T if self._order.fortran else elements

    def _views(self, memory: NDArray) -> NDArray:
        """Return chunks, along the first axis, in the axis order of the file."""
        return memory.transpose(0, *range(memory.ndim - 1, 0, -1)) if self._order.fortran else memory

    def _inside(self, coords: Coords) -> Shape:
        """Return the shape of the part of a chunk within the array, in the axis order of the file."""
        metadata = self.array.metadata
        spans = [metadata.chunk_grid.span(axis, index) for axis, index in enumerate(coords)]
        inside = tuple(min(end, extent) - begin for (begin, end), extent in zip(spans, metadata.shape, strict=True))
        return inside[::-1] if self._order.fortran else inside

    async def _write(self, run: ChunkRun, source: NDArray) -> None:
        """Write the elements of a run of chunks."""
        done = 0
        while done < run.count:
            there, index = await self._writable(self._along(run.coords, done)) or await self._add(self._neighbours(run, done))
            count = there.reach(index, run.count - done, self._storing)
            if run.count == 1:
                part(self._view(there.memory[index, ...]), run.chunk_selection)[...] = source
            else:
                length = source.shape[-1] // run.count
                piece = source[..., done * length : (done + count) * length]
                if count == 1:
                    self._view(there.memory[index, ...])[run.chunk_selection] = piece
                else:
                    self._views(there.memory[index : index + count])[(slice(None), *run.chunk_selection)] = _in_parts(piece, count)
            completed = there.wrote(index, count, *_span(run.chunk_selection, there.run_layout.inside))
            if completed and self._start_soon is not None:
                self._ready.extend(unit.coords for unit in completed)
            done += count

    async def _write_selected(self, run: ChunkRun, source: NDArray, selected: Mask) -> None:
        """Write the ``selected`` elements of a run of chunks; chunks without any do not become dirty."""
        length = source.shape[-1] // run.count if run.count > 1 else 0
        for number in range(run.count):
            selection = (..., slice(number * length, (number + 1) * length)) if run.count > 1 else (...,)
            in_chunk = selected[selection]
            if not in_chunk.any():
                continue
            one = ChunkRun((*run.coords[:-1], run.coords[-1] + number) if number else run.coords, 1, run.chunk_selection, ())
            if in_chunk.all():
                await self._write(one, source[selection])
                continue
            coords = self._along(one.coords, 0)
            there = await self._writable(coords) or await self._add([coords])
            put(part(self._view(there.elements), run.chunk_selection), source[selection], in_chunk)
            start, _ = _span(run.chunk_selection, there.inside)
            completed = there.run.wrote_selected(there.number, start, np.ascontiguousarray(in_chunk).reshape(-1))
            if completed and self._start_soon is not None:
                self._ready.extend(unit.coords for unit in completed)

    def _along(self, coords: Coords, number: int) -> Coords:
        """Return the array's coordinates of the chunk ``number`` places after ``coords`` (the file's) along the last axis."""
        if number:
            coords = (*coords[:-1], coords[-1] + number)
        return coords[::-1] if self._order.fortran else coords

    async def _writable(self, coords: Coords) -> DirtyChunk | None:
        """Return the chunk, if it is dirty, after any store of it has ended."""
        while (chunk := self._dirty.get(coords)) is not None and (underway := self._storing.get(chunk.unit.coords)) is not None:
            await underway.wait()
        return chunk

    def _neighbours(self, run: ChunkRun, done: int) -> list[Coords]:
        """Return the next clean chunk of a run, and those after it that can share its allocation."""
        chosen = [self._along(run.coords, done)]
        limit = _RUN_NBYTES if self._storage.single else _UNIT_RUN_NBYTES
        most = limit // (self.array.metadata.chunk_nbytes(chosen[0]) + OBJECTS_NBYTES)
        unit = self.array.chunks.unit(chosen[0])
        for number in range(done + 1, min(run.count, done + most)):
            coords = self._along(run.coords, number)
            if self._dirty.get(coords) is not None or not (self._storage.single or self.array.chunks.unit(coords) == unit):
                break
            chosen.append(coords)
        return chosen

    async def _add(self, coords: Sequence[Coords]) -> DirtyChunk:
        """Make neighbouring chunks dirty; return the first of them."""
        metadata = self.array.metadata
        run_layout = RunLayout(metadata.chunk_grid.chunk_shape(coords[0]), self._inside(coords[0]), metadata.data_type.dtype)
        count = math.prod(map(len, self._storage.ranges(coords[0])))
        while True:
            # Those that were dirty may be stored by now.
            units = [self._dirty.unit(self.array.chunks.unit(coords[0]), count)] * len(coords)
            if self._storage.single:
                units = [self._dirty.unit(each, 1) for each in coords]
            run = self._dirty.add_in_memory(coords, units, run_layout)
            if run is not None:
                break
            self._store_ahead()
            if not self._storing:
                run = await self._dirty.add_in_file(coords, units, run_layout)
                break
            await next(iter(self._storing.values())).wait()
        return DirtyChunk(run, 0)

    # --- storing ------------------------------------------------------------------------------------------------------------

    def _store_ahead(self) -> None:
        """Start stores of completely written units, a few concurrently; errors are left to `publish`, which retries."""
        while (
            self._start_soon is not None and len(self._storing) < self._storage.width and (unit := self._next_ready()) is not None
        ):
            self._start_soon(self._store_early, unit)

    def _next_ready(self) -> Coords | None:
        """Return the next completely written unit, which then counts as being stored; None without any."""
        while self._start_soon is not None and self._ready:
            unit = self._ready.popleft()
            if unit in self._dirty.units and unit not in self._storing:
                self._storing[unit] = trio.Event()
                return unit
        return None

    async def _store_early(self, first: Coords) -> None:
        # One after the other: a task takes as long to start as a small chunk to be stored.
        unit: Coords | None = first
        while unit is not None:
            try:
                async with self.array.chunks.holding():
                    await self._storage.store(unit)
            except ZarrfsError as error:
                log.debug("storing ahead failed: %s", error)
            finally:
                self._storing.pop(unit).set()
            unit = self._next_ready()

    async def _store_all(self) -> None:
        self._ready.clear()
        await for_each(list(self._dirty.units), self._store, self._storage.width, completes=True)

    async def _store(self, unit: Coords) -> None:
        while (underway := self._storing.get(unit)) is not None:
            await underway.wait()
        self._storing[unit] = trio.Event()
        try:
            await self._storage.store(unit)
        finally:
            self._storing.pop(unit).set()

    async def _base(self, first: int, stop: int, pieces: Sequence[tuple[Box, ChunkProjection]]) -> NDArray:
        """Return elements ``first`` to ``stop`` of the file as stored."""
        if self._reader is not None and self._position is not None:
            data = await self._reader.read(first * self._itemsize, (stop - first) * self._itemsize, self._position)
            return np.frombuffer(bytearray(data), self._order.dtype)
        out = spill.zeros(stop - first, self._order.dtype)
        for coords, group in itertools.groupby(sorted(pieces, key=lambda piece: piece[1].coords), lambda piece: piece[1].coords):
            if coords in self._storage.stored or coords in self._storage.as_fill:
                elements = self._view(await self._storage.stored_chunk(coords))
                for box, projection in group:
                    target = part(out[box.offset : box.offset + box.size].reshape(box.shape), projection.box_selection)
                    target[...] = part(elements, projection.chunk_selection)
        return out


def _span(selection: Selection, inside: Shape) -> tuple[int, int]:
    """Return the range of elements, of the part of a chunk within the array (C order), that a selection covers.

    It is contiguous, since a box is a range of the outer indices and all of the inner ones.
    """
    start = stop = 0
    for cut, extent in zip(selection, inside, strict=True):
        start = start * extent + cut.start
        stop = stop * extent + cut.stop - 1
    return start, stop + 1


def _in_parts(elements: NDArray, count: int) -> NDArray:
    """Return ``elements`` cut into ``count`` parts along the last axis, which become a new first axis; a view."""
    *rows, length = elements.shape
    cut = elements.reshape(*rows, count, length // count)
    return cut.transpose(cut.ndim - 2, *range(cut.ndim - 2), cut.ndim - 1)
