"""Locks by name, within one process; and how long a task waits for locks that others hold."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

import trio

from zarrfs.errors import LockHeld

_PATIENCE: ContextVar[float] = ContextVar("seconds to wait for locks that others hold", default=math.inf)


@contextmanager
def waiting_at_most(seconds: float) -> Iterator[None]:
    """Let each attempt in the body to hold a lock raise `LockHeld` once another holds it, and has not released it for ``seconds``.

    Unlike a deadline, this does not count the time in which the machine or the disk stalls, and nobody may hold it.
    """
    token = _PATIENCE.set(seconds)
    try:
        yield
    finally:
        _PATIENCE.reset(token)


def patience() -> float:
    """Return the number of seconds of `waiting_at_most`, infinite outside of its body."""
    return _PATIENCE.get()


class LockTable:
    """One first-come-first-served lock for each name in use; a name without holders and waiters costs no memory."""

    def __init__(self) -> None:
        # Not trio.Lock: after a missed deadline another task unlocks than the one that locked.
        self._locks: dict[str, tuple[trio.Semaphore, int]] = {}

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Lock ``name`` against all other holders. Not re-entrant. Raises `LockHeld`."""
        lock, users = self._locks.get(name) or (trio.Semaphore(1, max_value=1), 0)
        self._locks[name] = (lock, users + 1)
        try:
            # Without patience, too, a lock that nobody holds is taken: the deadline would come before it.
            with trio.move_on_after(math.inf if lock.value else patience()) as scope:
                await lock.acquire()
            if scope.cancelled_caught:
                raise LockHeld(f"{name}: held by another task", key=name)
            try:
                yield
            finally:
                lock.release()
        finally:
            users = self._locks[name][1] - 1
            if users:
                self._locks[name] = (lock, users)
            else:
                del self._locks[name]
