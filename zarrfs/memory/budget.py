"""One budget for all data whose size a store or a writer determines (docs/design/017-memory.md).

Three kinds of users differ in what they do when it is exhausted:

* **Holders** (staged bytes, dirty chunks, chunks queued for their shard, slabs, data kept by open files) have a `share`. They `take` from
  it, or use a file if it is exhausted. They never wait.
* **Caches** hold data that can be read again. They `take` too, and release memory when another user needs it (`on_pressure`).
* **Work** (fetch and decode, encode and store) holds memory while it runs. It waits for memory in FIFO order (`working`). The part of the
  budget outside the shares is reserved for work, so that a waiting task is served when others finish.

Work is granted in one piece, before it begins, and never waits for more while it holds some: circular waits cannot occur.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable
from types import TracebackType

import trio

UNLIMITED = 2**63 - 1
"""A limit that no holder reaches."""

# Freed memory is returned to the system each time that work took this many bytes in total.
_TIDY_NBYTES = 64 << 20

_working: contextvars.ContextVar[bool] = contextvars.ContextVar("zarrfs_memory_working", default=False)


class MemoryBudget:
    """``limit`` bytes shared by several users; ``nbytes`` are taken. Belongs to one event loop.

    ``whole``: the budget of which this is a share. ``tidy`` is called each time that work has released `_TIDY_NBYTES` in total.
    """

    __slots__ = ("_caches", "_done_nbytes", "_queue", "_regaining", "_shared", "limit", "nbytes", "tidy", "whole")

    def __init__(self, limit: int, whole: MemoryBudget | None = None) -> None:
        self.limit = limit
        self.nbytes = 0
        self.whole = whole
        self.tidy: Callable[[], None] | None = None
        self._shared = 0
        self._caches: list[Callable[[int], None]] = []
        self._queue: deque[_Work] = deque()
        self._done_nbytes = 0
        self._regaining = False

    def share(self, limit: int) -> MemoryBudget:
        """Return a part of the budget, for holders that may keep it indefinitely."""
        self._shared += limit
        return MemoryBudget(limit, self)

    @property
    def for_work(self) -> int:
        """Number of bytes that no holder can take."""
        return max(0, self.limit - self._shared)

    def take(self, nbytes: int) -> bool:
        """Take ``nbytes`` if they are available and no task waits for them; return True on success."""
        if self._queue or (self.nbytes + nbytes > self.limit and not self._regained(nbytes)):
            return False
        if self.whole is not None and not self.whole.take(nbytes):
            return False
        self.nbytes += nbytes
        return True

    def has(self, nbytes: int) -> bool:
        """Return True if this many bytes are available, without taking them."""
        if not self.take(nbytes):
            return False
        self.give(nbytes)
        return True

    def give(self, nbytes: int) -> None:
        """Release ``nbytes`` taken before."""
        self.nbytes -= nbytes
        if self.whole is not None:
            self.whole.give(nbytes)
        if self._queue and not self._regaining:
            self._serve()

    def release(self) -> None:
        """Release what caches hold: the machine runs short of memory."""
        for release in self._caches:
            release(self.limit)

    def on_pressure(self, release: Callable[[int], None]) -> None:
        """Register a callback ``release(nbytes)`` that is called when this many bytes are missing: a cache releases what it can."""
        self._caches.append(release)

    def working(self, nbytes: int) -> _Work:
        """Return an async context manager that holds ``nbytes``; its entry waits until they are available.

        At most `for_work` is counted: anything above is in files (`zarrfs.memory.spill`). Within such a context another one is entered
        without waiting.
        """
        return _Work(self, min(nbytes, self.for_work))

    def _regained(self, nbytes: int) -> bool:
        self._regaining = True
        for release in self._caches:
            missing = self.nbytes + nbytes - self.limit
            if missing <= 0:
                break
            release(missing)
        self._regaining = False
        return self.nbytes + nbytes <= self.limit

    def _begin(self, work: _Work) -> bool:
        if self._queue or (self.nbytes + work.nbytes > self.limit and not self._regained(work.nbytes)):
            return False
        self.nbytes += work.nbytes
        return True

    def _end(self, nbytes: int) -> None:
        self._done_nbytes += nbytes
        if self._done_nbytes >= _TIDY_NBYTES and self.tidy is not None:
            self._done_nbytes = 0
            self.tidy()
        self.give(nbytes)

    def _serve(self) -> None:
        while self._queue:
            work = self._queue[0]
            if self.nbytes + work.nbytes > self.limit and not self._regained(work.nbytes):
                return
            self._queue.popleft()
            self.nbytes += work.nbytes
            work.granted.set()


class _Work:
    """See `MemoryBudget.working`."""

    __slots__ = ("_budget", "_token", "granted", "nbytes")

    def __init__(self, budget: MemoryBudget, nbytes: int) -> None:
        self._budget = budget
        self._token: contextvars.Token[bool] | None = None
        self.nbytes = nbytes
        self.granted: trio.Event

    async def __aenter__(self) -> None:
        budget = self._budget
        if _working.get():
            budget.nbytes += self.nbytes
            return
        if not budget._begin(self):
            self.granted = trio.Event()
            budget._queue.append(self)
            try:
                await self.granted.wait()
            except BaseException:
                if self.granted.is_set():
                    budget.give(self.nbytes)
                else:
                    budget._queue.remove(self)
                    budget._serve()
                raise
        self._token = _working.set(True)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._token is not None:
            _working.reset(self._token)
        self._budget._end(self.nbytes)
