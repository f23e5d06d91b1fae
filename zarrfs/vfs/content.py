"""The value behind a file: published; it can be read, loaded whole and replaced whole.

Views implement `Content` for store values and decoded chunks; `zarrfs.vfs.staging` adds the semantics of files for all of them.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator
from types import EllipsisType

from zarrfs.buffers import Buffer
from zarrfs.errors import ContentInvalid, FileTooLarge, StaleEntry
from zarrfs.vfs.node import Attributes
from zarrfs.vfs.stage import Stage, StagingRoom, ValueStage


class Snapshot(abc.ABC):
    """One published value, fixed when the snapshot was taken: reads return this value or an error, never a mix with a later one."""

    attributes: Attributes

    @property
    def pages(self) -> object:
        """The present state of a value that changes in parts, for `Handle.pages`; None if unknown."""
        return None

    @abc.abstractmethod
    async def read(self, offset: int, size: int) -> Buffer:
        """Return at most ``size`` bytes from ``offset``. Raises `StaleEntry` if the value was replaced and is no longer available."""

    def held(self) -> Buffer | None:
        """Return the whole value if it is in memory."""
        return None

    async def aclose(self) -> None:
        """Release the resources of the snapshot."""


class Content(abc.ABC):
    """The value behind a file, published or not.

    ``ident``: see `File.ident`. ``verbatim``: a published value reads back byte for byte (not where a codec rounds, or padding is
    replaced). ``in_parts``: the value changes part by part, each for itself; open handles see every change. ``private``: it is in no
    store, and no other program can change it. ``merged``: its changes are merged into those that other programs have made meanwhile.
    """

    ident: str
    verbatim: bool = True
    in_parts: bool = False
    blksize: int = 4096
    private: bool = False
    merged: bool = False
    held_nbytes: int = 0
    """See `File.held_nbytes`."""

    @abc.abstractmethod
    async def snapshot(self) -> Snapshot | None:
        """Return the present value; None if nothing is published."""

    async def open_snapshot(self) -> Snapshot | None:
        """Return a `snapshot` for a handle that is about to read the value."""
        return await self.snapshot()

    async def open_to_change(self) -> Snapshot | None:
        """Return a `snapshot` for a handle that is about to read the value and to change a part of it."""
        return await self.snapshot()

    async def open_to_write(self) -> None:
        """Record that a handle was opened that may change the value: a later replacement of the value is another program's."""

    @abc.abstractmethod
    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        """Return a stage for a change of the value; ``empty``: the change begins with an empty file (O_TRUNC, creation)."""

    async def stage_over(self, room: StagingRoom, seen: Snapshot, new_nbytes: int) -> Stage:
        """Return a stage for a change of the value of ``seen``, if available; its first ``new_nbytes`` bytes are written at once."""
        return await self.stage(room, empty=False)

    async def keep(self, room: StagingRoom) -> Stage:
        """Return a stage from which the value can be read after it is gone. Raises `ZarrfsError` if that is impossible."""
        return await self.stage(room, empty=False)

    def check_write(self, offset: int, size: int) -> None:
        """Raise `FileTooLarge` for bytes beyond the largest possible value, before anything is staged."""

    def covers(self, offset: int, size: int) -> bool:
        """Return True if these bytes are the whole value: a write of them does not depend on the published value."""
        return False

    @abc.abstractmethod
    async def erase(self) -> None:
        """Remove the value."""

    @property
    def may_be_another(self) -> bool:
        """False while this mount changes documents of the value that leave its bytes, and their layout, as they are."""
        return True

    @property
    def is_outdated(self) -> bool:
        """True if the value has another layout by now, or is gone: open handles are stale, and a new open gets another file."""
        return False

    @property
    def is_elsewhere(self) -> bool:
        """True if another program has moved the object that the value is part of: what this mount removes here is not the value."""
        return False

    def renewed(self) -> Content:
        """Return the content for a new open: itself, unless outdated."""
        return self

    async def until_placed(self) -> bool:
        """Wait while this mount moves or erases the folder that it is in. Return False, without a checkpoint, if it does not."""
        return False

    def follow(self) -> None:
        """Update ``ident`` after a move of the value."""

    async def sync(self) -> None:
        """Make the published value durable."""

    async def set_mtime(self, mtime_ns: int) -> None:
        """Store a modification time with the value, if possible."""

    async def retimed(self, attributes: Attributes) -> Attributes:
        """Return the ``attributes`` of a snapshot with the present time, which a value that changes in parts has while it is open."""
        return attributes


class WholeContent(Content):
    """A value that is loaded, changed and published as a whole.

    ``fixed_size`` is the only size in bytes that can be published, None if any can."""

    fixed_size: int | None = None

    @abc.abstractmethod
    async def load(self) -> Buffer | None:
        """Return the whole present value, to be changed; None if nothing is published."""

    @abc.abstractmethod
    async def publish(self, data: Buffer) -> None:
        """Replace the whole value. After any error the value published before is unchanged.

        Raises `ContentInvalid` and `ChunkSizeMismatch` before the store is changed if ``data`` is not a value of this kind.
        """

    async def stored(self) -> Buffer | EllipsisType | None:
        """Return the stored value, to tell it from later ones of others, after a failure to replace it: see `ValueStage`."""
        return ...

    async def load_in_pieces(self) -> tuple[int, AsyncIterator[tuple[int, Buffer]]] | None:
        """Load a value too large to be held whole: return its size, and pieces with their offsets; all other bytes are zeros.

        None for a smaller value."""
        return None

    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        pieces = None if empty else await self.load_in_pieces()
        data = None if empty or pieces is not None else await self.load()
        data = data if data is not None else b""
        stage = ValueStage(room, data, self.publish, self._refuse_emptied, stored=self.stored, ident=lambda: self.ident)
        if pieces is not None:
            try:
                await stage.truncate(pieces[0])
                async for offset, piece in pieces[1]:
                    await stage.write(offset, piece)
            except BaseException:
                await stage.aclose()
                raise
        return stage

    async def _refuse_emptied(self) -> None:
        """Raise `ContentInvalid` if a value is stored, of which the end of the mount would leave nothing."""
        if (snapshot := await self.snapshot()) is not None:
            await snapshot.aclose()
            if snapshot.attributes.size:
                raise ContentInvalid(f"{self.ident} is emptied, and still open for writing: what is stored stays", key=self.ident)

    async def stage_of(self, room: StagingRoom, seen: Snapshot, new_nbytes: int) -> Stage:
        """Return a stage as `stage_over`. Raises `StaleEntry` if the value is no longer that of ``seen``.

        A change that writes all of it ``new_nbytes`` is exempt, since it mixes no two values."""
        stage = await self.stage(room, empty=False)
        try:
            if max(stage.size, seen.attributes.size) > new_nbytes and await self.is_another(seen, stage):
                raise StaleEntry(f"{self.ident} was replaced since it was opened: open it again", key=self.ident)
        except BaseException:
            await stage.aclose()
            raise
        return stage

    async def is_another(self, seen: Snapshot, loaded: Stage) -> bool:
        """Return True if the value that was ``loaded``, for a change, is no longer that of ``seen``."""
        if (now := await self.snapshot()) is not None:
            await now.aclose()
        # Read after the load: the present value was already there at that time.
        return seen.attributes.generation not in (None, now.attributes.generation if now is not None else "")

    def check_write(self, offset: int, size: int) -> None:
        if self.fixed_size is not None and offset + size > self.fixed_size:
            raise FileTooLarge(f"{self.ident} has exactly {self.fixed_size} bytes", key=self.ident)

    def covers(self, offset: int, size: int) -> bool:
        return offset == 0 and size == self.fixed_size


def lost(content: Content) -> StaleEntry:
    """Return the error for an open file that lost its name and whose value could not be kept."""
    return StaleEntry(f"{content.ident} was removed, and its value could not be kept for open handles", key=content.ident)
