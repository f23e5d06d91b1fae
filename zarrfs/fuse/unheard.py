"""Bytes of mappings that the kernel handed over and that could not be taken, and whether anybody was told.

The kernel writes the pages of a mapping back when it is asked to (msync, fsync, close) or when the mapping goes. An error reaches whoever
asks next; when the mapping is what closes the file, nobody does. pyfuse3 does not tell a page from what write(2) writes. But who has
called write(2) was told, and closes the file afterwards, so FLUSH follows; after an error of a page the kernel sends none. So bytes are
lost and nobody knows it when the last writer of the file is gone, and neither FLUSH nor FSYNC has come after the error.

What is refused while the opener has the file mapped is lost whether or not msync(2), fsync(2) or close(2) tells: what is written to
memory is accepted at once, and few programs look.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import trio

from zarrfs.fuse.handles import OpenFile
from zarrfs.fuse.inodes import Inode

log = logging.getLogger(__name__)

_PAGE = 4096
# The kernel may hold what /proc/PID/maps waits for, until this is answered.
_PATIENCE = 0.2

IsMapped = Callable[[int, str], Awaitable[bool]]
"""Whether a process (of the thread that opened it) has the file at a path in the mount mapped, to write."""
OnLost = Callable[[str, BaseException], None]
"""Called with a path in the mount and why bytes written there could not be taken."""


class Unheard:
    """Of one mount, by inode number."""

    def __init__(self, on_lost: OnLost | None, is_mapped: IsMapped | None) -> None:
        self._on_lost = on_lost
        self._is_mapped = is_mapped
        self._errors: dict[int, Exception] = {}
        self._of_mappings: set[int] = set()
        """Those of them that a later FLUSH or FSYNC only ends by succeeding."""

    async def refused(self, opened: OpenFile, offset: int, error: Exception) -> None:
        """A WRITE will be answered with ``error``."""
        # A page, or what of the last one lies in the file.
        if not offset % _PAGE and await self.has_mapped(opened):
            self._lose(opened.inode, error)
        else:
            self._errors[opened.inode.ino] = error

    @asynccontextmanager
    async def telling(self, opened: OpenFile) -> AsyncIterator[None]:
        """Around FLUSH and FSYNC, which tell who has ``opened`` it what became of its bytes."""
        ino = opened.inode.ino
        try:
            yield
        except Exception as error:
            if opened.writes and await self.has_mapped(opened):
                self._errors[ino] = error
                self._of_mappings.add(ino)
            elif opened.writes and ino not in self._of_mappings:
                # Who called write(2) was told twice.
                self._errors.pop(ino, None)
            raise
        if opened.writes:
            self._forget(ino)

    def closed(self, opened: OpenFile, others: Iterable[OpenFile]) -> None:
        """It is closed, and ``others`` are open."""
        inode = opened.inode
        if not any(each.writes and each.inode is inode for each in others) and (error := self._forget(inode.ino)) is not None:
            self._lose(inode, error)

    def _forget(self, ino: int) -> Exception | None:
        self._of_mappings.discard(ino)
        return self._errors.pop(ino, None)

    async def has_mapped(self, opened: OpenFile) -> bool:
        """Whether who opened it has it mapped, to write; False where that is not known in time."""
        found = False
        if self._is_mapped is not None and opened.opener:
            with trio.move_on_after(_PATIENCE):
                found = await self._is_mapped(opened.opener, opened.inode.path)
        return found

    def _lose(self, inode: Inode, error: Exception) -> None:
        # One that lost its name has a mark in its path.
        path = inode.path.replace("\0", "")
        log.error(
            "%s: bytes of a mapping could not be taken, and are lost: %s", path, error, extra={"kind": "unheard", "key": path}
        )
        if self._on_lost is not None:
            self._on_lost(path, error)
