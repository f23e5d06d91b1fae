"""Queue of notices to the kernel, sent in order by a thread.

The kernel takes a notice once it has the lock of a folder or file, which may be held for long: unlink(2) waits for an fsync of the file,
with the folder locked. A notice blocked in this way is overtaken: another thread sends the following ones, except those that need the
same lock, which the first thread sends when it gets it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Container, Hashable
from dataclasses import dataclass, field
from typing import Protocol

import trio

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds after which an overtaken notice is no longer waited for."""

_LONG = 0.1
_LOOK = 0.05
_PAUSE = 0.05
# Notices that are looked through, to find out whether a wait is needed.
_FEW = 16
# Maximum of threads blocked in the kernel; beyond it all other notices wait.
_MAX_BLOCKED = 8


class Kernel(Protocol):
    """Receiver of notices. Each method raises OSError if the kernel does not hold the object."""

    def invalidate_entry(self, parent: int, name: str) -> None:
        """Invalidate a name in a folder."""

    def expire_entry(self, parent: int, name: str) -> None:
        """Let the kernel look up a name in a folder again at its next use."""

    def invalidate_inode(self, ino: int, attributes_only: bool) -> None:
        """Invalidate the attributes of an inode, and its pages unless ``attributes_only``."""

    def store(self, ino: int, offset: int, data: bytes) -> None:
        """Put ``data`` into the pages of an inode."""


class Notice(Protocol):
    """A notice. Hashable: a queued notice stands for all later ones that equal it."""

    @property
    def locked(self) -> Hashable:
        """Identity of the lock that the kernel takes for it."""

    def send(self, kernel: Kernel) -> None:
        """Send the notice. May block as long as the kernel does."""


class _Mark:
    """A position in the queue: sets an event of the trio thread when all notices before it were sent, or overtaken ``patience`` ago."""

    def __init__(self, patience: float) -> None:
        self.reached = trio.Event()
        self.patience = patience
        self.behind = 0
        """Number of overtaken notices that it waits for."""
        self._token = trio.lowlevel.current_trio_token()

    def reach(self) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.reached.set)


@dataclass
class _PassedBy:
    """A notice blocked in the kernel ``since`` that time, and the notices behind it."""

    since: float
    later: dict[Notice | _Mark, None] = field(default_factory=dict)


class NoticeQueue:
    """The queue and its thread. `start` it once the file system is mounted; `stop` it before that is closed."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self._kernel = kernel
        self._name = name
        self._queued: dict[Notice | _Mark, None] = {}
        self._under_way: Notice | None = None
        self._since = 0.0
        self._passed_by: dict[Hashable, _PassedBy] = {}
        self._stopped = False
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []

    def __len__(self) -> int:
        """Return the number of notices that the kernel has not taken yet."""
        with self._changed:
            return self._in_turn + sum(1 + len(each.later) for each in self._passed_by.values())

    def is_only_of(self, locked: Container[Hashable]) -> bool:
        """Return True if the kernel has taken all notices but those that need these locks."""
        with self._changed:
            if self._passed_by or self._in_turn > _FEW:
                return False
            left = [*self._queued, *([self._under_way] if self._under_way is not None else [])]
            return all(isinstance(each, _Mark) or each.locked in locked for each in left)

    @property
    def _in_turn(self) -> int:
        return len(self._queued) + (self._under_way is not None)

    def start(self) -> None:
        """Start to send queued notices."""
        # A daemon thread: a kernel call that never returns must not keep the process alive.
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except BaseException:
            self._threads.remove(thread)
            raise

    def stop(self) -> None:
        """Stop after the notice in progress and drop the others, which no longer matter. Does not wait."""
        with self._changed:
            self._stopped = True
            left = [*self._queued, *(notice for each in self._passed_by.values() for notice in each.later)]
            self._queued.clear()
            for each in self._passed_by.values():
                each.later.clear()
            self._changed.notify_all()
        for notice in left:
            if isinstance(notice, _Mark):
                notice.reached.set()

    def has_stopped(self, seconds: float) -> bool:
        """Return True if all threads have ended, or do within ``seconds``: the kernel may block them."""
        until = time.monotonic() + seconds
        threads = self._threads.copy()
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def put(self, notice: Notice) -> None:
        """Queue ``notice``, unless stopped."""
        self._put(notice)
        self._pass_by()

    def withdraw(self, notice: Notice) -> None:
        """Remove ``notice`` from the queue, unless it is sent already, or being sent."""
        with self._changed:
            self._queued.pop(notice, None)
            for each in self._passed_by.values():
                each.later.pop(notice, None)

    async def drained(self, patience: float | None = None) -> None:
        """Wait until all notices queued so far were sent, except those blocked for longer than ``patience`` seconds, or `PATIENCE`.

        May take as long as the kernel blocks one.
        """
        if not len(self):
            return
        mark = _Mark(PATIENCE if patience is None else patience)
        self._put(mark)
        while not mark.reached.is_set():
            with trio.move_on_after(_LOOK):
                await mark.reached.wait()
            self._pass_by()

    async def room(self, most: int) -> None:
        """Wait until at most ``most`` notices are queued."""
        while self._in_turn > most and not self._stopped:
            await self.drained()

    def _put(self, notice: Notice | _Mark) -> None:
        with self._changed:
            if not self._stopped:
                self._queued[notice] = None
                self._changed.notify()
            elif isinstance(notice, _Mark):
                notice.reached.set()

    def _pass_by(self) -> None:
        """Overtake the notice in progress if it takes long."""
        if self._under_way is None or time.monotonic() - self._since < _LONG:
            return
        with self._changed:
            notice = self._under_way
            if notice is None or self._stopped or len(self._passed_by) >= _MAX_BLOCKED or time.monotonic() - self._since < _LONG:
                return
            try:
                self.start()
            except (RuntimeError, MemoryError) as error:
                log.debug("no further thread for notices to the kernel: %s", error)
                return
            self._passed_by[notice.locked] = _PassedBy(self._since)
            self._under_way = None

    # --- in the threads -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                self._serve()
            except Exception as error:  # noqa: BLE001 (without this thread no change would become visible)
                _log(error)
                time.sleep(_PAUSE)
            else:
                self._threads.remove(threading.current_thread())
                return

    def _serve(self) -> None:
        """Send queued notices until stopped, or until this thread was overtaken and has sent the notices behind its own."""
        while (notice := self._next()) is not None:
            try:
                self._send(notice)
            finally:
                with self._changed:
                    was_passed_by = notice.locked in self._passed_by
                    if not was_passed_by:
                        self._under_way = None
            if was_passed_by:
                self._catch_up(notice.locked)
                return

    def _next(self) -> Notice | None:
        """Return the next notice to send; None if stopped."""
        with self._changed:
            while not self._stopped:
                if not self._queued:
                    self._changed.wait()
                    continue
                notice = next(iter(self._queued))
                del self._queued[notice]
                if isinstance(notice, _Mark):
                    self._reach(notice)
                elif (passed_by := self._passed_by.get(notice.locked)) is not None:
                    passed_by.later[notice] = None
                else:
                    self._under_way, self._since = notice, time.monotonic()
                    return notice
        return None

    def _reach(self, mark: _Mark) -> None:
        now = time.monotonic()
        for each in self._passed_by.values():
            if now - each.since < mark.patience:
                each.later[mark] = None
                mark.behind += 1
        if not mark.behind:
            mark.reach()

    def _catch_up(self, locked: Hashable) -> None:
        """Send the notices that were queued for the same lock meanwhile."""
        while True:
            with self._changed:
                later = self._passed_by[locked].later
                if not later:
                    del self._passed_by[locked]
                    return
                notice = next(iter(later))
                del later[notice]
                if isinstance(notice, _Mark):
                    notice.behind -= 1
                    if not notice.behind:
                        notice.reach()
                    continue
            self._send(notice)

    def _send(self, notice: Notice) -> None:
        try:
            notice.send(self._kernel)
        except OSError:
            # The kernel has dropped the object already, which is equivalent.
            pass
        except Exception as error:  # noqa: BLE001 (the others are still sent)
            _log(error)


def _log(error: Exception) -> None:
    with contextlib.suppress(Exception):
        log.error("notice to the kernel failed", exc_info=error)
