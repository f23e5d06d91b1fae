"""Slab buffers: recycled memory for sequential readers, and files beyond the memory limit.

Fresh memory is the expensive part of a read (docs/design/003-readers.md): buffers return to the pool and are reused while their pages
are mapped.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from typing import Any

import numpy as np
import trio

from zarrfs import threads
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.flight import Flight
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.memory.spill import is_intact, reserve
from zarrfs.model.number_set import NumberSet

SlabKey = tuple[int, int]
"""The array's serial number and the slab's index."""

Memory = np.ndarray[Any, np.dtype[np.uint8]]

# The resident pages of a file-backed slab are dropped after this many bytes were written or read; the page cache keeps them.
_TRIM_NBYTES = 4 * 1024 * 1024
# Overhead of a slab: the minimum that one counts for.
_MIN_NBYTES = 4096
_MAX_FREE = 32


class Slab:
    """One slab, being filled and read.

    ``first``, ``stop``: its elements. ``memory``: their bytes, valid for the chunks whose numbers are in ``filled``
    (`zarrfs.model.slab.SlabGrid.number_in`); ``filling``: the numbers of those being filled, each in one flight. ``pins`` counts tasks
    that need its memory across an await, ``readers`` open files that read through it: while either is positive, no other slab displaces
    it. ``stale``: its content was discarded; ``ahead``: it is completed in the background, and ``completing``: one pin is that task's.
    """

    def __init__(self, key: SlabKey, first: int, stop: int, nbytes: int, buffer: Memory, mapping: mmap.mmap | None) -> None:
        self.key = key
        self.first = first
        self.stop = stop
        self.buffer = buffer
        self.memory = buffer[:nbytes]
        self.filled = NumberSet()
        self.filling: dict[Flight, range] = {}
        self.complete = False
        self.ahead = False
        self.completing = False
        self.stale = False
        self.pins = 0
        self.readers = 0
        self._mapping = mapping
        self._since_trim = 0

    @property
    def spilled(self) -> bool:
        """True if it is in a file."""
        return self._mapping is not None

    @property
    def is_intact(self) -> bool:
        """True if the disk has lost nothing of its file by now."""
        return is_intact(self._mapping)

    @property
    def idle(self) -> bool:
        """True if no task or file uses it."""
        return not (self.pins or self.readers or self.filling)

    def drop(self, number: int) -> bool:
        """Discard one chunk; return False if that is impossible, as a task may be reading or filling it."""
        if self.pins > self.completing or any(number in batch for batch in self.filling.values()):
            return False
        self.filled.remove(number)
        self.complete = False
        self.ahead = self.completing
        return True

    def used(self, nbytes: int) -> None:
        """Record that ``nbytes`` were written or read: a spilled slab drops its resident pages from time to time."""
        self._since_trim += nbytes
        if self._mapping is not None and self._since_trim >= _TRIM_NBYTES:
            self._since_trim = 0
            self._mapping.madvise(mmap.MADV_DONTNEED)


class SlabPool:
    """The slabs of a mount, within ``limit`` bytes of memory, evicted in LRU order.

    A slab in use is never evicted, so that every pass decodes each chunk once: if those in use take all the memory, the next one is in a
    file in ``directory``.
    """

    def __init__(
        self, limit: int, counters: WorkCounters, directory: str | None = None, budget: MemoryBudget | None = None
    ) -> None:
        self.limit = limit
        self._budget = budget or MemoryBudget(UNLIMITED)
        (self._budget.whole or self._budget).on_pressure(self._release)
        self.nbytes = 0
        self._counters = counters
        self._directory = directory
        self._slabs: OrderedDict[SlabKey, Slab] = OrderedDict()
        # The indices of these slabs by the serial number of their array.
        self._of_array: dict[int, set[int]] = {}
        self._filling: dict[SlabKey, trio.Event] = {}
        self._free: list[Memory] = []

    def get(self, key: SlabKey) -> Slab | None:
        """Return the slab, if present, and mark it as used."""
        slab = self._slabs.get(key)
        if slab is not None:
            self._slabs.move_to_end(key)
        return slab

    def add_in_memory(self, key: SlabKey, first: int, stop: int, nbytes: int) -> Slab | None:
        """Return a new, empty slab for elements ``first`` to ``stop``.

        Returns None if the slabs in use leave no memory for it, or while `get_or_add` is creating it.
        """
        if key in self._filling:
            return None
        buffer = self._buffer(max(nbytes, _MIN_NBYTES))
        return None if buffer is None else self._added(Slab(key, first, stop, nbytes, buffer, None))

    async def get_or_add(self, key: SlabKey, first: int, stop: int, nbytes: int) -> Slab:
        """Return the slab, or a new one in memory, else in a file. Raises OSError if there is no room for the file.

        Waits only for a file.
        """
        while True:
            slab = self.get(key)
            if slab is None:
                slab = self.add_in_memory(key, first, stop, nbytes)
            if slab is not None:
                return slab
            if key not in self._filling:
                break
            await self._filling[key].wait()
        filled = self._filling[key] = trio.Event()
        try:
            mapping = await threads.io(reserve, self._directory, nbytes)
        finally:
            del self._filling[key]
            filled.set()
        # Without this the kernel maps many pages around each touched one; chunks touch all of a slab, so it would be fully resident.
        mapping.madvise(mmap.MADV_RANDOM)
        self._counters.slabs_spilled += 1
        return self._added(Slab(key, first, stop, nbytes, np.frombuffer(mapping, np.uint8), mapping))

    def discard(self, serial: int, index: int | None = None) -> None:
        """Remove the slabs of an array, or one of them; a current user of its memory keeps it until done."""
        for each in list(self._of_array.get(serial, ())) if index is None else [index]:
            slab = self._slabs.get((serial, each))
            if slab is not None:
                self._remove(slab)

    def discard_chunk(self, serial: int, index: int, number: int) -> None:
        """Discard one chunk, and its slab only if a task is using it.

        A program that changes an array piece by piece, and reads between, would otherwise have all chunks of the slab decoded each time.
        """
        slab = self._slabs.get((serial, index))
        if slab is not None and not slab.drop(number):
            self._remove(slab)

    def discard_all(self) -> None:
        """Remove the slabs of all arrays, as `discard` does."""
        for slab in list(self._slabs.values()):
            self._remove(slab)

    def passed(self, slab: Slab) -> None:
        """Release a slab that an open file has passed: the next one reuses its memory, which is still in the processor's caches."""
        if slab.idle and not slab.stale:
            self._remove(slab)

    def _added(self, slab: Slab) -> Slab:
        self._slabs[slab.key] = slab
        serial, index = slab.key
        self._of_array.setdefault(serial, set()).add(index)
        self._counters.slabs_filled += 1
        return slab

    def _buffer(self, nbytes: int) -> Memory | None:
        buffer = self._recycled(nbytes)
        while buffer is None and self.nbytes + nbytes > self.limit:
            if self._free:
                self._dropped(self._free.pop())
                continue
            displaced = next((slab for slab in self._slabs.values() if slab.idle and not slab.spilled), None)
            if displaced is None:
                return None
            self._remove(displaced)
            buffer = self._recycled(nbytes)
        if buffer is None:
            if not self._budget.take(nbytes):
                return None
            try:
                buffer = np.empty(nbytes, np.uint8)
            except MemoryError:
                # The limit exceeds what the system provides; a file may still fit.
                self._budget.give(nbytes)
                return None
            self.nbytes += nbytes
        return buffer

    def _recycled(self, nbytes: int) -> Memory | None:
        """Return a used buffer that is not much too large. Its whole size counts, however little of it is used."""
        for index, buffer in enumerate(self._free):
            if nbytes <= buffer.nbytes <= 2 * nbytes:
                return self._free.pop(index)
        return None

    def _remove(self, slab: Slab) -> None:
        del self._slabs[slab.key]
        serial, index = slab.key
        others = self._of_array[serial]
        others.discard(index)
        if not others:
            del self._of_array[serial]
        slab.stale = True
        if slab.spilled:
            return
        if slab.pins or slab.filling or len(self._free) >= _MAX_FREE:
            # A task may still read or fill it: its memory is left to the garbage collector.
            self._dropped(slab.buffer)
        else:
            self._free.append(slab.buffer)

    def _dropped(self, buffer: Memory) -> None:
        self.nbytes -= buffer.nbytes
        self._budget.give(buffer.nbytes)

    def _release(self, nbytes: int) -> None:
        """Evict idle slabs until ``nbytes`` are free for other users of the budget."""
        least = self.nbytes - nbytes
        while self._free and self.nbytes > least:
            self._dropped(self._free.pop())
        for slab in [slab for slab in self._slabs.values() if slab.idle and not slab.spilled]:
            if self.nbytes <= least:
                break
            self._remove(slab)
            while self._free:
                self._dropped(self._free.pop())
