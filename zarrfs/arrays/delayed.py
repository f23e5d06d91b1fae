"""The chunks of an array as this mount sees them: chunks queued for their shards, over the stored ones."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from zarrfs.arrays.chunk_store import ChunkStore, Merge, StoredChunk, Written
from zarrfs.arrays.live_node import LiveNode
from zarrfs.arrays.paged_shard_index import not_at_once
from zarrfs.arrays.queued_shard import QueuedShard
from zarrfs.arrays.shard_queue import ShardQueue
from zarrfs.arrays.sharded import levels
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkError, GenerationMismatch
from zarrfs.keys import WHOLE, ByteRange, Key
from zarrfs.memory.spill import refuse_lost
from zarrfs.model.chunk_grid import Coords, in_grid
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.values import Generation, KeyStat

T = TypeVar("T")


class DelayedChunks(ChunkStore):
    """The chunks ``chunks`` of ``array``, overlaid with those that ``queue`` has queued for ``node``."""

    def __init__(self, chunks: ChunkStore, queue: ShardQueue, *, node: LiveNode, array: ArrayNode) -> None:
        self._chunks = self.below = chunks
        self._refusal = next((not_at_once(level.spec) for level in levels(chunks) if level.paged), None)
        self._queue = queue
        self._node = node
        self._array = array
        self._grid_shape = array.metadata.grid_shape
        self._chunks_per_key = array.metadata.chunks_per_key
        queue.adopt(node, array, chunks, self._expected)

    def keys(self, coords: Coords) -> tuple[Key, ...]:
        return self._chunks.keys(coords)

    def unit(self, coords: Coords) -> Coords:
        return self._chunks.unit(coords)

    def exclusive(self, coords: Coords) -> AbstractAsyncContextManager[None]:
        return self._chunks.exclusive(coords)

    async def merge(self, chunks: Mapping[Coords, Written]) -> Mapping[Coords, Generation | None]:
        return await self._chunks.merge(chunks)

    async def get_with_stat(self, coords: Coords, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        written = self._written(coords)
        if written is None:
            return await self._chunks.get_with_stat(coords, byte_range)
        refuse_lost(written.data, key=self.keys(coords)[0])
        stat = _stat(written)
        return None if stat is None or written.data is None else (_part(written.data, byte_range), stat)

    async def get_parts(self, coords: Coords, byte_ranges: Sequence[ByteRange], generation: Generation) -> list[Buffer]:
        written = self._written(coords)
        if written is None:
            return await self._chunks.get_parts(coords, byte_ranges, generation)
        if written.data is None or written.generation != generation:
            raise GenerationMismatch(
                f"chunk {coords} in {self.keys(coords)[0]!r} was changed concurrently", key=self.keys(coords)[0]
            )
        refuse_lost(written.data, key=self.keys(coords)[0])
        return [_part(written.data, each) for each in byte_ranges]

    async def get_several(self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE) -> list[Buffer | ChunkError | None]:
        values: list[Buffer | ChunkError | None] = [None] * len(coords)
        absent = []
        for number, each in enumerate(coords):
            written = self._written(each)
            if written is None:
                absent.append(number)
            elif written.data is not None:
                values[number] = _part(written.data, byte_range)
        if absent:
            found = await self._chunks.get_several([coords[number] for number in absent], byte_range)
            for number, value in zip(absent, found, strict=True):
                values[number] = value
        return values

    async def stat(self, coords: Coords) -> KeyStat | None:
        written = self._written(coords)
        return await self._chunks.stat(coords) if written is None else _stat(written)

    async def list(self, *, outside: bool = False, under: Coords = ()) -> AsyncIterator[StoredChunk]:
        queued: dict[Coords, Written] = {}
        for shard in self._queue.of(self._node):
            queued |= shard.all()
        async for chunk in self._chunks.list(outside=outside, under=under):
            if chunk[0] not in queued:
                yield chunk
        for coords, written in queued.items():
            if written.data is not None and coords[: len(under)] == under and (outside or in_grid(coords, self._grid_shape)):
                yield coords, len(written.data), written.mtime_ns

    async def update(self, chunks: Mapping[Coords, Buffer | None]) -> None:
        for shard, group in self._by_shard(chunks):
            await self._queue.put(shard, group)

    async def modify(self, changes: Mapping[Coords, Buffer | Merge | None]) -> None:
        for shard, group in self._by_shard(changes):
            await self._queue.modify(shard, group)

    def _by_shard(self, chunks: Mapping[Coords, T]) -> Iterator[tuple[QueuedShard, dict[Coords, T]]]:
        if self._refusal is not None:
            # At the write, not at the flush, which would fail.
            raise self._refusal.again()
        units: dict[Coords, dict[Coords, T]] = {}
        for coords, each in chunks.items():
            units.setdefault(self.unit(coords), {})[coords] = each
        for group in units.values():
            some = next(iter(group))
            yield self._queue.shard(self._node, self._array, some, self._chunks, self._expected(some)), group

    async def publish(self, coords: Iterable[Coords] | None = None) -> None:
        if coords is None:
            coords = [shard.some for shard in self._queue.of(self._node)]
        for unit in dict.fromkeys(map(self.unit, coords)):
            await self._queue.publish_one(self._node, unit)

    def _expected(self, coords: Coords) -> int:
        """Return the number of chunks within the array that are in the same unit."""
        unit = self.unit(coords)
        return math.prod(
            min((index + 1) * count, extent) - index * count
            for index, count, extent in zip(unit, self._chunks_per_key, self._grid_shape, strict=True)
        )

    def _written(self, coords: Coords) -> Written | None:
        if not self._queue:
            return None
        shard = self._queue.get(self._node, self.unit(coords))
        return shard.get(coords) if shard is not None else None


def _stat(written: Written) -> KeyStat | None:
    return None if written.data is None else KeyStat(len(written.data), written.mtime_ns, written.generation)


def _part(data: Buffer, byte_range: ByteRange) -> Buffer:
    if byte_range == WHOLE:
        return data
    start, stop = byte_range.resolve(len(data))
    return memoryview(data)[start:stop]
