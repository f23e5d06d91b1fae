"""A set of integers as sorted, disjoint half-open spans."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np


class Spans:
    """A set of integers, stored as spans that do not touch: few if integers are added in order, never more than integers."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __len__(self) -> int:
        """Return the number of spans."""
        return len(self._starts)

    def add(self, start: int, stop: int) -> None:
        """Add ``start`` to ``stop`` (exclusive)."""
        if start >= stop:
            return
        # Every span that overlaps or touches the new one becomes part of it.
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def covers(self, start: int, stop: int) -> bool:
        """Return True if all of ``start`` to ``stop`` is in the set."""
        if start >= stop:
            return True
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and self._stops[index] >= stop

    def mask(
        self, start: int, stop: int, out: np.ndarray[Any, np.dtype[np.bool_]] | None = None
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return a mask of the members from ``start`` to ``stop``; written to ``out``, if given, which must be False everywhere."""
        mask = out if out is not None else np.zeros(stop - start, np.bool_)
        for index in range(bisect_right(self._stops, start), len(self._starts)):
            if self._starts[index] >= stop:
                break
            mask[max(0, self._starts[index] - start) : self._stops[index] - start] = True
        return mask
