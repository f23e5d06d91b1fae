"""LRU cache of shard indexes: each is valid for one generation of its shard, and concurrent requests share one read."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import trio

from zarrfs.arrays.flight import Flights
from zarrfs.arrays.paged_shard_index import FoundPairs, PagedIndex
from zarrfs.arrays.turns import Turns, is_held
from zarrfs.errors import ShardIndexInvalid
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


class ShardIndexCache:
    """LRU cache of the known shards of a mount, up to ``limit`` bytes in total."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self._known: OrderedDict[ShardKey, KnownShard] = OrderedDict()
        self._flights: Flights[ShardKey] = Flights()
        # Shards that this mount is storing: the expected generation of before, and the end.
        self._storing: dict[ShardKey, tuple[Generation | None, trio.Event]] = {}
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
            # The task that is reading it may wait for the turn that this one holds.
            if is_held() or not await self._flights.joined(key):
                break
        before = self._known.get(key)
        with nullcontext() if key in self._flights else self._flights.started(key):
            known = await read()
            if known is not None:
                known = await self._as_stored(key, known)
        if (now := self._known.get(key)) is not None and now is not before:
            # This mount has stored the shard meanwhile, and knows more of it than what was read.
            return known
        if known is None:
            self.discard(key)
        else:
            self.put(key, known)
        return known

    def is_being_read(self, key: ShardKey) -> bool:
        """Return True if `of` waits for a read that another task has begun."""
        return key in self._flights

    @contextmanager
    def storing(self, shards: Mapping[ShardKey, Generation | None]) -> Iterator[None]:
        """Store shards in the body, each over the generation given (None: any), and `put` what is known of them then.

        A reader that finds another generation meanwhile waits for the end: a set takes effect before it returns, and the shard as read
        does not tell which of its chunks stay what they were.
        """
        ended = trio.Event()
        self._storing |= {key: (expected, ended) for key, expected in shards.items()}
        try:
            yield
        finally:
            for key in shards:
                if self._storing.get(key, (None, None))[1] is ended:
                    del self._storing[key]
            ended.set()

    async def _as_stored(self, key: ShardKey, known: KnownShard) -> KnownShard:
        """Return a shard that was read, with what is known of its chunks if this mount has stored it."""
        expected, ended = self._storing.get(key, (known.stat.generation, None))
        if ended is None or known.stat.generation == expected:
            return known
        await ended.wait()
        stored = self.get(key)
        return stored if stored is not None and stored.stat.generation == known.stat.generation else known

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
