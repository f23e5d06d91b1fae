"""A store without its private area, which holds the intents of operations in several steps (`zarrfs.hierarchy.intents`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from zarrfs.buffers import Buffer
from zarrfs.errors import KeyUnusable
from zarrfs.keys import APART, ByteRange, Key, Prefix
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.base import Store
from zarrfs.stores.values import Answer, DirEntry, Expected, Generation, KeyStat
from zarrfs.transformers.forwarding import TransparentStore

_NAME = APART[:-1]


class WithoutApart(TransparentStore):
    """Hides the keys of ``inner`` below `APART`; setting one raises `KeyUnusable`."""

    async def get(self, key: Key) -> Buffer | None:
        return None if _is_apart(key) else await super().get(key)

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        if any(_is_apart(key) for key, _ in key_ranges):
            return await Store.get_partial_values(self, key_ranges, if_generation=if_generation)
        return await super().get_partial_values(key_ranges, if_generation=if_generation)

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        return None if _is_apart(key) else await super().get_with_stat(key, byte_range)

    def get_partial_values_now(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        apart = [_is_apart(key) for key, _ in key_ranges]
        if any(apart):
            if all(apart) and if_generation is None:
                return [None] * len(key_ranges)
            raise WouldWait
        return super().get_partial_values_now(key_ranges, if_generation=if_generation)

    def get_with_stat_now(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        return None if _is_apart(key) else super().get_with_stat_now(key, byte_range)

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        if any(_is_apart(key) for key, _ in key_ranges):
            return await Store.get_many(self, key_ranges)
        return await super().get_many(key_ranges)

    def get_many_now(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        if any(_is_apart(key) for key, _ in key_ranges):
            return Store.get_many_now(self, key_ranges)
        return super().get_many_now(key_ranges)

    async def stat(self, key: Key) -> KeyStat | None:
        return None if _is_apart(key) else await super().stat(key)

    def stat_now(self, key: Key) -> KeyStat | None:
        return None if _is_apart(key) else super().stat_now(key)

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        return await super().set(_usable(key), value, expect=expect)

    async def set_partial_values(self, key_start_values: Iterable[tuple[Key, int, Buffer]]) -> None:
        await super().set_partial_values([(_usable(key), start, value) for key, start, value in key_start_values])

    async def copy(self, old: Key, new: Key) -> bool:
        return not _is_apart(old) and await super().copy(old, _usable(new))

    async def erase(self, key: Key) -> None:
        if not _is_apart(key):
            await super().erase(key)

    async def erase_if(self, key: Key, generation: Generation) -> None:
        await super().erase_if(_usable(key), generation)

    async def erase_values(self, keys: Iterable[Key]) -> None:
        await super().erase_values([key for key in keys if not _is_apart(key)])

    async def erase_prefix(self, prefix: Prefix) -> None:
        if not _is_apart(prefix):
            await super().erase_prefix(prefix)

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        return super().exclusive(_usable(key))

    async def rename(self, old: Key, new: Key) -> bool:
        return not _is_apart(old) and await super().rename(old, _usable(new))

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        return not _is_apart(old) and await super().rename_prefix(old, _usable_prefix(new))

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        await super().exchange_prefixes(_usable_prefix(one), _usable_prefix(other))

    async def make_prefix(self, prefix: Prefix) -> None:
        await super().make_prefix(_usable_prefix(prefix))

    async def remove_prefix(self, prefix: Prefix) -> None:
        if not _is_apart(prefix):
            await super().remove_prefix(prefix)

    async def set_times(self, key: Key, mtime_ns: int) -> bool:
        return not _is_apart(key) and await super().set_times(key, mtime_ns)

    def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        return Store.list_prefix(self, prefix) if not prefix else super().list_prefix(prefix)

    def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        return super().list_dir(prefix) if prefix and not _is_apart(prefix) else self._without_apart(prefix)

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        return await (super().peek(prefix, most) if prefix and not _is_apart(prefix) else Store.peek(self, prefix, most))

    async def prefix_exists(self, prefix: Prefix) -> bool:
        return not _is_apart(prefix) and await super().prefix_exists(prefix)

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        return None if _is_apart(prefix) else await super().prefix_mtime_ns(prefix)

    def list_dir_now(self, prefix: Prefix) -> Sequence[DirEntry]:
        if _is_apart(prefix):
            return ()
        found = super().list_dir_now(prefix)
        return found if prefix else [entry for entry in found if entry[0] != _NAME]

    def prefix_mtime_ns_now(self, prefix: Prefix) -> int | None:
        return None if _is_apart(prefix) else super().prefix_mtime_ns_now(prefix)

    async def _without_apart(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        if not _is_apart(prefix):
            async for entry in super().list_dir(prefix):
                if entry[0] != _NAME:
                    yield entry


def _is_apart(key: str) -> bool:
    return key.startswith(APART) or key == _NAME


def _usable(key: Key) -> Key:
    if _is_apart(key):
        raise KeyUnusable(f"{key!r} is reserved: {APART} holds operations in progress", key=key)
    return key


def _usable_prefix(prefix: Prefix) -> Prefix:
    if _is_apart(prefix):
        raise KeyUnusable(f"{prefix!r} is reserved: {APART} holds operations in progress", key=prefix)
    return prefix
