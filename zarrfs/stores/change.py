"""A change of a store: the change stream, from the store to views and kernel."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from zarrfs.keys import Key, Prefix


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the value of one key, or of anything below a prefix.

    ``kind`` classifies it: ``"set"`` (a new value, or new keys below), ``"erase"`` (removed), ``"times"`` (the time only), ``"unknown"``
    (look again: an operation failed half way, or another program made the change). For a prefix alone: ``"mkdir"`` and ``"rmdir"`` (it
    appeared or disappeared without keys below it). ``"moved"``: it is now at ``new_target``, with all below it; an ``"erase"`` of the one
    and a ``"set"`` of the other follow. ``external``: it was not made through this store. ``queued``: it was made through this mount and
    is not in the store yet; reads already return that part of the future value.
    """

    target: Key | Prefix
    kind: Literal["set", "erase", "times", "unknown", "mkdir", "rmdir", "moved"]
    external: bool = False
    queued: bool = False
    new_target: Key | Prefix | None = None
    of_move: bool = field(default=False, compare=False)

    @property
    def is_prefix(self) -> bool:
        """Return True if the change concerns everything below ``target``."""
        return isinstance(self.target, Prefix)

    @property
    def is_erased_here(self) -> bool:
        """Return True if this mount erased ``target``, and did not move it."""
        return self.kind == "erase" and not self.external and not self.of_move
