"""What a change of a part of a value needs of the rest, and who waits for it.

Once a change is being staged nothing ends it: it is made whole, or not at all. To get the rest of a value may take long before that,
and nothing has changed yet: it ends when nobody waits for the change any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

import trio

from zarrfs.errors import StoreTimeout


class Change:
    """Around a request that changes something: what is loaded in it is given up by `cancel`, from whichever task."""

    __slots__ = ("_before", "_scope", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        self._scope: trio.CancelScope | None = None
        self._before: Change | None = None

    def __enter__(self) -> Change:
        self._before = _current.get()
        _current.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _current.set(self._before)

    def cancel(self) -> None:
        """Nobody waits for the change: what is being loaded, or would be, is not."""
        self.cancelled = True
        if self._scope is not None:
            self._scope.cancel()


_current: ContextVar[Change | None] = ContextVar("zarrfs_change", default=None)


@contextmanager
def loading(ident: str) -> Iterator[None]:
    """Around what only gets something. Raises `StoreTimeout` when it was given up."""
    change = _current.get()
    if change is None:
        yield
        return
    with trio.CancelScope() as scope:
        change._scope = scope
        if change.cancelled:
            scope.cancel()
        try:
            yield
        finally:
            change._scope = None
    if scope.cancelled_caught:
        raise StoreTimeout(f"{ident}: loading it, to change a part of it, was given up: nobody waits for that", key=ident)
