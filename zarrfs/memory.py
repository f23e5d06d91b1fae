"""How much memory staged data may take together.

Caches and slabs count their own share; what is written and not yet published is held by many files at once, each of which knows only
itself. They take from one budget, and what finds it used up goes to a file in the cache directory.
"""

from __future__ import annotations

UNLIMITED = 2**63 - 1
"""A limit that no holder reaches."""


class MemoryBudget:
    """``limit`` bytes that several holders share; ``nbytes`` are taken. Belongs to one event loop."""

    __slots__ = ("limit", "nbytes")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0

    def take(self, nbytes: int) -> bool:
        """Count ``nbytes`` more as taken, if there are so many left; whether there were."""
        if self.nbytes + nbytes > self.limit:
            return False
        self.nbytes += nbytes
        return True

    def give(self, nbytes: int) -> None:
        """``nbytes`` that were taken are free again."""
        self.nbytes -= nbytes
