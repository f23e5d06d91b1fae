"""The stack of `ChunkStore` layers of an array, from the store up, as its documents require."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from zarrfs.arrays.bound_chunks import BoundChunks
from zarrfs.arrays.chunk_store import ChunkStore, StoredChunks
from zarrfs.arrays.compressed_shards import CompressedShards, DecompressedShards
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.delayed import DelayedChunks
from zarrfs.arrays.live_node import LiveNode
from zarrfs.arrays.shard_index_cache import ShardIndexCache
from zarrfs.arrays.shard_queue import ShardQueue
from zarrfs.arrays.sharded import ShardedChunks
from zarrfs.codecs.chain import CodecChain
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.stores.base import Store

INDEXES_NBYTES = 16 * 1024 * 1024
# Allowance for unused bytes between the chunks of a shard that is encoded as a whole; other writers leave none.
_SLACK_NBYTES = 1024 * 1024


@dataclass(slots=True)
class ShardLayers:
    """State shared by the shards of a store.

    ``queue`` is the queue of writes to them; None if writes are not queued. ``read_only`` names the dialects whose arrays take no
    chunks.
    """

    counters: WorkCounters
    budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(UNLIMITED))
    indexes: ShardIndexCache = field(default_factory=lambda: ShardIndexCache(INDEXES_NBYTES))
    decoded: DecompressedShards = field(default_factory=DecompressedShards)
    queue: ShardQueue | None = None
    read_only: frozenset[str] = frozenset()

    @property
    def unqueued(self) -> ShardLayers:
        """The same without a queue."""
        return replace(self, queue=None)


def chunks_of(store: Store, node: ArrayNode, layers: ShardLayers, live: LiveNode | None = None) -> ChunkStore:
    """Return the chunks of ``node``, with the coordinates of its ``metadata.chunk_grid``.

    With ``live`` they follow that node when it moves; without, they stay at the path of ``node``. Raises `MetadataError`,
    `MetadataUnsupported`.
    """
    chunks = _layers_of(store, node, layers, live)
    if live is None:
        return chunks
    return BoundChunks(chunks, live, store.has_changes_now, of_layout=True, writable=node.dialect not in layers.read_only)


def _layers_of(store: Store, node: ArrayNode, layers: ShardLayers, live: LiveNode | None) -> ChunkStore:
    metadata = node.metadata
    bound = live if live is not None else LiveNode(node.path, node.chunk_prefix, _as_it_says)
    chunks: ChunkStore = StoredChunks(store, bound, metadata.chunk_key_encoding, metadata.stored_grid_shape)
    if not metadata.shards:
        return chunks
    for level, (spec, grid_shape) in enumerate(metadata.bundles):
        if spec.codecs:
            chunks = CompressedShards(chunks, spec.codecs, _shard_limit(metadata, level), layers.decoded, layers.indexes.turns)
        chunks = ShardedChunks(chunks, spec, grid_shape, layers.indexes, layers.counters)
    if layers.queue is None:
        return chunks
    return DelayedChunks(
        # Queued chunks are stored later, by a task that does not hold the node.
        chunks if live is None else BoundChunks(chunks, live, store.has_changes_now, of_layout=False),
        layers.queue,
        node=bound,
        array=node,
    )


async def _as_it_says(node: LiveNode) -> bool:
    """Confirm a node that never moves, and whose documents may not be written yet."""
    return True


@dataclass(frozen=True, slots=True)
class ChunkBox:
    """The chunks with coordinates in ``ranges``, generated one at a time: a document determines their number."""

    ranges: tuple[range, ...]

    @property
    def count(self) -> int:
        """Number of chunks."""
        return math.prod(len(each) for each in self.ranges)

    def __iter__(self) -> Iterator[Coords]:
        for index in range(self.count):
            coords: list[int] = []
            for each in reversed(self.ranges):
                index, position = divmod(index, len(each))
                coords.append(each[position])
            yield tuple(reversed(coords))


def chunks_under_key(metadata: ArrayMetadata, stored: Coords) -> ChunkBox:
    """Return the chunks under the store key ``stored``: those of a shard within the array, or the single one."""
    if not metadata.shards:
        return ChunkBox(tuple(range(index, index + 1) for index in stored))
    return ChunkBox(
        tuple(
            range(index * count, min((index + 1) * count, extent))
            for index, count, extent in zip(stored, metadata.chunks_per_key, metadata.grid_shape, strict=True)
        )
    )


def _shard_limit(metadata: ArrayMetadata, level: int) -> int:
    """Return the maximum plausible size, in bytes, of a shard of this level before its codecs."""
    chain = CodecChain.build(metadata.codecs, metadata.data_type)
    limit = chain.encoded_limit(metadata.chunk_grid.largest)
    for spec in reversed(metadata.shards[level:]):
        limit = spec.chunks * (limit + 16) + _SLACK_NBYTES
        # An index with its codecs is little longer than its entries; inner shards may be encoded too.
        limit += limit // 4 if spec.codecs and spec is not metadata.shards[level] else 0
    return limit
