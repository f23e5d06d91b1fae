"""Reads of array elements in C order, for whole-array files.

`ArrayReader.read` has two strategies, selected by the read position of each open file (`Position`):

* **Slabs**, for sequential reads: the rows of chunks around the read position are decoded once, directly into a recycled buffer, and
  the following reads are answered from it without a copy. The next slab is filled ahead. With any memory limit, one pass decodes each
  chunk once: slabs in use by an open file are not displaced by others, and those that exceed the memory are in files.
* **Chunks**, for random reads: a cache of decoded chunks, from which the requested parts are copied.

Both are safe for concurrent readers: no chunk is decoded twice at a time, except small ones where no slab has room.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import trio

from zarrfs import threads
from zarrfs.arrays.array import Array, ChunkPart
from zarrfs.arrays.chunk_cache import Encoded
from zarrfs.arrays.concurrency import for_each
from zarrfs.arrays.filling import fill, part
from zarrfs.arrays.flight import Flight
from zarrfs.arrays.position import SLABS_AHEAD, Position
from zarrfs.arrays.reader_pool import ReaderPool
from zarrfs.arrays.slab_pool import Slab, SlabKey
from zarrfs.arrays.small_chunks import are_small
from zarrfs.arrays.small_filling import SmallChunks
from zarrfs.buffers import Buffer, NDArray
from zarrfs.errors import StoreError, StoreTimeout, ZarrfsError
from zarrfs.memory.copying import copy
from zarrfs.memory.spill import is_large
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_plan import Box, ChunkPlan, ChunkProjection, run_length
from zarrfs.model.number_set import merged, portions, without
from zarrfs.model.slab import SlabGrid
from zarrfs.threads import CPU_THREADS

log = logging.getLogger(__name__)

_WIDTH = CPU_THREADS + 1
# Chunks are got and decoded together up to this many bytes: a hop to a thread costs as much as decoding 256 KiB of lz4.
_BATCH_NBYTES = 8 * 1024 * 1024
# Each chunk costs some 20 microseconds on the event loop.
_BATCH_CHUNKS = 128
# Chunks planned at once: an array may have as many chunks as elements.
_PORTION = 1024
# Small chunks of a jump that are read together.
_MANY = 64
# Concurrent single requests, to find the chunks for which the store does not answer.
_SINGLY = 64


class ArrayReader:
    """The elements of one array as a byte sequence: C order, little-endian, missing chunks as fill value."""

    def __init__(self, array: Array, pool: ReaderPool) -> None:
        self.array = array
        self._earlier: weakref.WeakSet[ArrayReader] | None = None
        self._pool, self.cache = pool, pool.cache
        metadata = array.metadata
        self._itemsize = metadata.data_type.itemsize
        self._slab_grid = SlabGrid(metadata.shape, metadata.chunk_grid, self._itemsize, pool.slab_nbytes)
        self._small = SmallChunks(array, pool, self._slab_grid) if are_small(metadata) else None
        self._handles = 0
        self._valid_until = float("-inf")
        self._epoch = pool.epoch
        self._changes = 0
        self._has_no_room = False
        self._ahead: list[trio.CancelScope] = []
        """Decodings of large chunks that no read has requested yet."""

    def new_position(self) -> Position:
        """Record an open of the array's file; return its read position. Decoded chunks that are no longer valid are discarded."""
        self.expire()
        self._handles += 1
        return Position(self._pool.window_nbytes)

    def generation(self) -> tuple[int, int]:
        """Return another value after each change of elements that is known, or possible since decoded chunks are no longer valid."""
        self.expire()
        return self.array.serial, self._changes

    def expire(self) -> None:
        """Discard decoded chunks that are no longer valid, at an open of the array's file."""
        if trio.current_time() > self._valid_until or self._epoch != self._pool.epoch:
            self.discard()
            self._epoch = self._pool.epoch
            self._valid_until = trio.current_time() + self._pool.ttl

    def closed(self, position: Position) -> None:
        """Record the close of a file."""
        position.is_closed = True
        self._handles -= 1
        self._let_go(position)
        if not self._handles:
            for scope in self._ahead:
                scope.cancel()

    async def chunk(self, coords: Coords, generation: str | None = None, stored: Encoded | None = None) -> NDArray | None:
        """Return a decoded chunk at its full shape, through the cache, read-only; None if it is not stored.

        ``stored`` is its encoded form, if known. Raises `GenerationMismatch` if it is no longer of the requested ``generation``."""

        array = self.array

        async def read() -> NDArray | None:
            return await (array.read_chunk(coords, generation) if stored is None else array.decode_chunk(coords, stored.data))

        return await self.cache.get((array.serial, coords), read, generation, None if stored is None else stored.since)

    def discard(self, coords: Coords | None = None) -> None:
        """Discard the decoded form of one chunk, or of all, here and in the readers that it follows."""
        serial, self._changes = self.array.serial, self._changes + 1
        self.cache.discard(serial, coords)
        if coords is None:
            self._valid_until = float("-inf")
            self._pool.slabs.discard(serial)
        elif self.array.has(coords):
            self._pool.slabs.discard_chunk(serial, *self._slab_grid.place_of(coords))
        for each in self._earlier or ():
            each.discard(coords)

    def follows(self, earlier: Iterable[ArrayReader]) -> None:
        """Record the readers of the same chunks under earlier shapes, as far as they are in use: they discard what this one does."""
        # Most arrays have none, and there may be tens of thousands.
        self._earlier = weakref.WeakSet(earlier) or None

    async def read(self, offset: int, size: int, position: Position) -> Buffer:
        """Return ``size`` bytes from byte ``offset`` of the elements; the caller has clamped both to the array.

        The result may be a view of a slab: it is valid until the caller awaits."""
        if size <= 0:
            return b""
        if not (goes_on := position.goes_on(offset, offset + size)):
            self._let_go(position)
            if (view := await self._from_other_pass(offset, size)) is not None:
                return view
        # Many small chunks cost less together, as a listing shows which are missing: the kernel reads around a page of a mapping.
        if goes_on or (self._small is not None and size > _MANY * self.array.metadata.max_chunk_nbytes):
            first, last = (self._slab_grid.slab_at(byte // self._itemsize) for byte in (offset, offset + size - 1))
            if first != last:
                return await self._across_slabs(first, last, offset, size, position, ahead=goes_on)
            view = await self._from_slab(first, offset, size, position, ahead=goes_on and position.reads > 1)
            if view is not None:
                return view
        return await self._from_chunks(offset, size)

    # --- slabs --------------------------------------------------------------------------------------------------------------

    async def _across_slabs(self, first: int, last: int, offset: int, size: int, position: Position, *, ahead: bool) -> Buffer:
        out = bytearray(size)
        done = 0
        for index in range(first, last + 1):
            end = min(offset + size, self._slab_grid.extent(index)[1] * self._itemsize)
            start = offset + done
            view = await self._from_slab(index, start, end - start, position, ahead=ahead and index == last)
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
        """Return the bytes of a jump from an existing slab of another pass, if there is one; chunks are then not decoded again.

        A program that follows another one through a file jumps, as the kernel answers it from the other's pages."""
        slab = self._pool.slabs.get(self._extent(self._slab_grid.slab_at(offset // self._itemsize))[0])
        if slab is None or offset + size > slab.stop * self._itemsize:
            return None
        return await self._view(slab, offset, size)

    async def _view(self, slab: Slab, offset: int, size: int) -> memoryview | None:
        """Return these bytes of a slab, after filling the chunks that they need; None if its file may have lost bytes."""
        if not slab.complete:
            slab.pins += 1
            try:
                for some in portions(self._touched(slab, offset, size), self._portion):
                    await self._fill(slab, some)
                    await trio.lowlevel.checkpoint()
            finally:
                slab.pins -= 1
        slab.used(size)
        if not slab.is_intact:
            self._pool.slabs.discard(*slab.key)
            return None
        start = offset - slab.first * self._itemsize
        return slab.memory.data[start : start + size]

    async def _slab(self, index: int) -> Slab | None:
        try:
            return await self._pool.slabs.get_or_add(*self._extent(index))
        except OSError as error:
            if not self._has_no_room:
                log.warning("%s: no room for a row of chunks, reading chunk by chunk: %s", self.array.path, error)
                self._has_no_room = True
            return None

    def _extent(self, index: int) -> tuple[SlabKey, int, int, int]:
        first, stop = self._slab_grid.extent(index)
        return (self.array.serial, index), first, stop, (stop - first) * self._itemsize

    def _let_go(self, position: Position) -> None:
        for slab in position.let_go():
            # Slabs in memory may be read again, and go when memory is needed; files on the disk are released now.
            if slab.spilled:
                self._pool.slabs.passed(slab)

    def _held(self, slab: Slab, position: Position) -> None:
        passed = position.hold(slab)
        if passed is not None:
            self._pool.slabs.passed(passed)

    def _touched(self, slab: Slab, offset: int, size: int) -> list[range]:
        """Return the numbers of the chunks that these bytes need and that are not filled."""
        start, stop = offset // self._itemsize, -(-(offset + size) // self._itemsize)
        return self._unfilled(slab, merged(self._slab_grid.numbers(slab.key[1], start, stop)))

    def _unfilled(self, slab: Slab, numbers: Iterable[range]) -> list[range]:
        return [gap for each in numbers for gap in slab.filled.gaps(each)]

    async def _fill(self, slab: Slab, numbers: Iterable[range]) -> None:
        """Fill the chunks with these numbers; return when they are filled, by this task or by others."""
        wanted = self._unfilled(slab, numbers)
        while wanted:
            batches = [(Flight(), batch) for batch in self._batches(list(without(wanted, slab.filling.values())))]
            slab.filling.update(batches)
            try:
                await for_each(batches, lambda each: self._fill_batch(slab, *each), _WIDTH)
            finally:
                for flight, _ in batches:
                    _landed(slab, flight)
            while (underway := _underway(slab, wanted)) is not None:
                flight, shared = underway
                try:
                    await flight.landed()
                except StoreError:
                    if self._unfilled(slab, shared):
                        raise
            # Chunks that another task failed to fill are tried here too: the error is also this reader's.
            wanted = self._unfilled(slab, wanted)

    def _nbytes_per_chunk(self, slab: Slab) -> int:
        return slab.memory.nbytes // self._slab_grid.chunks(slab.key[1])

    def _batches(self, numbers: Sequence[range]) -> list[range]:
        """Return groups of chunks to get and decode together: one for each worker, within a maximum size."""
        if self._small is not None:
            size = self._small.batch
        else:
            count = sum(map(len, numbers))
            chunk_nbytes = max(1, self.array.metadata.max_chunk_nbytes)
            size = max(1, min(-(-count // CPU_THREADS), _BATCH_NBYTES // chunk_nbytes, _BATCH_CHUNKS))
        return [each[start : start + size] for each in numbers for start in range(0, len(each), size)]

    @property
    def _portion(self) -> int:
        """Number of chunks planned at once: an array may have as many as elements."""
        return _PORTION if self._small is None else max(_PORTION, self._small.batch)

    async def _fill_batch(self, slab: Slab, flight: Flight, batch: range) -> None:
        with flight.under_way():
            try:
                if self._small is None:
                    await self._fill_parts(slab, batch)
                elif not await self._small.fill(slab, batch):
                    await self._fill_parts(slab, batch, singly=True)
            finally:
                _landed(slab, flight)

    async def _fill_parts(self, slab: Slab, numbers: range, *, singly: bool = False) -> None:
        chunks = [self._part(slab, each) for each in self._slab_grid.coords_of(slab.key[1], numbers)]
        unread: list[ChunkPart] = []
        known: list[tuple[ChunkPart, NDArray | None]] = []
        for chunk in chunks:
            cached, elements = self.cache.peek((self.array.serial, chunk.coords))
            if cached:
                known.append((chunk, elements))
            else:
                unread.append(chunk)
        read = dict(
            zip(
                [chunk.coords for chunk in unread],
                await (self._read_singly(unread) if singly else self._read_into(unread)),
                strict=True,
            )
        )
        known.extend((chunk, None) for chunk in unread if read[chunk.coords] is False)
        if known:
            await threads.cpu(sum(chunk.out.nbytes for chunk, _ in known), self._put, known)
        failed: ZarrfsError | None = None
        for number, chunk in zip(numbers, chunks, strict=True):
            result = read.get(chunk.coords, True)
            if isinstance(result, ZarrfsError):
                failed = failed or result
                continue
            slab.filled.add(number)
            slab.used(chunk.out.nbytes)
        slab.complete = len(slab.filled) == self._slab_grid.chunks(slab.key[1])
        if failed is not None:
            raise failed

    def _put(self, chunks: Sequence[tuple[ChunkPart, NDArray | None]]) -> None:
        """Copy the cached chunks, and fill the missing ones."""
        for chunk, elements in chunks:
            if elements is None:
                fill(self.array.metadata, chunk.out)
            else:
                copy(chunk.out, part(elements, chunk.selection))

    async def _read_into(self, chunks: Sequence[ChunkPart]) -> list[bool | ZarrfsError]:
        """Run `Array.read_chunks_into`; if the store times out, request each chunk by itself, as one may be slow."""
        try:
            return await self.array.read_chunks_into(chunks)
        except StoreTimeout:
            if len(chunks) == 1:
                raise
        return await self._read_singly(chunks)

    async def _read_singly(self, chunks: Sequence[ChunkPart]) -> list[bool | ZarrfsError]:
        results: dict[Coords, bool | ZarrfsError] = {}

        async def read(chunk: ChunkPart) -> None:
            try:
                results[chunk.coords] = (await self.array.read_chunks_into([chunk]))[0]
            except StoreTimeout as error:
                results[chunk.coords] = error

        await for_each(chunks, read, _SINGLY)
        return [results[chunk.coords] for chunk in chunks]

    def _part(self, slab: Slab, coords: Coords) -> ChunkPart:
        """Return the position of a chunk in the slab's memory, and the part of it that belongs there."""
        row = self._slab_grid.row(self._slab_grid.row_of(coords))
        piece = self._slab_grid.piece(coords)
        start = (row.start - slab.first) * self._itemsize
        box = slab.memory[start : start + (row.stop - row.start) * self._itemsize]
        out = part(box.view(self.array.metadata.data_type.dtype).reshape(row.shape), piece.row_selection)
        return ChunkPart(coords, out, piece.chunk_selection)

    def _fill_ahead(self, index: int, position: Position) -> None:
        """Complete this slab, then the next ones, in the background; an error is left to the reader that needs the chunk.

        In memory only: a read of the first bytes of a huge array must not create a file for its first row of chunks."""
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
        # A few batches at a time, so that it ends soon after the last file is closed, without waiting for a large chunk.
        portion = max(2 * _WIDTH, min(self._portion, _BATCH_NBYTES * _WIDTH // max(1, self._nbytes_per_chunk(slab))))
        slab.pins, slab.completing = slab.pins + 1, True
        scope = trio.CancelScope()
        if is_large(self.array.metadata.max_chunk_nbytes):
            self._ahead.append(scope)
        try:
            with scope:
                for some in portions(slab.filled.gaps(range(self._slab_grid.chunks(slab.key[1]))), portion):
                    if slab.stale or not self._handles:
                        slab.ahead = False
                        return
                    await self._fill(slab, some)
        except ZarrfsError as error:
            log.debug("filling ahead stopped: %s", error)
            return
        finally:
            if scope in self._ahead:
                self._ahead.remove(scope)
            slab.pins, slab.completing = slab.pins - 1, False
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
        step = _PORTION * (run := run_length(metadata.shape, metadata.chunk_grid))
        many = self._small if self._has_no_room and stop - start > _MANY * run else None
        for first in range(start, stop, step):
            last = min(first + step, stop)
            some = out[first - start : last - start]
            if many is None or not await many.copy(some, first, last):
                await self._copy_chunks(some, first, last)
        cut = offset - start * self._itemsize
        return out.view(np.uint8).data[cut : cut + size]

    async def _copy_chunks(self, out: NDArray, start: int, stop: int) -> None:
        """Copy elements ``start`` to ``stop`` into ``out``, through the chunk cache."""
        metadata = self.array.metadata
        plan = ChunkPlan(metadata.shape, metadata.chunk_grid, start, stop)
        wanted: dict[Coords, list[tuple[Box, ChunkProjection]]] = {}
        for box in plan.boxes():
            for projection in plan.projections(box):
                wanted.setdefault(projection.coords, []).append((box, projection))

        async def put(coords: Coords) -> None:
            elements = await self.chunk(coords)
            for box, projection in wanted[coords]:
                target = part(out[box.offset : box.offset + box.size].reshape(box.shape), projection.box_selection)
                if elements is None:
                    fill(metadata, target)
                else:
                    target[...] = part(elements, projection.chunk_selection)

        await for_each(wanted, put, _WIDTH)


def _landed(slab: Slab, flight: Flight) -> None:
    """End a batch, run or not: others may fill its chunks, and may have begun already."""
    slab.filling.pop(flight, None)
    flight.land()


def _underway(slab: Slab, numbers: Sequence[range]) -> tuple[Flight, list[range]] | None:
    """Return a flight that fills some of these chunks, and their numbers."""
    for flight, batch in slab.filling.items():
        shared = [range(max(each.start, batch.start), min(each.stop, batch.stop)) for each in numbers]
        if any(shared):
            return flight, [each for each in shared if each]
    return None
