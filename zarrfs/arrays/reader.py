"""Reading elements of an array in C order, as whole-array files are read.

Two strategies behind one `ArrayReader.read`:

* **Slabs**, for a reader that goes forward: the rows of chunks around the place where it reads are decoded once, straight into their
  places of a recycled buffer, and the following reads are answered from there without a copy. The next slab is filled ahead.
  However little memory is allowed, one pass decodes each chunk once: slabs that an open file goes through are not displaced by
  others, and those that the memory has no room for lie in files.
* **Chunks**, for a reader that jumps: a cache of decoded chunks, of which the parts that were asked for are copied out.

Which one is used is decided for each open file by where it reads (`Position`). Both are safe for concurrent readers: a chunk is being
decoded at most once at any time.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import trio

from zarrfs import threads
from zarrfs.arrays.array import Array, ChunkPart, Elements, fill, part
from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.concurrency import for_each
from zarrfs.arrays.flight import Flight
from zarrfs.arrays.position import SLABS_AHEAD, WINDOW_NBYTES, Position
from zarrfs.arrays.slab_pool import Slab, SlabKey, SlabPool
from zarrfs.errors import StoreError, StoreTimeout, ZarrfsError
from zarrfs.memory.copying import copy
from zarrfs.memory.spill import is_large
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_plan import Box, ChunkPlan, ChunkProjection
from zarrfs.model.metadata import ArrayMetadata
from zarrfs.model.slab import SlabGrid
from zarrfs.stores.values import Buffer
from zarrfs.threads import CPU_THREADS

log = logging.getLogger(__name__)

# One slab is worth a buffer of this size at least, where the array has so much.
SLAB_NBYTES = 8 * 1024 * 1024
_WIDTH = CPU_THREADS + 1
# Chunks are got and decoded together up to so many bytes: a hop to a thread costs as much as decoding 256 KiB of lz4.
_BATCH_NBYTES = 8 * 1024 * 1024
# Each costs some 20 microseconds on the event loop.
_BATCH_CHUNKS = 128
# Chunks that are planned at once: an array may have as many as elements.
_PORTION = 1024
# Chunks that are asked for one by one at the same time, to find which of them the store does not answer for.
_SINGLY = 64

StartSoon = Callable[..., None]


class ReaderPool:
    """What the readers of a mount share: the cache, the slabs and about how large one is, within how many bytes of the last read the
    next one goes on, and a nursery in which slabs are filled ahead."""

    def __init__(
        self,
        cache: ChunkCache,
        slabs: SlabPool,
        *,
        ttl: float,
        start_soon: StartSoon | None = None,
        slab_nbytes: int = SLAB_NBYTES,
        window_nbytes: int = WINDOW_NBYTES,
    ) -> None:
        self.cache = cache
        self.slabs = slabs
        self.ttl = ttl
        self.start_soon = start_soon
        self.slab_nbytes = slab_nbytes
        self.window_nbytes = window_nbytes
        self.epoch = 0
        """Counts how often everything was discarded."""

    def discard_all(self) -> None:
        """As `ArrayReader.discard` of every array."""
        self.epoch += 1
        self.cache.discard_all()
        self.slabs.discard_all()


class ArrayReader:
    """The elements of one array as a run of bytes: C order, little-endian, chunks that are not stored as fill value."""

    def __init__(self, array: Array, pool: ReaderPool) -> None:
        self.array = array
        # Of the same chunks, in other shapes.
        self.earlier: weakref.WeakSet[ArrayReader] = weakref.WeakSet()
        self._pool = pool
        metadata = array.metadata
        self._itemsize = metadata.data_type.itemsize
        self._slab_grid = SlabGrid(metadata.shape, metadata.chunk_grid, self._itemsize, pool.slab_nbytes)
        self._handles = 0
        self._valid_until = float("-inf")
        self._epoch = pool.epoch
        self._has_no_room = False
        self._ahead: set[trio.CancelScope] = set()
        """Decoding large chunks that nobody has asked for yet."""

    def opened(self) -> Position:
        """A file over this array was opened: where it will be read. What was decoded before counts for the pool's ``ttl``; the first
        file that is opened after that starts afresh, so that changes behind the mount are seen."""
        if trio.current_time() > self._valid_until or self._epoch != self._pool.epoch:
            self.discard()
            self._epoch = self._pool.epoch
            self._valid_until = trio.current_time() + self._pool.ttl
        self._handles += 1
        return Position(self._pool.window_nbytes)

    def closed(self, position: Position) -> None:
        """A file over this array was closed."""
        self._handles -= 1
        self._let_go(position)
        if not self._handles:
            for scope in self._ahead:
                scope.cancel()

    async def chunk(self, coords: Coords, generation: str | None = None, stored: Buffer | None = None) -> Elements | None:
        """A decoded chunk at its full shape, through the cache; read-only; None when it is not stored. Raises `GenerationMismatch` when
        it is no longer the ``generation`` that the caller named, who may have it as it is ``stored`` already."""

        async def read() -> Elements | None:
            if stored is not None:
                return await self.array.decode_chunk(coords, stored)
            return await self.array.read_chunk(coords, generation)

        return await self._pool.cache.get((self.array.serial, coords), read, generation)

    def discard(self, coords: Coords | None = None) -> None:
        """Forget what was decoded of one chunk, or of all, here and in `earlier`."""
        serial = self.array.serial
        self._pool.cache.discard(serial, coords)
        if coords is None:
            self._valid_until = float("-inf")
            self._pool.slabs.discard(serial)
        elif self.array.has(coords):
            self._pool.slabs.discard(serial, self._slab_grid.row_of(coords) // self._slab_grid.rows_per_slab)
        for each in self.earlier:
            each.discard(coords)

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
                view = await self._from_slab(first, offset, size, position, ahead=position.reads > 1)
                if view is not None:
                    return view
            else:
                return await self._across_slabs(first, last, offset, size, position)
        else:
            self._let_go(position)
            view = await self._from_other_pass(offset, size)
            if view is not None:
                return view
        return await self._from_chunks(offset, size)

    # --- slabs --------------------------------------------------------------------------------------------------------------

    async def _across_slabs(self, first: int, last: int, offset: int, size: int, position: Position) -> Buffer:
        out = bytearray(size)
        done = 0
        for index in range(first, last + 1):
            end = min(offset + size, self._slab_grid.extent(index)[1] * self._itemsize)
            start = offset + done
            view = await self._from_slab(index, start, end - start, position, ahead=index == last)
            out[done : end - offset] = view if view is not None else await self._from_chunks(start, end - start)
            done = end - offset
        return out

    async def _from_slab(self, index: int, offset: int, size: int, position: Position, *, ahead: bool) -> memoryview | None:
        slab = await self._slab(index)
        if slab is None:
            return None
        self._held(slab, position)
        view = await self._view(slab, offset, size)
        if ahead:
            position.slab = index
            self._fill_ahead(index, position)
        return view

    async def _from_other_pass(self, offset: int, size: int) -> memoryview | None:
        """A jump to where a slab already is, is answered from it: what another pass decodes is not decoded again. A program that reads
        behind another one jumps, since the kernel answers it from the other's pages."""
        slab = self._pool.slabs.get(self._extent(self._slab_grid.slab_at(offset // self._itemsize))[0])
        if slab is None or offset + size > slab.stop * self._itemsize:
            return None
        return await self._view(slab, offset, size)

    async def _view(self, slab: Slab, offset: int, size: int) -> memoryview:
        """These bytes of a slab, after the chunks that they need were filled in."""
        if not slab.complete:
            slab.pins += 1
            try:
                touched = self._touched(slab, offset, size)
                while some := list(itertools.islice(touched, _PORTION)):
                    await self._fill(slab, some)
                    await trio.lowlevel.checkpoint()
            finally:
                slab.pins -= 1
        slab.used(size)
        start = offset - slab.first * self._itemsize
        return slab.memory.data[start : start + size]

    async def _slab(self, index: int) -> Slab | None:
        try:
            return await self._pool.slabs.get_or_add(*self._extent(index))
        except OSError as error:
            if not self._has_no_room:
                log.warning("there is no room for a row of chunks of %s, which is read chunk by chunk: %s", self.array.path, error)
                self._has_no_room = True
            return None

    def _extent(self, index: int) -> tuple[SlabKey, int, int, int]:
        first, stop = self._slab_grid.extent(index)
        return (self.array.serial, index), first, stop, (stop - first) * self._itemsize

    def _let_go(self, position: Position) -> None:
        for slab in position.let_go():
            # What lies in memory may be read again and is given up when memory is needed; a file on the disk is not left behind.
            if slab.spilled:
                self._pool.slabs.passed(slab)

    def _held(self, slab: Slab, position: Position) -> None:
        passed = position.hold(slab)
        if passed is not None:
            self._pool.slabs.passed(passed)

    def _touched(self, slab: Slab, offset: int, size: int) -> Iterator[Coords]:
        metadata = self.array.metadata
        start, stop = offset // self._itemsize, -(-(offset + size) // self._itemsize)
        plan = ChunkPlan(metadata.shape, metadata.chunk_grid, start, stop)
        return (coords for coords in plan.coords() if not self._is_filled(slab, coords))

    def _is_filled(self, slab: Slab, coords: Coords) -> bool:
        return self._slab_grid.number_in(slab.key[1], coords) in slab.filled

    async def _fill(self, slab: Slab, coords: Iterable[Coords]) -> None:
        """Fill in these chunks; returns when they are there, whoever fills them."""
        wanted = [each for each in coords if not self._is_filled(slab, each)]
        while wanted:
            batches = [(Flight(), batch) for batch in self._batches([each for each in wanted if each not in slab.filling])]
            for flight, batch in batches:
                slab.filling.update(dict.fromkeys(batch, flight))
            try:
                await for_each(batches, lambda each: self._fill_batch(slab, *each), _WIDTH)
            finally:
                for flight, batch in batches:
                    _landed(slab, flight, batch)
            for each in wanted:
                while (underway := slab.filling.get(each)) is not None:
                    try:
                        await underway.landed()
                    except StoreError:
                        if not self._is_filled(slab, each):
                            raise
            # What somebody else did not fill is tried here too: the error is this reader's as well.
            wanted = [each for each in wanted if not self._is_filled(slab, each)]

    def _nbytes_per_chunk(self, slab: Slab) -> int:
        return slab.memory.nbytes // self._slab_grid.chunks(slab.key[1])

    def _batches(self, coords: Sequence[Coords]) -> list[Sequence[Coords]]:
        """Chunks that are got and decoded together: as many batches as can be worked on at once, but none too large."""
        if not coords:
            return []
        chunk_nbytes = max(1, self.array.metadata.max_chunk_nbytes)
        size = max(1, min(-(-len(coords) // CPU_THREADS), _BATCH_NBYTES // chunk_nbytes, _BATCH_CHUNKS))
        return [coords[start : start + size] for start in range(0, len(coords), size)]

    async def _fill_batch(self, slab: Slab, flight: Flight, batch: Sequence[Coords]) -> None:
        with flight.under_way():
            try:
                await self._fill_places(slab, [self._place(slab, each) for each in batch])
            finally:
                _landed(slab, flight, batch)

    async def _fill_places(self, slab: Slab, places: Sequence[ChunkPart]) -> None:
        unread: list[ChunkPart] = []
        known: list[tuple[ChunkPart, Elements | None]] = []
        for place in places:
            cached, elements = self._pool.cache.peek((self.array.serial, place.coords))
            if cached:
                known.append((place, elements))
            else:
                unread.append(place)
        read = dict(zip([place.coords for place in unread], await self._read_into(unread), strict=True))
        known.extend((place, None) for place in unread if read[place.coords] is False)
        if known:
            await threads.cpu(sum(place.out.nbytes for place, _ in known), self._put, known)
        failed: ZarrfsError | None = None
        for place in places:
            result = read.get(place.coords, True)
            if isinstance(result, ZarrfsError):
                failed = failed or result
                continue
            slab.filled.add(self._slab_grid.number_in(slab.key[1], place.coords))
            slab.used(place.out.nbytes)
        slab.complete = len(slab.filled) == self._slab_grid.chunks(slab.key[1])
        if failed is not None:
            raise failed

    def _put(self, places: Sequence[tuple[ChunkPart, Elements | None]]) -> None:
        """Copy what is at hand, and fill in what is not stored."""
        for place, elements in places:
            if elements is None:
                fill(self.array.metadata, place.out)
            else:
                copy(place.out, elements[place.selection])

    async def _read_into(self, places: Sequence[ChunkPart]) -> list[bool | ZarrfsError]:
        """`Array.read_chunks_into`; where the store does not answer for all in time, one may be slow, and each is asked for by itself."""
        try:
            return await self.array.read_chunks_into(places)
        except StoreTimeout:
            if len(places) == 1:
                raise
        results: dict[Coords, bool | ZarrfsError] = {}

        async def read(place: ChunkPart) -> None:
            try:
                results[place.coords] = (await self.array.read_chunks_into([place]))[0]
            except StoreTimeout as error:
                results[place.coords] = error

        await for_each(places, read, _SINGLY)
        return [results[place.coords] for place in places]

    def _place(self, slab: Slab, coords: Coords) -> ChunkPart:
        """Where in the slab's memory a chunk goes, and which part of it."""
        row = self._slab_grid.row(self._slab_grid.row_of(coords))
        piece = self._slab_grid.piece(coords)
        start = (row.start - slab.first) * self._itemsize
        box = slab.memory[start : start + (row.stop - row.start) * self._itemsize]
        out = part(box.view(self.array.metadata.data_type.dtype).reshape(row.shape), piece.row_selection)
        return ChunkPart(coords, out, piece.chunk_selection)

    def _fill_ahead(self, index: int, position: Position) -> None:
        """Complete this slab, then the next ones, in the background; errors are left to the reader that needs the chunk.

        Only in memory: who reads the first bytes of a huge array does not want a file of its first row of chunks.
        """
        start_soon = self._pool.start_soon
        if start_soon is None or self._slab_grid.chunks(index) > SlabGrid.MAX_CHUNKS:
            return
        for number in range(index, min(index + SLABS_AHEAD + 1, self._slab_grid.slabs)):
            extent = self._extent(number)
            slab = self._pool.slabs.get(extent[0]) or self._pool.slabs.add_in_memory(*extent)
            if slab is None or slab.spilled:
                return
            self._held(slab, position)
            if not slab.complete:
                if not slab.ahead:
                    slab.ahead = True
                    start_soon(self._complete, slab, position)
                return

    async def _complete(self, slab: Slab, position: Position) -> None:
        def missing() -> Iterator[Coords]:
            for number in self._slab_grid.row_numbers(slab.key[1]):
                for coords in self._slab_grid.coords(number):
                    if slab.stale or not self._handles:
                        slab.ahead = False
                        return
                    if not self._is_filled(slab, coords):
                        yield coords

        # A few batches at a time, so that it ends soon after the last file is closed; a large chunk is not waited for.
        portion = max(2 * _WIDTH, min(_PORTION, _BATCH_NBYTES * _WIDTH // max(1, self._nbytes_per_chunk(slab))))
        todo = missing()
        slab.pins += 1
        scope = trio.CancelScope()
        if is_large(self.array.metadata.max_chunk_nbytes):
            self._ahead.add(scope)
        try:
            with scope:
                while some := list(itertools.islice(todo, portion)):
                    await self._fill(slab, some)
        except ZarrfsError as error:
            log.debug("filling ahead stopped: %s", error)
            return
        finally:
            self._ahead.discard(scope)
            slab.pins -= 1
        if scope.cancelled_caught:
            slab.ahead = False
            return
        if position.slab is not None and slab.complete:
            self._fill_ahead(position.slab, position)

    # --- chunks -------------------------------------------------------------------------------------------------------------

    async def _from_chunks(self, offset: int, size: int) -> Buffer:
        metadata = self.array.metadata
        start, stop = offset // self._itemsize, -(-(offset + size) // self._itemsize)
        out: np.ndarray[Any, np.dtype[Any]] = np.empty(stop - start, metadata.data_type.dtype)
        step = _PORTION * _run_length(metadata)
        for first in range(start, stop, step):
            last = min(first + step, stop)
            await self._copy_chunks(out[first - start : last - start], first, last)
        cut = offset - start * self._itemsize
        return out.view(np.uint8).data[cut : cut + size]

    async def _copy_chunks(self, out: Elements, start: int, stop: int) -> None:
        """Elements ``start`` to ``stop`` into ``out``, through the chunk cache."""
        metadata = self.array.metadata
        plan = ChunkPlan(metadata.shape, metadata.chunk_grid, start, stop)
        wanted: dict[Coords, list[tuple[Box, ChunkProjection]]] = {}
        for box in plan.boxes():
            for projection in plan.projections(box):
                wanted.setdefault(projection.coords, []).append((box, projection))

        async def put(coords: Coords) -> None:
            elements = await self.chunk(coords)
            for box, projection in wanted[coords]:
                place = part(out[box.offset : box.offset + box.size].reshape(box.shape), projection.box_selection)
                if elements is None:
                    fill(metadata, place)
                else:
                    place[...] = elements[projection.chunk_selection]

        await for_each(wanted, put, _WIDTH)


def _run_length(metadata: ArrayMetadata) -> int:
    """Elements, consecutive in C order, that lie in one chunk; on average."""
    shape = metadata.shape
    return max(1, shape[-1] // max(1, metadata.grid_shape[-1])) if shape else 1


def _landed(slab: Slab, flight: Flight, batch: Sequence[Coords]) -> None:
    """A batch is over, or was not begun: its chunks are free to be filled by others, who may have begun already."""
    for each in batch:
        if slab.filling.get(each) is flight:
            del slab.filling[each]
    flight.land()
