"""Bytes of mappings that were refused, and whether a program got the error.

The kernel writes the pages of a mapping back on request (msync, fsync, close) or when the mapping goes. An error is returned by the next
such call; if the end of the mapping closes the file, by none. pyfuse3 does not distinguish a page from the data of write(2). But a caller
of write(2) gets the error, and closes the file afterwards, so FLUSH follows; after an error of a page the kernel sends none. So bytes are
lost unnoticed if the last writer of the file is gone, and neither FLUSH nor FSYNC has come after the error.

Bytes refused while the opener has the file mapped count as lost even if msync(2), fsync(2) or close(2) returns the error: writes to
memory are accepted at once, and few programs check.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import trio

from zarrfs.fuse.handles import OpenFile
from zarrfs.fuse.inode import Inode

log = logging.getLogger(__name__)

_PAGE = os.sysconf("SC_PAGESIZE")
# The kernel may hold a lock that /proc/PID/maps waits for, until the request is answered.
_PATIENCE = 0.2

IsMapped = Callable[[int, str], Awaitable[bool]]
"""Returns True if the process of the thread that opened a file has a writable mapping of it, from that thread and the path."""
OnLost = Callable[[str, BaseException], None]
"""Called with a path in the mount and the reason why bytes written there were refused."""


class Unheard:
    """Refused bytes of one mount, by inode number."""

    def __init__(self, on_lost: OnLost | None, is_mapped: IsMapped | None) -> None:
        self._on_lost = on_lost
        self._is_mapped = is_mapped
        self._errors: dict[int, Exception] = {}
        self._of_mappings: set[int] = set()
        """Inodes whose error is cleared only by a successful FLUSH or FSYNC."""

    async def refused(self, open_file: OpenFile, offset: int, error: Exception) -> None:
        """Record a WRITE to be answered with ``error``."""
        # A whole page, or the part of the last one within the file.
        if not offset % _PAGE and await self.has_mapped(open_file):
            self._lose(open_file.inode, error)
        else:
            self._errors[open_file.inode.ino] = error

    @asynccontextmanager
    async def replying(self, open_file: OpenFile) -> AsyncIterator[None]:
        """Track FLUSH or FSYNC in the body, which returns the outcome for its bytes to the opener."""
        ino = open_file.inode.ino
        try:
            with open_file.changing():
                yield
        except Exception as error:
            if open_file.writes and await self.has_mapped(open_file):
                self._errors[ino] = error
                self._of_mappings.add(ino)
            elif open_file.writes and ino not in self._of_mappings:
                # The caller of write(2) got the error twice.
                self._errors.pop(ino, None)
            raise
        if open_file.writes:
            self._forget(ino)

    def closed(self, open_file: OpenFile, others: Iterable[OpenFile]) -> None:
        """Record a closed file; ``others``: the files still open."""
        inode = open_file.inode
        if not any(each.writes and each.inode is inode for each in others) and (error := self._forget(inode.ino)) is not None:
            self._lose(inode, error)

    def _forget(self, ino: int) -> Exception | None:
        self._of_mappings.discard(ino)
        return self._errors.pop(ino, None)

    async def has_mapped(self, open_file: OpenFile) -> bool:
        """Return True if the opener has a writable mapping of it; False if that is not known in time."""
        found = False
        if self._is_mapped is not None and open_file.opener:
            with trio.move_on_after(_PATIENCE):
                found = await self._is_mapped(open_file.opener, open_file.inode.path)
        return found

    def _lose(self, inode: Inode, error: Exception) -> None:
        # A nameless inode has a mark in its path.
        path = inode.path.replace("\0", "")
        log.error("%s: mapped write refused, data lost: %s", path, error, extra={"kind": "unheard", "key": path})
        if self._on_lost is not None:
            self._on_lost(path, error)
