"""The moment in which a value is replaced or removed: all processes with a folder on this machine take turns in it.

A condition on the present value and the replacement are two system calls, and a set without a condition could come between them: it
would be lost, though it was acknowledged. So each locks the file that is there (flock(2)), and the others find out that it is there no
longer.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat as st
import time
from types import TracebackType

from zarrfs.stores.folder.calls import VALUE, link_new, lstat, rename_new
from zarrfs.stores.folder.names import Parts, as_expected, as_room
from zarrfs.stores.values import Absent, Expected

_PAUSES = (*[0.0001] * 20, *[0.001] * 18, *[0.01] * 8)
"""Seconds between attempts, in all 0.1. Turns take microseconds: whoever holds a lock longer than that is another program."""

_TRIES = 16
"""Attempts to take a place that others keep taking and leaving."""

_CANNOT_LOCK = frozenset(
    {errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
)


class Turn:
    """A block in which no other process replaces or removes the value ``name`` of ``folder`` (a descriptor) in a block like this.

    Yields the status of what is there; None if it is absent. That is not locked: it has to be replaced by `calls.rename_new`, in one
    step. Nor are folders and links, files that this user may not read, and what another program has locked for long; and nothing without
    ``locks``, on file systems of other machines. Raises `OSError`.
    """

    __slots__ = ("_fd", "_folder", "_locks", "_name")

    def __init__(self, folder: int, name: str, *, locks: bool) -> None:
        self._folder, self._name, self._locks = folder, name, locks
        self._fd: int | None = None

    def __enter__(self) -> os.stat_result | None:
        found = lstat(self._folder, self._name)
        for pause in _PAUSES if self._locks else ():
            if found is None or not st.S_ISREG(found.st_mode):
                break
            try:
                self._fd = _locked(self._folder, self._name)
            except FileNotFoundError:
                pass
            except BlockingIOError:
                time.sleep(pause)
            except OSError as error:
                if error.errno not in _CANNOT_LOCK:
                    raise
                break
            # Another file may have taken the place of this one before it was locked.
            now = lstat(self._folder, self._name)
            if self._fd is not None:
                if now is not None and os.path.samestat(now, os.fstat(self._fd)):
                    return now
                self._let_go()
            found = now
        return found

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._let_go()

    def _let_go(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def take_place(folder: int, temporary: str, parts: Parts, expect: Expected, *, locks: bool) -> os.stat_result | None:
    """Rename a file in ``folder`` to the last of ``parts``, in a `Turn`; return the status of what it replaces.

    Raises `GenerationMismatch` unless that is as expected, `FileExistsError` or `GenerationMismatch` instead of replacing anything with
    `ABSENT`, `KeyConflict`, `StoreAccessDenied`, and `OSError`.
    """
    name = parts[-1]
    for left in reversed(range(_TRIES)):
        with Turn(folder, name, locks=locks) as found:
            old = as_expected(as_room(found, parts), expect, parts)
            if expect is Absent.ABSENT:
                link_new(folder, temporary, name)
            elif old is None and left:
                try:
                    rename_new(folder, temporary, name)
                except FileExistsError:
                    continue
            else:
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            return old
    raise AssertionError("unreachable")


def _locked(folder: int, name: str) -> int:
    """Return a descriptor that holds the lock of a file. Raises `BlockingIOError` if another holds it."""
    fd = os.open(name, VALUE, dir_fd=folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd
