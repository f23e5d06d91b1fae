"""Locks by name, within one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class LockTable:
    """One first-come-first-served lock for each name in use; a name without holders and waiters costs no memory."""

    def __init__(self) -> None:
        # Not trio.Lock: after a missed deadline another task unlocks than the one that locked.
        self._locks: dict[str, tuple[trio.Semaphore, int]] = {}

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        """Lock ``name`` against all other holders. Not re-entrant."""
        lock, users = self._locks.get(name) or (trio.Semaphore(1, max_value=1), 0)
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            users = self._locks[name][1] - 1
            if users:
                self._locks[name] = (lock, users)
            else:
                del self._locks[name]
