"""Marks several renames as one: the move of a node whose documents and chunks lie in different places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_moving: ContextVar[bool] = ContextVar("zarrfs_is_moving", default=False)


@contextmanager
def moving() -> Iterator[None]:
    """Report renames in the body as parts of one move; the caller reports the move itself at its end.

    It applies to the task that renames, and to the tasks and threads that this task starts.
    """
    token = _is_moving.set(True)
    try:
        yield
    finally:
        _is_moving.reset(token)


def is_moving() -> bool:
    """Return True inside the body of `moving`."""
    return _is_moving.get()
