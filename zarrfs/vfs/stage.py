"""The storage of a change of one file until it is published.

`zarrfs.vfs.staging` decides when to publish, a `Stage` holds what: all bytes of a value (`ValueStage`), or the parts of an array that
were written (`zarrfs.views.whole_array.array_stage`).
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Awaitable, Callable

from zarrfs.buffers import Buffer, size_with_holes, storage_nbytes
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.vfs.known_pages import SeenPages
from zarrfs.vfs.spill_buffer import SpillBuffer


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

    After a failed publish the store may still be reading the bytes (it did not answer in time): the next change works on a copy.
    """

    def __init__(
        self,
        room: StagingRoom,
        data: Buffer,
        publish: Callable[[Buffer], Awaitable[None]],
        refuse_emptied: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._bytes = room.bytes(data)
        self._publish = publish
        self._refuse_emptied = refuse_emptied
        self._lent = False

    @property
    def size(self) -> int:
        return size_with_holes(len(self._bytes), self._bytes.allocated)

    async def read(self, offset: int, size: int) -> Buffer:
        return self._bytes.read(offset, size)

    async def write(self, offset: int, data: Buffer) -> None:
        await self._own()
        await self._bytes.put(offset, data)

    async def truncate(self, size: int) -> None:
        await self._own(without_content=not size)
        await self._bytes.resize(size)

    async def publish(self) -> None:
        if self.is_left_open and self._refuse_emptied is not None and not len(self._bytes):
            # A shell empties the file first, and the program that is to write it may take long.
            await self._refuse_emptied()
        try:
            await self._publish(self._bytes.whole())
        except BaseException:
            self._lent = True
            raise

    async def aclose(self) -> None:
        self._bytes.close()

    async def _own(self, *, without_content: bool = False) -> None:
        if self._lent:
            lent = self._bytes
            # What the disk has lost cannot be copied.
            self._bytes = lent.empty() if without_content else await lent.copy()
            lent.close()
            self._lent = False
