"""Heavy work below the budget of memory (docs/design/017-memory.md): a few at a time.

What is done for a shard as a whole (its index, its bytes where it is encoded as one, its being put together) is done for somebody who
may hold a part of the budget already, and who must not wait for more. It takes turns instead. Whoever has a turn waits for the store and
for threads alone, and needs no second one.
"""

from __future__ import annotations

import contextvars
from types import TracebackType

import trio

_AT_ONCE = 2

_mine: contextvars.ContextVar[bool] = contextvars.ContextVar("zarrfs_turn", default=False)


class Turns:
    """An async context manager that so many may be in at once."""

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._semaphore = trio.Semaphore(at_once)

    def take(self) -> _Turn:
        """One turn."""
        return _Turn(self._semaphore)


class _Turn:
    __slots__ = ("_semaphore", "_token")

    def __init__(self, semaphore: trio.Semaphore) -> None:
        self._semaphore = semaphore
        self._token: contextvars.Token[bool] | None = None

    async def __aenter__(self) -> None:
        if not _mine.get():
            try:
                # Without a checkpoint: mostly nobody is there.
                self._semaphore.acquire_nowait()
            except trio.WouldBlock:
                await self._semaphore.acquire()
            self._token = _mine.set(True)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._token is not None:
            _mine.reset(self._token)
            self._semaphore.release()
