"""An end to everything that the end of a mount waits for.

What is being stored goes on for as long as it goes on. What makes no progress is waited for so many seconds, and then the process ends:
a lock that is never let go of, a thread in a system call that never returns, a defect. The watch is a thread of its own, since what it
waits for may be the event loop.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable

import trio

from zarrfs.daemon import waiting_for

log = logging.getLogger(__name__)

_BUSY = 0.05
_PATIENCE_WITH_THE_BUSY = 10


class Overdue:
    """``progress()`` is another value whenever there was any. ``give_up(seconds)`` is called, in another thread, when there was none for
    ``seconds``, or ten times as long while the process computes. Both are asked from `begin` to `over`, or as soon as ``is_due()``."""

    def __init__(
        self, seconds: float, *, progress: Callable[[], object], is_due: Callable[[], bool], give_up: Callable[[float], None]
    ) -> None:
        self.seconds = seconds
        self._progress = progress
        self._is_due = is_due
        self._give_up = give_up
        self._begun = threading.Event()
        self._over = threading.Event()
        self._root: trio.lowlevel.Task | None = None
        self._thread = threading.Thread(target=self._run, name="zarrfs-overdue", daemon=True)

    def start(self) -> None:
        """Begin to look whether it is due. Called from the event loop."""
        self._root = trio.lowlevel.current_root_task()
        self._thread.start()

    def begin(self) -> None:
        """It is due."""
        self._begun.set()

    def over(self) -> None:
        """Nothing is waited for any more."""
        self._over.set()

    def waits(self) -> list[str]:
        """Each task of the event loop and each other thread, and where it is."""
        found = [f"task {task}" for task in waiting_for.tasks(self._root)] if self._root is not None else []
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            found.append(f"thread {names.get(ident, ident)} in {frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}")
        return found

    def _run(self) -> None:
        step = min(2.0, self.seconds / 5)
        while not self._begun.wait(step) and not self._is_due():
            if self._over.is_set():
                return
        last, since, busy = self._seen(), time.monotonic(), time.process_time()
        while not self._over.wait(step):
            now = self._seen()
            waited = time.monotonic() - since
            if now != last:
                last, since, busy = now, time.monotonic(), time.process_time()
            elif waited >= self.seconds:
                computes = time.process_time() - busy > _BUSY * waited
                if not computes or waited >= self.seconds * _PATIENCE_WITH_THE_BUSY:
                    self._give_up(waited)
                    return

    def _seen(self) -> object:
        try:
            return self._progress()
        except RuntimeError:
            # What is counted changed meanwhile: the event loop is at work.
            return object()
