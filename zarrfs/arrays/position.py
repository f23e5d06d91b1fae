"""The read position of an open file: sequential, or random (`zarrfs.arrays.reader`)."""

from __future__ import annotations

from zarrfs.arrays.slab_pool import Slab

# The kernel's readahead sends requests ahead and out of order within about this window: two requests of 2 MiB, for each of two programs
# that read the same file. With 4 MiB some of them counted as jumps.
WINDOW_NBYTES = 8 * 1024 * 1024
# Slabs filled ahead, one after the other: while the kernel is answered from one, the next is being filled.
SLABS_AHEAD = 1
# The previous slab, as the kernel's requests come out of order; the current one; those ahead.
_SLABS_HELD = 2 + SLABS_AHEAD


class Position:
    """The read position of one open file, which separates a sequential pass from jumps. Starts as a pass from the beginning.

    Holds the last few slabs of the pass, so that they are not displaced. ``slab``: the current slab for read-ahead; None between passes.
    ``is_closed``: the file was closed; a read that is still in progress holds nothing.
    """

    __slots__ = ("_end", "_held", "_window_nbytes", "is_closed", "reads", "slab")

    def __init__(self, window_nbytes: int = WINDOW_NBYTES) -> None:
        self._window_nbytes = window_nbytes
        self._end = 0
        self._held: list[Slab] = []
        self.reads = 0
        self.slab: int | None = None
        self.is_closed = False

    def goes_on(self, start: int, stop: int) -> bool:
        """Record a read of bytes ``start`` to ``stop``; return True if it continues the pass."""
        self.reads += 1
        if abs(start - self._end) <= self._window_nbytes:
            self._end = max(self._end, stop)
            return True
        self._end = stop
        return False

    def hold(self, slab: Slab) -> Slab | None:
        """Hold a slab that the pass reads now or soon; return the slab that it has finished, if any."""
        if self.is_closed or slab in self._held:
            return None
        slab.readers += 1
        self._held.append(slab)
        if len(self._held) <= _SLABS_HELD:
            return None
        passed = self._held.pop(0)
        passed.readers -= 1
        return passed

    def let_go(self) -> list[Slab]:
        """End the pass; return the slabs that it held."""
        held, self._held = self._held, []
        self.slab = None
        for slab in held:
            slab.readers -= 1
        return held
