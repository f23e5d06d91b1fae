"""The sharding storage transformer: chunk keys in front, shard keys in the inner store.

Source: v3 core 2022, "Sharding storage transformer (version 1.0)". docs/design/008-shards.md decides what it leaves open:

* Keys below the grid's prefix that match its chunk key encoding are translated. Those outside the grid read as absent, cannot be set,
  and hide the keys of the same name in the inner store. All other keys pass through.
* Listings are exact: they contain existing entries only, and read as many shard indexes as this requires.
* `exclusive` of a chunk locks its shard in the inner store; a `set` in the same context writes to the locked shard. Transformers can
  therefore be stacked, and concurrent processes lose no updates.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from zarrfs.arrays.chunk_store import FixedPrefix, StoredChunks, Written, new_generation
from zarrfs.arrays.concurrency import for_each
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.paged_shard_index import not_at_once
from zarrfs.arrays.shard_index_cache import ShardIndexCache
from zarrfs.arrays.sharded import ShardedChunks
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkError, GenerationMismatch, KeyConflict, KeyUnusable, ShardIndexInvalid
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.shards import ShardIndex, ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.change import Change, announcing
from zarrfs.stores.expecting import check
from zarrfs.stores.locks import LockTable
from zarrfs.stores.values import DirEntry, Expected, Generation, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.pieces import Piece, end_of_start, merged, sort
from zarrfs.transformers.shard_listing import ShardListing
from zarrfs.transformers.sharded_grid import ShardedGrid

INDEXES_NBYTES = 16 * 1024 * 1024
_WIDTH = 16  # Shards that one operation handles concurrently.


@dataclass(slots=True, eq=False)
class _Hold:
    """A lock on the shard ``of`` (owner, store, key). ``lasts`` is False once released: a context may outlive the lock."""

    of: tuple[object, Store, Key]
    lasts: bool = True


_holds: ContextVar[tuple[_Hold, ...]] = ContextVar("_holds", default=())


class ShardingStore(ForwardingStore):
    """Chunks of a grid of ``grid_shape``, each under its own key, stored in the shards of ``inner`` that ``spec`` describes.

    A key is ``prefix`` followed by the ``encoding`` of coordinates: those of a chunk in this store, those of a shard in ``inner``, which
    may be another transformer. Only ``owner`` (default: this store) may hold `Store.exclusive` of a shard's key while it writes a chunk.
    ``may_have_grown``: others may have enlarged the grid since it was read, and stored more chunks in the shards at its edge.
    """

    def __init__(
        self,
        inner: Store,
        prefix: Prefix,
        encoding: ChunkKeyEncoding,
        grid_shape: Shape,
        spec: ShardSpec,
        indexes: ShardIndexCache | None = None,
        counters: WorkCounters | None = None,
        owner: object = None,
        *,
        may_have_grown: bool = False,
    ) -> None:
        super().__init__(inner)
        self._owner = owner or self
        self._may_have_grown = may_have_grown
        # A chunk's key is never a directory in ``inner``, even if shards have directories.
        self.capabilities = replace(self.capabilities, hierarchical=False)
        self._grid = ShardedGrid.of(prefix, encoding, grid_shape, spec)
        shards = StoredChunks(inner, FixedPrefix(prefix), encoding, self._grid.shards.grid_shape)
        self._chunks = ShardedChunks(
            shards,
            spec,
            grid_shape,
            indexes or ShardIndexCache(INDEXES_NBYTES),
            counters or WorkCounters(),
            may_have_grown=may_have_grown,
        )
        self._listing = ShardListing(inner, self._grid, self._chunks)
        self._chunk_locks = LockTable()
        self._merging = LockTable()

    # --- readable -----------------------------------------------------------------------------------------------------------

    async def get(self, key: Key) -> Buffer | None:
        coords = self._grid.chunks.decode(key)
        if coords is None:
            return await self.inner.get(key)
        return (await self._values([(coords, WHOLE)]))[0]

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        """Group reads by shard; with ``if_generation``, all ranges are of one key."""
        each_coords = [self._grid.chunks.decode(key) for key, _ in key_ranges]
        if not any(coords is not None for coords in each_coords):
            return await self.inner.get_partial_values(key_ranges, if_generation=if_generation)
        if if_generation is not None:
            return [*await self._parts([each for _, each in key_ranges], each_coords[0], key_ranges[0][0], if_generation)]
        others = [each for each, coords in zip(key_ranges, each_coords, strict=True) if coords is None]
        chunks = [(coords, each) for (_, each), coords in zip(key_ranges, each_coords, strict=True) if coords is not None]
        from_others = iter(await self.inner.get_partial_values(others) if others else ())
        from_chunks = iter(await self._values(chunks))
        return [next(from_others if coords is None else from_chunks) for coords in each_coords]

    async def data_from(self, key: Key, offset: int) -> int:
        return offset if self._grid.chunks.decode(key) is not None else await self.inner.data_from(key, offset)

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        coords = self._grid.chunks.decode(key)
        if coords is None:
            return await self.inner.get_with_stat(key, byte_range)
        with _naming(key):
            return await self._chunks.get_with_stat(coords, byte_range) if self._grid.chunks.holds(coords) else None

    get_many = Store.get_many
    hold = Store.hold

    async def stat(self, key: Key) -> KeyStat | None:
        coords = self._grid.chunks.decode(key)
        if coords is None:
            return await self.inner.stat(key)
        with _naming(key):
            return await self._chunks.stat(coords) if self._grid.chunks.holds(coords) else None

    async def _parts(
        self, byte_ranges: Sequence[ByteRange], coords: Coords | None, key: Key, generation: Generation
    ) -> Sequence[Buffer]:
        if coords is None or not self._grid.chunks.holds(coords):
            raise GenerationMismatch(f"{key!r} was changed concurrently", key=key)
        with _naming(key):
            return await self._chunks.get_parts(coords, byte_ranges, generation)

    async def _values(self, wanted: Sequence[tuple[Coords, ByteRange]]) -> list[Buffer | None]:
        """Return ranges of chunks; None for chunks that are absent or outside the grid."""
        inside = [number for number, (coords, _) in enumerate(wanted) if self._grid.chunks.holds(coords)]
        values: list[Buffer | None] = [None] * len(wanted)
        for number, value in zip(inside, await self._chunks.get_ranges([wanted[number] for number in inside]), strict=True):
            if isinstance(value, ChunkError):
                with _naming(self._grid.chunks.key(wanted[number][0])):
                    raise value
            values[number] = value
        return values

    # --- writable -----------------------------------------------------------------------------------------------------------

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        """Set a value; ``expect`` is atomic against writers of chunks and holders of `exclusive` of the shard, not against others."""
        coords = self._grid.chunks.decode(key)
        if coords is None:
            return await self.inner.set(key, value, expect=expect)
        self._require_inside(coords, key)
        async with self._alone(self._grid.spec.shard_of(coords)):
            if expect is not None:
                await check(self, key, expect)
            generation = (await self._store({coords: value}))[coords]
            assert generation is not None
            return generation

    async def set_partial_values(self, key_start_values: Iterable[tuple[Key, int, Buffer]]) -> None:
        """Set each shard once, which reads its index for chunk sizes, the chunks that stay, and the chunks replaced in part."""
        others = []
        shards: dict[Coords, dict[Coords, list[Piece]]] = {}
        for key, start, value in key_start_values:
            coords = self._grid.chunks.decode(key)
            if coords is None:
                others.append((key, start, value))
            else:
                self._require_inside(coords, key)
                if start < 0:
                    raise ValueError(f"negative offset {start} for key {key!r}")
                pieces = shards.setdefault(self._grid.spec.shard_of(coords), {}).setdefault(coords, [])
                if len(value):
                    pieces.append((start, value))
        for chunks in shards.values():
            for coords, pieces in chunks.items():
                sort(pieces, self._grid.chunks.key(coords))
        if others:
            # The inner store validates these before it stores anything.
            await self.inner.set_partial_values(others)

        async def one(shard: Coords) -> None:
            async with self._alone(shard):
                await self._store(await self._patched(shard, shards[shard]))

        await for_each(shards, one, min(_WIDTH, len(shards)), completes=True)

    copy, erase_if = Store.copy, Store.erase_if

    async def erase(self, key: Key) -> None:
        coords = self._grid.chunks.decode(key)
        if coords is None:
            await self.inner.erase(key)
        else:
            await self._erase_chunks([coords])

    async def erase_values(self, keys: Iterable[Key]) -> None:
        others, chunks = [], []
        for key in keys:
            coords = self._grid.chunks.decode(key)
            if coords is None:
                others.append(key)
            else:
                chunks.append(coords)
        if others:
            await self.inner.erase_values(others)
        await self._erase_chunks(chunks)

    async def erase_prefix(self, prefix: Prefix) -> None:
        """Erase chunks below ``prefix``, and other keys if it cuts through the grid. A shard left without chunks is erased unread."""
        if not (lead := self._grid.lead(prefix)):
            await self.inner.erase_prefix(prefix)
            return
        self._require_writable(prefix)

        def goes(coords: Coords) -> bool:
            return coords[: len(lead)] == lead

        async def one(shard: Coords) -> None:
            count = math.prod(map(len, self._grid.ranges(shard)[len(lead) :]))
            await self._erase_in(shard, count, goes)

        await for_each([shard async for shard in self._listing.shards(prefix, lead)], one, _WIDTH, completes=True)
        others = [key async for key in self.inner.list_prefix(prefix) if self._grid.chunks.decode(key) is None]
        if others:
            await self.inner.erase_values(others)

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        """Sync each shard below a prefix that chunk keys begin with: the indexes of shards contain the names."""
        below: dict[Key | Prefix, None] = {}
        for target in targets:
            if isinstance(target, Prefix):
                below[target] = None
                lead = self._grid.lead(target)
                if lead is not None and self.capabilities.list:
                    below[self._grid.behind(target, lead)] = None
                    below |= {self._grid.shards.key(shard): None async for shard in self._listing.shards(target, lead)}
            elif (coords := self._grid.chunks.decode(target)) is None:
                below[target] = None
            elif self._grid.chunks.holds(coords):
                below |= dict.fromkeys(self._chunks.keys(coords))
        await self.inner.sync(below)

    @asynccontextmanager
    async def exclusive(self, key: Key) -> AsyncIterator[None]:
        """Lock a chunk: other tasks and processes can neither lock nor set any chunk of its shard meanwhile."""
        coords = self._grid.chunks.decode(key)
        if coords is None:
            async with self.inner.exclusive(key):
                yield
            return
        self._require_inside(coords, key)
        async with self._chunk_locks.hold(key), self._held(self._grid.spec.shard_of(coords)):
            yield

    @asynccontextmanager
    async def _held(self, shard: Coords) -> AsyncIterator[None]:
        """Lock a shard: only this context, and tasks started in it, can change it."""
        of = (self._owner, self.inner, self._grid.shards.key(shard))
        if any(hold.lasts and hold.of == of for hold in _holds.get()):
            yield
            return
        async with self.inner.exclusive(of[2]):
            hold = _Hold(of)
            _holds.set((*_holds.get(), hold))
            try:
                yield
            finally:
                hold.lasts = False
                _holds.set(tuple(each for each in _holds.get() if each is not hold))

    @asynccontextmanager
    async def _alone(self, shard: Coords) -> AsyncIterator[None]:
        """Lock a shard and serialize its writers: several tasks may share the context that holds the lock."""
        key = self._grid.shards.key(shard)
        self._require_writable(key)
        async with self._held(shard), self._merging.hold(key):
            with _naming(key, also_named=False):
                yield

    async def _store(self, chunks: Mapping[Coords, Buffer | None]) -> Mapping[Coords, Generation | None]:
        """Set (None: erase) chunks of one shard with one `set` of the shard; the caller holds `_alone`."""
        now = time.time_ns()
        written = {coords: Written(data, new_generation(), now) for coords, data in chunks.items()}
        if not written:
            return {}
        with announcing(self._grid.shards.key(self._grid.spec.shard_of(next(iter(written))))):
            return await self._chunks.merge(written)

    async def _patched(self, shard: Coords, chunks: Mapping[Coords, Sequence[Piece]]) -> Mapping[Coords, Buffer | None]:
        """Return the chunks that ``chunks`` changes, with their pieces replaced."""
        known = await self._chunks.shard(shard)
        sizes: dict[Coords, int | None] = {}
        for coords in chunks:
            with _naming(self._grid.chunks.key(coords)):
                found = known.find(self._grid.spec.pair_of(coords)) if known is not None else None
            sizes[coords] = found[1] if found is not None else None
        partly = [coords for coords, pieces in chunks.items() if pieces and end_of_start(pieces) < (sizes[coords] or 0)]
        values = dict(zip(partly, await self._values([(coords, WHOLE) for coords in partly]), strict=True))
        return {
            coords: merged(values.get(coords) or b"", pieces)
            for coords, pieces in chunks.items()
            if pieces or sizes[coords] is None
        }

    async def _erase_chunks(self, chunks: Iterable[Coords]) -> None:
        shards: dict[Coords, set[Coords]] = {}
        for coords in chunks:
            if self._grid.chunks.holds(coords):
                shards.setdefault(self._grid.spec.shard_of(coords), set()).add(coords)

        async def one(shard: Coords) -> None:
            await self._erase_in(shard, len(shards[shard]), shards[shard].__contains__)

        await for_each(shards, one, min(_WIDTH, len(shards)), completes=True)

    async def _erase_in(self, shard: Coords, count: int, goes: Callable[[Coords], bool]) -> None:
        """Erase the chunks of a shard for which ``goes`` is true: ``count`` of all chunks that it can hold."""
        async with self._alone(shard):
            is_whole = count == self._grid.spec.count_within(shard, self._grid.chunks.grid_shape)
            if is_whole and (count == self._grid.spec.chunks or not self._may_have_grown):
                await self.inner.erase(self._grid.shards.key(shard))
                return
            known = await self._chunks.shard(shard)
            if known is None:
                return
            if isinstance(known.index, ShardIndexInvalid):
                if not is_whole:
                    raise known.index.again()
                await self.inner.erase(self._grid.shards.key(shard))
                return
            if not isinstance(known.index, ShardIndex):
                raise not_at_once(self._grid.spec)
            there = (self._grid.spec.coords_of(shard, index) for index in known.index.stored_pairs())
            await self._store(dict.fromkeys(filter(goes, there)))

    def _require_inside(self, coords: Coords, key: Key) -> None:
        if not self._grid.chunks.holds(coords):
            raise KeyUnusable(f"{key!r} is outside the grid of chunks, {self._grid.chunks.grid_shape}", key=key)

    # --- file system operations ---------------------------------------------------------------------------------------------

    async def rename(self, old: Key, new: Key) -> bool:
        if self._grid.chunks.decode(old) is not None or self._grid.chunks.decode(new) is not None:
            raise self._unsupported("rename chunks that lie in shards")
        return await self.inner.rename(old, new)

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        """Rename a prefix; unsupported where chunk keys begin with it, because the renamed keys would not be chunk keys."""
        if old != new and (new.startswith(old) or old.startswith(new)):
            raise KeyConflict(f"renaming {old!r} to {new!r}: one lies below the other", key=old)
        for prefix in (old, new):
            if self._grid.chunks.lies_below(prefix) or self._grid.chunks.lead(prefix) is not None:
                raise self._unsupported("rename chunks that lie in shards")
        return await self.inner.rename_prefix(old, new)

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        for prefix in (one, other):
            if self._grid.chunks.lies_below(prefix) or self._grid.chunks.lead(prefix) is not None:
                raise self._unsupported("exchange chunks that lie in shards")
        await self.inner.exchange_prefixes(one, other)

    async def make_prefix(self, prefix: Prefix) -> None:
        self._require_uncut(prefix)
        await self.inner.make_prefix(prefix)

    async def remove_prefix(self, prefix: Prefix) -> None:
        self._require_uncut(prefix)
        await self.inner.remove_prefix(prefix)

    async def set_times(self, key: Key, mtime_ns: int) -> bool:
        if self._grid.chunks.decode(key) is not None:
            raise self._unsupported("set times of chunks that lie in shards")
        return await self.inner.set_times(key, mtime_ns)

    def _require_uncut(self, prefix: Prefix) -> None:
        if self._grid.lead(prefix):
            raise self._unsupported("hold empty prefixes of chunks")

    # --- listable -----------------------------------------------------------------------------------------------------------

    def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        return self._listing.list_prefix(prefix)

    def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        """List entries: sizes are of encoded chunks, times are of their shards; prefixes of chunks have no time."""
        return self._listing.list_dir(prefix)

    peek = Store.peek

    async def prefix_exists(self, prefix: Prefix) -> bool:
        return await self._listing.prefix_exists(prefix)

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        return await self.inner.prefix_mtime_ns(prefix) if self._grid.lead(prefix) is None else None

    # --- change -------------------------------------------------------------------------------------------------------------

    async def watch(self, on_changes: Callable[[Sequence[Change]], None]) -> None:
        """Watch ``inner``, with its changes translated by `ShardedGrid.seen`."""

        def forward(changes: Sequence[Change]) -> None:
            seen = [each for change in changes for each in self._grid.seen(change)]
            if seen or not changes:
                on_changes(seen)

        await self.inner.watch(forward)


@contextmanager
def _naming(key: Key, *, also_named: bool = True) -> Iterator[None]:
    """Prefix messages of errors with the key of the chunk; ``also_named``: also those with another key, of its shard."""
    try:
        yield
    except ChunkError as error:
        if error.key is not None and (error.key == key or not also_named):
            raise
        raise type(error)(f"{key!r}: {error}", key=key) from error
