"""Filling of slabs with small chunks, many at once (docs/design/037-small-chunks.md)."""

from __future__ import annotations

import time

from zarrfs.arrays.array import Array
from zarrfs.arrays.filling import part
from zarrfs.arrays.reader_pool import ReaderPool
from zarrfs.arrays.slab_pool import Slab
from zarrfs.arrays.small_chunks import BlockPart
from zarrfs.buffers import NDArray
from zarrfs.errors import StoreTimeout
from zarrfs.model.chunk_grid import Coords
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
        peek, serial = self._pool.cache.peek, self._array.serial
        known: dict[Coords, NDArray | None] = {}
        if self._pool.cache.has(serial):
            known = {each: found[1] for each in coords if (found := peek((serial, each)))[0]}
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

    def _adapt(self, seconds: float, count: int) -> None:
        if seconds > _LATE_S:
            self.batch = max(self._min_chunks, self.batch // 2)
        elif seconds < _SOON_S and count == self.batch:
            self.batch = min(self._max_chunks, 2 * self.batch)

    def _elements(self, slab: Slab, block: Block) -> NDArray:
        itemsize = self._array.metadata.data_type.itemsize
        memory = slab.memory[(block.start - slab.first) * itemsize : (block.stop - slab.first) * itemsize]
        return part(memory.view(self._array.metadata.data_type.dtype).reshape(block.shape), block.selection)
