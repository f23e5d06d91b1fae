"""Address space that is kept for the moments in which nothing may fail.

A request that was taken from the kernel has to be answered: its program waits for that, beyond SIGKILL, for as long as the daemon
lives. Between taking a request and calling its handler pyfuse3 allocates a few objects and a copy of what is written, and loses the
request where that fails. So some address space is held, and let go of for just these moments (`Reserve.lend`, `Reserve.take`); it is let
go of, too, where memory has run out, so that the error can be told.

Memory runs out for a process (as opposed to the machine, whose kernel kills) where its address space is limited: RLIMIT_AS, RLIMIT_DATA,
``vm.overcommit_memory=2``. Elsewhere lending costs nothing: no system call is made. Pages of the reserve are never touched.
"""

from __future__ import annotations

import mmap
import resource
from pathlib import Path

NBYTES = 8 << 20
"""A buffer for a new worker and a copy of the largest WRITE (1 MiB each), and arenas for small objects."""
_MAP_NORESERVE = 0x4000
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
# Limits may be set for a process that runs (prlimit(1)).
_LOOKED_AT_AGAIN = 256


class Reserve:
    """Of this process; belongs to one thread. Nothing is held before the first `take`."""

    def __init__(self, nbytes: int = NBYTES) -> None:
        self._nbytes = nbytes
        self._held: mmap.mmap | None = None
        self._limited = True
        self._lent = 0

    @property
    def is_held(self) -> bool:
        """Whether it is held now."""
        return self._held is not None

    def take(self) -> bool:
        """Hold it; False where there is no such room now."""
        if self._held is None:
            try:
                self._held = mmap.mmap(-1, self._nbytes, flags=_FLAGS)
            except (OSError, MemoryError):
                return False
        return True

    def lend(self) -> None:
        """Let go of it until the next `take`, where memory is limited."""
        self._lent += 1
        if not self._lent % _LOOKED_AT_AGAIN or self._lent == 1:
            self._limited = is_limited()
        if self._limited:
            self.release()

    def release(self) -> None:
        """Let go of it until the next `take`: memory has run out."""
        held, self._held = self._held, None
        if held is not None:
            held.close()


def is_limited() -> bool:
    """Whether an allocation may fail because this process has too many."""
    limits = (resource.getrlimit(each)[0] for each in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return any(limit != resource.RLIM_INFINITY for limit in limits) or _overcommit() == b"2"


def _overcommit() -> bytes:
    try:
        return Path("/proc/sys/vm/overcommit_memory").read_bytes().strip()
    except OSError:
        return b""


RESERVE = Reserve()
"""That of the event loop."""
