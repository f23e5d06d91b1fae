"""Writing elements of an array in C order, as whole-array files are written.

What is written lies in dirty chunks until it is published. Of a chunk that was written in part, the rest is got when it is published,
once, and only then: a pass in pieces of any size gets no chunk that it covers whole. A chunk that equals the fill value bit for bit is
erased, as it is read as just that (docs/SEMANTICS.md, "Whole arrays").
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

from zarrfs import threads
from zarrfs.errors import ZarrfsError
from zarrfs.hierarchy.arrays import Array, Elements, fill, part
from zarrfs.hierarchy.concurrency import for_each
from zarrfs.hierarchy.dirty_chunks import DirtyChunk, DirtyChunks
from zarrfs.hierarchy.readers import ArrayReader, StartSoon
from zarrfs.keys import Key
from zarrfs.memory import MemoryBudget
from zarrfs.model.chunk_grid import ChunkGrid, Coords, RegularGrid, Shape
from zarrfs.model.chunk_plan import Box, ChunkPlan, ChunkProjection
from zarrfs.stores.base import Buffer
from zarrfs.threads import CPU_THREADS

log = logging.getLogger(__name__)

_WIDTH = CPU_THREADS + 1


@dataclass(frozen=True, slots=True)
class FileOrder:
    """How the file that is written lays the elements out: their type (of the same size, perhaps of another byte order) and ``fortran``
    order instead of C order."""

    dtype: np.dtype[Any]
    fortran: bool = False


class ArrayWriter:
    """The elements of one array being written as a run of bytes.

    ``reader``: where what was not written is read from; None for a new array, in which that is zeros. ``start_soon``: where chunks that
    were written whole may be stored before `publish`, in the background, when memory runs short; with None they go to a file in
    ``directory`` then. ``on_stored`` is told the keys of every chunk that was stored. Mutators are called by one task at a time.
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
    ) -> None:
        metadata = array.metadata
        self.array = array
        self.stored: set[Coords] = set()
        """Chunks that were stored by this writer and not erased again."""
        self._reader = reader
        self._position = reader.opened() if reader is not None else None
        self._dirty = DirtyChunks(budget, directory)
        self._budget = budget
        self._start_soon = start_soon
        self._ready: deque[Coords] = deque()
        self._storing: dict[Coords, trio.Event] = {}
        self._on_stored = on_stored
        self._order = file_order if file_order is not None else FileOrder(metadata.data_type.dtype)
        self._itemsize = metadata.data_type.itemsize
        self._shape: Shape = metadata.shape[::-1] if self._order.fortran else metadata.shape
        self._grid: ChunkGrid = _transposed(metadata.chunk_grid) if self._order.fortran else metadata.chunk_grid

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks that are dirty."""
        return self._dirty.nbytes

    async def write(self, offset: int, data: Buffer) -> None:
        """Put ``data`` at byte ``offset`` of the elements; the caller has checked that both lie in the array.

        Raises `StoreFull` when there is no room to stage more. What was staged before stays so.
        """
        first, stop = offset // self._itemsize, -(-(offset + len(data)) // self._itemsize)
        if offset % self._itemsize or (offset + len(data)) % self._itemsize:
            # Parts of elements at the ends: the rest of them comes from what is there.
            begin = offset - first * self._itemsize
            whole = bytearray(len(data) + begin + (-(begin + len(data)) % self._itemsize))
            whole[: self._itemsize] = await self.read(first * self._itemsize, self._itemsize)
            whole[-self._itemsize :] = await self.read((stop - 1) * self._itemsize, self._itemsize)
            whole[begin : begin + len(data)] = data
            data = whole
        values = np.frombuffer(data, self._order.dtype)
        for box, projection in self._plan(first, stop):
            await self._stored_by_now(projection.coords)
            chunk = self._dirty.get(projection.coords) or await self._add(projection.coords)
            source = values[box.offset : box.offset + box.size].reshape(box.shape)
            part(self._view(chunk.elements), projection.chunk_selection)[...] = part(source, projection.box_selection)
            chunk.written.add(*_span(projection, chunk.inside))
            if chunk.whole and self._start_soon is not None:
                self._ready.append(projection.coords)
        if self._budget.nbytes > self._budget.limit // 2:
            self._store_ahead()

    async def read(self, offset: int, size: int) -> Buffer:
        """``size`` bytes from byte ``offset`` of the elements as they will be: what was written, over what is stored."""
        first, stop = offset // self._itemsize, -(-(offset + size) // self._itemsize)
        pieces = list(self._plan(first, stop))
        while True:
            before = [self._dirty.get(projection.coords) for _, projection in pieces]
            whole = all(
                chunk is not None and chunk.written.covers(*_span(projection, chunk.inside))
                for chunk, (_, projection) in zip(before, pieces, strict=True)
            )
            out = np.empty(stop - first, self._order.dtype) if whole else await self._base(first, stop, pieces)
            if all(self._dirty.get(projection.coords) is chunk for chunk, (_, projection) in zip(before, pieces, strict=True)):
                break
            # A chunk was stored or became dirty meanwhile: what was read is of no time.
        for chunk, (box, projection) in zip(before, pieces, strict=True):
            if chunk is not None:
                place = part(out[box.offset : box.offset + box.size].reshape(box.shape), projection.box_selection)
                written = chunk.written.mask(*_span(projection, chunk.inside)).reshape(place.shape)
                place[written] = part(self._view(chunk.elements), projection.chunk_selection)[written]
        begin = offset - first * self._itemsize
        return out.view(np.uint8).data[begin : begin + size]

    async def publish(self) -> None:
        """Store every dirty chunk. When it raises, those that were not stored are still dirty."""
        self._ready.clear()
        await for_each(list(self._dirty), self._store, _WIDTH)

    async def publish_whole(self) -> None:
        """As `publish`, for a new array over one of the same metadata: of that, nothing is left. Where nothing was written is zeros."""
        metadata = self.array.metadata
        if any(metadata.fill_bytes):
            for coords in itertools.product(*map(range, metadata.grid_shape)):
                if coords not in self.stored and self._dirty.get(coords) is None:
                    chunk = await self._add(coords)
                    chunk.elements.reshape(-1).view(np.uint8)[...] = 0
                    chunk.written.add(0, math.prod(chunk.inside))
        await self.publish()
        left = [coords async for coords, _, _ in self.array.chunks.list() if coords not in self.stored]
        await for_each(left, self._erase, _WIDTH)

    async def aclose(self) -> None:
        """Let go of what is dirty; what is being stored in the background is waited for."""
        self._ready.clear()
        while self._storing:
            await next(iter(self._storing.values())).wait()
        self._dirty.close()
        if self._reader is not None and self._position is not None:
            self._reader.closed(self._position)
            self._position = None

    # --- dirty chunks -------------------------------------------------------------------------------------------------------

    def _plan(self, first: int, stop: int) -> Iterator[tuple[Box, ChunkProjection]]:
        """The parts of chunks that hold elements ``first`` to ``stop`` of the file; coordinates are the array's."""
        plan = ChunkPlan(self._shape, self._grid, first, stop)
        for box in plan.boxes():
            for projection in plan.projections(box):
                if self._order.fortran:
                    projection = ChunkProjection(projection.coords[::-1], projection.chunk_selection, projection.box_selection)
                yield box, projection

    def _view(self, elements: Elements) -> Elements:
        """A chunk as the file sees it."""
        return elements.T if self._order.fortran else elements

    def _inside(self, coords: Coords) -> Shape:
        """The shape of the part of a chunk that lies within the array, as the file sees it."""
        metadata = self.array.metadata
        spans = [metadata.chunk_grid.span(axis, index) for axis, index in enumerate(coords)]
        inside = tuple(min(end, extent) - begin for (begin, end), extent in zip(spans, metadata.shape, strict=True))
        return inside[::-1] if self._order.fortran else inside

    async def _add(self, coords: Coords) -> DirtyChunk:
        metadata = self.array.metadata
        arguments = (coords, metadata.chunk_grid.chunk_shape(coords), self._inside(coords), metadata.data_type.dtype)
        while (chunk := self._dirty.add_in_memory(*arguments)) is None:
            self._store_ahead()
            if not self._storing:
                return await self._dirty.add_in_file(*arguments)
            await next(iter(self._storing.values())).wait()
        return chunk

    # --- storing ------------------------------------------------------------------------------------------------------------

    def _store_ahead(self) -> None:
        """Begin to store chunks that were written whole, a few at once; errors are left to `publish`, which tries again."""
        while self._start_soon is not None and self._ready and len(self._storing) < _WIDTH:
            coords = self._ready.popleft()
            if self._dirty.get(coords) is not None and coords not in self._storing:
                self._storing[coords] = trio.Event()
                self._start_soon(self._store_early, coords)

    async def _store_early(self, coords: Coords) -> None:
        try:
            await self._store_marked(coords)
        except ZarrfsError as error:
            log.debug("storing ahead failed: %s", error)
        finally:
            self._storing.pop(coords).set()
            self._store_ahead()

    async def _stored_by_now(self, coords: Coords) -> None:
        """Wait until nobody is storing this chunk."""
        while (underway := self._storing.get(coords)) is not None:
            await underway.wait()

    async def _store(self, coords: Coords) -> None:
        await self._stored_by_now(coords)
        if self._dirty.get(coords) is None:
            return
        self._storing[coords] = trio.Event()
        try:
            await self._store_marked(coords)
        finally:
            self._storing.pop(coords).set()

    async def _store_marked(self, coords: Coords) -> None:
        chunk = self._dirty.get(coords)
        if chunk is None:
            return
        if not chunk.whole:
            await self._complete(coords, chunk)
        elements = chunk.elements
        data = elements.reshape(-1).view(np.uint8).data if elements.size else b""
        if await threads.cpu(elements.nbytes, self._is_fill, chunk):
            encoded = None
        else:
            encoded = await self.array.encode_chunk(coords, data)
        if encoded is not None:
            await self.array.chunks.update({coords: encoded})
            self.stored.add(coords)
            if self._on_stored is not None:
                self._on_stored(self.array.chunks.keys(coords))
        elif self._reader is not None or coords in self.stored:
            await self._erase(coords)
        self._dirty.remove(coords)

    async def _erase(self, coords: Coords) -> None:
        await self.array.chunks.update({coords: None})
        self.stored.discard(coords)

    async def _complete(self, coords: Coords, chunk: DirtyChunk) -> None:
        """Put what was not written in, from what is stored."""
        base = await self._stored_chunk(coords)
        inside = tuple(map(slice, chunk.inside))
        missing = ~chunk.written.mask(0, math.prod(chunk.inside)).reshape(chunk.inside)
        part(self._view(chunk.elements), inside)[missing] = part(self._view(base), inside)[missing]
        chunk.written.add(0, math.prod(chunk.inside))

    async def _stored_chunk(self, coords: Coords) -> Elements:
        """A chunk without what is dirty of it."""
        metadata = self.array.metadata
        elements = await self.array.read_chunk(coords) if self._reader is not None or coords in self.stored else None
        if elements is None:
            elements = np.zeros(metadata.chunk_grid.chunk_shape(coords), metadata.data_type.dtype)
            if self._reader is not None:
                fill(metadata, elements)
        return elements

    async def _base(self, first: int, stop: int, pieces: Sequence[tuple[Box, ChunkProjection]]) -> Elements:
        """Elements ``first`` to ``stop`` of the file as they are stored."""
        if self._reader is not None and self._position is not None:
            data = await self._reader.read(first * self._itemsize, (stop - first) * self._itemsize, self._position)
            return np.frombuffer(bytearray(data), self._order.dtype)
        out: Elements = np.zeros(stop - first, self._order.dtype)
        for coords, group in itertools.groupby(sorted(pieces, key=lambda piece: piece[1].coords), lambda piece: piece[1].coords):
            if coords in self.stored:
                elements = self._view(await self._stored_chunk(coords))
                for box, projection in group:
                    place = part(out[box.offset : box.offset + box.size].reshape(box.shape), projection.box_selection)
                    place[...] = part(elements, projection.chunk_selection)
        return out

    def _is_fill(self, chunk: DirtyChunk) -> bool:
        if self.array.metadata.fill_value is None:
            # Undefined: it equals nothing.
            return False
        pattern = np.frombuffer(self.array.metadata.fill_bytes, np.uint8)
        elements = part(self._view(chunk.elements), tuple(map(slice, chunk.inside)))
        if elements.size == 0:
            return True
        corner = elements[(slice(0, 1),) * elements.ndim]
        if not np.array_equal(np.ascontiguousarray(corner).reshape(-1).view(np.uint8), pattern):
            return False
        return bool((np.ascontiguousarray(elements).reshape(-1).view(np.uint8).reshape(-1, pattern.size) == pattern).all())


def _span(projection: ChunkProjection, inside: Shape) -> tuple[int, int]:
    """Which elements of the part of a chunk within the array (C order) a projection is: always a run, since a box is a range of the outer
    indices and all of the inner ones."""
    start = stop = 0
    for cut, extent in zip(projection.chunk_selection, inside, strict=True):
        start = start * extent + cut.start
        stop = stop * extent + cut.stop - 1
    return start, stop + 1


def _transposed(grid: ChunkGrid) -> ChunkGrid:
    assert isinstance(grid, RegularGrid)
    return RegularGrid(grid.chunks[::-1])
