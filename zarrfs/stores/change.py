"""What a store announces: the change stream, from the store to views and kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from zarrfs.keys import Key, Prefix


@dataclass(frozen=True, slots=True)
class Change:
    """Something in a store became different: the value of one key, or anything under a prefix.

    ``kind`` is what is known of it: ``"set"`` (there is a new value, or new keys below), ``"erase"`` (it is gone), ``"times"`` (only
    the time), ``"unknown"`` (look again: an operation failed half way, or someone else was at work). Of a prefix alone: ``"made"`` and
    ``"unmade"`` (it came, or went, while there was no key below it). ``behind``: it was not made through this store. ``waits``: it is
    made through this mount, and not in the store yet: a part of what will be the value of a key is seen as it will be. ``"moved"``: it
    is at ``new_place`` now, and all below it; an ``"erase"`` of the one and a ``"set"`` of the other follow.
    """

    place: Key | Prefix
    kind: Literal["set", "erase", "times", "unknown", "made", "unmade", "moved"]
    behind: bool = False
    waits: bool = False
    new_place: Key | Prefix | None = None
    of_move: bool = field(default=False, compare=False)

    @property
    def is_prefix(self) -> bool:
        """Whether everything under ``place`` is meant."""
        return isinstance(self.place, Prefix)
