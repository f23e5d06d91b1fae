"""Long work done on the event loop in slices, so that requests are answered in between.

Work is an iterator that does a part at each step. Short work is done at once, before `Slices.run` returns; the rest of longer work is
queued, first come, first served. Work such as "check this again" need not be queued twice: with a name, it stands for all work of this
name until it begins.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import trio

log = logging.getLogger(__name__)

SECONDS = 0.002
"""Computing time of one slice; some steps may be added."""
AT_ONCE = 64
"""Number of steps done before `Slices.run` returns, however long they take."""
_BETWEEN_LOOKS = 8

Work = Iterator[object]


async def _always() -> None:
    pass


class Slices:
    """Queue of work. ``start_soon`` starts the task that does the rest. ``room``: awaited before each slice."""

    def __init__(self, start_soon: Callable[..., None]) -> None:
        self.room: Callable[[], Awaitable[None]] = _always
        self._start_soon = start_soon
        self._left: deque[tuple[object, Work]] = deque()
        self._named: set[object] = set()
        self._added = 0
        self._done = 0
        self._progress = trio.Event()
        self._running = False
        self._ended = False

    def run(self, work: Work, *, in_turn: bool = False, name: object = None) -> None:
        """Do ``work``: the first steps now, before queued work, or (``in_turn``) after it. ``name``: see the module's text."""
        if self._ended or (name is not None and name in self._named):
            return
        is_queued = in_turn and self._running
        if not is_queued and _is_over(work, AT_ONCE):
            return
        self._left.append((name if is_queued else None, work))
        if is_queued and name is not None:
            self._named.add(name)
        self._added += 1
        if not self._running:
            self._running = True
            self._start_soon(self._go_on)

    async def done(self) -> None:
        """Wait until all work given so far is done."""
        until = self._added
        while self._done < until and not self._ended:
            await self._progress.wait()

    def end(self) -> None:
        """Drop queued work and refuse more: its results no longer matter."""
        self._ended = True
        self._left.clear()
        self._signal()

    async def _go_on(self) -> None:
        try:
            while self._left:
                name, work = self._left.popleft()
                self._named.discard(name)
                over = False
                while not over and not self._ended:
                    await trio.lowlevel.checkpoint()
                    await self.room()
                    over = _is_over(work)
                self._done += 1
                self._signal()
        finally:
            self._running = False

    def _signal(self) -> None:
        self._progress.set()
        self._progress = trio.Event()


def _is_over(work: Work, at_once: int = 0) -> bool:
    """Do ``work`` for a slice, at least ``at_once`` steps; return True if it is complete."""
    # Computing time, not time on a busy machine: short work is done at once there too.
    until = time.thread_time() + SECONDS
    try:
        for step, _ in enumerate(work, 1):
            if not step % _BETWEEN_LOOKS and step >= at_once and time.thread_time() >= until:
                return False
    except Exception:
        # A subscriber's mistake must stop neither the loop nor the store.
        log.exception("notice of a change failed")
    return True
