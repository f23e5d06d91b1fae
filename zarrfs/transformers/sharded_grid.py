"""A grid of chunks in front and the grid of its shards behind, with the same prefix and chunk key encoding.

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

MAX_REPORTED = 256
"""Limit of chunks reported one by one for a change of their shard; beyond it, a prefix is reported."""


@dataclass(frozen=True, slots=True)
class ShardedGrid:
    """``chunks`` are the keys in front; ``shards`` are those behind."""

    spec: ShardSpec
    chunks: GridKeys
    shards: GridKeys

    @classmethod
    def of(cls, prefix: Prefix, encoding: ChunkKeyEncoding, grid_shape: Shape, spec: ShardSpec) -> ShardedGrid:
        """Return the two grids; ``grid_shape`` is in chunks per dimension."""
        return cls(spec, GridKeys(prefix, encoding, grid_shape), GridKeys(prefix, encoding, spec.grid_of_shards(grid_shape)))

    def lead(self, prefix: Prefix) -> Coords | None:
        """Return the leading indices of all chunk keys that begin with ``prefix``; None if it is above the grid, or beside it."""
        return None if self.chunks.lies_below(prefix) else self.chunks.lead(prefix)

    def behind(self, prefix: Prefix, lead: Coords) -> Prefix:
        """Return the prefix in ``inner`` of the shards whose chunks begin with ``prefix``."""
        if not lead:
            return prefix
        return self.shards.below(tuple(index // count for index, count in zip(lead, self.spec.chunks_per_shard, strict=False)))

    def range_of(self, axis: int, index: int) -> range:
        """Return the chunk indices along one dimension of the shards with ``index`` in it."""
        count, extent = self.spec.chunks_per_shard[axis], self.chunks.grid_shape[axis]
        return range(index * count, min((index + 1) * count, extent))

    def ranges(self, shard: Coords) -> list[range]:
        """Return the chunk indices, per dimension, of the shards that begin with ``shard``."""
        return [self.range_of(axis, index) for axis, index in enumerate(shard)]

    def seen(self, change: Change) -> Iterator[Change]:
        """Translate a change behind into the changes in front.

        A changed shard does not identify the chunks that differ, so the change is reported for each of its chunks; beyond `MAX_REPORTED`
        chunks, for their longest common prefix.
        """
        target = change.target
        if isinstance(target, Prefix):
            if not self.lead(target):
                yield change
            elif change.kind not in ("mkdir", "rmdir"):
                # Keys below it that belong to no shard have the same prefix in front.
                prefixes = {target}
                shard = self.shards.lead(target)
                if shard and self.shards.holds_some(shard):
                    prefixes |= {self.chunks.below(lead) for lead in leads(self.ranges(shard), MAX_REPORTED)}
                yield from (replace(change, target=prefix, kind="unknown") for prefix in sorted(prefixes))
            return
        shard = self.shards.decode(target)
        if shard is None:
            yield change
        elif self.shards.holds(shard):
            for lead in leads(self.ranges(shard), MAX_REPORTED):
                if len(lead) == len(shard):
                    yield replace(change, target=self.chunks.key(lead), kind="unknown" if change.kind == "set" else change.kind)
                else:
                    yield replace(change, target=self.chunks.below(lead), kind="unknown")
