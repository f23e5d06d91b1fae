"""Temporary files: names that exist in this mount only, until a rename or a link turns them into values.

Programs write a value under another name first, and then rename it: zarr-python as ``<stem>.<32 hex>.partial`` (its ``LocalStore``,
with rename(2), or link(2) and unlink(2) where nothing may be replaced), tensorstore as ``<key>.__lock``, under a lock (its ``file``
driver), zarrfs itself, if its store is in ``raw/`` of another mount, as ``.zarrfs-<32 hex>.partial``. No such name may reach the store,
and none may remain after a crash. They are therefore kept here, beside the staging area, and a view looks them up in `Temporaries`
before the store.

`is_temporary` has the names that are temporary everywhere. Views that cannot hold every name treat more of them as temporary
(`zarrfs.vfs.temporary_names`).

A temporary file is an ordinary `StagedFile`, whose `Content` is published into this table. Its fsync is recorded, since there is
nothing to sync yet: the rename that publishes it then makes it durable, and returns the error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import trio

from zarrfs import durability
from zarrfs.buffers import Buffer
from zarrfs.errors import EntryExists, NoSuchEntry, StaleEntry
from zarrfs.vfs.content import Content, Snapshot, WholeContent
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Attributes, Entry, Handle, OpenFlags
from zarrfs.vfs.spill_buffer import SpillBuffer
from zarrfs.vfs.stage import Stage, StagingRoom
from zarrfs.vfs.staging import Staged, StagingArea

_EVERYWHERE = re.compile(r".*(\.[0-9a-f]{32}\.partial|\.__lock)|\.zarrfs-[0-9a-f]{32}\.partial", re.DOTALL)
_PIECE_NBYTES = 1 << 20
_ZEROS = bytes(_PIECE_NBYTES)


def is_temporary(name: str) -> bool:
    """Return True if a file of this name is temporary in every view."""
    return _EVERYWHERE.fullmatch(name) is not None


def staged_in(staging: StagingArea, folder: str) -> dict[str, Staged]:
    """Return the unpublished files directly in a folder, by name, without temporary ones.

    ``folder`` is the prefix of their idents, with the trailing slash."""
    found = staging.unpublished_in(folder)
    return {name: one for name, one in found.items() if not isinstance(one.content, TemporaryContent)}


class BoundTo(Protocol):
    """The folder that a temporary file belongs to, wherever another program moves it."""

    @property
    def is_outdated(self) -> bool:
        """True if it has left its path: what is there is another folder, or none."""


Become = Callable[[], Awaitable[None]]
"""Stores a temporary file that was just published or named under its final name, if the view has a place for it by now. The caller holds
the lock of its `Staged`. After an error it stays temporary."""


class Temporaries:
    """The temporary files of a mount, by `File.ident`. Belongs to one event loop.

    An entry of the table exists, whether or not it is open or staged."""

    def __init__(self, staging: StagingArea) -> None:
        self._staging = staging
        self._files: dict[str, _Temporary] = {}

    def get(self, ident: str) -> TemporaryFile | None:
        """Return the temporary file called ``ident``; None if absent."""
        found = self.find(ident)
        return TemporaryFile(self._staging, self.content(ident, found.folder, found.become)) if found is not None else None

    def content(self, ident: str, folder: BoundTo | None = None, become: Become | None = None) -> TemporaryContent:
        """Return the content of a temporary file called ``ident``, whether it exists or not, in ``folder`` if that can be replaced."""
        return TemporaryContent(self, ident, folder, become)

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Return the entries directly below a folder: idents that consist of ``prefix`` (with its trailing slash) and a name."""
        for ident in list(self._files):
            name = ident[len(prefix) :]
            # As of now: it may have been written, replaced or removed since the listing began.
            if ident.startswith(prefix) and "/" not in name and (found := self.find(ident)) is not None:
                size, mtime_ns = len(found.value.data), found.mtime_ns
                staged = self._staging.get(ident)
                if staged is not None and staged.size is not None:
                    size, mtime_ns = staged.size, staged.mtime_ns if staged.mtime_ns is not None else mtime_ns
                yield name, False, size, mtime_ns, True

    def left(self, prefix: str) -> list[str]:
        """Return the idents with ``prefix`` of files that may be missed.

        Those are not empty, and not of a kind that programs leave behind anyway (`is_temporary`)."""
        return [
            ident
            for ident, found in self._files.items()
            if ident.startswith(prefix) and len(found.value.data) and not is_temporary(ident)
        ]

    async def create(self, content: TemporaryContent, flags: OpenFlags) -> tuple[TemporaryFile, Handle]:
        """Create a new, empty file and open it. Raises `EntryExists`."""
        if self.find(content.ident) is not None:
            raise EntryExists(f"{content.ident!r} already exists", key=content.ident)
        self.put(content, _Value(self._staging.room.bytes()))
        file = TemporaryFile(self._staging, content)
        return file, await file.open(flags)

    async def unlink(self, file: TemporaryFile) -> None:
        """Remove its name; open handles keep it. Raises `NoSuchEntry` if it has become something else by now (`Become`)."""
        async with self._staging.unnaming(file.ident):
            self._require_held(file.ident)
            self.remove(file.ident)

    async def move(self, file: StagedFile, content: Content) -> None:
        """Run rename(2) if ``file`` is temporary, or ``content`` (of the new name), or both.

        A value is published before the temporary name is removed, and synced if the temporary file was: if that fails, the file keeps its
        temporary name. Raises `NoSuchEntry`, and the errors of ``content``.
        """
        if file.ident == content.ident:
            return
        moved = False
        async with self._staging.renaming(file.ident, content), self._staging.unnaming(content.ident):
            if not isinstance(file.content, TemporaryContent):
                assert isinstance(content, TemporaryContent)
                await self._take(file.content, content)
            elif isinstance(content, TemporaryContent):
                found = self._require_held(file.ident)
                self.remove(content.ident)
                self._files[content.ident], found.folder, found.become = found, content.folder, content.become
                del self._files[file.ident]
            else:
                moved = await self._publish(file.ident, content, content.publish if isinstance(content, WholeContent) else None)
                self.remove(file.ident)
        # Its handles continue with the value at the new name, if that has the same layout.
        self._staging.changed(content.ident)
        if isinstance(content, TemporaryContent) and content.become is not None:
            staged = self._staging.get(content.ident)
            async with staged.lock if staged is not None else nullcontext():
                await content.become()
        if moved and (opened := self._staging.get(content.ident)) is not None:
            opened.laid_out_anew()

    async def link(self, file: TemporaryFile, content: Content, create: Callable[[Buffer], Awaitable[None]]) -> None:
        """Run link(2) of a temporary file; the two names do not share later writes.

        ``create`` publishes its bytes as the value of ``content``, or raises `EntryExists`, in one step."""
        staged = self._staging.get(file.ident)
        if staged is not None:
            await staged.publish_now()
        await self._publish(file.ident, content, create)

    def move_below(self, old: str, new: str) -> None:
        """Rename the folder whose idents begin with ``old`` to ``new``."""
        for ident in [ident for ident in self._files if ident.startswith(old)]:
            self._files[new + ident[len(old) :]] = self._files.pop(ident)

    def remove_below(self, prefix: str) -> None:
        """Remove the folder whose idents begin with ``prefix``; open handles keep its files."""
        for ident in [ident for ident in self._files if ident.startswith(prefix)]:
            self.remove(ident)

    def detach(self, ident: str) -> TemporaryContent:
        """Remove the name of the temporary file ``ident``, and return a content that has its value until it is erased."""
        alone = Temporaries(self._staging)
        alone._files[ident] = self._files.pop(ident)
        return alone.content(ident)

    def put(self, content: TemporaryContent, value: _Value) -> None:
        """Set the value of a temporary file, created if missing, to ``value``, which the table then owns."""
        ident = content.ident
        self.remove(ident)
        staged = self._staging.get(ident)
        # Its time was already returned to programs during the publish: with another one it would look like another file.
        mtime_ns = staged.mtime_ns if staged is not None else None
        mtime_ns = mtime_ns if mtime_ns is not None else time.time_ns()
        self._files[ident] = _Temporary(value, mtime_ns, content.folder, content.become)

    def set_mtime(self, ident: str, mtime_ns: int) -> None:
        """Set the time, as utimens(2), also for open handles."""
        if (found := self._files.get(ident)) is not None:
            found.set_mtime(mtime_ns)
            self._staging.changed(ident)

    def remove(self, ident: str) -> None:
        """Remove the temporary file ``ident``, if it exists."""
        found = self._files.pop(ident, None)
        if found is not None:
            found.value.release()

    def find(self, ident: str) -> _Temporary | None:
        """Return the entry of the temporary file ``ident``; None if absent, or if its folder has left its path."""
        found = self._files.get(ident)
        if found is not None and found.folder is not None and found.folder.is_outdated:
            self.remove(ident)
            return None
        return found

    def _require_held(self, ident: str) -> _Temporary:
        found = self.find(ident)
        if found is None:
            raise NoSuchEntry(f"{ident!r} is gone", key=ident)
        return found

    async def _publish(self, ident: str, content: Content, whole: Callable[[Buffer], Awaitable[None]] | None) -> bool:
        """Publish the file as the value of ``content``; return True if that has another layout (`Stage.moved`)."""
        found = self._require_held(ident)
        value, moved = found.value.held(), False
        try:
            with durability.demanded(found.synced):
                if whole is not None:
                    await whole(value.data.whole())
                else:
                    moved = await _publish_in_pieces(value.data, content, self._staging.room)
        finally:
            value.release()
        if found.mtime_was_set or found.synced:
            # A program that syncs a file may know it by its time from then on, as tensorstore does. For others the request is saved.
            await content.set_mtime(found.mtime_ns)
        if found.synced:
            with durability.demanded():
                await content.sync()
        return moved

    async def _take(self, content: Content, temporary: TemporaryContent) -> None:
        """Turn the value of ``content`` into a temporary file."""
        snapshot = await content.snapshot()
        if snapshot is None:
            raise NoSuchEntry(f"{content.ident!r} is gone", key=content.ident)
        data = self._staging.room.bytes()
        try:
            size = 0
            while piece := await snapshot.read(size, _PIECE_NBYTES):
                # Keeps holes.
                if piece != _ZEROS[: len(piece)]:
                    await data.put(size, piece)
                size += len(piece)
                await trio.lowlevel.checkpoint()
            await data.resize(size)
            await content.erase()
        except BaseException:
            data.close()
            raise
        finally:
            await snapshot.aclose()
        self.put(temporary, _Value(data))
        if snapshot.attributes.mtime_ns is not None:
            self._files[temporary.ident].set_mtime(snapshot.attributes.mtime_ns)


class TemporaryFile(StagedFile):
    """A file that is in `Temporaries`."""

    content: TemporaryContent


class TemporaryContent(Content):
    """The content of a temporary file: an entry of the table."""

    private = True

    def __init__(self, table: Temporaries, ident: str, folder: BoundTo | None, become: Become | None) -> None:
        self._table = table
        self.ident = ident
        self.folder = folder
        self.become = become

    @property
    def is_outdated(self) -> bool:
        return self.folder is not None and self.folder.is_outdated

    @property
    def is_elsewhere(self) -> bool:
        # What has its name now is a file of another folder.
        return self.is_outdated

    async def snapshot(self) -> Snapshot | None:
        found = self._found
        return None if found is None else _TemporarySnapshot(found)

    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        if not empty:
            self._require_current()
        found = None if empty else self._found
        return _TemporaryStage(self, room, None if found is None else found.value.held())

    async def erase(self) -> None:
        if not self.is_outdated:
            self._table.remove(self.ident)

    async def sync(self) -> None:
        if (found := self._found) is not None:
            found.synced = True

    async def set_mtime(self, mtime_ns: int) -> None:
        if not self.is_outdated:
            self._table.set_mtime(self.ident, mtime_ns)

    def publish(self, value: _Value) -> None:
        """Set the value of the file, which gets a holder of its own. Raises `StaleEntry`."""
        self._require_current()
        self._table.put(self, value.held())

    @property
    def _found(self) -> _Temporary | None:
        """The entry of the file, as opposed to one of the same name in a folder that has taken the path."""
        return None if self.is_outdated else self._table.find(self.ident)

    def _require_current(self) -> None:
        if self.is_outdated:
            raise StaleEntry(f"{self.ident}: its folder was erased, or moved away", key=self.ident)


class _Value:
    """Immutable bytes with a count of holders; the last one releases them."""

    __slots__ = ("_holders", "data")

    def __init__(self, data: SpillBuffer) -> None:
        self.data = data
        self._holders = 1

    def held(self) -> _Value:
        """Return itself, with one more holder."""
        self._holders += 1
        return self

    def release(self) -> None:
        """Remove one holder."""
        self._holders -= 1
        if not self._holders:
            self.data.close()


@dataclass(slots=True)
class _Temporary:
    """``synced``: fsync was called since ``value`` was written. ``mtime_was_set``: by utimens(2), not by writing."""

    value: _Value
    mtime_ns: int
    folder: BoundTo | None = None
    become: Become | None = None
    mtime_was_set: bool = False
    synced: bool = False

    def set_mtime(self, mtime_ns: int) -> None:
        self.mtime_ns = mtime_ns
        self.mtime_was_set = True


class _TemporarySnapshot(Snapshot):
    def __init__(self, found: _Temporary) -> None:
        self._value = found.value.held()
        self.attributes = Attributes(False, len(self._value.data), found.mtime_ns)

    async def read(self, offset: int, size: int) -> Buffer:
        return self._value.data.read(offset, size)

    async def aclose(self) -> None:
        self._value.release()


class _TemporaryStage(Stage):
    """A private copy of the bytes from the first change on; publishing hands it over without a copy."""

    def __init__(self, content: TemporaryContent, room: StagingRoom, value: _Value | None) -> None:
        self._content = content
        self._value = value if value is not None else _Value(room.bytes())
        self._own = value is None

    @property
    def size(self) -> int:
        return len(self._value.data)

    async def read(self, offset: int, size: int) -> Buffer:
        return self._value.data.read(offset, size)

    async def write(self, offset: int, data: Buffer) -> None:
        await (await self._owned()).put(offset, data)

    async def truncate(self, size: int) -> None:
        await (await self._owned()).resize(size)

    async def publish(self) -> None:
        self._own = False
        self._content.publish(self._value)
        if self._content.become is not None:
            await self._content.become()

    async def aclose(self) -> None:
        self._value.release()

    async def _owned(self) -> SpillBuffer:
        if not self._own:
            shared = self._value
            self._value = _Value(await shared.data.copy())
            shared.release()
            self._own = True
        return self._value.data


async def _publish_in_pieces(data: SpillBuffer, content: Content, room: StagingRoom) -> bool:
    content.check_write(0, len(data))
    stage = await content.stage(room, empty=True)
    try:
        for offset in range(0, len(data), _PIECE_NBYTES):
            await stage.write(offset, data.read(offset, _PIECE_NBYTES))
            await trio.lowlevel.checkpoint()
        await stage.publish()
        return stage.moved
    finally:
        await stage.aclose()
