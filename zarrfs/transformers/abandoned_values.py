"""Memory of values that a store may still read after their writers have given up.

A write that misses its deadline continues and holds its value until it ends, although its writer has got the error and has given the
memory back to the budget. A store that hangs would accumulate such values without limit. They are therefore counted in the budget of
staged bytes here; while there are any, a new value that exceeds the budget is copied to a file before it is passed to the store.
"""

from __future__ import annotations

from dataclasses import dataclass

import trio

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.memory.spill import Buffers, is_mapped


@dataclass(slots=True, eq=False)
class HeldValue:
    """The value of one write. ``is_counted``: its memory is taken from the budget here, not by its writer."""

    data: Buffer
    is_counted: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of memory: none if it is in a file."""
        return 0 if is_mapped(self.data) else memoryview(self.data).nbytes


class AbandonedValues:
    """Values of abandoned writes, counted in ``budget`` (None: unlimited). Belongs to one event loop."""

    def __init__(self, budget: MemoryBudget | None) -> None:
        self._budget = budget or MemoryBudget(UNLIMITED)
        self._abandoned: dict[HeldValue, None] = {}
        self._buffers = Buffers(in_memory=0)
        self._copying = trio.Lock()

    async def begin(self, held: HeldValue) -> None:
        """Prepare a value for the store; `end` has to follow. Raises `TooLarge` if there is no room for it."""
        if not self._abandoned:
            # The writer, which waits, counts the memory.
            return
        self._count_all()
        held.is_counted = self._budget.take(held.nbytes)
        if not held.is_counted:
            # Several would take the same part of a file.
            async with self._copying:
                held.data = await threads.io(self._buffers.kept, memoryview(held.data).cast("B"))

    def abandon(self, held: HeldValue) -> None:
        """Record that the writer of a value has given up."""
        if held.nbytes:
            self._abandoned[held] = None
            self._count_all()

    def end(self, held: HeldValue) -> None:
        """Record that the store has ended the write of a value."""
        self._abandoned.pop(held, None)
        if held.is_counted:
            self._budget.give(held.nbytes)
            held.is_counted = False
        if not self._abandoned:
            self._buffers = Buffers(in_memory=0)

    def _count_all(self) -> None:
        # At first its writer may still hold the memory, too.
        for held in self._abandoned:
            if not held.is_counted:
                held.is_counted = self._budget.take(held.nbytes)
