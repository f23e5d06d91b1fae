"""Reads of small chunks, many at once, into slabs or where no slab has room (docs/design/037-small-chunks.md)."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence

import numpy as np

from zarrfs.arrays.array import Array
from zarrfs.arrays.filling import part
from zarrfs.arrays.reader_pool import ReaderPool
from zarrfs.arrays.slab_pool import Slab
from zarrfs.arrays.small_chunks import BlockPart
from zarrfs.buffers import NDArray
from zarrfs.errors import StoreTimeout
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_plan import Box, boxes
from zarrfs.model.slab import Block, SlabGrid

# Bounds of the number of chunks in one batch, which is one store operation. The batch grows while operations take less than `_SOON_S`,
# and shrinks if one takes more than `_LATE_S`, so that it does not delay other readers.
_MIN_CHUNKS, _MAX_CHUNKS = 128, 2048
_SOON_S, _LATE_S = 0.05, 0.2
# Decoded bytes of a batch.
_MAX_NBYTES = 4 << 20


class SmallChunks:
    """The small chunks of ``array`` (`zarrfs.arrays.small_chunks.are_small`), by their numbers in slabs.

    ``batch``: the number of chunks to fill at once.
    """

    def __init__(self, array: Array, pool: ReaderPool, grid: SlabGrid) -> None:
        self._array = array
        self._pool = pool
        self._grid = grid
        self._max_chunks = min(_MAX_CHUNKS, _MAX_NBYTES // array.metadata.max_chunk_nbytes)
        self._min_chunks = min(_MIN_CHUNKS, self._max_chunks)
        self.batch = self._min_chunks

    async def fill(self, slab: Slab, numbers: range) -> bool:
        """Fill chunks of a slab; raise the error of the first bad one after filling the others.

        Return False, with nothing filled, if the store timed out on several: one of them may be slow.
        """
        index = slab.key[1]
        coords = self._grid.coords_of(index, numbers)
        known = self._known(coords)
        parts = []
        done = 0
        for block in self._grid.blocks(index, numbers):
            parts.append(BlockPart(block, coords[done : done + block.count], self._elements(slab, block)))
            done += block.count
        began = time.perf_counter()
        try:
            failed = await self._array.read_blocks_into(parts, known)
        except StoreTimeout:
            self.batch = self._min_chunks
            if len(coords) == 1:
                raise
            return False
        self._adapt(time.perf_counter() - began, len(numbers))
        if failed:
            for number, each in zip(numbers, coords, strict=True):
                if each not in failed:
                    slab.filled.add(number)
        else:
            slab.filled.update(numbers)
        slab.used(sum(each.out.nbytes for each in parts))
        slab.complete = len(slab.filled) == self._grid.chunks(index)
        for error in failed.values():
            raise error
        return True

    async def copy(self, out: NDArray, start: int, stop: int) -> bool:
        """Copy elements ``start`` to ``stop`` (C order) into ``out``, without a slab; raise the error of a bad chunk.

        Chunks that are stored are cached, as the next rows of elements may need them. Return False if the store timed out on several.
        """
        metadata = self._array.metadata
        for box in boxes(metadata.shape, start, stop):
            target = out[box.offset : box.offset + box.size].reshape(box.shape)
            ranges = [
                metadata.chunk_grid.indices(axis, o, o + n) for axis, (o, n) in enumerate(zip(box.origin, box.shape, strict=True))
            ]
            counts = tuple(map(len, ranges))
            done, count = 0, math.prod(counts)
            while done < count:
                last = min(done + self.batch, count)
                for some in boxes(counts, done, last):
                    indices = [each[o : o + n] for each, o, n in zip(ranges, some.origin, some.shape, strict=True)]
                    try:
                        await self._copy_block(target, box, indices)
                    except StoreTimeout:
                        self.batch = self._min_chunks
                        if some.size == 1:
                            raise
                        return False
                done = last
        return True

    async def _copy_block(self, target: NDArray, box: Box, indices: Sequence[range]) -> None:
        """Copy the chunks with these ``indices`` in each dimension into ``target``, the elements of ``box``."""
        metadata, cache = self._array.metadata, self._pool.cache
        lengths = metadata.chunk_grid.largest
        coords = list(itertools.product(*indices))
        begin = [each.start * length for each, length in zip(indices, lengths, strict=True)]
        end = [min(each.stop * n, extent) for each, n, extent in zip(indices, lengths, metadata.shape, strict=True)]
        elements = np.empty([stop - start for start, stop in zip(begin, end, strict=True)], metadata.data_type.dtype)
        block = Block(0, elements.size, elements.shape, (), tuple(map(len, indices)), lengths, 0)
        stored: list[Coords] = []
        began, since = time.perf_counter(), cache.changes
        failed = await self._array.read_blocks_into([BlockPart(block, coords, elements)], self._known(coords), stored)
        self._adapt(time.perf_counter() - began, len(coords))
        for error in failed.values():
            raise error
        within, inside = [], []
        for start, stop, origin, count in zip(begin, end, box.origin, box.shape, strict=True):
            first, last = max(start, origin), min(stop, origin + count)
            within.append(slice(first - origin, last - origin))
            inside.append(slice(first - start, last - start))
        target[tuple(within)] = elements[tuple(inside)]
        for each in stored:
            place = tuple(slice(i * n - start, (i + 1) * n - start) for i, n, start in zip(each, lengths, begin, strict=True))
            if (chunk := elements[place]).shape == lengths:
                cache.add((self._array.serial, each), chunk.copy(), since)

    def _known(self, coords: Sequence[Coords]) -> dict[Coords, NDArray | None]:
        """Return those of these chunks that are cached, None for missing ones."""
        peek, serial = self._pool.cache.peek, self._array.serial
        if not self._pool.cache.has(serial):
            return {}
        return {each: found[1] for each in coords if (found := peek((serial, each)))[0]}

    def _adapt(self, seconds: float, count: int) -> None:
        if seconds > _LATE_S:
            self.batch = max(self._min_chunks, self.batch // 2)
        elif seconds < _SOON_S and count == self.batch:
            self.batch = min(self._max_chunks, 2 * self.batch)

    def _elements(self, slab: Slab, block: Block) -> NDArray:
        itemsize = self._array.metadata.data_type.itemsize
        memory = slab.memory[(block.start - slab.first) * itemsize : (block.stop - slab.first) * itemsize]
        return part(memory.view(self._array.metadata.data_type.dtype).reshape(block.shape), block.selection)
