"""Slab buffers: recycled memory for sequential readers, and a file where the memory allowed does not suffice.

Fresh memory is the dear part of reading (docs/design/003-readers.md), so buffers go back to the pool and are used again, touched.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict
from typing import Any

import numpy as np
import trio

from zarrfs import threads
from zarrfs.arrays.counters import HierarchyCounters
from zarrfs.arrays.flight import Flight
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.memory.spill import reserve
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.number_set import NumberSet

SlabKey = tuple[int, int]
"""The array's serial number and the slab's index."""

Memory = np.ndarray[Any, np.dtype[np.uint8]]

# A file-backed slab is unmapped from us after this many bytes were put into it or read; the page cache keeps them.
_TRIM_NBYTES = 4 * 1024 * 1024
# What a slab costs beside its elements; the least that one counts for.
_LEAST_NBYTES = 4096
_MAX_FREE = 32


class Slab:
    """One slab being filled and read. ``first``, ``stop``: its elements; ``memory``: their bytes, valid where ``filled`` says: the
    numbers that its chunks have in it (`zarrfs.model.slab.SlabGrid.number_in`).

    ``pins`` counts the tasks that await something while they need its memory, ``readers`` the open files that go through it: neither
    is displaced by other slabs. ``stale`` once what it holds was discarded; ``ahead`` once it is being completed in the background.
    """

    def __init__(self, key: SlabKey, first: int, stop: int, nbytes: int, buffer: Memory, mapping: mmap.mmap | None) -> None:
        self.key = key
        self.first = first
        self.stop = stop
        self.buffer = buffer
        self.memory = buffer[:nbytes]
        self.filled = NumberSet()
        self.filling: dict[Coords, Flight] = {}
        self.complete = False
        self.ahead = False
        self.stale = False
        self.pins = 0
        self.readers = 0
        self._mapping = mapping
        self._since_trim = 0

    @property
    def spilled(self) -> bool:
        """Whether it lies in a file."""
        return self._mapping is not None

    @property
    def idle(self) -> bool:
        """Whether nobody would miss it."""
        return not (self.pins or self.readers or self.filling)

    def used(self, nbytes: int) -> None:
        """``nbytes`` were put into it or read from it: a spilled slab lets go of resident pages from time to time."""
        self._since_trim += nbytes
        if self._mapping is not None and self._since_trim >= _TRIM_NBYTES:
            self._since_trim = 0
            self._mapping.madvise(mmap.MADV_DONTNEED)


class SlabPool:
    """The slabs of a mount, within ``limit`` bytes of memory, the least recently used given up first.

    A slab that is in use is never given up, so that every pass decodes each chunk once: when those in use take all the memory, the
    next one lies in a file in ``directory``.
    """

    def __init__(
        self, limit: int, counters: HierarchyCounters, directory: str | None = None, budget: MemoryBudget | None = None
    ) -> None:
        self.limit = limit
        self._budget = budget if budget is not None else MemoryBudget(UNLIMITED)
        (self._budget.whole or self._budget).on_pressure(self._release)
        self.nbytes = 0
        self._counters = counters
        self._directory = directory
        self._slabs: OrderedDict[SlabKey, Slab] = OrderedDict()
        self._making: dict[SlabKey, trio.Event] = {}
        self._free: list[Memory] = []

    def get(self, key: SlabKey) -> Slab | None:
        """The slab, if it is there; it counts as used now."""
        slab = self._slabs.get(key)
        if slab is not None:
            self._slabs.move_to_end(key)
        return slab

    def add_in_memory(self, key: SlabKey, first: int, stop: int, nbytes: int) -> Slab | None:
        """A new, empty slab for elements ``first`` to ``stop``; None when those in use leave no memory for it, or while
        `get_or_add` makes it."""
        if key in self._making:
            return None
        buffer = self._buffer(max(nbytes, _LEAST_NBYTES))
        return None if buffer is None else self._added(Slab(key, first, stop, nbytes, buffer, None))

    async def get_or_add(self, key: SlabKey, first: int, stop: int, nbytes: int) -> Slab:
        """The slab; a new one in memory or, when there is none left, in a file. Raises OSError when there is no room either.

        Does not wait unless the slab has to lie in a file.
        """
        while True:
            slab = self.get(key)
            if slab is None:
                slab = self.add_in_memory(key, first, stop, nbytes)
            if slab is not None:
                return slab
            if key not in self._making:
                break
            await self._making[key].wait()
        made = self._making[key] = trio.Event()
        try:
            mapping = await threads.io(reserve, self._directory, nbytes)
        finally:
            del self._making[key]
            made.set()
        # Else the kernel maps many pages around each that is touched, and chunks touch all of a slab: it would be resident whole.
        mapping.madvise(mmap.MADV_RANDOM)
        self._counters.slabs_spilled += 1
        return self._added(Slab(key, first, stop, nbytes, np.frombuffer(mapping, np.uint8), mapping))

    def discard(self, serial: int, index: int | None = None) -> None:
        """Forget the slabs of an array, or one of them; whoever needs the memory of one now keeps it until he is done."""
        keys = [key for key in self._slabs if key[0] == serial] if index is None else [(serial, index)]
        for key in keys:
            slab = self._slabs.get(key)
            if slab is not None:
                self._remove(slab)

    def discard_all(self) -> None:
        """Forget the slabs of all arrays, as `discard`."""
        for slab in list(self._slabs.values()):
            self._remove(slab)

    def passed(self, slab: Slab) -> None:
        """An open file is done with a slab: the next one is to use its memory, which is still in the processor's caches."""
        if slab.idle and not slab.stale:
            self._remove(slab)

    def _added(self, slab: Slab) -> Slab:
        self._slabs[slab.key] = slab
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
                # The limit is more than the system gives us; a file may still do.
                self._budget.give(nbytes)
                return None
            self.nbytes += nbytes
        return buffer

    def _recycled(self, nbytes: int) -> Memory | None:
        """A buffer that was used before and is not much too large. It counts whole, however little of it is used."""
        for index, buffer in enumerate(self._free):
            if nbytes <= buffer.nbytes <= 2 * nbytes:
                return self._free.pop(index)
        return None

    def _remove(self, slab: Slab) -> None:
        del self._slabs[slab.key]
        slab.stale = True
        if slab.spilled:
            return
        if slab.pins or slab.filling or len(self._free) >= _MAX_FREE:
            # Somebody may still read or fill it: its memory is left to the garbage collector.
            self._dropped(slab.buffer)
        else:
            self._free.append(slab.buffer)

    def _dropped(self, buffer: Memory) -> None:
        self.nbytes -= buffer.nbytes
        self._budget.give(buffer.nbytes)

    def _release(self, nbytes: int) -> None:
        """So many bytes are wanted elsewhere: what nobody would miss goes."""
        least = self.nbytes - nbytes
        while self._free and self.nbytes > least:
            self._dropped(self._free.pop())
        for slab in [slab for slab in self._slabs.values() if slab.idle and not slab.spilled]:
            if self.nbytes <= least:
                break
            self._remove(slab)
            while self._free:
                self._dropped(self._free.pop())
