"""What a set presupposes: that the folder which a value belongs to is still there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from zarrfs.keys import Prefix
from zarrfs.stores.anchor import Anchor


class Presupposed(NamedTuple):
    """A ``prefix`` that is there; with an ``anchor``, that very folder, wherever it is by now."""

    prefix: Prefix
    anchor: Anchor | None = None


_presupposed: ContextVar[Presupposed | None] = ContextVar("zarrfs_presupposed_prefix", default=None)


@contextmanager
def presupposing(prefix: Prefix | None, anchor: Anchor | None = None) -> Iterator[None]:
    """Within, a value below ``prefix`` is part of what is there. Where a backend has folders, and this one is gone, a set does not make
    it, and raises `StaleEntry`; elsewhere a prefix is there through its keys alone. With an ``anchor`` of the backend what lies below
    ``prefix`` is read and set in that folder, whatever has its name by now. Without ``prefix`` what held before goes on. It belongs to
    the task that sets, as `zarrfs.durability` does, and to the tasks and threads that this starts."""
    if prefix is None:
        yield
        return
    token = _presupposed.set(Presupposed(prefix, anchor))
    try:
        yield
    finally:
        _presupposed.reset(token)


def presupposed() -> Presupposed | None:
    """What the body of `presupposing` that the caller is in was begun with."""
    return _presupposed.get()
