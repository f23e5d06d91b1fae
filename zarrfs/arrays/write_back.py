"""Dirty chunks on their way into the store: encoded, and stored unit by unit.

A unit is the content of one store key: a chunk, or the chunks of a shard. All dirty chunks of a unit are stored in one step, or none if
that fails. The written elements of a partly written chunk are merged into the chunk stored at that time (`zarrfs.arrays.merging`); in a
new array, which has no other writers, such a chunk is completed first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import EllipsisType

import numpy as np
import trio

from zarrfs import threads
from zarrfs.arrays.array import Array, ChunkPart
from zarrfs.arrays.concurrency import for_each
from zarrfs.arrays.dirty_chunks import DirtyChunk, DirtyChunks, DirtyUnit, refuse_lost
from zarrfs.arrays.filling import fill, is_filled, part
from zarrfs.arrays.merging import ElementMerge
from zarrfs.arrays.paged_shard_index import MAX_WRITTEN
from zarrfs.buffers import Buffer, Mask, NDArray
from zarrfs.errors import LOOK_S, StoreError, TooLarge, ZarrfsError, shows_stored
from zarrfs.keys import ByteRange, Key
from zarrfs.memory.spill import Buffers, array
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.chunk_set import ChunkSet
from zarrfs.threads import CPU_THREADS

_WIDTH = CPU_THREADS + 1
# Maximum total size of units stored concurrently; a single one may be larger.
_STORED_NBYTES = 32 * 1024 * 1024
# Chunks are encoded together up to this size: few hops, and work for every thread.
_PORTION_NBYTES = 4 * 1024 * 1024
# After a failure, what is stored in place of so many chunks is read concurrently.
_KEPT_WIDTH = 16


class WriteBack:
    """Writer of the dirty chunks of one array to the store.

    ``is_new``: stored chunks count only if this object stored them, and unwritten elements are zeros. ``fortran``: the file being written
    has its elements in Fortran order. ``on_stored`` receives the keys of every unit that was stored or erased.
    """

    def __init__(
        self,
        array: Array,
        dirty: DirtyChunks,
        *,
        is_new: bool,
        fortran: bool,
        on_stored: Callable[[Sequence[Key]], None] | None,
    ) -> None:
        self._array = array
        self._dirty = dirty
        self._is_new = is_new
        self._fortran = fortran
        self._on_stored = on_stored
        self._per_key = array.metadata.chunks_per_key
        grid_shape, units_shape = array.metadata.grid_shape, array.metadata.stored_grid_shape
        self._unpublished = ChunkSet(units_shape)
        """Units that were stored."""
        self.single = math.prod(self._per_key) == 1
        """True if each chunk has its own key."""
        self.width = _WIDTH
        """Number of units to store concurrently."""
        if not self.single:
            unit_nbytes = math.prod(self._per_key) * array.metadata.max_chunk_nbytes
            self.width = max(1, min(_WIDTH, _STORED_NBYTES // max(1, unit_nbytes)))
        self.stored = ChunkSet(grid_shape)
        """Chunks that were stored here and not erased since."""
        self.attempted = ChunkSet(grid_shape)
        """Chunks whose store has failed or was given up: they may be stored nevertheless, also later."""
        self.as_fill = ChunkSet(grid_shape)
        """Chunks found equal to the fill value."""
        self.replaced = ChunkSet(units_shape)
        """Units of a new array that contain only what was stored here; of chunks with their own keys, unless they are in ``as_fill``."""

    def redirect(self, array: Array) -> None:
        """Direct further stores to ``array``, which has the same metadata."""
        self._array = array
        self._dirty.forget_failed()
        self._unpublished = ChunkSet(array.metadata.stored_grid_shape)

    def in_place(self) -> None:
        """Record that the new array is in its place: from now on it may have other writers, whose chunks and elements stay."""
        self._is_new = False

    def ranges(self, coords: Coords) -> list[range]:
        """Return, for each dimension, the chunks of the array in the unit of this one."""
        return self.ranges_of(tuple(index // count for index, count in zip(coords, self._per_key, strict=True)))

    def ranges_of(self, unit: Coords) -> list[range]:
        """Return, for each dimension, the chunks of the array in a unit."""
        return [
            range(index * count, min((index + 1) * count, extent))
            for index, count, extent in zip(unit, self._per_key, self._array.metadata.grid_shape, strict=True)
        ]

    def first_of(self, unit: Coords) -> Coords:
        """Return the first chunk of a unit."""
        return tuple(index * count for index, count in zip(unit, self._per_key, strict=True))

    def has_stored_in(self, unit: Coords) -> bool:
        """Return True if a chunk of this unit is in `stored`."""
        return any(True for _ in self.stored.within(self.ranges_of(unit)))

    async def store(self, unit_coords: Coords) -> None:
        """Store the dirty chunks of a unit; if it raises, they are still dirty. The caller excludes writes to them meanwhile.

        Raises `TooLarge` for a shard of more than `MAX_WRITTEN` chunks, and the errors of codecs and store.
        """
        unit = self._dirty.units.get(unit_coords)
        if unit is None:
            return
        self._refuse_large()
        if self._is_new:
            await self._complete(unit)
        in_part = {coords for coords, chunk in unit.chunks.items() if not chunk.whole or chunk.failed is not None}
        async with self._array.merging(list(unit.chunks)) if in_part else self._array.encoding(list(unit.chunks)):
            encoded = await self._all_encoded(unit, [coords for coords in unit.chunks if coords not in in_part])
            refuse_lost(unit.chunks.values())
            if in_part:
                merges = {coords: self._merge(coords, unit.chunks[coords]) for coords in in_part}
                try:
                    await self._array.chunks.modify({**encoded, **merges})
                except StoreError as error:
                    for coords, merge in merges.items() if shows_stored(error) else ():
                        if not isinstance(merge.base, EllipsisType):
                            self._failed_over(coords, merge.base)
                    raise
                self._changed(unit.chunks)
                self._dirty.used(
                    sum(unit.chunks[coords].run.run_layout.chunk_nbytes for coords in in_part if unit.chunks[coords].in_file)
                )
                for coords in list(unit.chunks):
                    self._dirty.remove(coords)
            else:
                await self._store(unit_coords, encoded)

    def _refuse_large(self) -> None:
        """Raise `TooLarge` if shards are of more than `MAX_WRITTEN` chunks."""
        if math.prod(self._per_key) > MAX_WRITTEN:
            raise TooLarge(
                f"shard of {math.prod(self._per_key)} chunks: read-only, above the limit of {MAX_WRITTEN} chunks for writes"
            )

    def _merge(self, coords: Coords, chunk: DirtyChunk) -> ElementMerge:
        """Return the written elements of a chunk, as a merge into the stored one."""

        def in_array(of_file: Mask) -> Mask:
            mask = of_file.reshape(chunk.inside)
            return mask.T if self._fortran else mask

        def written() -> Mask:
            return in_array(chunk.run.mask(chunk.number, 0, chunk.run.size))

        def since() -> Mask | None:
            rewritten = failed.rewritten() if failed is not None else None
            return in_array(rewritten) if rewritten is not None else None

        failed = chunk.failed
        return ElementMerge(
            self._array, coords, chunk.elements, written, sparse=True, failed=(failed, since) if failed is not None else None
        )

    @asynccontextmanager
    async def attempt(self) -> AsyncIterator[None]:
        """If storing the dirty chunks fails in the body, record what is stored in their place, as far as memory and time permit.

        At the next attempt, what others have stored in their elements since stays."""
        try:
            yield
        except StoreError as error:
            if not self._is_new and shows_stored(error):
                await self._keep_stored()
            raise

    async def _keep_stored(self) -> None:
        """Record what is stored in place of the dirty chunks, as far as memory and `LOOK_S` permit.

        The program waits for its error meanwhile, and other changes of the array for the node."""
        todo = [coords for coords in self._dirty if (failed := self._dirty.failed(coords)) is None or failed.is_rewritten]
        with trio.move_on_after(LOOK_S), suppress(ZarrfsError):
            for portion in self._portions(todo):
                # In one piece: while others wait for memory to work with, there is none to keep.
                async with self._array.merging(portion):
                    await for_each(portion, self._keep, _KEPT_WIDTH)

    async def _keep(self, coords: Coords) -> None:
        """Record what is stored in place of a dirty chunk. Raises `TooLarge` if there is no memory for that."""
        limit = self._array.encoded_limit(coords)
        (found,) = await self._array.chunks.get_stamped([coords], ByteRange(0, limit + 1))
        if isinstance(found, ZarrfsError):
            raise found
        base = found[0] if found is not None else None
        if (base is None or len(base) <= limit) and not self._failed_over(coords, base):
            raise TooLarge("no memory for what is stored")

    def _failed_over(self, coords: Coords, base: Buffer | None) -> bool:
        chunk = self._dirty.get(coords)
        if chunk is None or chunk.failed is None:
            return self._dirty.fail(coords, base)
        chunk.failed.failed_again(base)
        return True

    async def _all_encoded(self, unit: DirtyUnit, coords: Sequence[Coords]) -> dict[Coords, Buffer | None]:
        buffers = Buffers()
        encoded: dict[Coords, Buffer | None] = {}
        portions = list(self._portions(coords))

        async def encode(portion: Sequence[Coords]) -> None:
            for coords, data in (await self._encoded(unit, portion)).items():
                encoded[coords] = data if data is None else buffers.kept(data)

        if len(portions) == 1:
            await encode(portions[0])
        else:
            await for_each(portions, encode, CPU_THREADS)
        return encoded

    async def _store(self, unit_coords: Coords, encoded: dict[Coords, Buffer | None]) -> None:
        if self.single:
            update = {coords: data for coords, data in encoded.items() if data is not None or self._may_be_stored(coords)}
        elif self._is_new:
            # The whole unit, so that nothing of it is read: nothing of the earlier content may stay.
            update = {coords: None for coords in itertools.product(*self.ranges(next(iter(encoded)))) if coords not in self.stored}
            update |= encoded
        else:
            update = encoded
        if update:
            await self._update(update)
        if self._is_new:
            self.replaced.add(unit_coords)
        for coords, data in encoded.items():
            (self.as_fill.add if data is None else self.as_fill.discard)(coords)
            self._dirty.remove(coords)

    async def erase(self, unit: Coords, chunks: ChunkSet) -> None:
        """Erase those of ``chunks`` that are in a unit. Raises as `store`."""
        self._refuse_large()
        await self._update(dict.fromkeys(chunks.within(self.ranges_of(unit))))

    async def publish(self) -> None:
        """Flush stored units that are queued above the store."""
        if self._unpublished:
            await self._array.chunks.publish(self.first_of(unit) for unit in self._unpublished)
            self._unpublished = ChunkSet(self._array.metadata.stored_grid_shape)

    async def stored_chunk(self, coords: Coords) -> NDArray:
        """Return a chunk at its full shape without its dirty elements."""
        metadata = self._array.metadata
        elements: NDArray = array(metadata.chunk_grid.chunk_shape(coords), metadata.data_type.dtype)
        await self._read_under([ChunkPart(coords, elements, tuple(map(slice, elements.shape)))])
        return elements

    async def _update(self, update: Mapping[Coords, Buffer | None]) -> None:
        """Store chunks of one unit, and erase those that are None."""
        try:
            await self._array.chunks.update(update)
        except BaseException:
            self.attempted.update(coords for coords, data in update.items() if data is not None)
            raise
        for coords, data in update.items():
            (self.stored.discard if data is None else self.stored.add)(coords)
        self._changed(update)

    def _changed(self, chunks: Iterable[Coords]) -> None:
        """Record that these chunks of one unit are stored, or queued."""
        one = next(iter(chunks))
        if not self.single:
            self._unpublished.add(self._array.chunks.unit(one))
        if self._on_stored is not None:
            self._on_stored(self._array.chunks.keys(one))

    def _portions(self, coords: Sequence[Coords]) -> Iterator[Sequence[Coords]]:
        """Return these chunks in groups that are encoded together."""
        if not coords:
            return iter(())
        nbytes = max(1, self._array.metadata.max_chunk_nbytes)
        size = max(1, min(-(-len(coords) // CPU_THREADS), _PORTION_NBYTES // nbytes))
        return (coords[start : start + size] for start in range(0, len(coords), size))

    async def _encoded(self, unit: DirtyUnit, portion: Sequence[Coords]) -> dict[Coords, Buffer | None]:
        """Return the encoded chunks; None for those equal to the fill value."""
        chunks = [unit.chunks[coords] for coords in portion]
        nbytes = sum(chunk.run.run_layout.chunk_nbytes for chunk in chunks)
        is_fill = await threads.cpu(nbytes, lambda: [self._is_fill(chunk) for chunk in chunks])
        found: dict[Coords, Buffer | None] = dict.fromkeys(portion)
        to_encode = [coords for coords, equal in zip(portion, is_fill, strict=True) if not equal]
        if to_encode:
            data = [(coords, _bytes_of(unit.chunks[coords].elements)) for coords in to_encode]
            found.update(zip(to_encode, await self._array.encode_chunks(data), strict=True))
        self._dirty.used(sum(chunk.run.run_layout.chunk_nbytes for chunk in chunks if chunk.in_file))
        return found

    async def _complete(self, unit: DirtyUnit) -> None:
        """Fill the unwritten elements of a unit from the stored chunks, all in one step."""
        todo = [(coords, chunk) for coords, chunk in unit.chunks.items() if not chunk.whole]
        if not todo:
            return
        nbytes = sum(chunk.run.run_layout.chunk_nbytes for _, chunk in todo)
        # No task writes to them meanwhile: a thread may read the masks.
        await self._read_under(await threads.cpu(nbytes, lambda: [self._missing(coords, chunk) for coords, chunk in todo]))
        for _, chunk in todo:
            chunk.run.wrote(chunk.number, 1, 0, chunk.run.size)

    async def _read_under(self, wanted: Sequence[ChunkPart]) -> None:
        """Read some chunks as stored, without their dirty elements."""
        stored = [each for each in wanted if self._may_be_stored(each.coords)]
        results = dict(zip([each.coords for each in stored], await self._array.read_chunks_into(stored), strict=True))
        for each in wanted:
            result = results.get(each.coords, False)
            if isinstance(result, ZarrfsError):
                raise result
        absent = [each for each in wanted if not results.get(each.coords, False)]
        if absent:
            await threads.cpu(sum(each.out.nbytes for each in absent), self._put_absent, absent)

    def _missing(self, coords: Coords, chunk: DirtyChunk) -> ChunkPart:
        """Return the unwritten elements of a chunk."""
        missing = chunk.run.mask(chunk.number, 0, chunk.run.size).reshape(chunk.inside)
        np.logical_not(missing, out=missing)
        inside = tuple(map(slice, self._inside(chunk)))
        return ChunkPart(coords, part(chunk.elements, inside), inside, missing.T if self._fortran else missing)

    def _put_absent(self, absent: Sequence[ChunkPart]) -> None:
        for each in absent:
            filled = not self._is_new or each.coords in self.as_fill
            if each.where is None:
                each.out[...] = np.zeros((), each.out.dtype)
                if filled:
                    fill(self._array.metadata, each.out)
                continue
            one = np.zeros((1,) * each.out.ndim, each.out.dtype)
            if filled:
                fill(self._array.metadata, one)
            np.copyto(each.out, one, where=each.where)

    def _is_fill(self, chunk: DirtyChunk) -> bool:
        return is_filled(self._array.metadata, part(chunk.elements, tuple(map(slice, self._inside(chunk)))))

    def _may_be_stored(self, coords: Coords) -> bool:
        return not self._is_new or coords in self.stored

    def _inside(self, chunk: DirtyChunk) -> Shape:
        """Return the shape of the part within the array, in the axis order of the array."""
        return chunk.inside[::-1] if self._fortran else chunk.inside


def _bytes_of(elements: NDArray) -> Buffer:
    return elements.reshape(-1).view(np.uint8).data if elements.size else b""
