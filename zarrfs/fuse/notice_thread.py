"""A thread that gives the kernel notices, in order."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Protocol

import trio

log = logging.getLogger(__name__)

_PAUSE = 0.05


class Kernel(Protocol):
    """What takes the notices. Each raises OSError where it knows nothing of it."""

    def invalidate_entry(self, parent: int, name: str) -> None:
        """Forget a name in a folder."""

    def invalidate_inode(self, ino: int, attributes_only: bool) -> None:
        """Forget the attributes of an inode, and its pages unless ``attributes_only``."""

    def store(self, ino: int, offset: int, data: bytes) -> None:
        """Have ``data`` in the pages of an inode."""


class Notice(Protocol):
    """Hashable: one that waits stands for all later ones that equal it."""

    def send(self, kernel: Kernel) -> None:
        """Give it. May wait for whatever the kernel waits for."""


class _Mark:
    """A place in the queue: sets an event of the trio thread when it is reached."""

    def __init__(self) -> None:
        self.reached = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def send(self, kernel: Kernel) -> None:
        self._token.run_sync_soon(self.reached.set)


class NoticeThread:
    """The thread and its queue. `start` it once the file system is mounted; `stop` it before that is closed."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self._kernel = kernel
        self._waiting: dict[Notice, None] = {}
        self._under_way = 0
        self._stopped = False
        self._changed = threading.Condition()
        # A daemon thread: a kernel call that never returns must not keep the process.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __len__(self) -> int:
        """Notices that the kernel has not taken yet."""
        return len(self._waiting) + self._under_way

    def start(self) -> None:
        """Begin to serve the queue."""
        self._thread.start()

    def stop(self) -> None:
        """End after the notice that is being given: nobody is left who would want the others. Does not wait."""
        with self._changed:
            self._stopped = True
            waiting, self._waiting = self._waiting, {}
            self._changed.notify()
        for each in waiting:
            if isinstance(each, _Mark):
                each.reached.set()

    def has_stopped(self, seconds: float) -> bool:
        """Whether the thread has ended, or does within so many seconds: the kernel may keep it waiting."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def put(self, notice: Notice) -> None:
        """Give ``notice`` after those that wait, unless the end has come."""
        with self._changed:
            if not self._stopped:
                self._waiting[notice] = None
                self._changed.notify()
            elif isinstance(notice, _Mark):
                notice.reached.set()

    async def drained(self) -> None:
        """Return when everything queued so far was given. May take as long as the kernel keeps one waiting."""
        if len(self) and not self._stopped:
            mark = _Mark()
            self.put(mark)
            await mark.reached.wait()

    async def room(self, most: int) -> None:
        """Return when ``most`` notices wait, or fewer."""
        while len(self) > most and not self._stopped:
            await self.drained()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._serve()
            except Exception as error:  # noqa: BLE001 (without this thread no change would be seen)
                _tell(error)
                time.sleep(_PAUSE)

    def _serve(self) -> None:
        """Give what waits, until the end. After an error what was not given yet is lost, as after the timeout of the kernel's caches."""
        self._under_way = 0
        while True:
            with self._changed:
                while not self._waiting and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                notices, self._waiting = self._waiting, {}
                self._under_way = len(notices)
            for notice in notices:
                try:
                    if not self._stopped or isinstance(notice, _Mark):
                        notice.send(self._kernel)
                except (OSError, trio.RunFinishedError):
                    # The kernel has already forgotten it, which is as good.
                    pass
                except Exception as error:  # noqa: BLE001 (the others are given all the same)
                    _tell(error)
                finally:
                    self._under_way -= 1


def _tell(error: Exception) -> None:
    with contextlib.suppress(Exception):
        log.error("telling the kernel of a change failed", exc_info=error)
