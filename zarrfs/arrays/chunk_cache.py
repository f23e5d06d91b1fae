"""LRU cache of decoded chunks; concurrent readers of one chunk share one decoding."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from zarrfs.arrays.flight import Flight
from zarrfs.buffers import Buffer, NDArray
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.memory.spill import is_intact, is_mapped
from zarrfs.model.chunk_grid import Coords

# Overhead of an entry: a sparse array has many chunks without elements.
_ENTRY_NBYTES = 512
# Limit of mapped files, as a multiple of the memory limit.
_FILES_TO_MEMORY = 32

CacheKey = tuple[int, Coords]
"""The array's serial number and a chunk's coordinates."""


class Encoded(NamedTuple):
    """The encoded form of a chunk, requested from the store when `ChunkCache.changes` was ``since``."""

    data: Buffer
    since: int


@dataclass(slots=True)
class _Entry:
    array: NDArray | None
    generation: str | None
    mapped: bool = False

    @property
    def nbytes(self) -> int:
        return _ENTRY_NBYTES + (self.array.nbytes if self.array is not None and not self.mapped else 0)

    @property
    def mapped_nbytes(self) -> int:
        """Number of bytes in a mapped file."""
        return self.array.nbytes if self.array is not None and self.mapped else 0


@dataclass(slots=True)
class _Reading:
    generation: str | None
    flight: Flight = field(default_factory=Flight)
    stale: bool = False
    done: bool = False
    array: NDArray | None = None


class ChunkCache:
    """Cache of decoded chunks (read-only arrays; None for a missing chunk), up to ``limit`` bytes of memory.

    Mapped files may hold a multiple of that. Entries for which ``budget`` has no memory are evicted. An entry records the generation
    that it was read from, if the caller names one; a caller that names another generation gets a miss. `discard` during a decoding, or
    since ``changes`` was ``since``, keeps its result out of the cache: waiting readers read again.
    """

    def __init__(self, limit: int, budget: MemoryBudget | None = None) -> None:
        self.limit = limit
        self.nbytes = 0
        self.mapped_nbytes = 0
        self._budget = budget or MemoryBudget(UNLIMITED)
        self._budget.on_pressure(self._release)
        self.hits = 0
        self.changes = 0
        """Counts the calls of `discard` and `discard_all`."""
        self._entries: OrderedDict[CacheKey, _Entry] = OrderedDict()
        self._of: dict[int, set[Coords]] = {}
        self._readings: dict[CacheKey, _Reading] = {}

    def has(self, serial: int) -> bool:
        """Return True if any chunk of the array with this serial number is cached."""
        return serial in self._of

    def peek(self, key: CacheKey) -> tuple[bool, NDArray | None]:
        """Return whether the chunk is cached, and the chunk."""
        entry = self._entry(key)
        return (False, None) if entry is None else (True, entry.array)

    async def get(
        self,
        key: CacheKey,
        read: Callable[[], Awaitable[NDArray | None]],
        generation: str | None = None,
        since: int | None = None,
    ) -> NDArray | None:
        """Return the chunk, from the cache or from ``read()``, which concurrent callers share.

        ``since``: the value of `changes` before the chunk was requested from the store, if ``read()`` decodes what was got before."""
        while True:
            entry = self._entry(key)
            if entry is not None and (generation is None or entry.generation == generation):
                self._entries.move_to_end(key)
                self.hits += 1
                return entry.array
            reading = self._readings.get(key)
            if reading is None:
                break
            await reading.flight.landed()
            if reading.done and not reading.stale and generation in (None, reading.generation):
                self.hits += 1
                return reading.array
        reading = self._readings[key] = _Reading(generation, stale=since not in (None, self.changes))
        with reading.flight.under_way():
            try:
                reading.array = array = await read()
                reading.done = True
            finally:
                del self._readings[key]
        if array is not None:
            array.flags.writeable = False
        if not reading.stale:
            self._insert(key, _Entry(array, generation, is_mapped(array)))
        return array

    def add(self, key: CacheKey, array: NDArray, since: int) -> None:
        """Add a chunk that was requested from the store when `changes` was ``since``, if it is neither cached nor being read."""
        if since == self.changes and key not in self._readings and self._entry(key) is None:
            array.flags.writeable = False
            self._insert(key, _Entry(array, None, is_mapped(array)))

    def discard(self, serial: int, coords: Coords | None = None) -> None:
        """Evict one chunk of an array, or all of them."""
        self.changes += 1
        for each in [coords] if coords is not None else list(self._of.get(serial, ())):
            self._remove((serial, each))
        for key, reading in self._readings.items():
            if key[0] == serial and coords in (None, key[1]):
                reading.stale = True

    def discard_all(self) -> None:
        """Evict everything."""
        self.changes += 1
        self._entries.clear()
        self._of.clear()
        self._budget.give(self.nbytes)
        self.nbytes = self.mapped_nbytes = 0
        for reading in self._readings.values():
            reading.stale = True

    def _entry(self, key: CacheKey) -> _Entry | None:
        """Return the entry; None, too, if the disk may have lost bytes of its file."""
        entry = self._entries.get(key)
        if entry is not None and entry.mapped and not is_intact(entry.array):
            self._remove(key)
            return None
        return entry

    def _insert(self, key: CacheKey, entry: _Entry) -> None:
        self._remove(key)
        if entry.nbytes > self.limit or entry.mapped_nbytes > self.limit * _FILES_TO_MEMORY or not self._budget.take(entry.nbytes):
            return
        self._entries[key] = entry
        self._of.setdefault(key[0], set()).add(key[1])
        self.nbytes += entry.nbytes
        self.mapped_nbytes += entry.mapped_nbytes
        while self.nbytes > self.limit:
            self._remove(next(iter(self._entries)))
        while self.mapped_nbytes > self.limit * _FILES_TO_MEMORY:
            self._remove(next(key for key, each in self._entries.items() if each.mapped))

    def _remove(self, key: CacheKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.nbytes
            self.mapped_nbytes -= entry.mapped_nbytes
            self._budget.give(entry.nbytes)
            cached = self._of[key[0]]
            cached.remove(key[1])
            if not cached:
                del self._of[key[0]]

    def _release(self, nbytes: int) -> None:
        """Evict entries until ``nbytes`` are free for other users of the budget."""
        least = self.nbytes - nbytes
        while self._entries and self.nbytes > least:
            self._remove(next(iter(self._entries)))
