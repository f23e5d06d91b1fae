"""Indexes of shards that were read: each counts for one generation of its shard, and is read once however many ask."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from zarrfs.arrays.flight import Flight
from zarrfs.arrays.paged_shard_index import FoundPairs, PagedIndex
from zarrfs.arrays.turns import Turns
from zarrfs.errors import ShardIndexInvalid
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.shards import ShardIndex
from zarrfs.stores.values import Generation, KeyStat

# What is known of a shard beside the pairs of its index.
_ENTRY_NBYTES = 1024
_CHANGED_NBYTES = 200

ShardKey = tuple[int, Coords]
"""The serial number of a `ShardedChunks`, and a shard's coordinates."""


@dataclass(frozen=True, slots=True)
class KnownShard:
    """One shard as ``stat`` told it. ``index``: where its chunks, or those that were asked for, lie, or why that cannot be told.

    ``before``: generation and time of the chunks that this mount has not seen change; ``changed``: those of the others, by place.
    """

    stat: KeyStat
    index: ShardIndex | PagedIndex | FoundPairs | ShardIndexInvalid
    before: tuple[Generation, int | None]
    changed: dict[int, tuple[Generation, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, stat: KeyStat, index: ShardIndex | PagedIndex | ShardIndexInvalid) -> KnownShard:
        """A shard of which nothing else is known."""
        return cls(stat, index, (stat.generation, stat.mtime_ns))

    def find(self, place: int) -> tuple[int, int] | None:
        """Offset and nbytes of a chunk; None when there is none. Raises `ShardIndexInvalid`."""
        if isinstance(self.index, ShardIndexInvalid):
            raise self.index
        # Of one that is read in pages, the caller got the pages (`ShardedChunks.located`).
        assert not isinstance(self.index, PagedIndex)
        return self.index.find(place)

    def stat_of(self, place: int) -> KeyStat | None:
        """What is known of a chunk. Raises `ShardIndexInvalid`."""
        found = self.find(place)
        if found is None:
            return None
        generation, mtime_ns = self.changed.get(place, self.before)
        return KeyStat(found[1], mtime_ns, generation)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, about."""
        pairs = self.index.nbytes if isinstance(self.index, ShardIndex | PagedIndex) else 0
        return _ENTRY_NBYTES + pairs + _CHANGED_NBYTES * len(self.changed)


class ShardIndexCache:
    """The shards that are known in a mount, up to ``limit`` bytes in all; least recently used go first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._known: OrderedDict[ShardKey, KnownShard] = OrderedDict()
        self._underway: dict[ShardKey, Flight] = {}
        self._serials = itertools.count(1)
        self.turns = Turns()

    def serial(self) -> int:
        """A number of one's own, for keys."""
        return next(self._serials)

    def get(self, key: ShardKey) -> KnownShard | None:
        """What is known of a shard, of whatever generation."""
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
        return known

    async def of(
        self, key: ShardKey, generation: Generation | None, read: Callable[[], Awaitable[KnownShard | None]]
    ) -> KnownShard | None:
        """The shard as it is at ``generation`` (None: whatever is known), or as ``read()`` finds it now; None when that finds none."""
        while True:
            known = self.get(key)
            if known is not None and generation in (None, known.stat.generation):
                return known
            underway = self._underway.get(key)
            if underway is None:
                break
            await underway.landed()
        flight = self._underway[key] = Flight()
        with flight.under_way():
            try:
                known = await read()
            finally:
                del self._underway[key]
        if known is None:
            self.discard(key)
        else:
            self.put(key, known)
        return known

    def put(self, key: ShardKey, known: KnownShard) -> None:
        """Remember a shard."""
        self.discard(key)
        self._known[key] = known
        self.nbytes += known.nbytes
        while self.nbytes > self.limit and len(self._known) > 1:
            self.discard(next(iter(self._known)))

    def discard(self, key: ShardKey) -> None:
        """Forget a shard."""
        known = self._known.pop(key, None)
        if known is not None:
            self.nbytes -= known.nbytes
