"""Bytes written through a mapping past the end of its file, which must not become data when the file grows.

A mapping extends to the end of the file's last page. Bytes written there, after the end of the file, are not part of it: other file
systems of Linux zero them when the file grows. FUSE keeps them in the kernel's page, from which they are later read, and written back, as
data. So whenever a file grows over a gap the kernel is given zeros for the rest of the last page, before the request is answered.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import trio

from zarrfs.fuse.handles import OpenFile
from zarrfs.fuse.inode import Inode
from zarrfs.fuse.notifier import Notifier
from zarrfs.fuse.unheard import Unheard

_PAGE = os.sysconf("SC_PAGESIZE")
# A page that the kernel has not read yet is locked until the WRITE is answered. It is empty then.
_PATIENCE = 0.2
# A changed page of a mapping that is just written back is locked until its WRITE is answered, which the kernel sends after the answer to
# truncate(2): zeros for it wait in vain.
_LONG = 1.0


class PastTheEnd:
    """Zeroing of last pages for one mount."""

    def __init__(self, notifier: Notifier, unheard: Unheard) -> None:
        self._notifier = notifier
        self._unheard = unheard

    async def grown(self, inode: Inode, size: int, gap_end: int) -> None:
        """Zero the gap of a file of ``size`` bytes that has grown by truncate(2); nothing was written up to ``gap_end``."""
        if size % _PAGE and gap_end > size:
            zeros = bytes(min(gap_end, size + _PAGE - size % _PAGE) - size)
            self._notifier.store(inode.ino, size, zeros)
            try:
                with trio.move_on_after(_LONG):
                    await self._notifier.stored()
            finally:
                # Behind a blocked notice they would come later, over bytes that were written into the gap after the answer.
                self._notifier.withdraw(inode.ino, size, zeros)

    async def written(self, inode: Inode, size: int, offset: int, open_files: Iterable[OpenFile]) -> None:
        """Zero the gap of a file that has grown by a write at ``offset``; ``open_files``: all open files."""
        if offset > size and size % _PAGE:
            for each in open_files:
                if each.inode is inode and each.writes and await self._unheard.has_mapped(each):
                    with trio.move_on_after(_PATIENCE):
                        await self.grown(inode, size, offset)
                    break
