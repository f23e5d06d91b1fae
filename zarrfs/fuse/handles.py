"""Files and folders that the kernel has open."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, nullcontext

from zarrfs.fuse.inode import Inode
from zarrfs.vfs.node import Entry, Handle

# Entries kept of a listing: the kernel requests those again that did not fit an answer; programs may seek anywhere, but rarely do.
_KEPT = 4096


class OpenFile:
    """An open file.

    ``opener``: the thread that opened it, 0 if unknown; ``writes``: opened for writing; ``appends``: with O_APPEND; ``written``: changed
    through this descriptor. ``direct``: it does not use the kernel's pages.
    """

    __slots__ = ("_appends", "_since", "handle", "inode", "opener", "writes", "written")

    def __init__(
        self, inode: Inode, handle: Handle, opener: int = 0, *, writes: bool = False, appends: bool = False, direct: bool = False
    ) -> None:
        self.opener = opener
        self.writes = writes
        self._appends = appends
        self.inode = inode
        self.handle = handle
        self.written = False
        self._since = inode.writes if not direct else -1

    @property
    def pages(self) -> object:
        """`Handle.pages`; None if it uses none, or after a WRITE since the open: the kernel may keep bytes that are refused or lost."""
        return self.handle.pages if self._since == self.inode.writes else None

    async def write(self, offset: int, data: bytes) -> int:
        """Write to it. With O_APPEND, the kernel writes at the end of the file by the size that it has; other offsets are of mappings."""
        at_end = self._appends and offset == self.inode.size
        return await (self.handle.append if at_end else self.handle.write)(offset, data)

    def changing(self) -> AbstractContextManager[None]:
        """Return `Inode.changing` for a request that publishes what was written."""
        return self.inode.changing() if self.writes else nullcontext()


class OpenDirectory:
    """A listing in progress.

    The last entries read from the tree are kept, since the kernel requests some again; so is the error that ended it, which must not be
    taken for its end. ``epoch``: of the kernel cache at its start, at ``since_ns``. ``removed``: names removed through this mount since
    then.
    """

    __slots__ = ("_passed", "entries", "epoch", "error", "inode", "iterator", "listed", "removed", "since_ns")

    def __init__(self, inode: Inode, iterator: AsyncIterator[Entry], epoch: int) -> None:
        self.inode = inode
        self.epoch, self.since_ns = epoch, time.monotonic_ns()
        self.iterator: AsyncIterator[Entry] | None = iterator
        self.entries: deque[Entry] = deque()
        self._passed = 0
        self.error: Exception | None = None
        self.listed = False
        self.removed: set[str] = set()

    def has_dropped(self, position: int) -> bool:
        """Return True if the entry at ``position`` is no longer kept: the listing must then restart."""
        return position < self._passed

    async def entry(self, position: int) -> Entry | None:
        """Return the entry at ``position``; None after the last."""
        while position >= self._passed + len(self.entries):
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
            if len(self.entries) > _KEPT:
                self.entries.popleft()
                self._passed += 1
        return self.entries[position - self._passed]

    async def restart(self, iterator: AsyncIterator[Entry] | None, epoch: int = 0) -> None:
        """Restart with ``iterator``, or end with None."""
        self.epoch, self.since_ns = epoch, time.monotonic_ns()
        before, self.iterator, self.error = self.iterator, iterator, None
        self.entries.clear()
        self.removed.clear()
        self._passed = 0
        if isinstance(before, AsyncGenerator):
            await before.aclose()
