"""LRU cache of shard indexes: each is valid for one generation of its shard, and concurrent requests share one read."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.arrays.flight import Flights
from zarrfs.arrays.paged_shard_index import FoundPairs, PagedIndex
from zarrfs.arrays.turns import Turns
from zarrfs.errors import ShardIndexInvalid
from zarrfs.keys import Key
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.shards import ShardIndex
from zarrfs.stores.values import Generation, KeyStat

# Memory of an entry beside the index, and of one changed chunk.
_ENTRY_NBYTES = 1024
_CHANGED_NBYTES = 200

ShardKey = tuple[int, Coords]
"""The serial number of a `ShardedChunks`, and a shard's coordinates."""


@dataclass(frozen=True, slots=True)
class KnownShard:
    """One shard at the state ``stat``.

    ``index``: the positions of its chunks, or of the requested ones, or the reason why they cannot be read. ``before``: generation and
    time of chunks not changed by this mount; ``changed``: those of the others, by place.
    """

    stat: KeyStat
    index: ShardIndex | PagedIndex | FoundPairs | ShardIndexInvalid
    before: tuple[Generation, int | None]
    changed: dict[int, tuple[Generation, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, stat: KeyStat, index: ShardIndex | PagedIndex | ShardIndexInvalid) -> KnownShard:
        """Return a shard without changes by this mount."""
        return cls(stat, index, (stat.generation, stat.mtime_ns))

    def find(self, index: int) -> tuple[int, int] | None:
        """Return offset and nbytes of a chunk; None if absent. Raises `ShardIndexInvalid`."""
        if isinstance(self.index, ShardIndexInvalid):
            raise self.index.again()
        # For a paged index the caller has read the pages (`ShardIndexReader.located`).
        assert not isinstance(self.index, PagedIndex)
        return self.index.find(index)

    def stat_of(self, index: int) -> KeyStat | None:
        """Return the stat of a chunk; None if absent. Raises `ShardIndexInvalid`."""
        found = self.find(index)
        if found is None:
            return None
        generation, mtime_ns = self.changed.get(index, self.before)
        return KeyStat(found[1], mtime_ns, generation)

    @property
    def nbytes(self) -> int:
        """Approximate memory in bytes."""
        pairs = self.index.nbytes if isinstance(self.index, ShardIndex | PagedIndex) else 0
        return _ENTRY_NBYTES + pairs + _CHANGED_NBYTES * len(self.changed)


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A stored shard: its coordinates, keys and size, and its index or the reason why the index is unreadable."""

    coords: Coords
    keys: tuple[Key, ...]
    nbytes: int
    index: ShardIndex | PagedIndex | ShardIndexInvalid


@contextmanager
def naming(parent: ChunkStore, shard: Coords) -> Iterator[None]:
    """Add a shard of ``parent`` to the errors of its index. Those of a shard around it have their key already."""
    try:
        yield
    except ShardIndexInvalid as error:
        if error.key is not None:
            raise
        key = parent.keys(shard)[0]
        raise ShardIndexInvalid(f"shard {key!r}: {error}", key=key) from error


def placed(
    parent: ChunkStore, shard: Coords, known: KnownShard | None, index: int, *, fresh: bool
) -> tuple[tuple[int, int], KeyStat] | None:
    """Return position and stat of a chunk in a shard of ``parent``; None if absent.

    Also None for an invalid position in a shard that is not ``fresh``: a sound one may have replaced it. Raises `ShardIndexInvalid`.
    """
    try:
        with naming(parent, shard):
            found, stat = (known.find(index), known.stat_of(index)) if known is not None else (None, None)
    except ShardIndexInvalid:
        if fresh:
            raise
        return None
    return None if found is None or stat is None else (found, stat)


class ShardIndexCache:
    """LRU cache of the known shards of a mount, up to ``limit`` bytes in total."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._known: OrderedDict[ShardKey, KnownShard] = OrderedDict()
        self._flights: Flights[ShardKey] = Flights()
        self._serials = itertools.count(1)
        self.turns = Turns()

    def serial(self) -> int:
        """Return a number unique to the caller, for its cache keys."""
        return next(self._serials)

    def get(self, key: ShardKey) -> KnownShard | None:
        """Return a cached shard of any generation."""
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
        return known

    async def of(
        self, key: ShardKey, generation: Generation | None, read: Callable[[], Awaitable[KnownShard | None]]
    ) -> KnownShard | None:
        """Return the shard of ``generation`` (None: any cached one), else the result of ``read()``; None if that is None."""
        while True:
            known = self.get(key)
            if known is not None and generation in (None, known.stat.generation):
                return known
            if not await self._flights.joined(key):
                break
        with self._flights.started(key):
            known = await read()
        if known is None:
            self.discard(key)
        else:
            self.put(key, known)
        return known

    def put(self, key: ShardKey, known: KnownShard) -> None:
        """Add a shard to the cache."""
        self.discard(key)
        self._known[key] = known
        self.nbytes += known.nbytes
        while self.nbytes > self.limit and len(self._known) > 1:
            self.discard(next(iter(self._known)))

    def discard(self, key: ShardKey) -> None:
        """Remove a shard from the cache."""
        known = self._known.pop(key, None)
        if known is not None:
            self.nbytes -= known.nbytes
