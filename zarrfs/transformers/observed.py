"""A store that counts what is asked of it and tells what changes in it.

The change stream of a mount: its own writes are seen here as they succeed, and what others change comes in through
`ObservedStore.follow`, where the backend tells of it. Subscribers are plain functions, called before the operation
returns, so that a view that answers after it answers with the new value.

Below a `zarrfs.transformers.deadline.DeadlineStore` it also tells of a write that took effect after its caller had given up.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager

from zarrfs.errors import KeyConflict, StoreNotFound, StoreUnsupported
from zarrfs.keys import APART, ByteRange, Key, Prefix
from zarrfs.stores.base import Buffer, Change, DirEntry, Generation, Held, KeyStat, Store
from zarrfs.stores.moving import is_moving
from zarrfs.transformers.counters import StoreCounters
from zarrfs.transformers.forwarding import ForwardingStore

log = logging.getLogger(__name__)


class ObservedStore(ForwardingStore):
    """Counts in ``counters``; tells subscribers of every change.

    An operation on one key is told when it has succeeded. One on several may fail after it has changed some of them: then these
    changes are told as ``"unknown"``.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.counters = StoreCounters()
        self._subscribers: list[Callable[[Change], None]] = []

    def subscribe(self, subscriber: Callable[[Change], None]) -> Callable[[], None]:
        """Call ``subscriber`` with every change from now on, until what this returns is called. What it raises is logged."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    async def follow(self, watching: Callable[[bool], None]) -> None:
        """Announce what others change in the backend, for as long as it tells. ``watching(True)`` is called when from then on nothing
        is missed, ``watching(False)`` when that is no longer so, also when this is cancelled."""
        complete = False

        def told(changes: Sequence[Change]) -> None:
            nonlocal complete
            if not complete:
                complete = True
                watching(True)
            self.announce(*changes)

        try:
            await self.inner.watch(told)
        finally:
            if complete:
                watching(False)

    def announce(self, *changes: Change) -> None:
        """Tell the subscribers."""
        for change in changes:
            for subscriber in tuple(self._subscribers):
                try:
                    subscriber(change)
                except Exception:
                    log.exception("a subscriber failed on %r", change)

    # --- readable -----------------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Buffer | None:
        self.counters.get += 1
        value = await self.inner.get(key)
        self.counters.bytes_read += len(value or b"")
        return value

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        self.counters.get_partial_values += 1
        values = await self.inner.get_partial_values(key_ranges, if_generation=if_generation)
        self.counters.bytes_read += sum(len(value or b"") for value in values)
        return values

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        self.counters.get_partial_values += 1
        found = await self.inner.get_with_stat(key, byte_range)
        self.counters.bytes_read += len(found[0]) if found is not None else 0
        return found

    def get_partial_values_now(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        # Counted when it has answered: what would have to wait is asked again, and counted then.
        values = self.inner.get_partial_values_now(key_ranges, if_generation=if_generation)
        self.counters.get_partial_values += 1
        self.counters.bytes_read += sum(len(value or b"") for value in values)
        return values

    async def hold(self, key: Key) -> Held | None:
        held = await self.inner.hold(key)
        if held is None:
            return None
        self.counters.stat += 1
        return _CountedHeld(held, self.counters)

    def get_with_stat_now(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        found = self.inner.get_with_stat_now(key, byte_range)
        self.counters.get_partial_values += 1
        self.counters.bytes_read += len(found[0]) if found is not None else 0
        return found

    def stat_now(self, key: Key) -> KeyStat | None:
        stat = self.inner.stat_now(key)
        self.counters.stat += 1
        return stat

    async def stat(self, key: Key) -> KeyStat | None:
        self.counters.stat += 1
        return await self.inner.stat(key)

    # --- writable -----------------------------------------------------------------------------------------------------------

    async def set(self, key: Key, value: Buffer, *, if_generation: Generation | None = None) -> Generation | None:
        self.counters.set += 1
        generation = await self.inner.set(key, value, if_generation=if_generation)
        self.counters.bytes_written += memoryview(value).nbytes
        self.announce(Change(key, "set"))
        return generation

    async def set_partial_values(self, key_start_values: Iterable[tuple[Key, int, Buffer]]) -> None:
        self.counters.set_partial_values += 1
        pieces = list(key_start_values)
        keys = dict.fromkeys(key for key, _, _ in pieces)
        try:
            await self.inner.set_partial_values(pieces)
        except BaseException:
            self.announce(*(Change(key, "unknown") for key in keys))
            raise
        self.counters.bytes_written += sum(memoryview(value).nbytes for _, _, value in pieces)
        self.announce(*(Change(key, "set") for key in keys))

    async def erase(self, key: Key) -> None:
        self.counters.erase += 1
        await self.inner.erase(key)
        self.announce(Change(key, "erase"))

    async def erase_values(self, keys: Iterable[Key]) -> None:
        self.counters.erase_values += 1
        erased = list(keys)
        try:
            await self.inner.erase_values(erased)
        except BaseException:
            self.announce(*(Change(key, "unknown") for key in erased))
            raise
        self.announce(*(Change(key, "erase") for key in erased))

    async def erase_prefix(self, prefix: Prefix) -> None:
        self.counters.erase_prefix += 1
        try:
            await self.inner.erase_prefix(prefix)
        except BaseException:
            self.announce(Change(prefix, "unknown"))
            raise
        self.announce(Change(prefix, "erase"))

    async def sync(self, places: Iterable[Key | Prefix]) -> None:
        self.counters.sync += 1
        await self.inner.sync(places)

    async def sync_all(self) -> None:
        self.counters.sync += 1
        await self.inner.sync_all()

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        self.counters.exclusive += 1
        return self.inner.exclusive(key)

    # --- what a file system can do ------------------------------------------------------------------------------------------

    async def rename(self, old: Key, new: Key) -> bool:
        self.counters.rename += 1
        renamed = await self.inner.rename(old, new)
        if renamed:
            self._announce_move(old, new)
        return renamed

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        self.counters.rename_prefix += 1
        try:
            renamed = await self.inner.rename_prefix(old, new)
        except (StoreUnsupported, KeyConflict):
            raise
        except BaseException:
            # It may have taken effect all the same.
            self.announce(Change(old, "unknown"), Change(new, "unknown"))
            raise
        if renamed:
            self._announce_move(old, new)
        elif old != new:
            # What there is of it in this mount only goes there all the same.
            self.announce(Change(old, "moved", new_place=new))
        return renamed

    def _announce_move(self, old: Key | Prefix, new: Key | Prefix) -> None:
        if is_moving():
            self.announce(Change(old, "erase", of_move=True), Change(new, "set", of_move=True))
        elif old.startswith(APART) or new.startswith(APART):
            # To whoever sees the store it came, or went.
            self.announce(Change(old, "erase"), Change(new, "set"))
        elif old != new:
            moved = Change(old, "moved", new_place=new)
            self.announce(moved, Change(old, "erase", of_move=True), Change(new, "set", of_move=True))

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        self.counters.rename_prefix += 1
        try:
            await self.inner.exchange_prefixes(one, other)
        except (StoreUnsupported, KeyConflict, StoreNotFound):
            raise
        except BaseException:
            # It may have taken effect all the same.
            self.announce(Change(one, "unknown"), Change(other, "unknown"))
            raise
        for place in (one, other):
            self.announce(Change(place, "erase"), Change(place, "set"))

    async def make_prefix(self, prefix: Prefix) -> None:
        self.counters.make_prefix += 1
        await self.inner.make_prefix(prefix)
        self.announce(Change(prefix, "set"))

    async def remove_prefix(self, prefix: Prefix) -> None:
        self.counters.remove_prefix += 1
        await self.inner.remove_prefix(prefix)
        self.announce(Change(prefix, "erase"))

    async def set_times(self, key: Key, mtime_ns: int) -> bool:
        self.counters.set_times += 1
        found = await self.inner.set_times(key, mtime_ns)
        if found:
            self.announce(Change(key, "times"))
        return found

    # --- listable -----------------------------------------------------------------------------------------------------------

    def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        self.counters.list_prefix += 1
        return self.inner.list_prefix(prefix)

    def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        self.counters.list_dir += 1
        return self.inner.list_dir(prefix)

    async def prefix_exists(self, prefix: Prefix) -> bool:
        self.counters.prefix_exists += 1
        return await self.inner.prefix_exists(prefix)

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        self.counters.prefix_mtime_ns += 1
        return await self.inner.prefix_mtime_ns(prefix)


class _CountedHeld(Held):
    """Counts what is read of ``inner``, as one read: nothing is looked up any more."""

    def __init__(self, inner: Held, counters: StoreCounters) -> None:
        self._inner = inner
        self._counters = counters
        self.stat = inner.stat
        self._is_read = False

    async def read(self, offset: int, size: int) -> Buffer:
        self._counters.get_partial_values += not self._is_read
        self._is_read = True
        data = await self._inner.read(offset, size)
        self._counters.bytes_read += len(data)
        return data

    def close(self) -> None:
        self._inner.close()
