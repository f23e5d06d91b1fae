"""A grid of chunks in front and the grid of its shards behind, under the same prefix and the same chunk key encoding.

Source: v3 core 2022, "Sharding storage transformer (version 1.0)", "Key & value transformation".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from zarrfs.keys import Prefix
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.change import Change
from zarrfs.transformers.grid_keys import GridKeys, leads

MOST_TOLD = 256
"""Chunks that a change of their shard is told of one by one; where there are more, it is told of a prefix."""


@dataclass(frozen=True, slots=True)
class ShardedGrid:
    """``chunks``: the keys in front; ``shards``: those behind."""

    spec: ShardSpec
    chunks: GridKeys
    shards: GridKeys

    @classmethod
    def of(cls, prefix: Prefix, encoding: ChunkKeyEncoding, grid_shape: Shape, spec: ShardSpec) -> ShardedGrid:
        """``grid_shape``: chunks along each dimension."""
        return cls(spec, GridKeys(prefix, encoding, grid_shape), GridKeys(prefix, encoding, spec.grid_of_shards(grid_shape)))

    def lead(self, prefix: Prefix) -> Coords | None:
        """The first indices of all chunk keys that begin with ``prefix``; None for one that is above the grid, or beside it."""
        return None if self.chunks.lies_below(prefix) else self.chunks.lead(prefix)

    def behind(self, prefix: Prefix, lead: Coords) -> Prefix:
        """Where in ``inner`` the shards lie whose chunks begin with ``prefix``."""
        if not lead:
            return prefix
        return self.shards.below(tuple(index // count for index, count in zip(lead, self.spec.chunks_per_shard, strict=False)))

    def range_of(self, axis: int, index: int) -> range:
        """Indices, along one dimension, of the chunks of the shards with ``index`` there."""
        count, extent = self.spec.chunks_per_shard[axis], self.chunks.grid_shape[axis]
        return range(index * count, min((index + 1) * count, extent))

    def ranges(self, shard: Coords) -> list[range]:
        """Indices of the chunks of the shards that begin with ``shard``."""
        return [self.range_of(axis, index) for axis, index in enumerate(shard)]

    def seen(self, change: Change) -> Iterator[Change]:
        """What a change behind is in front.

        Of a shard that changed each of its chunks is told, as there is no knowing which it was; of one that holds more than
        `MOST_TOLD`, the longest prefix that they have in common.
        """
        place = change.place
        if isinstance(place, Prefix):
            if not self.lead(place):
                yield change
            elif change.kind not in ("made", "unmade"):
                # What lies below it beside shards has the same prefix here.
                prefixes = {place}
                shard = self.shards.lead(place)
                if shard and self.shards.holds_some(shard):
                    prefixes |= {self.chunks.below(lead) for lead in leads(self.ranges(shard), MOST_TOLD)}
                yield from (replace(change, place=prefix, kind="unknown") for prefix in sorted(prefixes))
            return
        shard = self.shards.decode(place)
        if shard is None:
            yield change
        elif self.shards.holds(shard):
            for lead in leads(self.ranges(shard), MOST_TOLD):
                if len(lead) == len(shard):
                    yield replace(change, place=self.chunks.key(lead), kind="unknown" if change.kind == "set" else change.kind)
                else:
                    yield replace(change, place=self.chunks.below(lead), kind="unknown")
