"""Bytes that a mapping wrote past the end of its file, which must not become data when the file grows.

A mapping reaches to the end of the file's last page. What is written there, behind the end of the file, is nobody's: other file systems
of Linux zero it when the file grows. FUSE keeps it in the kernel's page, where it is read as data from then on, and written back as such.
So whenever a file grows over a gap the kernel is given zeros for what its last page held behind the end, before that is answered.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from zarrfs.fuse.handles import OpenFile
from zarrfs.fuse.inodes import Inode
from zarrfs.fuse.notifier import Notifier
from zarrfs.fuse.unheard import Unheard

_PAGE = 4096
# A page that the kernel has not read yet is locked until the WRITE is answered. There is nothing in it, then.
_PATIENCE = 0.2


class PastTheEnd:
    """Of one mount."""

    def __init__(self, notifier: Notifier, unheard: Unheard) -> None:
        self._notifier = notifier
        self._unheard = unheard

    async def grown(self, inode: Inode, size: int, gap_end: int) -> None:
        """A file of ``size`` bytes has grown, by truncate(2); up to ``gap_end`` nothing was written."""
        if size % _PAGE and gap_end > size:
            self._notifier.store(inode.ino, size, bytes(min(gap_end, size + _PAGE - size % _PAGE) - size))
            await self._notifier.stored()

    async def written(self, inode: Inode, size: int, offset: int, opened: Iterable[OpenFile]) -> None:
        """The same, by a write at ``offset``; ``opened``: all files."""
        if offset > size and size % _PAGE:
            for each in opened:
                if each.inode is inode and each.writes and await self._unheard.has_mapped(each):
                    with trio.move_on_after(_PATIENCE):
                        await self.grown(inode, size, offset)
                    break
