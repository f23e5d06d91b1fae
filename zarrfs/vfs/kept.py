"""The copy of its value that an open file keeps, to avoid another load."""

from __future__ import annotations

from contextlib import suppress

import trio

from zarrfs.buffers import Buffer
from zarrfs.errors import TooLarge
from zarrfs.memory import spill
from zarrfs.memory.budget import MemoryBudget


class Kept:
    """``data``, counted in ``budget`` for the lifetime of this object. Use `kept`.

    The last reference may be dropped in any thread, but the budget belongs to its event loop: work may be waiting for these bytes there.
    """

    __slots__ = ("_budget", "_loop", "_nbytes", "data")

    def __init__(self, data: Buffer, budget: MemoryBudget, nbytes: int) -> None:
        self.data = data
        self._budget = budget
        self._nbytes = nbytes
        self._loop = _event_loop()

    @property
    def is_intact(self) -> bool:
        """True if the disk has lost nothing of its file by now."""
        return spill.is_intact(self.data)

    def __del__(self) -> None:
        if not self._nbytes:
            return
        if self._loop is _event_loop():
            self._budget.give(self._nbytes)
        elif self._loop is not None:
            with suppress(trio.RunFinishedError):
                self._loop.run_sync_soon(self._budget.give, self._nbytes)


def kept(data: Buffer, budget: MemoryBudget, *, in_file: bool = False) -> Kept | None:
    """Return ``data``, if it is in a file or ``budget`` has memory for it; else, with ``in_file``, a copy in a file.

    None if there is no room for it."""
    if spill.is_mapped(data):
        return Kept(data, budget, 0)
    if budget.take(len(data)):
        return Kept(data, budget, len(data))
    if not in_file or not len(data):
        return None
    try:
        copy = memoryview(spill.mapped(len(data)))
    except TooLarge:
        return None
    copy[:] = data
    return Kept(copy.toreadonly(), budget, 0)


def intact(held: Kept | None) -> Buffer | None:
    """Return the data that is held; None if it is not held, or not whole any more."""
    return held.data if held is not None and held.is_intact else None


def _event_loop() -> trio.lowlevel.TrioToken | None:
    try:
        return trio.lowlevel.current_trio_token()
    except RuntimeError:
        return None
