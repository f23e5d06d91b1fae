"""Operations in progress, for reports on what a mount waits for."""

from __future__ import annotations

import time
from collections.abc import Iterator


class InFlight:
    """Operations that have begun and not ended, each described by a tuple. The cost is two dict operations for each."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[float, tuple[object, ...]]] = {}
        self._next = 0

    @property
    def begun(self) -> int:
        """Total number of operations begun."""
        return self._next

    def begin(self, *what: object) -> int:
        """Record the begin of ``what``; return the argument for `end`."""
        self._next += 1
        self._begun[self._next] = (time.monotonic(), what)
        return self._next

    def end(self, begun: int) -> None:
        """Record the end of an operation."""
        del self._begun[begun]

    def __len__(self) -> int:
        """Return the number of operations in progress."""
        return len(self._begun)

    def __iter__(self) -> Iterator[tuple[float, tuple[object, ...]]]:
        """Yield for each the seconds since its begin, and its description; the oldest first."""
        now = time.monotonic()
        return iter([(now - began, what) for began, what in self._begun.values()])
