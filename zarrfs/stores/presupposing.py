"""The precondition of a set: the folder that the value belongs to still exists."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, Token
from typing import NamedTuple

from zarrfs.keys import Prefix
from zarrfs.stores.anchor import Anchor


class Presupposed(NamedTuple):
    """A ``prefix`` that exists; with an ``anchor``, that very folder, wherever it is now."""

    prefix: Prefix
    anchor: Anchor | None = None


_presupposed: ContextVar[Presupposed | None] = ContextVar("zarrfs_presupposed_prefix", default=None)


def presupposing(prefix: Prefix | None, anchor: Anchor | None = None) -> AbstractContextManager[None]:
    """Make a set of a value below ``prefix`` depend on the existence of the prefix, within the body.

    If a backend has folders, and this one is gone, a set raises `StaleEntry` instead of creating it; in other backends a prefix exists
    through its keys alone. With an ``anchor`` of the backend, values below ``prefix`` are read and set in that folder, whatever has its
    name now. Without ``prefix`` the outer precondition continues. It applies to the task that sets, as `zarrfs.durability` does, and to
    the tasks and threads that this task starts.
    """
    return nullcontext() if prefix is None else _Within(Presupposed(prefix, anchor))


def presupposing_nothing() -> AbstractContextManager[None]:
    """Let the body work in other folders and stores than a surrounding `presupposing` is about."""
    return _Within(None)


class _Within:
    """The context of a precondition. A class, because every lookup in ``raw/`` uses it: a generator costs four times as much."""

    __slots__ = ("_now", "_token")

    def __init__(self, now: Presupposed | None) -> None:
        self._now = now
        self._token: Token[Presupposed | None] | None = None

    def __enter__(self) -> None:
        self._token = _presupposed.set(self._now)

    def __exit__(self, *_: object) -> None:
        assert self._token is not None
        _presupposed.reset(self._token)


def presupposed() -> Presupposed | None:
    """Return the precondition of the innermost `presupposing` around the caller."""
    return _presupposed.get()
