"""Bound for all that the end of a mount waits for.

Storing continues as long as it makes progress. Without progress the process ends after a time: a lock that is never released, a thread in
a system call that never returns, a defect. The watchdog is a separate thread, since the event loop may be what blocks.
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
    """Watchdog of the end of a mount.

    ``progress()`` returns another value whenever there was progress. ``give_up(seconds)`` is called, in another thread, after ``seconds``
    without any, or ten times as long while the process computes. Active from `begin`, or once ``is_due()`` returns True, to `over`.
    """

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
        """Start to check ``is_due()``. Called from the event loop."""
        self._root = trio.lowlevel.current_root_task()
        self._thread.start()

    def begin(self) -> None:
        """Start to check for progress."""
        self._begun.set()

    def over(self) -> None:
        """Stop: nothing is waited for any more."""
        self._over.set()

    def positions(self) -> list[str]:
        """Return each task of the event loop and each other thread, with its position in the code."""
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
            # A counted collection changed meanwhile: the event loop is running.
            return object()
