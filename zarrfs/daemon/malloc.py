"""Tuning of the C library: keep freed memory, and return it to the system once there is much of it.

Encoded chunks and whole values are allocated and freed by the megabyte. By default glibc returns such blocks to the kernel at once, and
the next one gets fresh pages, zeroed one by one: reading a cached file of 800 kB then takes 220 microseconds instead of 100.

Where the address space is limited, it is not spent on arenas (64 MiB each, mostly unused) and stacks (8 MiB each by default, and up to
40 MiB of them kept after their threads): otherwise a few threads leave no room for data, nor for the reserve of `zarrfs.memory.reserve`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from zarrfs.memory.reserve import is_limited

log = logging.getLogger(__name__)

# <malloc.h>
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGEST_BLOCK = 32 << 20
"""Maximum that glibc accepts for M_MMAP_THRESHOLD: blocks up to this size are recycled."""
_MAX_FREE_NBYTES = 32 << 20
_MUCH_FREED = 64 << 20
"""Free memory in bytes from which it is returned to the system, whatever arena it is in."""
# Threads that share an arena rarely allocate at the same time; memory kept by arenas is not accounted for.
_ARENAS = 4
# glibc's own default where stacks are not limited.
_SMALL_STACK = 2 << 20


def keep_freed_memory() -> None:
    """Keep up to 32 MiB of free memory in the process, and spare its address space if that is limited. Without effect on a C library
    other than glibc, except on stacks.

    Called before the first thread is started.
    """
    limited = is_limited()
    if limited:
        threading.stack_size(_SMALL_STACK)
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        log.debug("this C library has no mallopt")
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_BLOCK)
    mallopt(_M_TRIM_THRESHOLD, _MAX_FREE_NBYTES)
    mallopt(_M_ARENA_MAX, 1 if limited else _ARENAS)


class FreedMemory:
    """The memory that the C library keeps after it was freed.

    It is what the process has beyond the bytes that are in use by ``taken()``, less what remained after the last return: the program
    itself, and fragments that no arena can return.
    """

    def __init__(self, taken: Callable[[], int]) -> None:
        self._taken = taken
        self._remains = anonymous_nbytes() - taken()

    def give_back(self) -> bool:
        """Return the free memory of all arenas to the system if there is much of it, and True then. Takes some milliseconds.

        A return too many costs more: what is allocated next gets fresh pages, and a copy into these takes several times as long.
        """
        if anonymous_nbytes() - self._taken() - self._remains < _MUCH_FREED:
            return False
        try:
            trim = ctypes.CDLL(None).malloc_trim
        except (OSError, AttributeError):
            return False
        trim(0)
        self._remains = anonymous_nbytes() - self._taken()
        return True


def anonymous_nbytes() -> int:
    """Return the resident bytes of the process that no file backs."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGESIZE")
