"""What goes on after its caller was told that it takes too long: whoever is responsible for the places concerned learns when it ends."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

import trio

_open: contextvars.ContextVar[list[trio.Event] | None] = contextvars.ContextVar("zarrfs_fences", default=None)


@contextmanager
def collected() -> Iterator[list[trio.Event]]:
    """The ends of all that is given up within, and goes on."""
    found: list[trio.Event] = []
    token = _open.set(found)
    try:
        yield found
    finally:
        _open.reset(token)


def given_up(ended: trio.Event) -> None:
    """Something that its caller waits for no longer goes on until this event."""
    found = _open.get()
    if found is not None:
        found.append(ended)
