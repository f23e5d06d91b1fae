"""Fences: notification of the end of store operations that outlive the deadline of their caller."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager

import trio

_open: contextvars.ContextVar[list[trio.Event] | None] = contextvars.ContextVar("zarrfs_fences", default=None)


@contextmanager
def collected() -> Iterator[list[trio.Event]]:
    """Collect the end events of operations that are abandoned in the body and still running."""
    found: list[trio.Event] = []
    token = _open.set(found)
    try:
        yield found
    finally:
        _open.reset(token)


def given_up(ended: trio.Event) -> None:
    """Register the end event of an operation that its caller has abandoned."""
    found = _open.get()
    if found is not None:
        found.append(ended)


def never_begun() -> None:
    """Register an operation that failed at its deadline and was never passed to the store."""
    ended = trio.Event()
    ended.set()
    given_up(ended)


def abandoned() -> list[trio.Event]:
    """Return the events registered in the body of the innermost `collected` so far."""
    return list(_open.get() or ())
