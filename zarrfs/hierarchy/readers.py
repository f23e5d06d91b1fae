"""Reading elements of an array in C order, as whole-array files are read.

Two strategies behind one `ArrayReader.read`:

* **Slabs**, for a reader that goes forward: the rows of chunks around the place where it reads are decoded once, straight into their
  places of a recycled buffer, and the following reads are answered from there without a copy. The next slab is filled ahead.
  However little memory is allowed, one pass decodes each chunk once: a slab larger than the limit lies in a file.
* **Chunks**, for a reader that jumps: a cache of decoded chunks, of which the parts that were asked for are copied out.

Which one is used is decided for each open file by where it reads (`Position`). Both are safe for concurrent readers: a chunk is being
decoded at most once at any time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import trio

from zarrfs.errors import ZarrfsError
from zarrfs.hierarchy.arrays import Array, Elements, fill, part
from zarrfs.hierarchy.cache import ChunkCache
from zarrfs.hierarchy.concurrency import for_each
from zarrfs.hierarchy.slabs import Slab, SlabPool
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_plan import Box, ChunkPlan, ChunkProjection
from zarrfs.model.slab import SlabGrid
from zarrfs.stores.base import Buffer
from zarrfs.threads import CPU_THREADS

log = logging.getLogger(__name__)

# One slab is worth a buffer of this size at least, where the array has so much.
SLAB_NBYTES = 8 * 1024 * 1024
# The kernel's readahead sends requests ahead and out of order within about this window.
_WINDOW_NBYTES = 4 * 1024 * 1024
_WIDTH = CPU_THREADS + 1

StartSoon = Callable[..., None]


class Position:
    """Where one open file has been read, to tell a pass from jumps. Starts as a pass from the beginning."""

    __slots__ = ("_end", "reads")

    def __init__(self) -> None:
        self._end = 0
        self.reads = 0

    def goes_on(self, start: int, stop: int) -> bool:
        """Note a read of bytes ``start`` to ``stop``; whether it continues the pass."""
        self.reads += 1
        if abs(start - self._end) <= _WINDOW_NBYTES:
            self._end = max(self._end, stop)
            return True
        self._end = stop
        return False


class ReaderPool:
    """What the readers of a mount share: the cache, the slabs, and a nursery in which slabs are filled ahead."""

    def __init__(self, cache: ChunkCache, slabs: SlabPool, *, ttl: float, start_soon: StartSoon | None = None) -> None:
        self.cache = cache
        self.slabs = slabs
        self.ttl = ttl
        self.start_soon = start_soon

    def discard(self, serial: int) -> None:
        """Forget everything decoded of an array."""
        self.cache.discard(serial)
        self.slabs.discard(serial)


class ArrayReader:
    """The elements of one array as a run of bytes: C order, little-endian, chunks that are not stored as fill value."""

    def __init__(self, array: Array, pool: ReaderPool) -> None:
        self.array = array
        self._pool = pool
        self._itemsize = array.metadata.data_type.itemsize
        metadata = array.metadata
        self._slab_grid = SlabGrid(metadata.shape, metadata.chunk_grid, self._itemsize, SLAB_NBYTES)
        self._handles = 0
        self._valid_until = float("-inf")

    def opened(self) -> None:
        """A file over this array was opened. What was decoded before counts while files are open and for the pool's ``ttl``; the
        first one after that starts afresh, so that changes behind the mount are seen."""
        if self._handles == 0 and trio.current_time() > self._valid_until:
            self.discard()
            self._valid_until = trio.current_time() + self._pool.ttl
        self._handles += 1

    def closed(self) -> None:
        """A file over this array was closed."""
        self._handles -= 1

    async def chunk(self, coords: Coords, generation: str | None = None) -> Elements | None:
        """A decoded chunk at its full shape, through the cache; read-only; None when it is not stored."""
        return await self._pool.cache.get((self.array.serial, coords), lambda: self.array.read_chunk(coords), generation)

    def discard(self, coords: Coords | None = None) -> None:
        """Forget what was decoded of one chunk, or of all."""
        serial = self.array.serial
        self._pool.cache.discard(serial, coords)
        if coords is None:
            self._pool.slabs.discard(serial)
        elif self.array.has(coords):
            self._pool.slabs.discard(serial, self._slab_grid.row_of(coords) // self._slab_grid.rows_per_slab)

    async def read(self, offset: int, size: int, position: Position) -> Buffer:
        """``size`` bytes from byte ``offset`` of the elements; the caller has clamped both to the array.

        The result may be a view of a slab: it is valid until the caller awaits something.
        """
        if size <= 0:
            return b""
        if position.goes_on(offset, offset + size):
            first = self._slab_grid.slab_at(offset // self._itemsize)
            last = self._slab_grid.slab_at((offset + size - 1) // self._itemsize)
            if first == last:
                view = await self._from_slab(first, offset, size, ahead=position.reads > 1)
                if view is not None:
                    return view
            else:
                return await self._across_slabs(first, last, offset, size)
        return await self._from_chunks(offset, size)

    # --- slabs --------------------------------------------------------------------------------------------------------------

    async def _across_slabs(self, first: int, last: int, offset: int, size: int) -> Buffer:
        out = bytearray(size)
        done = 0
        for index in range(first, last + 1):
            end = min(offset + size, self._slab_grid.extent(index)[1] * self._itemsize)
            start = offset + done
            view = await self._from_slab(index, start, end - start, ahead=index == last)
            out[done : end - offset] = view if view is not None else await self._from_chunks(start, end - start)
            done = end - offset
        return out

    async def _from_slab(self, index: int, offset: int, size: int, *, ahead: bool) -> memoryview | None:
        slab = self._slab(index)
        if slab is None:
            return None
        if not slab.complete:
            slab.pins += 1
            try:
                await self._fill(slab, self._touched(slab, offset, size))
            finally:
                slab.pins -= 1
        if ahead:
            self._fill_ahead(index, slab)
        start = offset - slab.first * self._itemsize
        return slab.memory.data[start : start + size]

    def _slab(self, index: int) -> Slab | None:
        key = (self.array.serial, index)
        slab = self._pool.slabs.get(key)
        if slab is None:
            first, stop = self._slab_grid.extent(index)
            try:
                slab = self._pool.slabs.add(key, first, stop, (stop - first) * self._itemsize, most=2 * self._handles + 1)
            except (OSError, ValueError) as error:
                log.warning("no room for a slab of %d bytes, reading %s chunk by chunk: %s", stop - first, self.array.path, error)
                return None
        return slab

    def _touched(self, slab: Slab, offset: int, size: int) -> list[Coords]:
        metadata = self.array.metadata
        start, stop = offset // self._itemsize, -(-(offset + size) // self._itemsize)
        plan = ChunkPlan(metadata.shape, metadata.chunk_grid, start, stop)
        return [coords for coords in plan.coords() if coords not in slab.filled]

    async def _fill(self, slab: Slab, coords: Iterable[Coords]) -> None:
        await for_each(coords, lambda each: self._fill_chunk(slab, each), _WIDTH)

    async def _fill_chunk(self, slab: Slab, coords: Coords) -> None:
        while (underway := slab.filling.get(coords)) is not None:
            await underway.wait()
        if coords in slab.filled:
            return
        done = slab.filling[coords] = trio.Event()
        try:
            row = self._slab_grid.row(self._slab_grid.row_of(coords))
            piece = self._slab_grid.piece(coords)
            start = (row.start - slab.first) * self._itemsize
            box = slab.memory[start : start + (row.stop - row.start) * self._itemsize]
            out = part(box.view(self.array.metadata.data_type.dtype).reshape(row.shape), piece.row_selection)
            cached, elements = self._pool.cache.peek((self.array.serial, coords))
            if cached and elements is not None:
                out[...] = elements[piece.chunk_selection]
            elif cached or not await self.array.read_chunk_into(coords, out, piece.chunk_selection):
                fill(self.array.metadata, out)
            slab.filled.add(coords)
            slab.decoded(out.nbytes)
        finally:
            del slab.filling[coords]
            done.set()

    def _fill_ahead(self, index: int, slab: Slab) -> None:
        """Complete this slab, then the next one, in the background; errors are left to the reader that needs the chunk."""
        start_soon = self._pool.start_soon
        if start_soon is None:
            return
        if not slab.complete and not slab.filling:
            start_soon(self._complete, index)
        elif (
            slab.complete
            and index + 1 < self._slab_grid.slabs
            and self._pool.slabs.fits_two(slab.memory.nbytes)
            and self._pool.slabs.get((self.array.serial, index + 1)) is None
        ):
            self._slab(index + 1)
            # The one being read is used last, so that the one ahead never displaces it.
            self._pool.slabs.get(slab.key)
            start_soon(self._complete, index + 1)

    async def _complete(self, index: int) -> None:
        slab = self._pool.slabs.get((self.array.serial, index))
        if slab is None:
            return
        slab.pins += 1
        try:
            for number in self._slab_grid.row_numbers(index):
                await self._fill(slab, [coords for coords in self._slab_grid.coords(number) if coords not in slab.filled])
            slab.complete = True
        except ZarrfsError as error:
            log.debug("filling ahead stopped: %s", error)
        finally:
            slab.pins -= 1

    # --- chunks -------------------------------------------------------------------------------------------------------------

    async def _from_chunks(self, offset: int, size: int) -> Buffer:
        metadata = self.array.metadata
        start, stop = offset // self._itemsize, -(-(offset + size) // self._itemsize)
        plan = ChunkPlan(metadata.shape, metadata.chunk_grid, start, stop)
        out: np.ndarray[Any, np.dtype[Any]] = np.empty(stop - start, metadata.data_type.dtype)
        wanted: dict[Coords, list[tuple[Box, ChunkProjection]]] = {}
        for box in plan.boxes():
            for projection in plan.projections(box):
                wanted.setdefault(projection.coords, []).append((box, projection))

        async def copy(coords: Coords) -> None:
            elements = await self.chunk(coords)
            for box, projection in wanted[coords]:
                place = part(out[box.offset : box.offset + box.size].reshape(box.shape), projection.box_selection)
                if elements is None:
                    fill(metadata, place)
                else:
                    place[...] = elements[projection.chunk_selection]

        await for_each(wanted, copy, _WIDTH)
        cut = offset - start * self._itemsize
        return out.view(np.uint8).data[cut : cut + size]
