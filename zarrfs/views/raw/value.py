"""The files of ``raw/``: values of keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import lru_cache
from types import EllipsisType
from typing import TypeVar

import trio

from zarrfs.arrays.live_node import is_elsewhere
from zarrfs.buffers import Buffer
from zarrfs.errors import EntryExists, GenerationMismatch, NodeInDoubt, StaleEntry, TooLarge, ZarrfsError
from zarrfs.hierarchy.described_apart import described_apart
from zarrfs.hierarchy.live_array import LiveArray
from zarrfs.keys import WHOLE, ByteRange, Key, NodePath, Prefix
from zarrfs.memory.budget import MemoryBudget
from zarrfs.stores.anchor import Anchor
from zarrfs.stores.base import Held, Store
from zarrfs.stores.expecting import set_over
from zarrfs.stores.presupposing import presupposing
from zarrfs.stores.values import ABSENT, KeyStat
from zarrfs.vfs import names
from zarrfs.vfs.content import Snapshot, WholeContent
from zarrfs.vfs.kept import Kept, kept
from zarrfs.vfs.node import Attributes
from zarrfs.vfs.stage import Stage, StagingRoom
from zarrfs.views.base import ViewContext, path_of

VIEW = "raw"

T = TypeVar("T")

# Values up to this size are read whole, once, at the first read; larger ones in the requested ranges.
WHOLE_NBYTES = 8 * 1024 * 1024
# Values up to this size are read at open, for the cost of the check that they exist.
_AT_ONCE_NBYTES = 64 * 1024
# Larger values are loaded for a change in pieces of this size.
_PIECE_NBYTES = 1024 * 1024
_ZEROS = bytes(_PIECE_NBYTES)


class RawValue(WholeContent):
    """The value of a key. ``called``: its `Content.ident`, if the caller has it at hand."""

    def __init__(self, context: ViewContext, key: Key, called: str | None = None) -> None:
        self._context = context
        self._store = context.store
        self._times = context.times
        self._room = context.staging.room.kept
        self.key = key
        self._size: int | None = None
        self._was_given = False
        self._folder: Anchor | None = None
        self._described: tuple[LiveArray, NodePath] | None = None
        """The array whose document it is, apart from its chunks, and the path at that time."""
        self.ident = called or ident(key)

    async def snapshot(self) -> RawSnapshot | None:
        await self._context.flush_queued(self.key)
        stat = await self._found(self._store.stat)
        if stat is None:
            return None
        self._size = stat.size
        return self._shown(stat)

    async def open_snapshot(self) -> Snapshot | None:
        # A second open finds the value in the kernel's pages. The size is unknown if the file was only listed.
        await self._context.flush_queued(self.key)
        if not self._was_given and (self._size is None or self._size <= _AT_ONCE_NBYTES):
            self._was_given = True
            found = await self._store.get_with_stat(self.key, ByteRange(0, _AT_ONCE_NBYTES))
            if found is None:
                return None
            snapshot = self._shown(found[1], found[0])
            if snapshot.is_whole:
                return snapshot
        held = await self._store.hold(self.key)
        return await self.snapshot() if held is None else self._shown(held.stat, held=held)

    def _shown(self, stat: KeyStat, value: Buffer | None = None, held: Held | None = None) -> RawSnapshot:
        mtime_ns = self._times.mtime_ns_of(self.ident, size=stat.size, stored_ns=stat.mtime_ns)
        whole = kept(value, self._room) if value is not None and len(value) == stat.size else None
        return RawSnapshot(self._store, self.key, stat, mtime_ns, self._room, whole, held)

    @property
    def is_outdated(self) -> bool:
        if self._described is not None and self._described[0].why_gone is not None:
            return True
        folder = self.key.parent
        return self._folder is not None and not self._folder.is_at(folder) and not is_changing(self._context, folder)

    @property
    def is_elsewhere(self) -> bool:
        return is_elsewhere(self._folder, self.key.parent)

    async def until_placed(self) -> bool:
        return await until_placed(self._context, self.key.parent)

    def follow(self) -> None:
        if self._described is None:
            return
        live, path = self._described
        if live.path != path and live.document is not None:
            self._described = live, live.path
            self.key, self.ident = live.document, ident(live.document)
            self._folder = self._store.anchor(self.key.parent)

    def renewed(self) -> RawValue:
        return RawValue(self._context, self.key) if self.is_outdated else self

    async def open_to_write(self) -> None:
        # The value now belongs to its present folder, wherever another program moves that.
        if self._folder is None:
            self._folder = self._store.anchor(self.key.parent)
        if self._described is None:
            await self._describe()

    async def _describe(self) -> None:
        live = await described_apart(self._context.hierarchy, self.key)
        self._described = (live, live.path) if live is not None else None

    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        await self.open_to_write()
        if not empty:
            # The rest of it is stored again, over what was queued before.
            await self._context.flush_queued(self.key)
        return await super().stage(room, empty=empty)

    async def stage_over(self, room: StagingRoom, seen: Snapshot, new_nbytes: int) -> Stage:
        return await self.stage_of(room, seen, new_nbytes)

    async def load(self) -> Buffer | None:
        return await self._found(self._store.get)

    async def _found(self, request: Callable[[Key], Awaitable[T | None]]) -> T | None:
        """Return what ``request`` finds, at the new key if this mount renames the folder: for a moment the value is at neither."""
        while True:
            key = self.key
            found = await request(key)
            if found is not None or not (await self.until_placed() or self.key != key):
                return found

    async def stored(self) -> Buffer | EllipsisType | None:
        await self._context.flush_queued(self.key)
        found = await self._store.get_with_stat(self.key, ByteRange(0, WHOLE_NBYTES + 1))
        return None if found is None else found[0] if len(found[0]) <= WHOLE_NBYTES else ...

    async def load_in_pieces(self) -> tuple[int, AsyncIterator[tuple[int, Buffer]]] | None:
        # A small value needs one request.
        if self._size is not None and self._size <= WHOLE_NBYTES:
            return None
        stat = await self._found(self._store.stat)
        if stat is None or stat.size <= WHOLE_NBYTES:
            return None
        return stat.size, self._pieces(stat)

    async def _pieces(self, stat: KeyStat) -> AsyncIterator[tuple[int, Buffer]]:
        """Yield the value without its blocks of zeros, so that holes stay holes."""
        start = 0
        while start < stat.size:
            key = self.key
            try:
                data = (
                    await self._store.get_partial_values([(key, ByteRange(start, _PIECE_NBYTES))], if_generation=stat.generation)
                )[0]
                assert data is not None
                stop = start + len(data)
                if data == _ZEROS[: len(data)]:
                    stop, data = max(stop, await self._store.data_from(key, stop)), b""
                    # The hole may belong to another value.
                    await self._store.check_generation(key, stat.generation)
            except GenerationMismatch as error:
                if await self.until_placed() or self.key != key:
                    continue
                raise StaleEntry(f"{key!r} was replaced while it was being read", key=key) from error
            if data:
                yield start, data
            start = stop
            # Cached data, and every hole, is returned without a wait.
            await trio.lowlevel.checkpoint()

    async def publish(self, data: Buffer) -> None:
        await self._context.flush_queued(self.key)
        while await self.until_placed():
            pass
        await self._context.flush_described(self.key)
        if self._described is not None:
            # One that is missing or unreadable is about to be mended by this.
            with suppress(NodeInDoubt):
                await self._described[0].confirmed()
            self.follow()
        async with self._context.hierarchy.live.changing_document(self.key):
            if self.is_outdated:
                raise StaleEntry(f"the folder of {self.key!r}, or the array that it describes, was moved or erased", key=self.key)
            with presupposing(self.key.parent if self._folder is not None else None, self._folder):
                await self._store.set(self.key, data)
        if self._described is not None:
            # It may describe another array now, to which the next change belongs.
            self._described = None
            with suppress(ZarrfsError):
                await self._describe()

    async def create(self, data: Buffer) -> None:
        """Store a new value, atomically if the store supports that. Raises `EntryExists`."""
        try:
            async with self._store.exclusive(self.key):
                await set_over(self._store, self.key, data, ABSENT)
        except GenerationMismatch as error:
            raise EntryExists(f"{self.key!r} already exists", key=self.key) from error

    async def erase(self) -> None:
        await self._context.flush_described(self.key)
        async with self._context.hierarchy.live.changing_document(self.key):
            await self._store.erase(self.key)

    async def sync(self) -> None:
        await self._store.sync([self.key])

    async def set_mtime(self, mtime_ns: int) -> None:
        if self._store.capabilities.times:
            await self._store.set_times(self.key, mtime_ns)
        else:
            stat = await self._store.stat(self.key)
            if stat is not None:
                self._times.keep(self.ident, mtime_ns, size=stat.size, stored_ns=stat.mtime_ns)


class RawSnapshot(Snapshot):
    """A key's value at one generation.

    It is read whole if it is small and ``room`` has memory for it, else in ranges: from the ``held`` value, or checked against the
    generation.
    """

    def __init__(
        self,
        store: Store,
        key: Key,
        stat: KeyStat,
        mtime_ns: int | None,
        room: MemoryBudget,
        value: Kept | None,
        held: Held | None,
    ) -> None:
        self._store = store
        self._key = key
        self._stat = stat
        self._room = room
        self._value = value
        self._held = held
        self.attributes = Attributes(False, stat.size, mtime_ns, generation=stat.generation)

    @property
    def is_whole(self) -> bool:
        """True if no further request to the store is needed."""
        return self._value is not None

    async def read(self, offset: int, size: int) -> Buffer:
        if self._value is not None and not self._value.is_intact:
            self._value = None
        # If the memory is in use, each read requests its part.
        if self._value is None and self._stat.size <= WHOLE_NBYTES and self._room.has(self._stat.size):
            # Without room for it in the cache folder, too.
            with suppress(TooLarge):
                self._value = kept(await self._part(WHOLE), self._room)
                if self._value is not None:
                    self._let_go()
        if self._value is not None:
            return memoryview(self._value.data)[offset : offset + size]
        return await self._part(ByteRange(offset, size))

    async def aclose(self) -> None:
        self._value = None
        self._let_go()

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.close()

    async def _part(self, byte_range: ByteRange) -> Buffer:
        try:
            if self._held is not None:
                start, stop = byte_range.resolve(self._stat.size)
                return await self._held.read(start, stop - start)
            parts = await self._store.get_partial_values([(self._key, byte_range)], if_generation=self._stat.generation)
        except GenerationMismatch as error:
            raise StaleEntry(f"{self._key!r} was replaced while it was being read", key=self._key) from error
        assert parts[0] is not None
        return parts[0]


def is_changing(context: ViewContext, folder: Prefix) -> bool:
    """Return True while this mount moves or erases ``folder``, or one above it: it may have its new place already, or none."""
    path = path_of(folder)
    return path is not None and context.hierarchy.live.lock.is_changing(path)


async def until_placed(context: ViewContext, folder: Prefix) -> bool:
    """Wait while `is_changing`. Return False, without a checkpoint, if it is not.

    What is bound to the folder meanwhile would find none at the old path, and be stale at the new one."""
    path = path_of(folder)
    if path is None or not context.hierarchy.live.lock.is_changing(path):
        return False
    await context.hierarchy.live.lock.wait_stable(path)
    return True


def names_of(target: Key | Prefix) -> tuple[str, ...]:
    return tuple(names.name_of(part) for part in target.removesuffix("/").split("/")) if target else ()


def ident(target: Key | Prefix) -> str:
    if isinstance(target, Prefix):
        return _folder_ident(target)
    return _folder_ident(target.parent) + names.name_of(target.name)


# Each operation in a folder needs its own several times.
@lru_cache(64)
def _folder_ident(prefix: Prefix) -> str:
    return "/".join((VIEW, *names_of(prefix), ""))
