"""Dirty chunks whose storing has failed: what others store in them before the next attempt is later, and stays.

The program that wrote them got the error, and may be gone; the next attempt may be the close of another one, hours later. Without this,
that stored the old elements over all that others had stored with success in between (docs/design/020-two-writers.md).
"""

from __future__ import annotations

import numpy as np

from zarrfs.buffers import Buffer, Mask, same_bytes
from zarrfs.memory import spill


class FailedChunk:
    """The chunk ``base`` that was stored (encoded; None: none) when an attempt to store dirty elements of it failed.

    ``rewritten``: the elements written since, in the order of the written file; None if none are. ``nbytes``: taken from the budget.
    """

    __slots__ = ("base", "nbytes", "rewritten")

    def __init__(self, base: Buffer | None, nbytes: int) -> None:
        self.base = base
        self.nbytes = nbytes
        self.rewritten: Mask | None = None

    def wrote(self, size: int, start: int, stop: int, selected: Mask | None = None) -> None:
        """Record a write of elements ``start`` to ``stop`` of ``size``, or of the ``selected`` ones of them."""
        if self.rewritten is None:
            self.rewritten = spill.array((size,), np.dtype(bool))
            self.rewritten[...] = False
        self.rewritten[start:stop] |= True if selected is None else selected

    def is_stored(self, stored: Buffer | None) -> bool:
        """Return True if ``stored`` is still the chunk of then."""
        if stored is None or self.base is None:
            return stored is self.base
        return same_bytes(stored, self.base)

    def failed_again(self, stored: Buffer | None) -> None:
        """Record another failure, at which ``stored`` is the chunk.

        If it is another one, what was written since the first failure stays later than what others have stored."""
        if self.is_stored(stored):
            self.rewritten = None
