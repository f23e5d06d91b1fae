"""Bytes of unnamed files that the kernel has accepted, and the disk has not.

The kernel writes them out later. Where that fails (the quota of a server, a thin volume without room, a bad sector), their pages count as
clean: they may be dropped at any time, and then read as zeros or as what was there before. The kernel reports the failure once for each
open file. What was read from such a file is therefore not used before it is known that nothing failed.

fsync(2) would report it, too, but would also write out files that are usually closed before the kernel writes any of them. On overlayfs,
where sync_file_range(2) has no effect, nothing is detected.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import threading

_LIBC = ctypes.CDLL(None, use_errno=True)
# A range without pages: nothing is waited for, and failures of the whole file are reported.
_FAR, _ONE, _WAIT_BEFORE = ctypes.c_int64(1 << 62), ctypes.c_int64(1), ctypes.c_uint(1)


class WrittenOut:
    """The failures of one open file, of which the owner keeps the descriptor ``fd`` open. Any thread may call `require`, which does not
    wait. ``of``: the same open file, by another descriptor."""

    __slots__ = ("_failure", "_fd")

    def __init__(self, fd: int, of: WrittenOut | None = None) -> None:
        self._fd = fd
        self._failure: _Failure = _Failure() if of is None else of._failure

    def require(self) -> None:
        """Raise `OSError` if bytes of the file may have been lost by now."""
        if number := self._failure.number(self._fd):
            raise OSError(number, f"{os.strerror(number)}: the disk of the cache folder has lost what was kept there")


class _Failure:
    """The first failure of an open file."""

    __slots__ = ("_lock", "_number")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0

    def number(self, fd: int) -> int:
        """Return its errno; 0 if there is none."""
        # The kernel tells one caller: another thread would get no error before this one has recorded it.
        with self._lock:
            if not self._number and _is_supported() and not _succeeds(fd):
                number = ctypes.get_errno()
                # Kernels in user space (gVisor) look at the descriptor before they refuse the flag.
                self._number = number if number != errno.ENOSYS else 0
            return self._number


def _succeeds(fd: int) -> bool:
    return bool(_LIBC.sync_file_range(fd, _FAR, _ONE, _WAIT_BEFORE) == 0)


@functools.cache
def _is_supported() -> bool:
    """Return False where the system, its C library or a filter of system calls (seccomp) has no such call.

    Not told from an error of the call itself: a file system may fail with any, with EPERM too.
    """
    return hasattr(_LIBC, "sync_file_range") and not _succeeds(-1) and ctypes.get_errno() == errno.EBADF
