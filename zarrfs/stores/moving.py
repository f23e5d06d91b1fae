"""That several renames are parts of one: of a node that moves, with documents and chunks in different places."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_moving: ContextVar[bool] = ContextVar("zarrfs_is_moving", default=False)


@contextmanager
def moving() -> Iterator[None]:
    """Within, who renames tells by himself what has moved, when all of it has. It belongs to the task that renames, and to the tasks and
    threads that this starts."""
    token = _is_moving.set(True)
    try:
        yield
    finally:
        _is_moving.reset(token)


def is_moving() -> bool:
    """Whether the caller is in the body of `moving`."""
    return _is_moving.get()
