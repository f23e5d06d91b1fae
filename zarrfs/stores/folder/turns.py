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
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

from zarrfs import threads
from zarrfs.stores.folder.calls import VALUE, link_new, lstat, rename_new, unlink
from zarrfs.stores.folder.names import Parts, as_expected, as_room, generation_of
from zarrfs.stores.values import Absent, Expected

_PATIENCE_SECONDS = 5.0
"""Longest wait for a lock. Most turns take microseconds, but rename(2) waits for the file system's journal as long as another program's
fsync takes, and a process may get no processor."""
_SHORT_PATIENCE_SECONDS, _MOST_IN_VAIN_SECONDS, _REMEMBERED_SECONDS = 0.02, 1.0, 60.0
"""Longest wait after one in vain, the sum of such waits in vain, and how long that is remembered: who may read files may lock them all,
and would delay every change, and the removal of many values beyond its deadline."""
_PAUSE_SECONDS = (0.0001, 0.01)
"""First and longest pause between attempts."""

_TRIES = 16
"""Attempts to take a place that others keep taking and leaving."""

_CANNOT_LOCK = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL),
        *(errno.ENOSYS, errno.EIO, errno.ESTALE),
    }
)
"""Errors of open(2) and flock(2) for files that are replaced without a lock: those that may not or cannot be read, too."""


class Turn:
    """A block in which no other process replaces or removes the value ``name`` of ``folder`` (a descriptor) in a block like this.

    Yields the status of what is there; None if it is absent. That is not locked: it has to be replaced by `calls.rename_new`, in one
    step. Nor are folders and links, files that this user may not read, and what another program has locked for long; and nothing without
    ``locks``, on file systems of other machines; nor the file ``besides``, whose turn the caller has. Raises `OSError`.
    """

    __slots__ = ("_besides", "_fd", "_folder", "_locks", "_name")

    def __init__(self, folder: int, name: str, *, locks: bool, besides: os.stat_result | None = None) -> None:
        self._folder, self._name, self._locks, self._besides = folder, name, locks, besides
        self._fd: int | None = None

    def __enter__(self) -> os.stat_result | None:
        try:
            return self._acquire()
        except BaseException:
            self._let_go()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._let_go()

    def _acquire(self) -> os.stat_result | None:
        found = lstat(self._folder, self._name)
        begun = 0.0
        while self._locks and found is not None and st.S_ISREG(found.st_mode):
            if self._besides is not None and os.path.samestat(found, self._besides):
                break
            try:
                self._fd = _locked(self._folder, self._name)
            except (FileNotFoundError, BlockingIOError):
                pass
            except OSError as error:
                if error.errno not in _CANNOT_LOCK:
                    raise
                break
            # Another file may have taken the place of this one before it was locked.
            now = lstat(self._folder, self._name)
            if self._fd is not None and now is not None and os.path.samestat(now, os.fstat(self._fd)):
                return now
            is_same, is_locked = now is not None and generation_of(now) == generation_of(found), self._fd is None
            self._let_go()
            found = now
            begun = begun or time.monotonic()
            # An opened file that is not the one under its name, though that has not changed: it cannot be known here.
            if is_same and not (is_locked and _patience.waits(begun)):
                break
        return found

    def _let_go(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class _Patience:
    """The time that this process waits for locks. For any thread."""

    def __init__(self) -> None:
        self._in_vain_at = float("-inf")
        self._since_then = 0.0

    def waits(self, begun: float) -> bool:
        """Wait a moment for a lock, for which the caller has waited since ``begun``; return False if that was too long."""
        threads.go_on()
        now = time.monotonic()
        if now - self._in_vain_at >= _REMEMBERED_SECONDS:
            if now - begun >= _PATIENCE_SECONDS:
                self._in_vain_at, self._since_then = now, 0.0
                return False
        elif self._since_then >= _MOST_IN_VAIN_SECONDS:
            return False
        elif now - begun >= _SHORT_PATIENCE_SECONDS:
            self._since_then += _SHORT_PATIENCE_SECONDS
            return False
        shortest, longest = _PAUSE_SECONDS
        time.sleep(min(longest, max(shortest, (now - begun) / 8)))
        return True


_patience = _Patience()


def take_place(
    folder: int,
    temporary: str,
    parts: Parts,
    expect: Expected,
    give_away: Callable[[os.stat_result | None], None],
    *,
    locks: bool,
    over: bool,
) -> os.stat_result | None:
    """Rename a file in ``folder`` to the last of ``parts``, in a `Turn`; return the status of what it replaces.

    Before that, ``give_away`` is called with this status. Raises `GenerationMismatch` unless that is as expected, `FileExistsError` or
    `GenerationMismatch` instead of replacing anything with `ABSENT`, `FileExistsError` if something has just appeared, unless it may
    replace it (``over``); `KeyConflict`, `StoreAccessDenied`, `OSError`.
    """
    name = parts[-1]
    with Turn(folder, name, locks=locks) as found:
        old = as_expected(as_room(found, parts), expect, parts)
        give_away(old)
        if expect is Absent.ABSENT:
            link_new(folder, temporary, name)
        elif old is None and not over:
            rename_new(folder, temporary, folder, name)
        else:
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        return old


def move(source: int, old: Parts, target: int, new: Parts, *, locks: bool) -> tuple[os.stat_result, os.stat_result | None] | None:
    """Rename a value, in a `Turn` of it and one of what it replaces; return the status of both, or None if there is no value.

    Raises `FileNotFoundError` if the folder ``target`` was removed, `KeyConflict`, `StoreAccessDenied`, `OSError`."""
    for left in reversed(range(_TRIES)):
        with ExitStack() as turns:
            # In one order in all processes, so that no two wait for each other.
            if old <= new:
                moved = turns.enter_context(Turn(source, old[-1], locks=locks))
                replaced = turns.enter_context(Turn(target, new[-1], locks=locks, besides=moved))
            else:
                replaced = turns.enter_context(Turn(target, new[-1], locks=locks))
                moved = turns.enter_context(Turn(source, old[-1], locks=locks, besides=replaced))
            if moved is None or not st.S_ISREG(moved.st_mode):
                return None
            as_room(replaced, new)
            try:
                if replaced is None and left:
                    rename_new(source, old[-1], target, new[-1])
                else:
                    os.rename(old[-1], new[-1], src_dir_fd=source, dst_dir_fd=target)
            except FileExistsError:
                continue
            except FileNotFoundError:
                if lstat(source, old[-1]) is not None:
                    raise
                return None
            # rename(2) has no effect between two hard links of one file. Names that differ in case only may be one link.
            if old != new and replaced is not None and os.path.samestat(replaced, moved) and replaced.st_nlink > 1:
                unlink(source, old[-1])
            return moved, replaced
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
