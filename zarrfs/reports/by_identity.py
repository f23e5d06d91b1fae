"""Results for arguments that many callers share, such as the metadata of arrays (`zarrfs.dialects.parse_once`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

A = TypeVar("A")
R = TypeVar("R")

# As many as `parse_once` shares.
_REMEMBERED = 128


class ByIdentity(Generic[A, R]):
    """``function``, whose last results are returned again for the same objects, not for equal ones."""

    def __init__(self, function: Callable[[A], R]) -> None:
        self._function = function
        self._known: dict[int, tuple[A, R]] = {}

    def __call__(self, argument: A) -> R:
        known = self._known.get(id(argument))
        if known is None:
            if len(self._known) == _REMEMBERED:
                self._known.clear()
            # The argument is held with its result: otherwise another object could have its id.
            known = self._known[id(argument)] = argument, self._function(argument)
        return known[1]
