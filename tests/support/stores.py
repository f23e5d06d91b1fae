"""Stores for tests: a failing one, a waiting one, and short functions to fill and read any store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase

import trio

from zarrfs.buffers import Buffer
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.values import Answer, DirEntry, Expected, Generation, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore


async def fill(store: Store, values: Mapping[str, bytes]) -> None:
    for key, value in values.items():
        await store.set(Key(key), value)


async def contents(store: Store, prefix: str = "") -> dict[str, bytes]:
    """Return every key below ``prefix`` and its value, by listing and getting."""
    found: dict[str, bytes] = {}
    async for key in store.list_prefix(Prefix(prefix)):
        value = await store.get(key)
        assert value is not None, f"{key!r} is listed and has no value"
        assert key not in found, f"{key!r} is listed twice"
        found[key] = bytes(value)
    return found


async def names(store: Store, prefix: str = "") -> dict[tuple[str, bool], int]:
    """Return the entries of `list_dir`: (name, whether it is a prefix) to size."""
    found: dict[tuple[str, bool], int] = {}
    async for name, is_prefix, size, _ in store.list_dir(Prefix(prefix)):
        assert (name, is_prefix) not in found, f"{name!r} is listed twice"
        found[name, is_prefix] = size
    return found


class InterruptedStore(ForwardingStore):
    """Calls `interrupt`, which may raise or wait, before each operation on values."""

    async def interrupt(self, operation: str, target: str) -> None:
        raise NotImplementedError

    async def hold(self, key: Key) -> None:
        """Do nothing: a held value would be read without a request to this store."""

    async def get(self, key: Key) -> Buffer | None:
        await self.interrupt("get", key)
        return await super().get(key)

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        for key, _ in key_ranges:
            await self.interrupt("get_partial_values", key)
        return await super().get_partial_values(key_ranges, if_generation=if_generation)

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        await self.interrupt("get_partial_values", key)
        return await super().get_with_stat(key, byte_range)

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        for key, _ in key_ranges:
            await self.interrupt("get_partial_values", key)
        return await super().get_many(key_ranges)

    async def stat(self, key: Key) -> KeyStat | None:
        await self.interrupt("stat", key)
        return await super().stat(key)

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        await self.interrupt("set", key)
        return await super().set(key, value, expect=expect)

    async def erase(self, key: Key) -> None:
        await self.interrupt("erase", key)
        await super().erase(key)

    async def erase_if(self, key: Key, generation: Generation) -> None:
        await self.interrupt("erase", key)
        await super().erase_if(key, generation)

    async def erase_prefix(self, prefix: Prefix) -> None:
        await self.interrupt("erase_prefix", prefix)
        await super().erase_prefix(prefix)

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        await self.interrupt("list_dir", prefix)
        async for entry in super().list_dir(prefix):
            yield entry

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        await self.interrupt("list_dir", prefix)
        return await super().peek(prefix, most)


class FailingStore(InterruptedStore):
    """Raises the exception in ``errors`` for the name of an operation."""

    def __init__(self, inner: Store, errors: Mapping[str, Exception]) -> None:
        super().__init__(inner)
        self.errors = dict(errors)

    async def interrupt(self, operation: str, target: str) -> None:
        if operation in self.errors:
            raise self.errors[operation]


class WaitingStore(InterruptedStore):
    """Operations named in ``waits`` wait for `let_go`; with ``stubborn``, even cancellation does not end the wait.

    ``waiting`` holds the target of each waiting operation.
    """

    def __init__(self, inner: Store, *waits: str, stubborn: bool = False) -> None:
        super().__init__(inner)
        self.waits = set(waits)
        self.stubborn = stubborn
        self.waiting: list[str] = []
        self._gate = trio.Event()

    def let_go(self) -> None:
        """Release all waiting operations, and all later ones."""
        self._gate.set()

    async def interrupt(self, operation: str, target: str) -> None:
        if operation in self.waits:
            self.waiting.append(target)
            try:
                with trio.CancelScope(shield=self.stubborn):
                    await self._gate.wait()
            finally:
                self.waiting.remove(target)


class HangingStore(InterruptedStore):
    """Operations on targets given to `hang` wait for `answer`, also those without a value.

    ``hanging`` holds the operation and target of each waiting one, ``asked`` counts all operations, and each takes ``delay`` seconds.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.hanging: list[tuple[str, str]] = []
        self.asked = 0
        self.delay = 0.0
        self._patterns: list[tuple[str, tuple[str, ...]]] = []
        self._gate = trio.Event()

    def hang(self, pattern: str = "*", *operations: str) -> None:
        """Make operations (all, if none is named) on targets that match ``pattern`` wait from now on."""
        self._patterns.append((pattern, operations))

    def hang_no_more(self) -> None:
        """Do not let later operations wait; those that wait now do until `answer`."""
        self._patterns.clear()

    def answer(self) -> None:
        """Release all waiting operations; later ones do not wait."""
        self._patterns.clear()
        self._gate.set()
        self._gate = trio.Event()

    def lose(self) -> None:
        """Do not let later operations wait; those that wait now never continue."""
        self._patterns.clear()
        self._gate = trio.Event()

    async def interrupt(self, operation: str, target: str) -> None:
        self.asked += 1
        if self.delay:
            await trio.sleep(self.delay)
        if any(fnmatchcase(target, pattern) and (not named or operation in named) for pattern, named in self._patterns):
            self.hanging.append((operation, target))
            gate = self._gate
            try:
                await gate.wait()
            finally:
                self.hanging.remove((operation, target))

    async def set_partial_values(self, key_start_values: Iterable[tuple[Key, int, Buffer]]) -> None:
        pieces = list(key_start_values)
        for key, _, _ in pieces:
            await self.interrupt("set_partial_values", key)
        await super().set_partial_values(pieces)

    async def erase_values(self, keys: Iterable[Key]) -> None:
        erased = list(keys)
        for key in erased:
            await self.interrupt("erase_values", key)
        await super().erase_values(erased)

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        synced = list(targets)
        for place in synced:
            await self.interrupt("sync", place)
        await super().sync(synced)

    async def sync_all(self) -> None:
        await self.interrupt("sync_all", "")
        await super().sync_all()

    @asynccontextmanager
    async def exclusive(self, key: Key) -> AsyncIterator[None]:
        await self.interrupt("exclusive", key)
        async with super().exclusive(key):
            yield

    async def rename(self, old: Key, new: Key) -> bool:
        await self.interrupt("rename", old)
        return await super().rename(old, new)

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        await self.interrupt("rename_prefix", old)
        return await super().rename_prefix(old, new)

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        await self.interrupt("exchange_prefixes", one)
        await super().exchange_prefixes(one, other)

    async def make_prefix(self, prefix: Prefix) -> None:
        await self.interrupt("make_prefix", prefix)
        await super().make_prefix(prefix)

    async def remove_prefix(self, prefix: Prefix) -> None:
        await self.interrupt("remove_prefix", prefix)
        await super().remove_prefix(prefix)

    async def set_times(self, key: Key, mtime_ns: int) -> bool:
        await self.interrupt("set_times", key)
        return await super().set_times(key, mtime_ns)

    async def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        await self.interrupt("list_prefix", prefix)
        async for key in super().list_prefix(prefix):
            yield key

    async def prefix_exists(self, prefix: Prefix) -> bool:
        await self.interrupt("prefix_exists", prefix)
        return await super().prefix_exists(prefix)

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        await self.interrupt("prefix_mtime_ns", prefix)
        return await super().prefix_mtime_ns(prefix)

    async def free_space(self) -> tuple[int, int] | None:
        await self.interrupt("free_space", "")
        return await super().free_space()
