"""Work that may be long, done on the event loop a little at a time, so that requests are answered meanwhile.

Work is an iterator that does something at each step. What is short is done at once, before `Slices.run` returns; what is left of longer
work waits its turn, first come, first served. Work that says "look at this again" need not wait twice: given a name, it stands for all
that comes under this name until it begins.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

import trio

log = logging.getLogger(__name__)

SECONDS = 0.002
"""Of computing, for one slice; some steps of the work may come on top of it."""
AT_ONCE = 64
"""Steps that are done before `Slices.run` returns, however long they take."""
_BETWEEN_LOOKS = 8

Work = Iterator[object]


async def _always() -> None:
    pass


class Slices:
    """``start_soon`` begins the task that does what is left. ``room``: awaited before each slice."""

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
        """Do ``work``: the first steps now, whatever is left of other work, or (``in_turn``) after that. ``name``: see the module's
        text."""
        if self._ended or (name is not None and name in self._named):
            return
        waits = in_turn and self._running
        if not waits and _is_over(work, AT_ONCE):
            return
        self._left.append((name if waits else None, work))
        if waits and name is not None:
            self._named.add(name)
        self._added += 1
        if not self._running:
            self._running = True
            self._start_soon(self._go_on)

    async def done(self) -> None:
        """Return when all work that was given so far is done."""
        until = self._added
        while self._done < until and not self._ended:
            await self._progress.wait()

    def end(self) -> None:
        """Nobody is left whom it is done for: what is left is given up, and what comes is not begun."""
        self._ended = True
        self._left.clear()
        self._tell()

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
                self._tell()
        finally:
            self._running = False

    def _tell(self) -> None:
        self._progress.set()
        self._progress = trio.Event()


def _is_over(work: Work, at_once: int = 0) -> bool:
    """Go on with ``work`` for a slice, and at least for so many steps; whether that was all of it."""
    # Computing, not waiting for a busy machine: what is short is told at once there, too.
    until = time.thread_time() + SECONDS
    try:
        for step, _ in enumerate(work, 1):
            if not step % _BETWEEN_LOOKS and step >= at_once and time.thread_time() >= until:
                return False
    except Exception:
        # As little of the loop's business as a subscriber's mistake is of the store's.
        log.exception("telling of a change failed")
    return True
