"""Temporary files: names that exist in this mount only, until a rename or a link makes a value of them.

Programs write a value under another name first, and then give it its own: zarr-python as ``<stem>.<32 hex>.partial`` (its
``LocalStore``, with rename(2), or link(2) and unlink(2) where nothing may be replaced), tensorstore as ``<key>.__lock``, under a lock
(its ``file`` driver). No such name may reach the store, and none may be there after a crash. So they are kept here, beside the
staging area, and a view asks `Temporaries` before it asks its store.

`is_temporary` knows the names that are temporary everywhere. Views that cannot hold every name treat more of them so
(`zarrfs.vfs.temporary_names`).

A temporary file is an ordinary `StagedFile`, whose `Content` is published into this table. Its fsync is remembered, since there is
nothing to sync yet: the rename that publishes makes it durable then, and tells the error.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import trio

from zarrfs import durability
from zarrfs.errors import EntryExists, NoSuchEntry
from zarrfs.vfs.content import Content, Snapshot, WholeContent
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Attributes, Buffer, Entry, Handle, OpenFlags
from zarrfs.vfs.spill_buffer import SpillBuffer
from zarrfs.vfs.stage import Stage, StagingRoom
from zarrfs.vfs.staging import Staged, StagingArea

_EVERYWHERE = re.compile(r".*(\.[0-9a-f]{32}\.partial|\.__lock)", re.DOTALL)
_PIECE_NBYTES = 1 << 20
_ZEROS = bytes(_PIECE_NBYTES)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is temporary in every view."""
    return _EVERYWHERE.fullmatch(name) is not None


def staged_in(staging: StagingArea, folder: str) -> dict[str, Staged]:
    """What is written to files directly in a folder and not stored yet, by name, but for temporary ones; ``folder``: what their idents
    begin with, with the trailing slash."""
    found = staging.unpublished_in(folder)
    return {name: one for name, one in found.items() if not isinstance(one.content, TemporaryContent)}


class Temporaries:
    """The temporary files of a mount, by `File.ident`. Belongs to one event loop; what is in the table exists, whether or not it is
    open or staged."""

    def __init__(self, staging: StagingArea) -> None:
        self._staging = staging
        self._files: dict[str, _Temporary] = {}

    def get(self, ident: str) -> TemporaryFile | None:
        """The temporary file called ``ident``."""
        return TemporaryFile(self._staging, self.content(ident)) if ident in self._files else None

    def content(self, ident: str) -> TemporaryContent:
        """What a temporary file called ``ident`` stands for, whether there is one or not."""
        return TemporaryContent(self, ident)

    def entries(self, prefix: str) -> Iterator[Entry]:
        """Those directly below a folder: whose idents are ``prefix`` (with its trailing slash) and a name."""
        for ident, found in list(self._files.items()):
            name = ident[len(prefix) :]
            if ident.startswith(prefix) and "/" not in name:
                size, mtime_ns = len(found.value.data), found.mtime_ns
                staged = self._staging.get(ident)
                if staged is not None and staged.size is not None:
                    size, mtime_ns = staged.size, staged.mtime_ns or mtime_ns
                yield name, False, size, mtime_ns, True

    def left(self, prefix: str) -> list[str]:
        """Those with idents that begin with ``prefix`` and that somebody may miss: not empty, and not of a kind that programs leave
        behind anyway (`is_temporary`)."""
        return [
            ident
            for ident, found in self._files.items()
            if ident.startswith(prefix) and len(found.value.data) and not is_temporary(ident)
        ]

    async def create(self, ident: str, flags: OpenFlags) -> tuple[TemporaryFile, Handle]:
        """A new, empty one, open. Raises `EntryExists`."""
        if ident in self._files:
            raise EntryExists(f"{ident!r} is there already", key=ident)
        self.put(ident, _Value(self._staging.room.bytes()))
        file = TemporaryFile(self._staging, self.content(ident))
        return file, await file.open(flags)

    async def unlink(self, file: TemporaryFile) -> None:
        """It loses its name; whoever has it open keeps it."""
        async with self._staging.unnaming(file.ident):
            self.remove(file.ident)

    async def move(self, file: StagedFile, content: Content) -> None:
        """rename(2), where ``file`` is temporary, or ``content`` (what the new name stands for) is, or both.

        A real value is published before the temporary name goes, and synced if the temporary file was: when that fails the file keeps
        its temporary name. Raises `NoSuchEntry`, and what ``content`` raises.
        """
        if file.ident == content.ident:
            return
        staged = self._staging.get(file.ident)
        if staged is not None:
            await staged.publish_now()
        async with self._staging.renaming(file.ident, content), self._staging.unnaming(content.ident):
            if not isinstance(file.content, TemporaryContent):
                await self._take(file.content, content.ident)
            elif isinstance(content, TemporaryContent):
                found = self._demand(file.ident)
                self.remove(content.ident)
                self._files[content.ident] = found
                del self._files[file.ident]
            else:
                await self._publish(file.ident, content, content.publish if isinstance(content, WholeContent) else None)
                self.remove(file.ident)
        # Its handles go on with the value that is at the new name.
        self._staging.changed(content.ident)

    async def link(self, file: TemporaryFile, content: Content, create: Callable[[Buffer], Awaitable[None]]) -> None:
        """link(2) of a temporary file onto a name: ``create`` publishes its bytes as the value of ``content`` where there is none, in
        one step, else raises `EntryExists`. The two names do not share what is written later."""
        staged = self._staging.get(file.ident)
        if staged is not None:
            await staged.publish_now()
        await self._publish(file.ident, content, create)

    def move_below(self, old: str, new: str) -> None:
        """The folder whose idents begin with ``old`` is called ``new`` now."""
        for ident in [ident for ident in self._files if ident.startswith(old)]:
            self._files[new + ident[len(old) :]] = self._files.pop(ident)

    def remove_below(self, prefix: str) -> None:
        """The folder whose idents begin with ``prefix`` is gone; whoever has one of its files open keeps it."""
        for ident in [ident for ident in self._files if ident.startswith(prefix)]:
            self.remove(ident)

    def put(self, ident: str, value: _Value) -> None:
        """There is a temporary file ``ident`` that holds ``value``, which is the table's from now on."""
        self.remove(ident)
        staged = self._staging.get(ident)
        # What is being published has told its time already: with another one it would be taken for another file.
        mtime_ns = staged.mtime_ns if staged is not None else None
        self._files[ident] = _Temporary(value, mtime_ns if mtime_ns is not None else time.time_ns())

    def set_mtime(self, ident: str, mtime_ns: int) -> None:
        """utimens(2); whoever has it open sees that, too."""
        if (found := self._files.get(ident)) is not None:
            found.set_mtime(mtime_ns)
            self._staging.changed(ident)

    def remove(self, ident: str) -> None:
        """There is none, whether or not there was one."""
        found = self._files.pop(ident, None)
        if found is not None:
            found.value.release()

    def find(self, ident: str) -> _Temporary | None:
        """What is known of the temporary file ``ident``."""
        return self._files.get(ident)

    def _demand(self, ident: str) -> _Temporary:
        found = self._files.get(ident)
        if found is None:
            raise NoSuchEntry(f"{ident!r} is gone", key=ident)
        return found

    async def _publish(self, ident: str, content: Content, whole: Callable[[Buffer], Awaitable[None]] | None) -> None:
        found = self._demand(ident)
        value = found.value.held()
        try:
            with durability.demanded(found.synced):
                if whole is not None:
                    await whole(value.data.whole())
                else:
                    await _publish_in_pieces(value.data, content, self._staging.room)
        finally:
            value.release()
        if found.mtime_was_set:
            await content.set_mtime(found.mtime_ns)
        if found.synced:
            await content.sync()

    async def _take(self, content: Content, ident: str) -> None:
        """The value of ``content`` becomes the temporary file ``ident``."""
        snapshot = await content.snapshot()
        if snapshot is None:
            raise NoSuchEntry(f"{content.ident!r} is gone", key=content.ident)
        data = self._staging.room.bytes()
        try:
            size = 0
            while piece := await snapshot.read(size, _PIECE_NBYTES):
                # Holes stay holes.
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
        self.put(ident, _Value(data))
        if snapshot.attributes.mtime_ns is not None:
            self._files[ident].set_mtime(snapshot.attributes.mtime_ns)


class TemporaryFile(StagedFile):
    """A file that is in `Temporaries`."""

    content: TemporaryContent


class TemporaryContent(Content):
    """What a temporary file stands for: an entry of the table."""

    private = True

    def __init__(self, table: Temporaries, ident: str) -> None:
        self._table = table
        self.ident = ident

    async def snapshot(self) -> Snapshot | None:
        found = self._table.find(self.ident)
        return None if found is None else _TemporarySnapshot(found)

    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        found = None if empty else self._table.find(self.ident)
        return _TemporaryStage(self, room, None if found is None else found.value.held())

    async def erase(self) -> None:
        self._table.remove(self.ident)

    async def sync(self) -> None:
        if (found := self._table.find(self.ident)) is not None:
            found.synced = True

    async def set_mtime(self, mtime_ns: int) -> None:
        self._table.set_mtime(self.ident, mtime_ns)

    def publish(self, value: _Value) -> None:
        """``value`` is what the file holds now."""
        self._table.put(self.ident, value)


class _Value:
    """Bytes that nobody changes any more. They are let go of by the last of those who hold them."""

    __slots__ = ("_holders", "data")

    def __init__(self, data: SpillBuffer) -> None:
        self.data = data
        self._holders = 1

    def held(self) -> _Value:
        """The same, held by one more."""
        self._holders += 1
        return self

    def release(self) -> None:
        """One holder less."""
        self._holders -= 1
        if not self._holders:
            self.data.close()


@dataclass(slots=True)
class _Temporary:
    """``synced``: fsync was asked for since ``value`` was written. ``mtime_was_set``: by utimens(2), not by writing."""

    value: _Value
    mtime_ns: int
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
    """Bytes of its own from the first change on; publishing hands them over, so that nothing is copied there."""

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
        self._content.publish(self._value.held())

    async def aclose(self) -> None:
        self._value.release()

    async def _owned(self) -> SpillBuffer:
        if not self._own:
            shared = self._value
            self._value = _Value(await shared.data.copy())
            shared.release()
            self._own = True
        return self._value.data


async def _publish_in_pieces(data: SpillBuffer, content: Content, room: StagingRoom) -> None:
    content.check_write(0, len(data))
    stage = await content.stage(room, empty=True)
    try:
        for offset in range(0, len(data), _PIECE_NBYTES):
            await stage.write(offset, data.read(offset, _PIECE_NBYTES))
            await trio.lowlevel.checkpoint()
        await stage.publish()
    finally:
        await stage.aclose()
