"""A store that refuses writes, whatever the backend allows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TypeVar

from zarrfs.errors import StoreReadOnly
from zarrfs.keys import Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.transformers.intercepting import InterceptingStore, Kind, Operation

T = TypeVar("T")


class ReadOnlyStore(InterceptingStore):
    """Every operation that would change ``inner``, or lock it for a change, raises `StoreReadOnly`."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.capabilities = replace(self.capabilities, write=False)

    async def intercept(self, operation: Operation, begin: Callable[[], Awaitable[T]]) -> T:
        if operation.kind is Kind.CHANGES:
            raise self._refusal(*operation.targets[:1])
        return await begin()

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        """Do nothing: without writes through this store, no value is less durable than before."""

    async def sync_all(self) -> None:
        """Do nothing, as `sync`."""

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        raise self._refusal(key)

    def _refusal(self, key: str | None = None) -> StoreReadOnly:
        return StoreReadOnly(f"{self.url} is read-only", key=key)
