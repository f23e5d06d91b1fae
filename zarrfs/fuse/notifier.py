"""Invalidation of the kernel's caches.

`invalidate_inode` and `invalidate_entry` wait for locks that the kernel holds while it waits for this process: called from a request
handler with a READ of that inode in flight they deadlock the whole process beyond kill -9. So a separate thread makes all of these calls,
in order (when pages are invalidated, earlier invalidations of names have happened; only a notice blocked for long by a lock of the kernel
comes later). A request waits for this thread only as far as the kernel does not wait for the request:

- FLUSH waits, after releasing all locks of this process (a change must be visible everywhere when close(2) returns): the kernel holds
  none then.
- LOOKUP and CREATE hold the kernel's lock of their folder, and never wait. UNLINK, RMDIR and RENAME hold it too: they wait for a moment
  only, and notices in the folders that they hold are deferred until they are answered (`Notifier.locked`).
- FSYNC and SETATTR hold its lock of their file. A concurrent unlink or rename over that file holds the folder's lock and waits for the
  file's, and a notice about a name in that folder waits for both: so these requests wait for the thread for a moment only.

Data put into pages (`store`) needs no lock of a folder, and SETATTR waits for it: it has a queue of its own.

A notice is an invalidation, so a queued one stands for all later ones of the same name or inode: the queue never holds more than the
kernel's cache does. Producers of many notices wait for `Notifier.room`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import trio

from zarrfs.fuse.notice_queue import PATIENCE, Kernel, NoticeQueue

log = logging.getLogger(__name__)

MOMENT = 0.1
"""Seconds to wait for notices while the kernel holds a lock: another task may hold that of their folder."""

_MANY = 4096


class _Entry(NamedTuple):
    parent: int
    name: str
    may_stay: bool = False

    @property
    def locked(self) -> int:
        return self.parent

    def send(self, kernel: Kernel) -> None:
        if self.may_stay:
            kernel.expire_entry(self.parent, self.name)
        else:
            kernel.invalidate_entry(self.parent, self.name)


class _Inode(NamedTuple):
    ino: int
    attributes_only: bool

    @property
    def locked(self) -> int:
        return self.ino

    def send(self, kernel: Kernel) -> None:
        kernel.invalidate_inode(self.ino, self.attributes_only)


class _Store(NamedTuple):
    ino: int
    offset: int
    data: bytes

    @property
    def locked(self) -> int:
        return self.ino

    def send(self, kernel: Kernel) -> None:
        kernel.store(self.ino, self.offset, self.data)


class Notifier:
    """Invalidations and page data for the kernel. Start it once the file system is mounted; `stop` before it is closed."""

    def __init__(self, kernel: Kernel) -> None:
        self._forgotten = NoticeQueue(kernel, "zarrfs-notifier")
        self._given = NoticeQueue(kernel, "zarrfs-pages")
        self._locked: list[int] = []
        self._later: list[_Entry] = []

    def __len__(self) -> int:
        """Return the number of notices that the kernel has not taken yet."""
        return len(self._forgotten) + len(self._given)

    def start(self) -> None:
        """Start to send notices."""
        self._forgotten.start()
        self._given.start()

    def stop(self) -> None:
        """Stop after the notices in progress and drop the rest, which no longer matter. Does not wait."""
        self._forgotten.stop()
        self._given.stop()

    def has_stopped(self, seconds: float) -> bool:
        """Return True if the threads have ended, or do within ``seconds``: the kernel may block them."""
        until = time.monotonic() + seconds
        return all(each.has_stopped(max(0.0, until - time.monotonic())) for each in (self._forgotten, self._given))

    def inode(self, ino: int, *, attributes_only: bool = False) -> None:
        """Invalidate the attributes of an inode, and its pages unless ``attributes_only``."""
        self._forgotten.put(_Inode(ino, attributes_only))

    def entry(self, parent: int, name: str, *, may_stay: bool = False) -> None:
        """Invalidate a name in a folder. ``may_stay``: of a folder that may still be there; the kernel looks it up again."""
        notice = _Entry(parent, name, may_stay)
        if parent in self._locked:
            self._later.append(notice)
        else:
            self._forgotten.put(notice)

    @contextmanager
    def locked(self, *names: tuple[int, str], also: Iterable[int] = ()) -> Iterator[None]:
        """Defer invalidations in the folders of ``names`` and in ``also`` during the body, which answers a request on these names.

        ``names``: pairs (folder, name). Until the answer the kernel has these folders locked. These names it invalidates by itself.
        """
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
                if (notice.parent, notice.name) not in known:
                    self.entry(notice.parent, notice.name, may_stay=notice.may_stay)

    def store(self, ino: int, offset: int, data: bytes) -> None:
        """Put ``data`` into the kernel's pages of an inode. A queued one is not replaced by a later one."""
        self._given.put(_Store(ino, offset, data))

    def withdraw(self, ino: int, offset: int, data: bytes) -> None:
        """Remove what `store` has queued, unless the kernel has it, or is taking it."""
        self._given.withdraw(_Store(ino, offset, data))

    def is_only_of(self, inodes: Container[int]) -> bool:
        """Return True if the kernel has taken all invalidations so far but those of these inodes."""
        return self._forgotten.is_only_of(inodes)

    async def drained(self, *, has_locked: bool = False) -> None:
        """Wait until the kernel has taken all invalidations queued so far, or `PATIENCE` is over.

        The caller holds no lock that a handler may need. ``has_locked``: the kernel has a file locked until the caller answers.
        """
        with trio.move_on_after(MOMENT if has_locked else PATIENCE) as scope:
            await self._forgotten.drained()
        if scope.cancelled_caught and not has_locked:
            log.warning("the kernel has not taken a change notice for %g s", PATIENCE)

    async def written_back(self, inodes: Iterable[int], seconds: float) -> bool:
        """Make the kernel write back what programs have written through mappings of ``inodes``: it does so before it drops pages.

        Returns False if that takes longer than ``seconds``. The caller holds no lock that a handler may need.
        """
        for ino in inodes:
            self.inode(ino)
        with trio.move_on_after(seconds) as scope:
            await self._forgotten.drained(seconds)
        return not scope.cancelled_caught

    async def stored(self) -> None:
        """Wait until the kernel has taken all page data queued so far, or `PATIENCE` is over."""
        with trio.move_on_after(PATIENCE) as scope:
            await self._given.drained()
        if scope.cancelled_caught:
            log.warning("the kernel has not taken page data for %g s", PATIENCE)

    async def room(self) -> None:
        """Wait until few notices are queued. May take as long as the kernel blocks one."""
        await self._forgotten.room(_MANY)
