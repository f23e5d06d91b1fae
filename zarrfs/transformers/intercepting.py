"""A store whose operations all pass through one method: the base of deadline, observation, read-only and tracking."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from zarrfs.buffers import Buffer
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.values import Answer, DirEntry, Expected, Generation, KeyStat
from zarrfs.transformers.forwarding import TransparentStore

T = TypeVar("T")


class Kind(enum.Enum):
    """Kind of an operation: read values, look up or list names, change the store, make changes durable."""

    VALUES = "values"
    NAMES = "names"
    CHANGES = "changes"
    SYNC = "sync"


class Operation(NamedTuple):
    """An operation of a store: method ``name``, keys and prefixes ``targets`` (each once), ``nbytes`` of values set."""

    name: str
    kind: Kind
    targets: tuple[Key | Prefix, ...]
    nbytes: int = 0

    @property
    def doing(self) -> str:
        """Return the operation as a phrase for messages, such as ``reading 'a/c/0'``."""
        form = _WORDS.get(self.name, f"{self.name} {{0!r}}")
        return form.format(*self.targets) if self.targets else form.partition(" {0")[0]


_WORDS = {
    "get": "reading {0!r}",
    "get_partial_values": "reading parts of {0!r}",
    "get_with_stat": "reading parts of {0!r}",
    "get_many": "reading {0!r}",
    "data_from": "reading parts of {0!r}",
    "stat": "looking up {0!r}",
    "set": "writing {0!r}",
    "set_partial_values": "writing parts of {0!r}",
    "copy": "copying {0!r} to {1!r}",
    "erase": "removing {0!r}",
    "erase_values": "removing {0!r} and others",
    "erase_prefix": "removing {0!r}",
    "sync": "syncing {0!r}",
    "sync_all": "syncing the store",
    "exclusive": "locking {0!r}",
    "rename": "renaming {0!r} to {1!r}",
    "rename_prefix": "renaming {0!r} to {1!r}",
    "exchange_prefixes": "exchanging {0!r} and {1!r}",
    "make_prefix": "making {0!r}",
    "remove_prefix": "removing {0!r}",
    "set_times": "setting the time of {0!r}",
    "list_prefix": "listing {0!r}",
    "list_dir": "listing {0!r}",
    "peek": "listing {0!r}",
    "prefix_exists": "looking up {0!r}",
    "prefix_mtime_ns": "looking up {0!r}",
    "free_space": "measuring the store",
}


class InterceptingStore(TransparentStore):
    """Sends every operation of ``inner`` that waits through `intercept`, and every listing through `intercept_listing`.

    Locks (`exclusive`), held values, and answers without waiting (``*_now``) bypass both; a subclass overrides these where needed.
    """

    async def intercept(self, operation: Operation, begin: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``begin()``, which starts the operation of ``inner``."""
        return await begin()

    def intercept_listing(self, operation: Operation, entries: AsyncIterator[T]) -> AsyncIterator[T]:
        """Return the ``entries`` of a listing of ``inner``."""
        return entries

    # --- readable -----------------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Buffer | None:
        return await self.intercept(Operation("get", Kind.VALUES, (key,)), lambda: self.inner.get(key))

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        return await self.intercept(
            Operation("get_partial_values", Kind.VALUES, _keys(key_ranges)),
            lambda: self.inner.get_partial_values(key_ranges, if_generation=if_generation),
        )

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        operation = Operation("get_with_stat", Kind.VALUES, (key,))
        return await self.intercept(operation, lambda: self.inner.get_with_stat(key, byte_range))

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        operation = Operation("get_many", Kind.VALUES, _keys(key_ranges))
        return await self.intercept(operation, lambda: self.inner.get_many(key_ranges))

    async def data_from(self, key: Key, offset: int) -> int:
        return await self.intercept(Operation("data_from", Kind.VALUES, (key,)), lambda: self.inner.data_from(key, offset))

    async def stat(self, key: Key) -> KeyStat | None:
        return await self.intercept(Operation("stat", Kind.NAMES, (key,)), lambda: self.inner.stat(key))

    # --- writable -----------------------------------------------------------------------------------------------------------

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        operation = Operation("set", Kind.CHANGES, (key,), memoryview(value).nbytes)
        return await self.intercept(operation, lambda: self.inner.set(key, value, expect=expect))

    async def set_partial_values(self, key_start_values: Iterable[tuple[Key, int, Buffer]]) -> None:
        pieces = list(key_start_values)
        keys, nbytes = tuple(dict.fromkeys(key for key, _, _ in pieces)), sum(memoryview(value).nbytes for _, _, value in pieces)
        operation = Operation("set_partial_values", Kind.CHANGES, keys, nbytes)
        await self.intercept(operation, lambda: self.inner.set_partial_values(pieces))

    async def copy(self, old: Key, new: Key) -> bool:
        return await self.intercept(Operation("copy", Kind.CHANGES, (old, new)), lambda: self.inner.copy(old, new))

    async def erase(self, key: Key) -> None:
        await self.intercept(Operation("erase", Kind.CHANGES, (key,)), lambda: self.inner.erase(key))

    async def erase_if(self, key: Key, generation: Generation) -> None:
        await self.intercept(Operation("erase", Kind.CHANGES, (key,)), lambda: self.inner.erase_if(key, generation))

    async def erase_values(self, keys: Iterable[Key]) -> None:
        erased = tuple(keys)
        await self.intercept(Operation("erase_values", Kind.CHANGES, erased), lambda: self.inner.erase_values(erased))

    async def erase_prefix(self, prefix: Prefix) -> None:
        await self.intercept(Operation("erase_prefix", Kind.CHANGES, (prefix,)), lambda: self.inner.erase_prefix(prefix))

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        synced = tuple(targets)
        await self.intercept(Operation("sync", Kind.SYNC, synced), lambda: self.inner.sync(synced))

    async def sync_all(self) -> None:
        await self.intercept(Operation("sync_all", Kind.SYNC, ()), self.inner.sync_all)

    # --- file system operations ---------------------------------------------------------------------------------------------

    async def rename(self, old: Key, new: Key) -> bool:
        return await self.intercept(Operation("rename", Kind.CHANGES, (old, new)), lambda: self.inner.rename(old, new))

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        operation = Operation("rename_prefix", Kind.CHANGES, (old, new))
        return await self.intercept(operation, lambda: self.inner.rename_prefix(old, new))

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        operation = Operation("exchange_prefixes", Kind.CHANGES, (one, other))
        await self.intercept(operation, lambda: self.inner.exchange_prefixes(one, other))

    async def make_prefix(self, prefix: Prefix) -> None:
        await self.intercept(Operation("make_prefix", Kind.CHANGES, (prefix,)), lambda: self.inner.make_prefix(prefix))

    async def remove_prefix(self, prefix: Prefix) -> None:
        await self.intercept(Operation("remove_prefix", Kind.CHANGES, (prefix,)), lambda: self.inner.remove_prefix(prefix))

    async def set_times(self, key: Key, mtime_ns: int) -> bool:
        return await self.intercept(Operation("set_times", Kind.CHANGES, (key,)), lambda: self.inner.set_times(key, mtime_ns))

    # --- listable -----------------------------------------------------------------------------------------------------------

    def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        return self.intercept_listing(Operation("list_prefix", Kind.NAMES, (prefix,)), self.inner.list_prefix(prefix))

    def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        return self.intercept_listing(Operation("list_dir", Kind.NAMES, (prefix,)), self.inner.list_dir(prefix))

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        return await self.intercept(Operation("peek", Kind.NAMES, (prefix,)), lambda: self.inner.peek(prefix, most))

    async def prefix_exists(self, prefix: Prefix) -> bool:
        return await self.intercept(Operation("prefix_exists", Kind.NAMES, (prefix,)), lambda: self.inner.prefix_exists(prefix))

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        return await self.intercept(Operation("prefix_mtime_ns", Kind.NAMES, (prefix,)), lambda: self.inner.prefix_mtime_ns(prefix))

    async def free_space(self) -> tuple[int, int] | None:
        return await self.intercept(Operation("free_space", Kind.NAMES, ()), self.inner.free_space)


def _keys(key_ranges: Sequence[tuple[Key, ByteRange]]) -> tuple[Key, ...]:
    return tuple(dict.fromkeys(key for key, _ in key_ranges))
