"""A change of a store: the change stream, from the store to views and kernel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal

from zarrfs.keys import Key, Prefix


@dataclass(slots=True)
class _Announced:
    """The body of an `announcing`, which ``is_over`` for a task that was abandoned in it."""

    key: Key
    is_over: bool = False


_announced: ContextVar[_Announced | None] = ContextVar("zarrfs_announced_by_caller", default=None)


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


@contextmanager
def announcing(key: Key) -> Iterator[None]:
    """Let changes of ``key`` in the body be announced by the caller, who knows only what it changes.

    What other programs have changed in the rest of the value is another change. It applies to the task that sets, and to the tasks and
    threads that this task starts; not to a set that takes effect late, after the caller has announced that it failed.
    """
    announced = _Announced(key)
    token = _announced.set(announced)
    try:
        yield
    finally:
        announced.is_over = True
        _announced.reset(token)


def is_announced(key: str) -> bool:
    """Return True inside the body of `announcing` for ``key``."""
    announced = _announced.get()
    return announced is not None and announced.key == key and not announced.is_over
