"""The storage of a change of one file until it is published.

`zarrfs.vfs.staging` decides when to publish, a `Stage` holds what: all bytes of a value (`ValueStage`), or the parts of an array that
were written (`zarrfs.views.whole_array.array_stage`).
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import EllipsisType

import trio

from zarrfs import threads
from zarrfs.buffers import Buffer, same_bytes, size_with_holes, storage_nbytes
from zarrfs.errors import LOOK_S, StaleEntry, StoreTimeout, ZarrfsError, shows_stored
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.vfs.kept import Kept, kept
from zarrfs.vfs.known_pages import SeenPages
from zarrfs.vfs.spill_buffer import SpillBuffer

Stored = Callable[[], Awaitable[Buffer | EllipsisType | None]]
"""Returns the value that is stored; None: none is; ...: unknown, or too large to be kept."""


class State(enum.Enum):
    """State of the change of a file between write(2) and the store: see `zarrfs.vfs.staging`."""

    CLEAN = "clean"
    TRUNCATED = "truncated"
    DIRTY = "dirty"
    PUBLISHING = "publishing"
    FAILED = "failed"


class StagingRoom:
    """Storage for staged bytes: memory up to ``budget`` and ``spill_nbytes`` a file, else ``directory``.

    ``kept`` is the budget for values that open files keep for reading."""

    def __init__(
        self,
        *,
        budget: MemoryBudget | None,
        kept: MemoryBudget | None,
        spill_nbytes: int,
        directory: str | None,
    ) -> None:
        self.budget = budget or MemoryBudget(UNLIMITED)
        self.kept = kept or MemoryBudget(UNLIMITED)
        self.spill_nbytes = spill_nbytes
        self.directory = directory

    def bytes(self, data: Buffer = b"") -> SpillBuffer:
        """Return a new buffer with a copy of ``data``."""
        return SpillBuffer(data, limit=self.spill_nbytes, directory=self.directory, budget=self.budget)


class Stage(abc.ABC):
    """The staged state of one file. One task at a time calls mutators and `publish`; any task calls `read`."""

    moved: bool = False
    """True if the published value has another layout than the written one: open handles are stale."""
    replaces: bool = False
    """True if publishing replaces the array of the file by another one: only handles that emptied it, or were opened since, continue."""
    is_left_open: bool = False
    """True if it is published because the mount ends, and not by its writer, who may have begun only."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Bytes of the file as its handles see it, perhaps a `HoledSize`."""

    @property
    def nbytes(self) -> int:
        """Number of staged bytes, without holes."""
        return storage_nbytes(self.size)

    def opened(self) -> None:
        """Record another open of the file: what is kept of its published value may no longer be valid."""

    @abc.abstractmethod
    async def read(self, offset: int, size: int) -> Buffer:
        """Return at most ``size`` bytes from ``offset``. Does not wait for a write or publish in progress."""

    @abc.abstractmethod
    async def write(self, offset: int, data: Buffer) -> None:
        """Stage ``data`` at ``offset``. If it raises, the file is unchanged."""

    async def write_over(self, offset: int, data: Buffer, known: SeenPages) -> None:
        """Run `write`, except that bytes equal to those of ``known`` do not count as written if the value changes in parts."""
        await self.write(offset, data)

    @abc.abstractmethod
    async def truncate(self, size: int) -> None:
        """Truncate or extend to ``size`` bytes."""

    @abc.abstractmethod
    async def publish(self) -> None:
        """Store what is staged. If it raises, all of it is still staged."""

    async def unnamed(self) -> None:
        """Remove from the store what was stored of a file that lost its name and will not be published, before the name is reused."""

    async def sync(self) -> None:
        """Make the published value durable. One task at a time calls it, after `publish`."""

    async def aclose(self) -> None:
        """Release all resources; unpublished bytes are lost."""


class ValueStage(Stage):
    """All bytes of a value, published as a whole by ``publish``. ``refuse_emptied`` is called before if it has none and `is_left_open`.

    After a failed publish the store may still be reading the bytes (it did not answer in time): the next change works on a copy. If
    others have replaced the value (``stored``) since, `publish` raises `StaleEntry`: they had success later, and the next close may be
    that of another program (docs/design/020-two-writers.md). Once all of it is written anew, it is the later one: from first to last
    byte, in any number of pieces, since the kernel cuts a large write(2).
    """

    def __init__(
        self,
        room: StagingRoom,
        data: Buffer,
        publish: Callable[[Buffer], Awaitable[None]],
        refuse_emptied: Callable[[], Awaitable[None]] | None = None,
        *,
        stored: Stored | None = None,
        ident: Callable[[], str] = str,
    ) -> None:
        self._bytes = room.bytes(data)
        self._publish = publish
        self._refuse_emptied = refuse_emptied
        self._lent = False
        self._kept = room.kept
        self._get_stored = stored
        self._ident = ident
        self._failed_over: Kept | EllipsisType | None = ...
        """The value that was stored when a publish failed; ...: none has failed, or it is unknown."""
        self._anew = 0
        """Number of bytes from the beginning that were written since then, in order."""

    @property
    def size(self) -> int:
        return size_with_holes(len(self._bytes), self._bytes.allocated)

    async def read(self, offset: int, size: int) -> Buffer:
        return self._bytes.read(offset, size)

    async def write(self, offset: int, data: Buffer) -> None:
        await self._own()
        await self._bytes.put(offset, data)
        if offset <= self._anew:
            self._anew = max(self._anew, offset + len(data))
        self._forget_if_anew()

    async def truncate(self, size: int) -> None:
        await self._own(without_content=not size)
        await self._bytes.resize(size)
        self._anew = min(self._anew, size)
        self._forget_if_anew()

    async def publish(self) -> None:
        if self.is_left_open and self._refuse_emptied is not None and not len(self._bytes):
            # A shell empties the file first, and the program that is to write it may take long.
            await self._refuse_emptied()
        data = self._bytes.whole()
        await self._require_unchanged(data)
        try:
            await self._publish(data)
        except BaseException as error:
            self._lent = True
            self._anew = 0
            if not (shows_stored(error) and await self._keep_stored(data)):
                # It may take effect later, or has: what is stored then is no change by others.
                self._failed_over = ...
            raise

    def _forget_if_anew(self) -> None:
        if self._anew >= len(self._bytes):
            self._failed_over = ...

    async def _require_unchanged(self, data: Buffer) -> None:
        """Raise `StaleEntry` if others have replaced the value since a publish has failed."""
        if isinstance(self._failed_over, EllipsisType) or self._get_stored is None:
            return
        if self._failed_over is not None and not self._failed_over.is_intact:
            self._failed_over = ...
            return
        try:
            now = await self._get_stored()
        except StoreTimeout:
            # The program would wait for another deadline.
            raise
        except ZarrfsError:
            # Unreadable, or the store fails again.
            return
        before = self._failed_over.data if self._failed_over is not None else None
        # The failed publish may have taken effect after all.
        if not (await _is_same(now, before) or await _is_same(now, data)):
            ident = self._ident()
            raise StaleEntry(f"{ident} was replaced since it could not be stored: write all of it again", key=ident)

    async def _keep_stored(self, data: Buffer) -> bool:
        """Record what is stored instead of ``data``, as far as memory and `LOOK_S` permit; return False if it is unknown."""
        if self._get_stored is None:
            return False
        with trio.move_on_after(LOOK_S), suppress(ZarrfsError):
            now = await self._get_stored()
            if isinstance(now, EllipsisType):
                return False
            # What others have stored between two failures is not what the first one was to replace.
            if isinstance(self._failed_over, EllipsisType) or await _is_same(now, data):
                self._failed_over = None if now is None else kept(now, self._kept) or ...
            return True
        return False

    async def aclose(self) -> None:
        self._failed_over = ...
        self._bytes.close()

    async def _own(self, *, without_content: bool = False) -> None:
        if self._lent:
            lent = self._bytes
            # What the disk has lost cannot be copied.
            self._bytes = lent.empty() if without_content else await lent.copy()
            lent.close()
            self._lent = False


async def _is_same(one: Buffer | EllipsisType | None, other: Buffer | None) -> bool:
    if one is None or other is None:
        return one is other
    # Large ones are in files: the comparison reads them from the disk.
    return not isinstance(one, EllipsisType) and len(one) == len(other) and await threads.cpu(len(one), same_bytes, one, other)
