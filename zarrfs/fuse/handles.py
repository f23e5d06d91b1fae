"""Files and folders that the kernel has open."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from itertools import islice

import trio

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


@asynccontextmanager
async def released_on_error(handle: Handle) -> AsyncIterator[None]:
    """Release ``handle`` if the body fails: the kernel gets the error, and sends no RELEASE."""
    try:
        yield
    except BaseException:
        with trio.CancelScope(shield=True):
            await handle.release()
        raise


class OpenDirectory:
    """A listing in progress.

    The last entries read from the tree are kept, since the kernel requests some again; so is the error that ended it, which must not be
    taken for its end. ``epoch``: of the kernel cache at its start, at ``since_ns``. ``removed``: names removed through this mount since
    then. ``answered``: offset of the last request, from which on the kernel may request entries again. ``suspended``: it holds only the
    names of these (`zarrfs.fuse.idle_listings`).
    """

    __slots__ = (
        "_before",
        "_first",
        "_gone",
        "_names",
        "_passed",
        "answered",
        "entries",
        "epoch",
        "error",
        "inode",
        "iterator",
        "removed",
        "since_ns",
        "suspended",
    )

    def __init__(self, inode: Inode, iterator: AsyncIterator[Entry], epoch: int) -> None:
        self.inode = inode
        self.epoch, self.since_ns = epoch, time.monotonic_ns()
        self.iterator: AsyncIterator[Entry] | None = iterator
        self.entries: deque[Entry] = deque()
        self._passed = 0
        self.error: Exception | None = None
        self.removed: set[str] = set()
        self.answered = 0
        self.suspended = False
        # Hashes of all names so far, in order; None if they are too many.
        self._names: array[int] | None = array("q")
        # In that case: those before each position at which a suspended listing may continue, the first of which is `answered`, or later.
        self._before = array("q")
        self._first = 0
        # Number of names removed until it was continued.
        self._gone = 0

    @property
    def nnames(self) -> int:
        """Number of hashes of names that are held to continue the listing exactly."""
        return len(self._names) if self._names is not None else 0

    def forget_names(self) -> None:
        """Hold no more of them than the last ones: a suspended listing continues after the last name."""
        names, self._names = self._names, None
        if self.suspended and names is not None:
            self._before = names[self._first - 1 :]

    def has_dropped(self, position: int) -> bool:
        """Return True if the entry at ``position`` is no longer kept: the listing must then restart."""
        return position < self._passed

    async def entry(self, position: int) -> Entry | None:
        """Return the entry at ``position``; None after the last."""
        while position >= self._passed + len(self.entries):
            if self.error is not None:
                # Without the frames of earlier requests, which it would collect.
                raise self.error.with_traceback(None)
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
            if self._names is not None:
                self._names.append(hash(entry[0]))
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
        self._passed = self._gone = 0
        self.suspended = False
        self._names, self._before = array("q"), array("q")
        if isinstance(before, AsyncGenerator):
            await before.aclose()

    async def suspend(self) -> None:
        """Release all that the listing holds, except for what `resume` needs."""
        self._first = max(self.answered, self._passed + 1)
        if self._names is None:
            last = islice(self.entries, self._first - self._passed - 1, None)
            # Many users' listings may be suspended: not their names.
            self._before = array("q", [hash(entry[0]) for entry in last])
        # Before the wait: the kernel may ask meanwhile.
        self.suspended = True
        iterator, self.iterator = self.iterator, None
        self.entries.clear()
        if isinstance(iterator, AsyncGenerator):
            await iterator.aclose()

    async def resume(self, position: int, entries: Callable[[], AsyncIterator[Entry]], epoch: int) -> None:
        """Continue a suspended listing at ``position``, with the entries of a new one that were not before it.

        If these are not known any more (`forget_names`), with those after the entry that was before it; if that is gone, as after rm(1)
        has removed what it read, after as many as are left of those before it.
        """
        if self._names is not None:
            names = self._names[:position]
            await self.restart(_without(entries(), set(names)), epoch)
            self._names, self._passed = names, position
            return
        before, gone = self._before, self._gone + len(self.removed)
        index = position - self._first
        last = before[index] if 0 <= index < len(before) else None
        try:
            await self.restart(entries(), epoch)
            if not position:
                return
            found = await self._pass(lambda entry, _: hash(entry[0]) == last) if last is not None else None
            if found is None:
                gone += len(self.removed)
                await self.restart(entries(), epoch)
                if position > gone:
                    found = await self._pass(lambda _, count: count == position - gone)
            if found is not None:
                # Kept: the listing may be suspended again before another is read.
                self.entries.append(found)
            self._passed, self._gone = position - len(self.entries), gone
        except BaseException:
            self.suspended, self._before, self._gone = True, before, gone
            raise
        finally:
            self._names = None

    async def _pass(self, is_last: Callable[[Entry, int], bool]) -> Entry | None:
        """Pass entries up to the one of which, and of its number, ``is_last`` is true, and return that; None if there is none."""
        assert self.iterator is not None
        count = 0
        async for entry in self.iterator:
            count += 1
            if is_last(entry, count):
                return entry
        self.iterator = None
        return None


async def _without(entries: AsyncIterator[Entry], names: set[int]) -> AsyncGenerator[Entry]:
    """Yield the ``entries`` whose names do not have these hashes."""
    try:
        async for entry in entries:
            if hash(entry[0]) not in names:
                yield entry
    finally:
        if isinstance(entries, AsyncGenerator):
            await entries.aclose()
