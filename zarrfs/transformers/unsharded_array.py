"""The chunks of one sharded array, as `zarrfs.transformers.unsharded` shows them."""

from __future__ import annotations

from dataclasses import dataclass

from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.shard_index_cache import ShardIndexCache
from zarrfs.keys import Key, Prefix
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.change import Change
from zarrfs.transformers.sharded_grid import ShardedGrid
from zarrfs.transformers.sharding import ShardingStore


@dataclass(frozen=True, slots=True)
class UnshardedArray:
    """The chunks of a sharded array: ``store`` has them by their own keys.

    ``grids`` has one grid for each level of shards, outermost first.
    """

    store: ShardingStore
    grids: tuple[ShardedGrid, ...]
    layout: tuple[ChunkKeyEncoding, Shape, tuple[ShardSpec, ...]]

    @classmethod
    def of(
        cls,
        node: ArrayNode,
        grid_shape: Shape,
        inner: Store,
        indexes: ShardIndexCache,
        counters: WorkCounters,
        *,
        owner: Store,
    ) -> UnshardedArray:
        """Return the chunks of ``node``, whose shards are in ``inner``, in a grid of this shape. ``owner``: see `ShardingStore`."""
        store, grids = inner, []
        for spec, within in node.metadata.bundles_of(grid_shape):
            keys = node.chunk_prefix, node.metadata.chunk_key_encoding, within, spec
            # The document may have been read a while ago.
            store = ShardingStore(store, *keys, indexes, counters, owner=owner, may_have_grown=True)
            grids.append(ShardedGrid.of(*keys))
        assert isinstance(store, ShardingStore)
        return cls(store, tuple(grids), (node.metadata.chunk_key_encoding, grid_shape, node.metadata.shards))

    def is_of(self, metadata: ArrayMetadata) -> bool:
        """Return True if the keys of an array with this metadata are the same."""
        return self.layout == (metadata.chunk_key_encoding, metadata.grid_shape, metadata.shards)

    @property
    def grid(self) -> ShardedGrid:
        """The grid of the chunks."""
        return self.grids[-1]

    def is_chunk(self, key: Key) -> bool:
        """Return True for a chunk key, inside of the grid or not."""
        return self.grid.chunks.decode(key) is not None

    def outside(self, key: Key) -> Coords | None:
        """Return the coordinates of a chunk outside of the grid; None for all other keys."""
        coords = self.grid.chunks.decode(key)
        return coords if coords is not None and not self.grid.chunks.holds(coords) else None

    def lies_inside(self, prefix: Prefix) -> bool:
        """Return True if chunk keys begin with ``prefix``, and it is longer than the array's own prefix."""
        return prefix != self.grid.chunks.prefix and self.grid.chunks.lead(prefix) is not None

    def seen(self, change: Change) -> list[Change]:
        """Translate a change of the inner store into the visible changes."""
        changes = [change]
        for grid in self.grids:
            changes = [each for one in changes for each in grid.seen(one)]
        return changes
