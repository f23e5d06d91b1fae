"""A store that tracks its operations in flight.

It is stacked below the deadline, so that an operation is in flight until it ends, not until its caller gives up. Operations that
answer without waiting (`get_with_stat_now` and the like) are never in flight.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Generic, TypeVar

from zarrfs.in_flight import InFlight
from zarrfs.stores.base import Store
from zarrfs.transformers.intercepting import InterceptingStore, Operation

T = TypeVar("T")


class NotedStore(InterceptingStore):
    """``operations`` are those in flight: the name of each, and its keys and prefixes."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.operations = InFlight()

    async def intercept(self, operation: Operation, begin: Callable[[], Awaitable[T]]) -> T:
        written = [_Nbytes(operation.nbytes)] if operation.nbytes else []
        begun = self.operations.begin(operation.name, *operation.targets, *written)
        try:
            return await begin()
        finally:
            self.operations.end(begun)

    def intercept_listing(self, operation: Operation, entries: AsyncIterator[T]) -> AsyncIterator[T]:
        return _Listing(entries, self.operations, operation.name, *operation.targets)


class _Nbytes(int):
    """A placeholder for a value, so that values are never recorded."""

    def __repr__(self) -> str:
        return f"{int(self)} bytes"


class _Listing(AsyncIterator[T], Generic[T]):
    """Forwards ``entries``; in flight while the caller waits for the next one."""

    def __init__(self, entries: AsyncIterator[T], operations: InFlight, *what: object) -> None:
        self._entries = entries
        self._operations = operations
        self._what = what

    async def __anext__(self) -> T:
        begun = self._operations.begin(*self._what)
        try:
            return await anext(self._entries)
        finally:
            self._operations.end(begun)
