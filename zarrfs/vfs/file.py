"""Files and open files over the staging area: staged bytes if there are any, else the published value."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from zarrfs.buffers import Buffer
from zarrfs.errors import NoSuchEntry, NotPermitted, StaleEntry, is_refusal
from zarrfs.vfs.content import Content, Snapshot, lost
from zarrfs.vfs.known_pages import SeenPages
from zarrfs.vfs.node import Attributes, File, Handle, OpenFlags
from zarrfs.vfs.stage import State
from zarrfs.vfs.staging import Staged, StagingArea

_TRIES = 16
"""Reads of a value that others replace again and again."""


def was_reported(area: StagingArea, ident: str) -> bool:
    """Return True if close(2) or fsync(2) of ``ident`` has refused its staged bytes (`is_refusal`).

    An error that may pass (ENOSPC) says nothing of a later refusal: its program expects the bytes to be stored."""
    return any(
        staged.reported_ns is not None and staged.reported_ns == staged._changed_ns
        for staged in area._all()
        # What was given up, and is still read, says nothing of later bytes.
        if staged.content.ident == ident and staged.unpublished
    )


@contextmanager
def _reporting(staged: Staged) -> Iterator[None]:
    """Record, around a request of a program, that the program gets its error if it is a refusal."""
    try:
        yield
    except Exception as error:
        if staged.area.returns_errors and is_refusal(error):
            staged.reported_ns = staged._changed_ns
        raise


class StagedFile(File):
    """A file whose value is ``content``, with staging semantics. If ``writable`` is False, opening for writing is refused."""

    def __init__(self, area: StagingArea, content: Content, *, writable: bool = True) -> None:
        self.area = area
        self.content = content
        self.writable = writable
        self.ident = content.ident

    @property
    def of(self) -> object:
        return self.area.current(self.ident)

    @property
    def in_parts(self) -> bool:
        return self.content.in_parts

    @property
    def held_nbytes(self) -> int:
        return self.content.held_nbytes

    async def attributes(self) -> Attributes:
        # As at an open: what is open of an array that was resized or replaced is another file.
        staged = self.area.current(self.ident)
        if staged is not None:
            try:
                return self.shown(await staged.attributes())
            except StaleEntry:
                # The documents may have been read again by then.
                if self.area.current(self.ident) is staged:
                    raise
        snapshot = await self.content.snapshot()
        if snapshot is None:
            raise NoSuchEntry(f"{self.ident} is gone", key=self.ident)
        await snapshot.aclose()
        return self.shown(snapshot.attributes)

    def shown(self, attributes: Attributes) -> Attributes:
        """Return the attributes of the value as those of this file."""
        return attributes if self.writable else attributes._replace(writable=False)

    async def until_moved(self) -> bool:
        waited = False
        while await self.area.until_moved(self.ident) or await self.content.until_placed():
            waited = True
        return waited

    async def open(self, flags: OpenFlags) -> Handle:
        if flags.write and not self.writable:
            raise NotPermitted(f"{self.ident} cannot be written", key=self.ident)
        while True:
            await self.until_moved()
            handle = await self._opened(flags)
            # A file that was emptied has no value of before, and loses its name like any open one.
            if (flags.write and flags.truncate) or not self.area.is_moving(self.ident):
                return handle
            # A rename has begun meanwhile: the value may be that of the other file.
            await handle.release()

    async def _opened(self, flags: OpenFlags) -> Handle:
        staged = self.area.acquire(self.content, writes=flags.write)
        try:
            if flags.write:
                await staged.content.open_to_write()
            if flags.truncate and flags.write:
                await staged.truncate(0)
            # Before the value is looked up: values that other handles publish meanwhile are this file's own changes.
            epoch, snapshot = staged.epoch, None
            if staged.stage is not None:
                staged.stage.opened()
            elif flags.write and flags.read and staged.content.merged:
                # The kernel has no pages of it. A later change applies to the value as of now, whatever replaces that.
                snapshot = await staged.content.open_to_change()
            else:
                snapshot = await (staged.content.snapshot() if flags.write else staged.content.open_snapshot())
            if snapshot is None and staged.size is None:
                raise NoSuchEntry(f"{self.ident} is gone", key=self.ident)
        except BaseException:
            await staged.release(writes=flags.write)
            raise
        return StagedHandle(staged, flags, snapshot, epoch)

    async def create(self, flags: OpenFlags) -> Handle:
        """Stage the new, empty file and open it; it is published when this handle and all others that may write are released."""
        staged = self.area.acquire(self.content, writes=True)
        try:
            await staged.create()
        except BaseException:
            await staged.release(writes=True)
            raise
        return StagedHandle(staged, flags, None, staged.epoch, creates=True)

    async def truncate(self, size: int) -> None:
        if not self.writable:
            raise NotPermitted(f"{self.ident} cannot be written", key=self.ident)
        staged = self.area.acquire(self.content)
        try:
            await staged.truncate_and_publish(size)
        finally:
            await staged.release()

    async def set_mtime(self, mtime_ns: int) -> None:
        staged = self.area.get(self.ident)
        if staged is not None:
            await staged.set_mtime(mtime_ns)
        else:
            await self.content.set_mtime(mtime_ns)


class StagedHandle(Handle):
    """An open `StagedFile`: staged bytes if there are any, else the published value.

    The published value is read through a snapshot. A change made through this file moves the handle on to the new value, as on a local
    file system. A change by another program or through another view does not: the handle returns the old value or raises `StaleEntry`,
    never a mix.
    """

    def __init__(self, staged: Staged, flags: OpenFlags, snapshot: Snapshot | None, epoch: int, *, creates: bool = False) -> None:
        self._staged = self.of = staged
        self._flags = flags
        # A program may create a file by a descriptor that only reads (flock(1)), while others write to it.
        self._is_writer = flags.write or creates
        self._snapshot = snapshot
        self._epoch = self._opened = epoch
        self._emptied = staged.emptied
        # A value that changes in parts has no generation. A file that is written must have no cached pages except those read from now on.
        self.keep_cache = not staged.content.in_parts and not (flags.write and staged.content.merged)
        self._page_cache: object = None
        self._is_paged = True
        self._seen: SeenPages | None = None
        if flags.write:
            self._see()
        elif snapshot is not None and staged.size is None:
            self.pages = snapshot.pages

    @property
    def is_outdated(self) -> bool:
        return self._emptied < self._staged.replaced_at

    def opened_in(self, page_cache: object, *, paged: bool) -> None:
        self._close_pages()
        self._page_cache, self._is_paged = page_cache, paged
        self._see()

    async def attributes(self) -> Attributes:
        # With the size of another array, the kernel would end reads there without a request.
        self._require_current()
        if self._staged.size is not None or self._staged.orphan:
            return await self._staged.attributes()
        if self._epoch != self._staged.epoch:
            await self._drop_snapshot()
        return await self._staged.retimed((await self._taken_snapshot()).attributes)

    async def read(self, offset: int, size: int) -> Buffer:
        seen = self._see()
        known = seen.pages if seen is not None else self._staged.seen.in_pages(self._page_cache) if self._is_paged else None
        if known is None:
            return await self._read(offset, size)
        with known.reading(offset, size) as reading:
            data = await self._read(offset, size)
            end = self._staged.size
            if end is None and self._snapshot is not None:
                end = self._snapshot.attributes.size
            known.add_read(reading, data, at_end=len(data) < size or offset + len(data) == end)
        return data

    async def _read(self, offset: int, size: int) -> Buffer:
        self._require_current()
        data = await self._staged.read(offset, size)
        if data is not None:
            return data
        if self._epoch != self._staged.epoch:
            await self._drop_snapshot()
        for tries in itertools.count(1):
            try:
                return await (await self._taken_snapshot()).read(offset, size)
            except StaleEntry:
                # Without own changes, the kernel has returned the size of that value, and perhaps bytes of it, to other readers.
                is_moved_on = self._epoch != self._staged.epoch and not self._staged.superseded
                if tries == _TRIES or not (is_moved_on or self._follows):
                    raise
                await self._drop_snapshot()
        raise AssertionError

    @property
    def _follows(self) -> bool:
        """True if the value read from here on is the present one, whoever stores it: own changes were merged into it.

        A mapping of the file would otherwise end its program at the next change by others."""
        staged = self._staged
        return self._flags.write and staged.content.merged and staged.own_epoch > self._opened and not staged.is_lost

    async def write(self, offset: int, data: Buffer) -> int:
        return await self._write(offset, data, at_end=False)

    async def append(self, offset: int, data: Buffer) -> int:
        return await self._write(offset, data, at_end=True)

    async def _write(self, offset: int, data: Buffer, *, at_end: bool) -> int:
        if not self._flags.write:
            return await super().write(offset, data)
        self._require_current()
        # If earlier writes are staged, a refusal of this one does not report the result of publishing them.
        with _reporting(self._staged) if self._staged.state in (State.CLEAN, State.TRUNCATED) else nullcontext():
            done = await self._staged.write(
                offset,
                data,
                self._snapshot,
                self._epoch,
                self._emptied,
                known=self._see(),
                page_cache=self._page_cache,
                at_end=at_end,
            )
        await self._drop_snapshot()
        return done

    async def truncate(self, size: int) -> None:
        if not self._flags.write:
            await super().truncate(size)
        self._require_current()
        await self._staged.truncate(size, self._snapshot, self._epoch, self._emptied)
        await self._drop_snapshot()
        if size == 0:
            self._emptied = self._staged.emptied

    async def flush(self) -> None:
        if self._flags.write:
            with _reporting(self._staged):
                await self._staged.flush()

    async def fsync(self) -> None:
        with _reporting(self._staged):
            await self._staged.fsync()

    async def release(self) -> None:
        await self._drop_snapshot()
        self._close_pages()
        await self._staged.release(writes=self._is_writer)

    async def set_mtime(self, mtime_ns: int) -> None:
        await self._staged.set_mtime(mtime_ns)

    def _see(self) -> SeenPages | None:
        """Return what may have been seen through this handle, if it may write; None where the whole value is written."""
        if self._seen is None and self._flags.write:
            self._seen = self._staged.see(self._page_cache, paged=self._is_paged)
        return self._seen

    def _close_pages(self) -> None:
        seen, self._seen = self._seen, None
        if seen is not None:
            self._staged.seen.closed(self._page_cache, seen)

    def _require_current(self) -> None:
        self._staged.require_current(self._emptied)

    async def _taken_snapshot(self) -> Snapshot:
        if self._staged.orphan:
            raise lost(self._staged.content)
        if self._snapshot is None:
            if self._staged.superseded and not self._follows:
                ident = self._staged.content.ident
                raise StaleEntry(f"{ident} was replaced through another view", key=ident)
            self._epoch = self._staged.epoch
            content = self._staged.content
            self._snapshot = await (content.open_to_change() if self._follows else content.snapshot())
            if self._snapshot is None:
                # Not NoSuchEntry: ENOENT is not an error of read(2).
                ident = self._staged.content.ident
                raise StaleEntry(f"{ident} was erased while it was open", key=ident)
        return self._snapshot

    async def _drop_snapshot(self) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            await snapshot.aclose()
