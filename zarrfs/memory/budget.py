"""One budget for everything whose size a store or a writer chooses (docs/design/017-memory.md).

Three kinds of users, by what they do when it is used up:

* **Holders** (staged bytes, dirty chunks, chunks that wait for their shard, slabs, what open files keep) have a `share`. They `take`
  what they need or, when it is not there, go to a file. They never wait.
* **Caches** hold what can be had again. They `take` too, and give it back when somebody else needs it (`on_pressure`).
* **Work** (getting and decoding, encoding and storing) holds memory for as long as it lasts. It waits for it, first come, first served
  (`working`). What the shares leave over is work's alone, so that whoever waits is served when others are done.

Work is granted in one piece, before it begins, and never waits for more while it has some: so there are no circles of waiting.
"""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable
from types import TracebackType

import trio

UNLIMITED = 2**63 - 1
"""A limit that no holder reaches."""

# Freed memory is handed back to the system whenever work took so many bytes in all.
_TIDY_NBYTES = 64 << 20

_working: contextvars.ContextVar[bool] = contextvars.ContextVar("zarrfs_memory_working", default=False)


class MemoryBudget:
    """``limit`` bytes that several users share; ``nbytes`` are taken. Belongs to one event loop.

    ``whole``: the budget that this one is a share of. ``tidy`` is called from time to time, when work has given much back.
    """

    __slots__ = ("_caches", "_done_nbytes", "_regaining", "_shared", "_waiting", "limit", "nbytes", "tidy", "whole")

    def __init__(self, limit: int, whole: MemoryBudget | None = None) -> None:
        self.limit = limit
        self.nbytes = 0
        self.whole = whole
        self.tidy: Callable[[], None] | None = None
        self._shared = 0
        self._caches: list[Callable[[int], None]] = []
        self._waiting: deque[_Work] = deque()
        self._done_nbytes = 0
        self._regaining = False

    def share(self, limit: int) -> MemoryBudget:
        """A part of the budget, for holders that may keep it for as long as they like."""
        self._shared += limit
        return MemoryBudget(limit, self)

    @property
    def for_work(self) -> int:
        """The bytes that no holder can have."""
        return max(0, self.limit - self._shared)

    def take(self, nbytes: int) -> bool:
        """Count ``nbytes`` more as taken, if there are so many left and nobody waits for them; whether there were."""
        if self._waiting or (self.nbytes + nbytes > self.limit and not self._regained(nbytes)):
            return False
        if self.whole is not None and not self.whole.take(nbytes):
            return False
        self.nbytes += nbytes
        return True

    def has(self, nbytes: int) -> bool:
        """Whether so many bytes are left, without counting them as taken."""
        if not self.take(nbytes):
            return False
        self.give(nbytes)
        return True

    def give(self, nbytes: int) -> None:
        """``nbytes`` that were taken are free again."""
        self.nbytes -= nbytes
        if self.whole is not None:
            self.whole.give(nbytes)
        if self._waiting and not self._regaining:
            self._serve()

    def on_pressure(self, release: Callable[[int], None]) -> None:
        """``release(nbytes)`` is called when so many bytes are missing: a cache gives back what it can."""
        self._caches.append(release)

    def working(self, nbytes: int) -> _Work:
        """An async context in which ``nbytes`` are taken; entering waits until they are there.

        No more than `for_work` is counted: what exceeds that lies in files (`zarrfs.memory.spill`). Inside such a context another one is
        entered at once: whoever works never waits.
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
        if self._waiting or (self.nbytes + work.nbytes > self.limit and not self._regained(work.nbytes)):
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
        while self._waiting:
            work = self._waiting[0]
            if self.nbytes + work.nbytes > self.limit and not self._regained(work.nbytes):
                return
            self._waiting.popleft()
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
            budget._waiting.append(self)
            try:
                await self.granted.wait()
            except BaseException:
                if self.granted.is_set():
                    budget.give(self.nbytes)
                else:
                    budget._waiting.remove(self)
                    budget._serve()
                raise
        self._token = _working.set(True)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._token is not None:
            _working.reset(self._token)
        self._budget._end(self.nbytes)
