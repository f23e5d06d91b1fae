"""A store that knows which of its operations are under way.

It stands below the deadline, where an operation is under way until it has ended, and not until somebody has given it up. What is answered
at once (`get_with_stat_now` and the like) never is.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from zarrfs.in_flight import InFlight
from zarrfs.keys import Key, Prefix
from zarrfs.stores.base import DirEntry, Store
from zarrfs.transformers.forwarding import ForwardingStore, TransparentStore

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def _noted(
    operation: Callable[Concatenate[ForwardingStore, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[NotedStore, P], Coroutine[Any, Any, R]]:
    """``operation`` as one of `NotedStore`."""
    name = operation.__name__

    async def noted(self: NotedStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        begun = self.operations.begin(name, *args)
        try:
            return await operation(self, *args, **kwargs)
        finally:
            self.operations.end(begun)

    functools.update_wrapper(noted, operation)
    return noted


class NotedStore(TransparentStore):
    """``operations``: those under way, as their name and arguments."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.operations = InFlight()

    get = _noted(ForwardingStore.get)
    get_partial_values = _noted(ForwardingStore.get_partial_values)
    get_with_stat = _noted(ForwardingStore.get_with_stat)
    stat = _noted(ForwardingStore.stat)
    set = _noted(ForwardingStore.set)
    set_partial_values = _noted(ForwardingStore.set_partial_values)
    erase = _noted(ForwardingStore.erase)
    erase_values = _noted(ForwardingStore.erase_values)
    erase_prefix = _noted(ForwardingStore.erase_prefix)
    sync = _noted(ForwardingStore.sync)
    sync_all = _noted(ForwardingStore.sync_all)
    rename = _noted(ForwardingStore.rename)
    rename_prefix = _noted(ForwardingStore.rename_prefix)
    exchange_prefixes = _noted(ForwardingStore.exchange_prefixes)
    make_prefix = _noted(ForwardingStore.make_prefix)
    remove_prefix = _noted(ForwardingStore.remove_prefix)
    set_times = _noted(ForwardingStore.set_times)
    prefix_exists = _noted(ForwardingStore.prefix_exists)
    prefix_mtime_ns = _noted(ForwardingStore.prefix_mtime_ns)
    free_space = _noted(ForwardingStore.free_space)

    def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        return _Listing(self.inner.list_prefix(prefix), self.operations, "list_prefix", prefix)

    def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        return _Listing(self.inner.list_dir(prefix), self.operations, "list_dir", prefix)


class _Listing(AsyncIterator[T], Generic[T]):
    """``entries``, under way while the next of them is waited for."""

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
