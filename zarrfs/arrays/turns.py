"""Limit of concurrent heavy work outside the memory budget (docs/design/017-memory.md).

Work on a whole shard (its index, its bytes if encoded as one, its assembly) runs for a caller that may already hold part of the budget
and must not wait for more. It takes a turn instead. A holder of a turn waits only for the store and for threads, and needs no second one.
So it does not wait for a request of another task either, which may be waiting for a turn (`is_held`).
"""

from __future__ import annotations

import contextvars
from types import TracebackType

import trio

_CONCURRENT_TURNS = 2

_holds_turn: contextvars.ContextVar[bool] = contextvars.ContextVar("zarrfs_turn", default=False)


def is_held() -> bool:
    """Return True if this task holds a turn."""
    return _holds_turn.get()


class Turns:
    """A supply of `_CONCURRENT_TURNS` turns."""

    def __init__(self) -> None:
        self._semaphore = trio.Semaphore(_CONCURRENT_TURNS)

    def take(self) -> _Turn:
        """Return an async context manager that holds one turn."""
        return _Turn(self._semaphore)


class _Turn:
    __slots__ = ("_semaphore", "_token")

    def __init__(self, semaphore: trio.Semaphore) -> None:
        self._semaphore = semaphore
        self._token: contextvars.Token[bool] | None = None

    async def __aenter__(self) -> None:
        if not _holds_turn.get():
            try:
                # Without a checkpoint: a turn is usually free.
                self._semaphore.acquire_nowait()
            except trio.WouldBlock:
                await self._semaphore.acquire()
            self._token = _holds_turn.set(True)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._token is not None:
            _holds_turn.reset(self._token)
            self._semaphore.release()
