"""What a change of one file is kept in until it is published.

`zarrfs.vfs.staging` knows when something is published, a `Stage` knows what: all bytes of a value (`ValueStage`), or the parts of an
array that were written (`zarrfs.views.whole_array.array_stage`).
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Awaitable, Callable

from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.vfs.given import Given
from zarrfs.vfs.node import Buffer
from zarrfs.vfs.spill_buffer import SPILL_NBYTES, SpillBuffer


class State(enum.Enum):
    """Where the change of a file is between write(2) and the store: see `zarrfs.vfs.staging`."""

    CLEAN = "clean"
    TRUNCATED = "truncated"
    DIRTY = "dirty"
    PUBLISHING = "publishing"
    FAILED = "failed"


class StagingRoom:
    """Where staged bytes lie: in memory, as far as ``budget`` and ``spill_nbytes`` a file go, else in ``directory``. ``kept``: for what
    open files keep of the values that they read."""

    def __init__(
        self,
        *,
        budget: MemoryBudget | None = None,
        kept: MemoryBudget | None = None,
        spill_nbytes: int = SPILL_NBYTES,
        directory: str | None = None,
    ) -> None:
        self.budget = budget if budget is not None else MemoryBudget(UNLIMITED)
        self.kept = kept if kept is not None else MemoryBudget(UNLIMITED)
        self.spill_nbytes = spill_nbytes
        self.directory = directory

    def bytes(self, data: Buffer = b"") -> SpillBuffer:
        """A new buffer that holds a copy of ``data``."""
        return SpillBuffer(data, limit=self.spill_nbytes, directory=self.directory, budget=self.budget)


class Stage(abc.ABC):
    """The staged state of one file. Mutators and `publish` are called by one task at a time; `read` by any."""

    moved: bool = False
    """Whether what was published is laid out otherwise than what was written: who has the file open cannot go on."""
    replaces: bool = False
    """True if publishing puts another array in the place of the one that the file was: only handles that emptied it, or were opened
    since, go on."""

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Bytes of the file as its handles see it."""

    @property
    def nbytes(self) -> int:
        """Bytes that are staged."""
        return self.size

    @abc.abstractmethod
    async def read(self, offset: int, size: int) -> Buffer:
        """At most ``size`` bytes from ``offset``. Does not wait for a write or a publish that is under way."""

    @abc.abstractmethod
    async def write(self, offset: int, data: Buffer) -> None:
        """Stage ``data`` at ``offset``. When it raises, the file is as it was."""

    async def write_over(self, offset: int, data: Buffer, given: Given) -> None:
        """As `write`, by who was ``given`` parts of the file: where a value is changed part by part, what is as it was given stays."""
        await self.write(offset, data)

    @abc.abstractmethod
    async def truncate(self, size: int) -> None:
        """Cut or grow to ``size`` bytes."""

    @abc.abstractmethod
    async def publish(self) -> None:
        """Store what is staged. When it raises, all of it is still staged."""

    async def unnamed(self) -> None:
        """The file has lost its name, and will not be published: what of it is stored already goes, before somebody else has the name."""

    async def sync(self) -> None:
        """Make what was published durable. Called by one task at a time, after `publish`."""

    async def aclose(self) -> None:
        """Let go of everything; what was not published is lost."""


class ValueStage(Stage):
    """All bytes of a value, published as a whole by ``publish``.

    A publish that failed may have left the bytes with a store that is still reading them (it did not answer in time): who changes them
    next changes a copy.
    """

    def __init__(self, room: StagingRoom, data: Buffer, publish: Callable[[Buffer], Awaitable[None]]) -> None:
        self._bytes = room.bytes(data)
        self._publish = publish
        self._lent = False

    @property
    def size(self) -> int:
        return len(self._bytes)

    async def read(self, offset: int, size: int) -> Buffer:
        return self._bytes.read(offset, size)

    async def write(self, offset: int, data: Buffer) -> None:
        await self._own()
        await self._bytes.put(offset, data)

    async def truncate(self, size: int) -> None:
        await self._own()
        await self._bytes.resize(size)

    async def publish(self) -> None:
        try:
            await self._publish(self._bytes.whole())
        except BaseException:
            self._lent = True
            raise

    async def aclose(self) -> None:
        self._bytes.close()

    async def _own(self) -> None:
        if self._lent:
            lent = self._bytes
            self._bytes = await lent.copy()
            lent.close()
            self._lent = False
