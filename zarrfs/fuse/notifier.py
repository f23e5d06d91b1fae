"""Telling the kernel that what it has cached is no longer so.

`invalidate_inode` and `invalidate_entry` wait for locks that the kernel holds while it waits for us: called from a request handler
with a READ of that inode in flight they deadlock the whole process beyond kill -9. So a thread of its own makes all of these calls, in
order (who finds pages forgotten is to find the name forgotten, too; only what waits for a lock of the kernel's for long comes later), and
nothing that the kernel may wait for waits for this thread:

- FLUSH does, after letting go of every lock of ours (a change must be seen everywhere when close(2) returns): the kernel holds none then.
- LOOKUP, CREATE, UNLINK, RENAME and the like hold the kernel's lock of their folder, and never do.
- FSYNC and SETATTR hold its lock of their file. Who removes or replaces that file meanwhile holds the folder's, and waits for the
  file's, and what is told of a name in that folder waits for both: they wait for the thread no longer than a moment.

What is put into pages (`store`) waits for no folder, and is waited for by SETATTR: it has a queue of its own.

A notice says "forget this", so one that waits stands for all later ones of the same name or inode: what waits is never more than what the
kernel knows. Who has many to give waits for `Notifier.room`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import trio

from zarrfs.fuse.notice_queue import PATIENCE, Kernel, NoticeQueue

log = logging.getLogger(__name__)

MOMENT = 0.1
"""Seconds for which who holds a lock of the kernel's waits for what it is told: somebody else may hold that of their folder."""

_MANY = 4096


class _Entry(NamedTuple):
    parent: int
    name: str

    @property
    def locked(self) -> int:
        return self.parent

    def send(self, kernel: Kernel) -> None:
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
    """What the kernel is to forget, and what it is given. Start it once the file system is mounted; `stop` before it is closed."""

    def __init__(self, kernel: Kernel) -> None:
        self._forgotten = NoticeQueue(kernel, "zarrfs-notifier")
        self._given = NoticeQueue(kernel, "zarrfs-pages")
        self._locked: list[int] = []
        self._later: list[_Entry] = []

    def __len__(self) -> int:
        """Notices that the kernel has not taken yet."""
        return len(self._forgotten) + len(self._given)

    def start(self) -> None:
        """Begin to tell it."""
        self._forgotten.start()
        self._given.start()

    def stop(self) -> None:
        """End after what is being told: nobody is left who would want the rest. Does not wait."""
        self._forgotten.stop()
        self._given.stop()

    def has_stopped(self, seconds: float) -> bool:
        """Whether the threads have ended, or do within so many seconds: the kernel may keep them waiting."""
        until = time.monotonic() + seconds
        return all(each.has_stopped(max(0.0, until - time.monotonic())) for each in (self._forgotten, self._given))

    def inode(self, ino: int, *, attributes_only: bool = False) -> None:
        """Have the kernel forget the pages (and attributes) of an inode."""
        self._forgotten.put(_Inode(ino, attributes_only))

    def entry(self, parent: int, name: str) -> None:
        """Have the kernel forget a name in a folder."""
        notice = _Entry(parent, name)
        if parent in self._locked:
            self._later.append(notice)
        else:
            self._forgotten.put(notice)

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
        self._given.put(_Store(ino, offset, data))

    async def drained(self, *, has_locked: bool = False) -> None:
        """Return when the kernel has forgotten everything queued so far, or after a while. The caller holds no lock that a handler may
        need. ``has_locked``: the kernel has a file locked until the caller answers."""
        with trio.move_on_after(MOMENT if has_locked else PATIENCE) as scope:
            await self._forgotten.drained()
        if scope.cancelled_caught and not has_locked:
            log.warning("the kernel has not taken a change notice for %g s", PATIENCE)

    async def stored(self) -> None:
        """Return when the kernel has in its pages what it was given so far, or after a while."""
        with trio.move_on_after(PATIENCE) as scope:
            await self._given.drained()
        if scope.cancelled_caught:
            log.warning("the kernel has not taken what belongs into a page for %g s", PATIENCE)

    async def room(self) -> None:
        """Return when there are few notices that the kernel has not taken yet. May take as long as it keeps one waiting."""
        await self._forgotten.room(_MANY)
