"""The precondition of a set: the folder that the value belongs to still exists."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from zarrfs.keys import Prefix
from zarrfs.stores.anchor import Anchor


class Presupposed(NamedTuple):
    """A ``prefix`` that exists; with an ``anchor``, that very folder, wherever it is now."""

    prefix: Prefix
    anchor: Anchor | None = None


_presupposed: ContextVar[Presupposed | None] = ContextVar("zarrfs_presupposed_prefix", default=None)


@contextmanager
def presupposing(prefix: Prefix | None, anchor: Anchor | None = None) -> Iterator[None]:
    """Make a set of a value below ``prefix`` depend on the existence of the prefix, within the body.

    If a backend has folders, and this one is gone, a set raises `StaleEntry` instead of creating it; in other backends a prefix exists
    through its keys alone. With an ``anchor`` of the backend, values below ``prefix`` are read and set in that folder, whatever has its
    name now. Without ``prefix`` the outer precondition continues. It applies to the task that sets, as `zarrfs.durability` does, and to
    the tasks and threads that this task starts.
    """
    if prefix is None:
        yield
        return
    with _set(Presupposed(prefix, anchor)):
        yield


def presupposing_nothing() -> AbstractContextManager[None]:
    """Let the body work in other folders and stores than a surrounding `presupposing` is about."""
    return _set(None)


@contextmanager
def _set(now: Presupposed | None) -> Iterator[None]:
    token = _presupposed.set(now)
    try:
        yield
    finally:
        _presupposed.reset(token)


def presupposed() -> Presupposed | None:
    """Return the precondition of the innermost `presupposing` around the caller."""
    return _presupposed.get()
