"""What is under way at this moment, for those who ask what a mount waits for."""

from __future__ import annotations

import time
from collections.abc import Iterator


class InFlight:
    """Things that have begun and not ended, each a tuple of whatever tells it. It costs two operations on a dict for each."""

    def __init__(self) -> None:
        self._begun: dict[int, tuple[float, tuple[object, ...]]] = {}
        self._next = 0

    @property
    def begun(self) -> int:
        """How many have begun, ever."""
        return self._next

    def begin(self, *what: object) -> int:
        """Return what `end` is called with at the end of ``what``."""
        self._next += 1
        self._begun[self._next] = (time.monotonic(), what)
        return self._next

    def end(self, begun: int) -> None:
        """It has ended."""
        del self._begun[begun]

    def __len__(self) -> int:
        """How many there are."""
        return len(self._begun)

    def __iter__(self) -> Iterator[tuple[float, tuple[object, ...]]]:
        """For each the seconds since it began, and what it is; the oldest first."""
        now = time.monotonic()
        return iter([(now - began, what) for began, what in self._begun.values()])
