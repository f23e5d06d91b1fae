"""Slab buffers: recycled memory for sequential readers, and a file where one slab is larger than the memory allowed.

Fresh memory is the dear part of reading (docs/design/003-readers.md), so buffers go back to the pool and are used again, touched.
"""

from __future__ import annotations

import logging
import mmap
import tempfile
from collections import OrderedDict
from typing import Any

import numpy as np
import trio

from zarrfs.hierarchy.counters import HierarchyCounters
from zarrfs.model.chunk_grid import Coords

log = logging.getLogger(__name__)

SlabKey = tuple[int, int]
"""The array's serial number and the slab's index."""

Memory = np.ndarray[Any, np.dtype[np.uint8]]

# A file-backed slab is unmapped from us after this many bytes were decoded into it; the page cache keeps them.
_TRIM_NBYTES = 16 * 1024 * 1024


class Slab:
    """One slab being filled and read. ``first``, ``stop``: its elements; ``memory``: their bytes, valid where ``filled`` says.

    ``pins`` counts the readers that await something while they need it; only an unpinned slab is recycled.
    """

    def __init__(self, key: SlabKey, first: int, stop: int, memory: Memory, mapping: mmap.mmap | None) -> None:
        self.key = key
        self.first = first
        self.stop = stop
        self.memory = memory
        self.filled: set[Coords] = set()
        self.filling: dict[Coords, trio.Event] = {}
        self.complete = False
        self.stale = False
        self.pins = 0
        self._mapping = mapping
        self._since_trim = 0

    @property
    def spilled(self) -> bool:
        """Whether it lies in a file."""
        return self._mapping is not None

    def decoded(self, nbytes: int) -> None:
        """``nbytes`` were put into it: a spilled slab lets go of resident pages from time to time."""
        self._since_trim += nbytes
        if self._mapping is not None and self._since_trim >= _TRIM_NBYTES:
            self._since_trim = 0
            self._mapping.madvise(mmap.MADV_DONTNEED)


class SlabPool:
    """The slabs of a mount, least recently used last to stay, within ``limit`` bytes of memory; larger ones go to ``directory``."""

    def __init__(self, limit: int, counters: HierarchyCounters, directory: str | None = None) -> None:
        self.limit = limit
        self.nbytes = 0
        self._counters = counters
        self._directory = directory
        self._slabs: OrderedDict[SlabKey, Slab] = OrderedDict()
        self._free: list[Memory] = []

    def get(self, key: SlabKey) -> Slab | None:
        """The slab, if it is there; it counts as used now."""
        slab = self._slabs.get(key)
        if slab is not None:
            self._slabs.move_to_end(key)
        return slab

    def fits_two(self, nbytes: int) -> bool:
        """Whether a slab of ``nbytes`` can be filled ahead without giving up the one that is being read."""
        return 2 * nbytes <= self.limit

    def add(self, key: SlabKey, first: int, stop: int, nbytes: int, *, most: int) -> Slab:
        """A new, empty slab for elements ``first`` to ``stop``; an array has ``most`` slabs at once, so that a pass over it goes
        through few, touched buffers. Raises OSError when the slab has to go to a file and there is no room."""
        mapping = None
        self._shed(key[0], most - 1)
        if nbytes > self.limit:
            self._drop_spilled()
            with tempfile.TemporaryFile(dir=self._directory) as file:
                file.truncate(nbytes)
                mapping = mmap.mmap(file.fileno(), nbytes)
            memory: Memory = np.frombuffer(mapping, np.uint8)
            self._counters.slabs_spilled += 1
        else:
            memory = self._memory(nbytes)
        slab = self._slabs[key] = Slab(key, first, stop, memory, mapping)
        self._counters.slabs_filled += 1
        return slab

    def discard(self, serial: int, coords_slab: int | None = None) -> None:
        """Forget the slabs of an array, or one of them; readers that hold one now keep it until they are done."""
        keys = [key for key in self._slabs if key[0] == serial] if coords_slab is None else [(serial, coords_slab)]
        for key in keys:
            slab = self._slabs.get(key)
            if slab is not None:
                slab.stale = True
                self._remove(slab)

    def _memory(self, nbytes: int) -> Memory:
        for index, memory in enumerate(self._free):
            if nbytes <= memory.nbytes <= 2 * nbytes:
                return self._free.pop(index)[:nbytes] if memory.nbytes == nbytes else self._cut(index, nbytes)
        while self.nbytes + nbytes > self.limit and (self._free or self._evict()):
            while self._free and self.nbytes + nbytes > self.limit:
                candidate = self._free.pop()
                if nbytes <= candidate.nbytes <= 2 * nbytes:
                    return candidate[:nbytes]
                self.nbytes -= candidate.nbytes
        self.nbytes += nbytes
        return np.empty(nbytes, np.uint8)

    def _cut(self, index: int, nbytes: int) -> Memory:
        memory = self._free.pop(index)
        self.nbytes -= memory.nbytes - nbytes
        return memory[:nbytes]

    def _shed(self, serial: int, most: int) -> None:
        """Let go of the least recently used slabs of an array beyond ``most``."""
        idle = [slab for key, slab in self._slabs.items() if key[0] == serial]
        for slab in idle[: max(0, len(idle) - most)]:
            if not slab.pins and not slab.filling:
                self._remove(slab)

    def _evict(self) -> bool:
        """Let go of the least recently used slab that nobody is using; False when there is none."""
        for slab in self._slabs.values():
            if not slab.pins and not slab.filling and not slab.spilled:
                self._remove(slab)
                return True
        return False

    def _remove(self, slab: Slab) -> None:
        del self._slabs[slab.key]
        if slab.spilled:
            return
        if slab.pins or slab.filling:
            # Somebody still reads or fills it: its memory is left to the garbage collector.
            self.nbytes -= slab.memory.nbytes
        else:
            self._free.append(slab.memory)

    def _drop_spilled(self) -> None:
        for slab in [slab for slab in self._slabs.values() if slab.spilled and not slab.pins]:
            self._remove(slab)

    def release_free(self) -> None:
        """Give memory that no slab uses back to the system."""
        self.nbytes -= sum(memory.nbytes for memory in self._free)
        self._free.clear()
