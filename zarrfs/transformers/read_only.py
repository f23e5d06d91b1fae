"""A store that cannot be written, whatever the backend allows."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import NoReturn

from zarrfs.errors import StoreReadOnly
from zarrfs.keys import Key, Prefix
from zarrfs.stores.base import Buffer, Generation, Store
from zarrfs.transformers.forwarding import TransparentStore


class ReadOnlyStore(TransparentStore):
    """Every operation that would change ``inner``, or lock it for a change, raises `StoreReadOnly`."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.writable = False

    async def set(self, key: Key, value: Buffer, *, if_generation: Generation | None = None) -> Generation | None:
        self._refuse(key)

    async def set_partial_values(self, key_start_values: Iterable[tuple[Key, int, Buffer]]) -> None:
        self._refuse(None)

    async def erase(self, key: Key) -> None:
        self._refuse(key)

    async def erase_values(self, keys: Iterable[Key]) -> None:
        self._refuse(None)

    async def erase_prefix(self, prefix: Prefix) -> None:
        self._refuse(prefix)

    async def sync(self, places: Iterable[Key | Prefix]) -> None:
        """Nothing was written through this store, so that everything is as durable as it was found."""

    async def sync_all(self) -> None:
        """See `sync`."""

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        self._refuse(key)

    async def rename(self, old: Key, new: Key) -> bool:
        self._refuse(old)

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        self._refuse(old)

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        self._refuse(one)

    async def make_prefix(self, prefix: Prefix) -> None:
        self._refuse(prefix)

    async def remove_prefix(self, prefix: Prefix) -> None:
        self._refuse(prefix)

    async def set_times(self, key: Key, mtime_ns: int) -> bool:
        self._refuse(key)

    def _refuse(self, place: str | None) -> NoReturn:
        raise StoreReadOnly(f"{self.url} is read-only", key=place)
