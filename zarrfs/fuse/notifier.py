"""Telling the kernel that what it has cached is no longer so.

`invalidate_inode` and `invalidate_entry` wait for locks that the kernel holds while it waits for us: called from a request handler
with a READ of that inode in flight they deadlock the whole process beyond kill -9. So one thread of its own makes all of these calls,
in order, and nothing that the kernel may wait for waits for this thread. FLUSH and FSYNC do (a change must be seen everywhere when
close(2) returns), after letting go of every lock. LOOKUP, CREATE, UNLINK, RENAME and the like hold the kernel's lock of their folder
and never do.

A notice says "forget this", so one that waits stands for all later ones of the same name or inode: what waits is never more than what the
kernel knows. Who has many to give waits for `Notifier.room`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import trio

log = logging.getLogger(__name__)

# A kernel that does not answer by then is waiting for something else of ours; the change is then seen after the timeout of its caches.
PATIENCE = 5.0
_MANY = 4096
_PAUSE = 0.05


class Kernel(Protocol):
    """What takes the notices. Both raise OSError where it knows nothing of it."""

    def invalidate_entry(self, parent: int, name: str) -> None:
        """Forget a name in a folder."""

    def invalidate_inode(self, ino: int, attributes_only: bool) -> None:
        """Forget the attributes of an inode, and its pages unless ``attributes_only``."""

    def store(self, ino: int, offset: int, data: bytes) -> None:
        """Have ``data`` in the pages of an inode."""


class _Entry(NamedTuple):
    parent: int
    name: str

    def send(self, kernel: Kernel) -> None:
        kernel.invalidate_entry(self.parent, self.name)


class _Inode(NamedTuple):
    ino: int
    attributes_only: bool

    def send(self, kernel: Kernel) -> None:
        kernel.invalidate_inode(self.ino, self.attributes_only)


class _Store(NamedTuple):
    ino: int
    offset: int
    data: bytes

    def send(self, kernel: Kernel) -> None:
        kernel.store(self.ino, self.offset, self.data)


class _Mark:
    """A place in the queue: sets an event of the trio thread when it is reached."""

    def __init__(self) -> None:
        self.reached = trio.Event()
        self._token = trio.lowlevel.current_trio_token()

    def send(self, kernel: Kernel) -> None:
        self._token.run_sync_soon(self.reached.set)


class Notifier:
    """The thread and its queue. Start it once the file system is mounted; `stop` before it is closed."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._waiting: dict[_Entry | _Inode | _Store | _Mark, None] = {}
        self._locked: list[int] = []
        self._later: list[_Entry] = []
        self._under_way = 0
        self._stopped = False
        self._changed = threading.Condition()
        # A daemon thread: a kernel call that never returns must not keep the process.
        self._thread = threading.Thread(target=self._run, name="zarrfs-notifier", daemon=True)

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

    def inode(self, ino: int, *, attributes_only: bool = False) -> None:
        """Have the kernel forget the pages (and attributes) of an inode."""
        self._put(_Inode(ino, attributes_only))

    def entry(self, parent: int, name: str) -> None:
        """Have the kernel forget a name in a folder."""
        notice = _Entry(parent, name)
        if parent in self._locked:
            self._later.append(notice)
        else:
            self._put(notice)

    @contextmanager
    def locked(self, *names: tuple[int, str], also: Iterable[int] = ()) -> Iterator[None]:
        """Around what gives these names (folder and name) to others, or takes them away, as the kernel asked: until it is answered it has
        their folders locked, and those in ``also``, and what it is to forget in them waits. These names it forgets by itself."""
        folders = [*(folder for folder, _ in names), *also]
        self._locked.extend(folders)
        known: tuple[tuple[int, str], ...] = ()
        try:
            yield
            known = names
        finally:
            for folder in folders:
                self._locked.remove(folder)
            later, self._later = self._later, []
            for notice in later:
                if notice not in known:
                    self.entry(*notice)

    def store(self, ino: int, offset: int, data: bytes) -> None:
        """Have the kernel put ``data`` into its pages of an inode. What waits is not replaced by a later one."""
        self._put(_Store(ino, offset, data))

    async def drained(self) -> None:
        """Return when everything queued so far was told, or after a while. The caller holds no lock that a handler may need."""
        if not len(self) or self._stopped:
            return
        with trio.move_on_after(PATIENCE) as scope:
            await self._reached_the_end()
        if scope.cancelled_caught:
            log.warning("the kernel has not taken a change notice for %g s", PATIENCE)

    async def room(self) -> None:
        """Return when there are few notices that the kernel has not taken yet. May take as long as it keeps one waiting."""
        while len(self) > _MANY and not self._stopped:
            await self._reached_the_end()

    async def _reached_the_end(self) -> None:
        mark = _Mark()
        self._put(mark)
        await mark.reached.wait()

    def _put(self, notice: _Entry | _Inode | _Store | _Mark) -> None:
        with self._changed:
            if not self._stopped:
                self._waiting[notice] = None
                self._changed.notify()
            elif isinstance(notice, _Mark):
                notice.reached.set()

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
