"""Room for the chunks of a `ShardQueue`: in memory up to a budget, else in mapped files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from zarrfs.arrays.chunk_store import Written
from zarrfs.arrays.queued_shard import QueuedShard
from zarrfs.buffers import Buffer
from zarrfs.memory.budget import MemoryBudget
from zarrfs.memory.spill import refusal_of, refuse_lost
from zarrfs.model.chunk_grid import Coords

# Incomplete shards are published once their files exceed this multiple of the memory budget.
_FILES_TO_MEMORY = 32


class ShardRoom:
    """The room that ``shards`` share; ``publish`` stores one of them early, and reports a failure itself."""

    def __init__(
        self, budget: MemoryBudget, shards: Iterable[QueuedShard], publish: Callable[[QueuedShard], Awaitable[None]]
    ) -> None:
        self._budget = budget
        self._shards = shards
        self._publish = publish

    async def kept(self, shard: QueuedShard, data: Buffer) -> Buffer:
        """Return a permanent copy of ``data``, in memory or in a mapped file of the shard.

        Raises `StoreFull`, `OutOfMemory`, and `StoreError` if the cache folder fails."""
        copy = await self._copy(shard, data)
        # A codec may have put it into a file.
        refuse_lost(data, key=shard.key)
        return copy

    async def _copy(self, shard: QueuedShard, data: Buffer) -> Buffer:
        nbytes = len(data)
        if self._budget.take(nbytes):
            shard.memory_nbytes += nbytes
            return bytes(data)
        if sum(each.files.nbytes for each in self._shards) > self._budget.limit * _FILES_TO_MEMORY:
            await self._free(shard)
        try:
            return await shard.files.keep(data)
        except OSError as error:
            await self._free(shard)
            raise refusal_of(error)(f"{shard.key!r}: no room to queue a chunk: {error}", key=shard.key) from error

    def release(self, shard: QueuedShard, done: Mapping[Coords, Written]) -> None:
        """Release the memory of a shard, if none but the chunks ``done`` are queued, and none is about to be.

        Those of a `ShardQueue.put` in progress may have their memory already, and the files that hold it are checked for losses.
        """
        if not shard.putting and (not shard.written or shard.written is done):
            self._budget.give(shard.memory_nbytes)
            shard.memory_nbytes = 0
            # Unmapped when the last reader has released them.
            shard.files.clear()

    async def _free(self, wanting: QueuedShard) -> None:
        """Publish the oldest shard, other than the one that needs the room."""
        # A node that is being moved waits for holders of an array that moves with it, possibly this task.
        others = [
            each for each in self._shards if each is not wanting and not each.node.is_being_changed and each.node.why_gone is None
        ]
        if others:
            await self._publish(min(others, key=lambda shard: shard.since))
