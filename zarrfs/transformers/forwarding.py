"""A store that forwards to another store: the base of transformers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from zarrfs.buffers import Buffer
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.anchor import Anchor
from zarrfs.stores.base import Held, Store
from zarrfs.stores.change import Change
from zarrfs.stores.values import Answer, DirEntry, Expected, Generation, KeyStat


class ForwardingStore(Store):
    """Forwards every operation to ``inner``, and closes it with this store.

    Operations are forwarded whole: `set_partial_values` calls `set_partial_values` of ``inner``, never its fallback to gets and sets.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = inner.url
        self.capabilities = inner.capabilities
        self.damage, self.left_out = inner.damage, inner.left_out
        # Of the changes that `watch` forwards. Asked several times for each lookup: without the layers between.
        self.has_changes_now = inner.has_changes_now  # type: ignore[method-assign]

    async def get(self, key: Key) -> Buffer | None:
        return await self.inner.get(key)

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        return await self.inner.get_partial_values(key_ranges, if_generation=if_generation)

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        return await self.inner.get_with_stat(key, byte_range)

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        return await self.inner.get_many(key_ranges)

    async def hold(self, key: Key) -> Held | None:
        return await self.inner.hold(key)

    async def data_from(self, key: Key, offset: int) -> int:
        return await self.inner.data_from(key, offset)

    async def stat(self, key: Key) -> KeyStat | None:
        return await self.inner.stat(key)

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        return await self.inner.set(key, value, expect=expect)

    async def set_partial_values(self, key_start_values: Iterable[tuple[Key, int, Buffer]]) -> None:
        await self.inner.set_partial_values(key_start_values)

    async def copy(self, old: Key, new: Key) -> bool:
        return await self.inner.copy(old, new)

    async def erase(self, key: Key) -> None:
        await self.inner.erase(key)

    async def erase_if(self, key: Key, generation: Generation) -> None:
        await self.inner.erase_if(key, generation)

    async def erase_values(self, keys: Iterable[Key]) -> None:
        await self.inner.erase_values(keys)

    async def erase_prefix(self, prefix: Prefix) -> None:
        await self.inner.erase_prefix(prefix)

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        await self.inner.sync(targets)

    async def sync_all(self) -> None:
        await self.inner.sync_all()

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        return self.inner.exclusive(key)

    async def rename(self, old: Key, new: Key) -> bool:
        return await self.inner.rename(old, new)

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        return await self.inner.rename_prefix(old, new)

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        await self.inner.exchange_prefixes(one, other)

    async def make_prefix(self, prefix: Prefix) -> None:
        await self.inner.make_prefix(prefix)

    async def remove_prefix(self, prefix: Prefix) -> None:
        await self.inner.remove_prefix(prefix)

    async def set_times(self, key: Key, mtime_ns: int) -> bool:
        return await self.inner.set_times(key, mtime_ns)

    def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        return self.inner.list_prefix(prefix)

    def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        return self.inner.list_dir(prefix)

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        return await self.inner.peek(prefix, most)

    async def prefix_exists(self, prefix: Prefix) -> bool:
        return await self.inner.prefix_exists(prefix)

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        return await self.inner.prefix_mtime_ns(prefix)

    def anchor(self, prefix: Prefix, *, spare: bool = False) -> Anchor | None:
        return self.inner.anchor(prefix, spare=spare)

    def part_of(self, target: Key | Prefix) -> str:
        return self.inner.part_of(target)

    async def watch(self, on_changes: Callable[[Sequence[Change]], None]) -> None:
        await self.inner.watch(on_changes)

    def set_owner(self, uid: int | None, gid: int | None) -> None:
        self.inner.set_owner(uid, gid)

    def destine(self, prefix: Prefix, *places: Prefix) -> None:
        self.inner.destine(prefix, *places)

    async def free_space(self) -> tuple[int, int] | None:
        return await self.inner.free_space()

    async def aclose(self) -> None:
        await self.inner.aclose()


class TransparentStore(ForwardingStore):
    """Also forwards the operations that answer without waiting (``*_now``).

    A store that changes, counts or refuses reads overrides these, or derives from `ForwardingStore`; else such answers bypass it.
    """

    def get_partial_values_now(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        return self.inner.get_partial_values_now(key_ranges, if_generation=if_generation)

    def get_with_stat_now(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        return self.inner.get_with_stat_now(key, byte_range)

    def get_many_now(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        return self.inner.get_many_now(key_ranges)

    def stat_now(self, key: Key) -> KeyStat | None:
        return self.inner.stat_now(key)

    def list_dir_now(self, prefix: Prefix) -> Sequence[DirEntry]:
        return self.inner.list_dir_now(prefix)

    def has_changes_now(self) -> bool:
        return self.inner.has_changes_now()

    def prefix_mtime_ns_now(self, prefix: Prefix) -> int | None:
        return self.inner.prefix_mtime_ns_now(prefix)
