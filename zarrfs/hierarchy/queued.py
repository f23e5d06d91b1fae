"""Chunks queued until their shards are stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import lt

from zarrfs.arrays.layers import ShardLayers, chunks_of
from zarrfs.arrays.live_node import LiveNode
from zarrfs.arrays.queued_shard import QueuedShard, ShardsAt
from zarrfs.hierarchy.live_array import LiveArray
from zarrfs.keys import Key, Prefix
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.base import Store


class QueuedShards:
    """The queued chunks of arrays in ``store``, in the queue of ``layers``; none without a queue."""

    def __init__(self, store: Store, layers: ShardLayers) -> None:
        self._store = store
        self._layers = layers
        self._queue = layers.queue

    def __bool__(self) -> bool:
        return bool(self._queue)

    async def publish(self, target: ShardsAt) -> list[Key]:
        """Store the shards queued at ``target``; return their keys. Raises the first failure."""
        return await self._queue.publish(target) if self._queue is not None else []

    async def publish_for_resize(self, node: LiveNode, before: Shape, shape: Shape) -> None:
        """Store what is queued for an array before its shape changes. Raises the first failure.

        Not if the array only grows and whole chunks are queued: each step of a time series would store a shard. A chunk that was changed
        in part is stored before its edge moves.
        """
        if any(map(lt, shape, before)) or any(each.merge for shard in self._of(node) for each in shard.all().values()):
            await self.publish(node)

    def resized(self, node: LiveNode, array: ArrayNode) -> None:
        """Let what is queued for an array be stored by its new shape, ``array``.

        Another mount may have changed it: by the earlier shape, a shard all of whose chunks are queued is replaced without being read.
        """
        if self._of(node):
            # The layers adopt what is queued; nothing else may use the array before that is stored.
            chunks_of(self._store, array, self._layers, node)

    async def publish_described_by(self, keys: Collection[Key]) -> None:
        """Store what is queued for the arrays that these documents describe. Raises the first failure."""
        nodes = dict.fromkeys(shard.node for shard in self.below(Prefix("")))
        for node in nodes:
            if isinstance(node, LiveArray) and any(node.is_described_at(key) for key in keys):
                await self.publish(node)

    def below(self, prefix: Prefix) -> list[QueuedShard]:
        """Return the shards queued that lie below ``prefix`` now."""
        return self._queue.below(prefix) if self._queue is not None else []

    async def drop(self, shards: Iterable[QueuedShard]) -> None:
        """Forget what is queued for these shards, which are erased; not for those of arrays that another program has moved away."""
        if self._queue is not None:
            await self._queue.drop([each for each in shards if not each.node.is_moved_away])

    async def drop_of(self, node: LiveNode) -> None:
        """Run `drop` for the shards of this array."""
        await self.drop(self._of(node))

    def _of(self, node: LiveNode) -> list[QueuedShard]:
        return self._queue.of(node) if self._queue is not None else []
