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
import os

_LIBC = ctypes.CDLL(None, use_errno=True)
# A range without pages: nothing is waited for, and failures of the whole file are reported.
_FAR, _ONE, _WAIT_BEFORE = ctypes.c_int64(1 << 62), ctypes.c_int64(1), ctypes.c_uint(1)
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ESPIPE, errno.EOPNOTSUPP, errno.EPERM})


class WrittenOut:
    """The failures of one open file ``fd``, which the owner keeps open. Any thread may call `require`, which does not wait."""

    __slots__ = ("_failed", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._failed = 0

    def require(self) -> None:
        """Raise `OSError` if bytes of the file may have been lost by now."""
        if not self._failed:
            self._failed = _error_of(self._fd)
        if self._failed:
            raise OSError(self._failed, f"{os.strerror(self._failed)}: the disk of the cache folder has lost what was kept there")


def _error_of(fd: int) -> int:
    """Return the errno of a failure that was not reported yet; 0 if there is none."""
    call = getattr(_LIBC, "sync_file_range", None)
    if call is None or call(fd, _FAR, _ONE, _WAIT_BEFORE) == 0:
        return 0
    number = ctypes.get_errno()
    return 0 if number in _UNSUPPORTED else number
