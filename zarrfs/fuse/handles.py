"""What the kernel has open."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from zarrfs.fuse.inodes import Inode
from zarrfs.vfs.node import Entry, Handle


class OpenFile:
    """``opener``: the thread that opened it, 0 where that is not known; ``written``: whether this descriptor has changed it."""

    __slots__ = ("handle", "inode", "opener", "written")

    def __init__(self, inode: Inode, handle: Handle, opener: int = 0) -> None:
        self.opener = opener
        self.inode = inode
        self.handle = handle
        self.written = False


class OpenDirectory:
    """A listing under way. Entries that were read from the tree are kept, since the kernel may ask for any position again; so is the
    error that ended it, which must not be taken for its end. ``epoch``: of the kernel's memory, when it began."""

    __slots__ = ("entries", "epoch", "error", "inode", "iterator", "listed")

    def __init__(self, inode: Inode, iterator: AsyncIterator[Entry], epoch: int) -> None:
        self.inode = inode
        self.epoch = epoch
        self.iterator: AsyncIterator[Entry] | None = iterator
        self.entries: list[Entry] = []
        self.error: Exception | None = None
        self.listed = False

    async def entry(self, position: int) -> Entry | None:
        """The entry at ``position``; None behind the last."""
        while position >= len(self.entries):
            if self.error is not None:
                raise self.error
            if self.iterator is None:
                return None
            try:
                entry = await anext(self.iterator, None)
            except Exception as error:
                self.error = error
                raise
            if entry is None:
                self.iterator = None
                return None
            self.entries.append(entry)
        return self.entries[position]

    async def restart(self, iterator: AsyncIterator[Entry] | None, epoch: int = 0) -> None:
        """Begin anew with ``iterator``, or end."""
        self.epoch = epoch
        before, self.iterator, self.error = self.iterator, iterator, None
        self.entries.clear()
        if isinstance(before, AsyncGenerator):
            await before.aclose()
