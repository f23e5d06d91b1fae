"""Chunks in shards, on top of the store of the shards.

Sources: v3 final, codec ``sharding_indexed`` 1.0; v3 core 2022, "Sharding storage transformer", ``indexed``. Rationale:
docs/design/008-shards.md.

A read takes the index, which is cached, then the bytes of the requested chunks, in one call for each shard, under the generation of the
index. A write also reads the chunks of the shard that stay, if any, and replaces the whole shard; a shard without chunks is erased.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from zarrfs import threads
from zarrfs.arrays.chunk_store import ChunkStore, StoredChunk, Written, new_generation
from zarrfs.arrays.concurrency import for_each
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.paged_shard_index import FoundPairs, PagedIndex, Tally, not_at_once
from zarrfs.arrays.shard_changes import UNSEEN, ShardReplaced, assembled, reapplied, within
from zarrfs.arrays.shard_index_cache import KnownShard, ShardIndexCache, ShardKey
from zarrfs.arrays.shard_index_reader import TRIES, ShardIndexReader, restless
from zarrfs.arrays.stored_shard import StoredShard, naming, placed
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkError, GenerationMismatch, ShardIndexInvalid
from zarrfs.keys import WHOLE, ByteRange, Key
from zarrfs.model.chunk_grid import Coords, Shape, in_grid
from zarrfs.model.shards import Pairs, ShardIndex, ShardSpec
from zarrfs.stores.values import Generation, KeyStat

WIDTH = 16
"""Shards read concurrently."""


class ShardedChunks(ChunkStore):
    """The chunks of a grid of ``grid_shape``, which ``may_have_grown`` since it was read, in the shards of ``parent``."""

    def __init__(
        self,
        parent: ChunkStore,
        spec: ShardSpec,
        grid_shape: Shape,
        indexes: ShardIndexCache,
        counters: WorkCounters,
        *,
        may_have_grown: bool = False,
    ) -> None:
        self.spec = spec
        self._parent = self.below = parent
        self._grid_shape = grid_shape
        self._may_have_grown = may_have_grown
        self._indexes = indexes
        self._counters = counters
        self._serial = indexes.serial()
        self._reader = ShardIndexReader(parent, spec, counters, indexes.turns)

    @property
    def paged(self) -> bool:
        """True if an index is too large to be held, and a shard therefore too large to be written."""
        return self._reader.paged

    # --- reading ------------------------------------------------------------------------------------------------------------

    def keys(self, coords: Coords) -> tuple[Key, ...]:
        return self._parent.keys(self.spec.shard_of(coords))

    def unit(self, coords: Coords) -> Coords:
        return self._parent.unit(self.spec.shard_of(coords))

    async def get_with_stat(self, coords: Coords, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        shard, index = self.spec.shard_of(coords), self.spec.pair_of(coords)
        known = self._indexes.get(self._key(shard))
        fresh = False
        for _ in range(TRIES):
            try:
                if known is not None:
                    known = await self._reader.located(shard, known, [index])
                place = placed(self._parent, shard, known, index, fresh=fresh)
                if known is None or place is None:
                    if fresh:
                        return None
                    known, fresh = await self.shard(shard), True
                    continue
                found, stat = place
                parts = await self._parent.get_parts(shard, [within(found, byte_range)], known.stat.generation)
            except GenerationMismatch:
                known, fresh = await self.shard(shard), True
                continue
            return parts[0], stat
        raise restless(self._parent, shard)

    async def get_parts(self, coords: Coords, byte_ranges: Sequence[ByteRange], generation: Generation) -> list[Buffer]:
        shard, index = self.spec.shard_of(coords), self.spec.pair_of(coords)
        known = self._indexes.get(self._key(shard))
        for _ in range(TRIES):
            try:
                known = await self._reader.located(shard, known, [index]) if known is not None else None
                place = placed(self._parent, shard, known, index, fresh=False)
                if place is None or place[1].generation != generation:
                    # The cached entry may belong to an older shard.
                    known = await self.shard(shard)
                    known = await self._reader.located(shard, known, [index]) if known is not None else None
                    place = placed(self._parent, shard, known, index, fresh=True)
            except GenerationMismatch:
                known = None
                continue
            if known is None or place is None or place[1].generation != generation:
                raise GenerationMismatch(
                    f"chunk {coords} of {self.keys(coords)[0]!r} was changed concurrently", key=self.keys(coords)[0]
                )
            found, _ = place
            try:
                return await self._parent.get_parts(shard, [within(found, each) for each in byte_ranges], known.stat.generation)
            except GenerationMismatch:
                known = None
        raise restless(self._parent, shard)

    async def get_several(self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE) -> list[Buffer | ChunkError | None]:
        return await self.get_ranges([(each, byte_range) for each in coords])

    async def get_ranges(self, wanted: Sequence[tuple[Coords, ByteRange]]) -> list[Buffer | ChunkError | None]:
        """Return the result of `get_several`, with a byte range for each chunk; a chunk may occur several times."""
        shards: dict[Coords, list[int]] = {}
        for number, (coords, _) in enumerate(wanted):
            shards.setdefault(self.spec.shard_of(coords), []).append(number)
        values: list[Buffer | ChunkError | None] = [None] * len(wanted)

        async def one(shard: Coords) -> None:
            numbers = shards[shard]
            found = await self._values(shard, [(self.spec.pair_of(wanted[number][0]), wanted[number][1]) for number in numbers])
            for number, value in zip(numbers, found, strict=True):
                values[number] = value

        if len(shards) == 1:
            await one(next(iter(shards)))
        else:
            await for_each(shards, one, WIDTH)
        return values

    async def get_stamped(
        self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE
    ) -> list[tuple[Buffer, Generation] | ChunkError | None]:
        shards: dict[Coords, list[int]] = {}
        for number, each in enumerate(coords):
            shards.setdefault(self.spec.shard_of(each), []).append(number)
        values: list[tuple[Buffer, Generation] | ChunkError | None] = [None] * len(coords)

        async def one(shard: Coords) -> None:
            numbers = shards[shard]
            found = await self._stamped(shard, [self.spec.pair_of(coords[number]) for number in numbers], byte_range)
            for number, value in zip(numbers, found, strict=True):
                values[number] = value

        await for_each(shards, one, WIDTH)
        return values

    async def stat(self, coords: Coords) -> KeyStat | None:
        shard, index = self.spec.shard_of(coords), self.spec.pair_of(coords)
        for _ in range(TRIES):
            known = await self.shard(shard)
            if known is None:
                return None
            try:
                known = await self._reader.located(shard, known, [index])
            except GenerationMismatch:
                continue
            with naming(self._parent, shard):
                return known.stat_of(index)
        raise restless(self._parent, shard)

    async def shards(self) -> AsyncIterator[StoredShard]:
        """Yield every stored shard, in no particular order; of nested shards, those of this level."""
        async for shard, known in self._shards():
            assert not isinstance(known.index, FoundPairs)
            yield StoredShard(shard, self._parent.keys(shard), known.stat.size, known.index)

    # --- writing ------------------------------------------------------------------------------------------------------------

    def exclusive(self, coords: Coords) -> AbstractAsyncContextManager[None]:
        return self._parent.exclusive(self.spec.shard_of(coords))

    async def update(self, chunks: Mapping[Coords, Buffer | None]) -> None:
        units: dict[Coords, dict[Coords, Written]] = {}
        now = time.time_ns()
        for coords, data in chunks.items():
            units.setdefault(self.unit(coords), {})[coords] = Written(data, new_generation(), now)
        for unit in units.values():
            async with self.exclusive(next(iter(unit))):
                await self.merge(unit)

    async def merge(self, chunks: Mapping[Coords, Written]) -> Mapping[Coords, Generation | None]:
        if self._reader.paged:
            raise not_at_once(self.spec)
        async with self._indexes.turns.take():
            return await self._merge(chunks)

    async def _merge(self, chunks: Mapping[Coords, Written]) -> Mapping[Coords, Generation | None]:
        for _ in range(TRIES):
            try:
                return await self._merge_into_those_there(chunks)
            except ShardReplaced:
                # Writers of whole shards do not take the lock.
                continue
        raise restless(self._parent, self.spec.shard_of(next(iter(chunks))))

    async def _merge_into_those_there(self, chunks: Mapping[Coords, Written]) -> Mapping[Coords, Generation | None]:
        groups: dict[Coords, dict[int, Written]] = {}
        for coords, written in chunks.items():
            groups.setdefault(self.spec.shard_of(coords), {})[self.spec.pair_of(coords)] = written
        now = time.time_ns()
        shards: dict[Coords, Written] = {}
        before: dict[Coords, KnownShard | None] = {}
        pairs: dict[Coords, Pairs] = {}
        for shard, group in groups.items():
            if await self._changes_nothing(shard, group):
                continue
            with naming(self._parent, shard):
                before[shard], pieces = await self._staying(shard, group)
                group = groups[shard] = await reapplied(self._parent, shard, group, before[shard])
            pieces |= {index: written.data for index, written in group.items() if written.data is not None}
            data = None
            if pieces:
                nbytes = sum(map(len, pieces.values()))
                data, pairs[shard] = await threads.cpu(nbytes, assembled, self.spec, self._reader, pieces)
            known = before[shard]
            # If nothing stays, the present value does not matter.
            expected = None if known is UNSEEN else "" if known is None else known.stat.generation
            shards[shard] = Written(data, new_generation(), now, expected=expected)
        with self._indexes.storing({self._key(shard): written.expected for shard, written in shards.items()}):
            try:
                generations = await self._parent.merge(shards) if shards else {}
            except GenerationMismatch as error:
                raise ShardReplaced from error
            for shard, written in shards.items():
                known = before[shard] if before[shard] is not UNSEEN else None
                self._remember(shard, written, generations[shard], pairs.get(shard), known, groups[shard])
        return {
            coords: groups[shard][self.spec.pair_of(coords)].generation
            if generations.get(shard := self.spec.shard_of(coords)) is not None
            else None
            for coords in chunks
        }

    async def _changes_nothing(self, shard: Coords, group: Mapping[int, Written]) -> bool:
        """Return True if ``group`` only erases chunks, none of which is stored."""
        if any(written.data is not None for written in group.values()):
            return False
        known = await self.shard(shard)
        return known is None or (isinstance(known.index, ShardIndex) and group.keys().isdisjoint(known.index.stored_pairs()))

    async def _staying(self, shard: Coords, group: Mapping[int, Written]) -> tuple[KnownShard | None, dict[int, Buffer]]:
        """Return the shard as stored, and those of its chunks that ``group`` does not replace, by place.

        Nothing is read if no chunk stays. Raises `ShardIndexInvalid` for an unreadable index: replacing the shard would lose its chunks.
        """
        count = self.spec.chunks if self._may_have_grown else self.spec.count_within(shard, self._grid_shape)
        if len(group) >= count and all(
            in_grid(self.spec.coords_of(shard, index), self._grid_shape) and written.merge is None and written.expected is None
            for index, written in group.items()
        ):
            return UNSEEN, {}
        for _ in range(TRIES):
            known = await self.shard(shard)
            if known is None:
                return None, {}
            if isinstance(known.index, ShardIndexInvalid):
                raise known.index.again()
            assert isinstance(known.index, ShardIndex)
            stay = [index for index in known.index.stored_pairs() if index not in group]
            # Chunks that share their bytes continue to share them.
            ranges = dict.fromkeys(found for index in stay if (found := known.find(index)) is not None)
            if not ranges:
                return known, {}
            try:
                values = await self._parent.get_parts(shard, [ByteRange(*each) for each in ranges], known.stat.generation)
            except GenerationMismatch:
                continue
            by_range = dict(zip(ranges, values, strict=True))
            return known, {index: by_range[found] for index in stay if (found := known.find(index)) is not None}
        raise restless(self._parent, shard)

    def _remember(
        self,
        shard: Coords,
        written: Written,
        generation: Generation | None,
        pairs: Pairs | None,
        before: KnownShard | None,
        group: Mapping[int, Written],
    ) -> None:
        """Cache a shard written here, if its generation is known: its other chunks are unchanged."""
        if generation is None or written.data is None or pairs is None:
            self._indexes.discard(self._key(shard))
            return
        changed = dict(before.changed) if before is not None else {}
        changed |= {pair: (each.generation, each.mtime_ns) for pair, each in group.items()}
        stat = KeyStat(len(written.data), written.mtime_ns, generation)
        index = self._reader.checked(pairs, stat.size)
        known = KnownShard(stat, index, before.before if before is not None else (generation, written.mtime_ns), changed)
        self._indexes.put(self._key(shard), known)

    def tallies(self, shard: Coords, known: KnownShard) -> AsyncIterator[Tally]:
        """See `ShardIndexReader.tallies`."""
        return self._reader.tallies(shard, known)

    # --- indexes ------------------------------------------------------------------------------------------------------------

    def _key(self, shard: Coords) -> ShardKey:
        return self._serial, shard

    async def shard(self, shard: Coords) -> KnownShard | None:
        """Return the current shard; None if it is not stored."""
        stat = await self._parent.stat(shard)
        if stat is None:
            self._indexes.discard(self._key(shard))
            return None
        return await self._indexes.of(self._key(shard), stat.generation, lambda: self._reader.read(shard))

    def _shards(self, *, outside: bool = False, under: Coords = ()) -> AsyncIterator[tuple[Coords, KnownShard]]:
        above = tuple(index // count for index, count in zip(under, self.spec.chunks_per_shard, strict=False))
        return self.known(shard async for shard, _, _ in self._parent.list(outside=outside, under=above))

    async def known(self, shards: AsyncIterator[Coords], width: int = WIDTH) -> AsyncIterator[tuple[Coords, KnownShard]]:
        """Yield the current state of these shards, ``width`` of them read concurrently; absent ones are omitted."""
        portion: dict[Coords, KnownShard | None] = {}

        async def look(shard: Coords) -> None:
            portion[shard] = await self.shard(shard)

        more = True
        while more:
            portion.clear()
            while more and len(portion) < width:
                shard = await anext(shards, None)
                more = shard is not None
                if shard is not None:
                    portion[shard] = None
            await for_each(list(portion), look, min(width, len(portion)))
            for each, known in portion.items():
                if known is not None:
                    yield each, known

    async def _stamped(
        self, shard: Coords, indices: Sequence[int], byte_range: ByteRange
    ) -> list[tuple[Buffer, Generation] | ChunkError | None]:
        """Return the same part of chunks of one shard, and their generations."""
        for _ in range(TRIES):
            try:
                known = await self.shard(shard)
                if known is None:
                    return [None] * len(indices)
                known = await self._reader.located(shard, known, indices)
                with naming(self._parent, shard):
                    found = {index: pair for index in indices if (pair := known.find(index)) is not None}
                ranges = [within(pair, byte_range) for pair in found.values()]
                parts = await self._parent.get_parts(shard, ranges, known.stat.generation) if ranges else []
            except GenerationMismatch:
                continue
            except ChunkError as error:
                return [error] * len(indices)
            values = dict(zip(found, parts, strict=True))
            stats = {index: known.stat_of(index) for index in found}
            return [(values[index], stat.generation) if (stat := stats.get(index)) is not None else None for index in indices]
        raise restless(self._parent, shard)

    async def _values(self, shard: Coords, wanted: Sequence[tuple[int, ByteRange]]) -> list[Buffer | ChunkError | None]:
        """Return parts of chunks of one shard."""
        try:
            return await self._values_of(shard, wanted)
        except ChunkError as error:
            # The shard is itself a chunk of a larger shard, whose index does not locate it.
            return [error] * len(wanted)

    async def _values_of(self, shard: Coords, wanted: Sequence[tuple[int, ByteRange]]) -> list[Buffer | ChunkError | None]:
        known = self._indexes.get(self._key(shard))
        for _ in range(TRIES):
            fresh = known is None and not self._indexes.is_being_read(self._key(shard))
            if known is None:
                # Read without a stat: a key that is no value (a link in a folder) is an error for readers, not a missing chunk.
                known = await self._indexes.of(self._key(shard), None, lambda: self._reader.read(shard))
            if known is None:
                return [None] * len(wanted)
            try:
                known = await self._reader.located(shard, known, [index for index, _ in wanted])
            except GenerationMismatch:
                self._indexes.discard(self._key(shard))
                known = None
                continue
            values: list[Buffer | ChunkError | None] = [None] * len(wanted)
            ranges: dict[int, ByteRange] = {}
            for number, (index, byte_range) in enumerate(wanted):
                try:
                    found = known.find(index)
                except ShardIndexInvalid as error:
                    values[number] = error
                else:
                    if found is not None:
                        ranges[number] = within(found, byte_range)
            if not fresh and len(ranges) < len(wanted):
                # Reads of other chunks, and those begun before this one, do not reveal that a chunk is now present or readable.
                now = await self._parent.stat(shard)
                if now is None or now.generation != known.stat.generation:
                    self._indexes.discard(self._key(shard))
                    known = None
                    continue
            try:
                parts = await self._parent.get_parts(shard, list(ranges.values()), known.stat.generation) if ranges else []
            except GenerationMismatch:
                self._indexes.discard(self._key(shard))
                known = None
                continue
            for number, part in zip(ranges, parts, strict=True):
                values[number] = part
            return values
        raise restless(self._parent, shard)

    async def list(self, *, outside: bool = False, under: Coords = ()) -> AsyncIterator[StoredChunk]:
        async for shard, known in self._shards(outside=outside, under=under):
            if isinstance(known.index, PagedIndex):
                async for tally in self._reader.tallies(shard, known):
                    for chunk in self._chunks_of(shard, known, tally.stored, outside):
                        if chunk[0][: len(under)] == under:
                            yield chunk
                continue
            for chunk in self.stored_in(shard, known, outside=outside):
                if chunk[0][: len(under)] == under:
                    yield chunk

    def stored_in(self, shard: Coords, known: KnownShard, *, outside: bool = False) -> Iterator[StoredChunk]:
        """Return the chunks of one shard, as `list` yields them."""
        if isinstance(known.index, PagedIndex):
            raise not_at_once(self.spec)
        if not isinstance(known.index, ShardIndex):
            return iter(())
        return self._chunks_of(shard, known, known.index.stored(), outside)

    def _chunks_of(
        self, shard: Coords, known: KnownShard, stored: Iterable[tuple[int, int]], outside: bool
    ) -> Iterator[StoredChunk]:
        for index, nbytes in stored:
            coords = self.spec.coords_of(shard, index)
            if outside or in_grid(coords, self._grid_shape):
                yield coords, nbytes, known.changed.get(index, known.before)[1]


def levels(chunks: ChunkStore) -> tuple[ShardedChunks, ...]:
    """Return the sharded layers of ``chunks``, outermost first."""
    below = levels(chunks.below) if chunks.below is not None else ()
    return (*below, chunks) if isinstance(chunks, ShardedChunks) else below
