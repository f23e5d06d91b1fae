"""Cancellation of loads for partial changes of a value.

A change that is being staged is never cancelled: it is applied whole, or not at all. The load of the rest of the value, which precedes
it, may take long, and nothing has changed yet: it is cancelled when no request waits for the change any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType

import trio

from zarrfs.errors import StoreTimeout


class Change:
    """The scope of a request that changes something: `cancel`, from any task, cancels its loads."""

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
        """Cancel the present load, and any later one: no request waits for the change."""
        self.cancelled = True
        if self._scope is not None:
            self._scope.cancel()


_current: ContextVar[Change | None] = ContextVar("zarrfs_change", default=None)


@contextmanager
def loading(ident: str) -> Iterator[None]:
    """Make the body, which only loads, cancellable. Raises `StoreTimeout` if it was cancelled."""
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
        raise StoreTimeout(f"{ident}: load for a partial change cancelled: no request waits for it", key=ident)
