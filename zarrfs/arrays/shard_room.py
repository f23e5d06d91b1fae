"""Room for the chunks of a `ShardQueue`: in memory up to a budget, else in mapped files."""

from __future__ import annotations

import resource
from collections.abc import Awaitable, Callable, Iterable

from zarrfs.arrays.queued_shard import QueuedShard
from zarrfs.buffers import Buffer
from zarrfs.memory.budget import MemoryBudget
from zarrfs.memory.spill import is_mapped, refusal_of, refuse_lost

# Incomplete shards are published once their files exceed this multiple of the memory budget.
_FILES_TO_MEMORY = 32
# So they are when their files take more than this part (one in 8) of the descriptors of this process.
_PART = 8
# Chunks that were replaced keep their room until it exceeds that of the queued ones by this much.
_REPLACED_NBYTES = 1 << 20


class ShardRoom:
    """The room that ``shards`` share; ``publish`` stores one of them early, and reports a failure itself."""

    def __init__(
        self, budget: MemoryBudget, shards: Iterable[QueuedShard], publish: Callable[[QueuedShard], Awaitable[None]]
    ) -> None:
        self._budget = budget
        self._shards = shards
        self._publish = publish

    async def kept(self, shard: QueuedShard, data: Buffer, mine: list[Buffer]) -> Buffer:
        """Return a permanent copy of ``data``, in memory or in a mapped file of the shard; ``mine``: see `QueuedShard.inserting`.

        Raises `StoreFull`, `OutOfMemory`, and `StoreError` if the cache folder fails."""
        copy = await self._copy(shard, data)
        mine.append(copy)
        # A codec may have put it into a file.
        refuse_lost(data, key=shard.key)
        return copy

    async def _copy(self, shard: QueuedShard, data: Buffer) -> Buffer:
        nbytes = len(data)
        if self._budget.take(nbytes):
            shard.memory_nbytes += nbytes
            return bytes(data)
        if self._has_many_files():
            await self._free(shard)
        try:
            return await shard.files.keep(data)
        except OSError as error:
            await self._free(shard)
            raise refusal_of(error)(f"{shard.key!r}: no room to queue a chunk: {error}", key=shard.key) from error

    def _has_many_files(self) -> bool:
        nbytes = count = 0
        for each in self._shards:
            nbytes += each.files.nbytes
            count += each.files.count
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _PART
        return nbytes > self._budget.limit * _FILES_TO_MEMORY or 2 * count > most

    def release(self, shard: QueuedShard) -> None:
        """Release the room of chunks that are queued no more."""
        shard.count_above = 0
        self.put_ended(shard)

    def put_ended(self, shard: QueuedShard) -> None:
        """Release the room of chunks that are queued no more, if it may be much."""
        if shard.memory_nbytes + shard.files.kept_nbytes <= shard.count_above:
            return
        # With those of other puts: where many tasks write to a shard, one is always in progress.
        queued = list({id(each): each for each in shard.buffers()}.values())
        nbytes = min(shard.memory_nbytes, sum(len(each) for each in queued if not is_mapped(each)))
        self._budget.give(shard.memory_nbytes - nbytes)
        shard.memory_nbytes = nbytes
        shard.files.clear(queued)
        # To count takes time for each chunk: it is repeated once as much has come as there was.
        shard.count_above = 2 * (nbytes + shard.files.kept_nbytes) + _REPLACED_NBYTES

    async def _free(self, wanting: QueuedShard) -> None:
        """Publish the oldest shard, other than the one that needs the room; one that could not be stored comes after all others."""
        # A node that is being moved waits for holders of an array that moves with it, possibly this task.
        others = [
            each for each in self._shards if each is not wanting and not each.node.is_being_changed and each.node.why_gone is None
        ]
        if others:
            await self._publish(min(others, key=lambda shard: (shard.retry, shard.since)))
