"""What a file stands for: a published value, which can be read, loaded whole and replaced whole.

Views implement `Content` for store values and decoded chunks; `zarrfs.vfs.staging` puts the file semantics on top, once for all.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator

from zarrfs.errors import FileTooLarge, StaleEntry
from zarrfs.vfs.node import Attributes, Buffer
from zarrfs.vfs.stage import Stage, StagingRoom, ValueStage


class Snapshot(abc.ABC):
    """One published value, fixed when it was taken: a reader sees this value or an error, never a mix with a later one."""

    attributes: Attributes

    @abc.abstractmethod
    async def read(self, offset: int, size: int) -> Buffer:
        """At most ``size`` bytes from ``offset``. Raises `StaleEntry` when the value was replaced and is no longer to be had."""

    async def aclose(self) -> None:
        """Let go of what the snapshot holds."""


class Content(abc.ABC):
    """The value behind a file, published or not.

    ``ident``: see `File.ident`. ``verbatim``: what was published is read back byte for byte (it is not where a codec rounds, or where
    padding is replaced). ``in_parts``: the value changes part by part, each for itself: who has the file open sees every change.
    ``private``: it is in no store, and nobody else can change it. ``merged``: what of it is changed is put into what others have made of
    it by then.
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
        """The value as it is now; None when nothing is published."""

    async def opened(self) -> Snapshot | None:
        """As `snapshot`, for who is about to read the value."""
        return await self.snapshot()

    async def opened_to_change(self) -> Snapshot | None:
        """As `snapshot`, for who is about to read the value and to change a part of it."""
        return await self.snapshot()

    async def opened_to_write(self) -> None:
        """Somebody opens the file, and may change the value: what comes to be in its place from now on is another's."""

    @abc.abstractmethod
    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        """A stage for a change of the value; ``empty``: for a change that begins with an empty file (O_TRUNC, creation)."""

    async def stage_over(self, room: StagingRoom, seen: Snapshot, anew: int) -> Stage:
        """A stage for a change of the value that ``seen`` is of, where that is at hand. Its first ``anew`` bytes are written at once."""
        return await self.stage(room, empty=False)

    async def keep(self, room: StagingRoom) -> Stage:
        """A stage from which the value can be read when it is gone. Raises `ZarrfsError` where it cannot be kept."""
        return await self.stage(room, empty=False)

    def check_write(self, offset: int, size: int) -> None:
        """Raise `FileTooLarge` for bytes that the value can never have, before anything is staged."""

    def covers(self, offset: int, size: int) -> bool:
        """Whether these bytes are the whole value: nothing of what is published is needed beside them."""
        return False

    @abc.abstractmethod
    async def erase(self) -> None:
        """Remove the value."""

    @property
    def is_outdated(self) -> bool:
        """Whether it is laid out otherwise by now, or gone: whoever has the file open learns it, and who opens it has another."""
        return False

    def renewed(self) -> Content:
        """What whoever opens the file now has: itself, but where it is outdated."""
        return self

    def follow(self) -> None:
        """What it stands for may be elsewhere by now: have the ident that it has there."""

    async def sync(self) -> None:
        """Make what was published durable."""

    async def set_mtime(self, mtime_ns: int) -> None:
        """Keep a modification time with the value, where that is possible."""


class WholeContent(Content):
    """A value that is loaded, changed and published as a whole. ``fixed_size``: the only size in bytes that can be published, None
    where any can."""

    fixed_size: int | None = None

    @abc.abstractmethod
    async def load(self) -> Buffer | None:
        """The whole value as it is now, to be changed; None when nothing is published."""

    @abc.abstractmethod
    async def publish(self, data: Buffer) -> None:
        """Replace the whole value. On any error what was published before is still there.

        Raises `ContentInvalid` and `ChunkSizeMismatch` before the store is touched when ``data`` is not a value of this kind.
        """

    async def load_in_pieces(self) -> tuple[int, AsyncIterator[tuple[int, Buffer]]] | None:
        """As `load`, for a value that is too large to be got whole: its size, and pieces with their offsets; what no piece has is zeros.
        None for one that is not."""
        return None

    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        pieces = None if empty else await self.load_in_pieces()
        if pieces is not None:
            stage = ValueStage(room, b"", self.publish)
            try:
                await stage.truncate(pieces[0])
                async for offset, piece in pieces[1]:
                    await stage.write(offset, piece)
            except BaseException:
                await stage.aclose()
                raise
            return stage
        data = b"" if empty else await self.load()
        return ValueStage(room, data if data is not None else b"", self.publish)

    async def stage_of(self, room: StagingRoom, seen: Snapshot, anew: int) -> Stage:
        """`stage_over` that refuses a value which is not that of ``seen`` any more, unless all of it is written ``anew``: a part of each
        would be neither. Raises `StaleEntry`."""
        stage = await self.stage(room, empty=False)
        try:
            now = await self.snapshot()
            if now is not None:
                await now.aclose()
            # Asked after it was loaded: what is there now was there then.
            generation = now.attributes.generation if now is not None else ""
            if seen.attributes.generation not in (None, generation) and stage.size > anew:
                raise StaleEntry(f"{self.ident} was replaced since it was opened: open it again", key=self.ident)
        except BaseException:
            await stage.aclose()
            raise
        return stage

    def check_write(self, offset: int, size: int) -> None:
        if self.fixed_size is not None and offset + size > self.fixed_size:
            raise FileTooLarge(f"{self.ident} has exactly {self.fixed_size} bytes", key=self.ident)

    def covers(self, offset: int, size: int) -> bool:
        return offset == 0 and size == self.fixed_size


def lost(content: Content) -> StaleEntry:
    """The error for an open file that lost its name and whose value could not be kept."""
    return StaleEntry(f"{content.ident} was removed, and could not be kept for those who have it open", key=content.ident)
