"""Address space reserved for the moments in which no allocation may fail.

A request taken from the kernel must be answered: its program waits for the answer, beyond SIGKILL, for the life of the daemon. Between
taking a request and calling its handler pyfuse3 allocates a few objects and a copy of written data, and loses the request if that fails.
A piece of address space is therefore held, and released for just these moments (`Reserve.lend`, `Reserve.take`); it is also released when
memory is exhausted, so that the error can be reported.

Memory is exhausted for a process (as opposed to the machine, whose kernel kills) if its address space is limited: RLIMIT_AS, RLIMIT_DATA,
``vm.overcommit_memory=2``. Otherwise lending is free, without a system call. Pages of the reserve are never touched.
"""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

NBYTES = 8 << 20
"""Size for a new worker's buffer and a copy of the largest WRITE (1 MiB each), and arenas for small objects."""
_LEAST_NBYTES = 4 << 20
"""Size for these with one arena. With less, requests were lost where a daemon is at its limit for long."""
_MAP_NORESERVE = 0x4000
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
# Limits are checked again after this number of `Reserve.lend`: prlimit(1) sets them in a running process.
_CALLS_PER_CHECK = 256


class Reserve:
    """The reserve of this process; belongs to one thread. Nothing is held before the first `take`."""

    def __init__(self) -> None:
        self._held: mmap.mmap | None = None
        self._limited = True
        self._lent = 0

    @property
    def is_held(self) -> bool:
        """True if it is held now."""
        return self._held is not None

    def take(self) -> bool:
        """Hold the reserve, or as much of it as there is room for; return False if there is no room for the least now."""
        nbytes = NBYTES
        while self._held is None and nbytes >= _LEAST_NBYTES:
            try:
                self._held = mmap.mmap(-1, nbytes, flags=_FLAGS)
            except (OSError, MemoryError):
                nbytes //= 2
        return self._held is not None

    def lend(self) -> None:
        """Release the reserve until the next `take`, if memory is limited."""
        self._lent += 1
        if not self._lent % _CALLS_PER_CHECK or self._lent == 1:
            self._limited = is_limited()
        if self._limited:
            self.release()

    def release(self) -> None:
        """Release the reserve until the next `take`: memory is exhausted."""
        held, self._held = self._held, None
        if held is not None:
            held.close()


def is_limited() -> bool:
    """Return True if an allocation may fail because of limits of this process."""
    limits = (resource.getrlimit(each)[0] for each in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return any(limit != resource.RLIM_INFINITY for limit in limits) or _overcommit() == b"2"


def _overcommit() -> bytes:
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_bytes().strip()
    except OSError:
        return b""


RESERVE = Reserve()
"""The reserve of the event loop."""
