"""Survey of the shards of an array: each index as a whole, for reports on a store.

Reads no chunk. Findings are returned as data: an unreadable index is not an error of the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from zarrfs.arrays.chunk_store import ChunkStore, StoredChunk
from zarrfs.arrays.concurrency import for_each
from zarrfs.arrays.paged_shard_index import PagedIndex, outside
from zarrfs.arrays.shard_index_cache import KnownShard
from zarrfs.arrays.sharded import ShardedChunks, levels
from zarrfs.codecs.chain import CodecChain
from zarrfs.errors import ShardIndexInvalid, ZarrfsError
from zarrfs.keys import ByteRange, Key
from zarrfs.model import data_type
from zarrfs.model.chunk_grid import Coords, Shape, in_grid
from zarrfs.model.metadata import ArrayMetadata
from zarrfs.model.shards import ShardIndex, ShardSpec

_WIDTH = 16


@dataclass(frozen=True, slots=True)
class SurveyedShard:
    """One stored shard. ``level``: 0 for the outermost. ``key``: the store key that holds it.

    Its chunks are its direct content: in a shard that is not of the ``innermost`` level, other shards.

    ``reason``: why the index is unreadable (all counts are then 0); None if it is readable. ``stored``: readable chunks inside the grid;
    ``bad``: chunks with an invalid index entry; ``outside``: chunks outside the grid; ``possible``: chunks that the grid has there.
    ``unused_nbytes``: bytes of the shard that belong neither to a chunk nor to the index.
    """

    level: int
    coords: Coords
    key: Key
    innermost: bool
    spec: ShardSpec
    grid_shape: Shape
    index: ShardIndex | None = None
    paged: tuple[ShardedChunks, KnownShard] | None = None
    reason: str | None = None
    stored: int = 0
    bad: int = 0
    outside: int = 0
    possible: int = 0
    unused_nbytes: int = 0

    def chunks(self) -> Iterator[tuple[Coords, int]]:
        """Return coordinates and stored bytes of the ``stored`` chunks, if the index is held whole."""
        return self._inside(self.index.stored() if self.index is not None else ())

    async def every_chunk(self) -> AsyncIterator[tuple[Coords, int]]:
        """Yield the result of `chunks`, also if the index is paged."""
        if self.paged is not None:
            store, known = self.paged
            async for tally in store.tallies(self.coords, known):
                for each in self._inside(tally.stored):
                    yield each
        for each in self.chunks():
            yield each

    def _inside(self, stored: Iterable[tuple[int, int]]) -> Iterator[tuple[Coords, int]]:
        for pair, nbytes in stored:
            coords = self.spec.coords_of(self.coords, pair)
            if in_grid(coords, self.grid_shape):
                yield coords, nbytes

    def reasons(self) -> Iterator[tuple[Coords, str]]:
        """Yield the coordinates of the ``bad`` chunks, and the defect of each."""
        if self.index is None or not self.bad:
            return
        sound = {pair for pair, _ in self.index.stored()}
        for pair in self.index.stored_pairs():
            if pair not in sound:
                try:
                    self.index.find(pair)
                except ShardIndexInvalid as error:
                    yield self.spec.coords_of(self.coords, pair), str(error)


class ShardSurvey:
    """The shards of a sharded array. ``chunks`` are its chunks, ``grid_shape`` is that of the outermost shards."""

    def __init__(self, chunks: ChunkStore, metadata: ArrayMetadata) -> None:
        self._levels = levels(chunks)
        self._bottom: ChunkStore = self._levels[0]
        while self._bottom.below is not None:
            self._bottom = self._bottom.below
        self.grid_shape = metadata.stored_grid_shape
        self._per_shard = metadata.chunks_per_key
        self._metadata = metadata
        index_type = data_type.from_name("uint64")
        self._index_nbytes = [
            CodecChain.build(spec.index_codecs, index_type).encoded_limit(spec.index_shape) for spec in metadata.shards
        ]
        self._grids = [metadata.grid_shape]
        for spec in reversed(metadata.shards[1:]):
            self._grids.insert(0, spec.grid_of_shards(self._grids[0]))

    def possible(self, shard: Coords) -> int:
        """Return the number of innermost chunks of an outermost shard inside the grid, stored or not."""
        return ShardSpec(self._per_shard).count_within(shard, self._metadata.grid_shape)

    def key(self, shard: Coords) -> Key:
        """Return the key of an outermost shard."""
        return self._bottom.keys(shard)[0]

    def list_shards(self) -> AsyncIterator[StoredChunk]:
        """Return the stored outermost shards, also those outside the grid, with their sizes. Raises `StoreUnsupported`."""
        return self._bottom.list(outside=True)

    async def look(self, shard: Coords) -> None:
        """Read one byte of an outermost shard, stored or not. Raises the error that prevents it."""
        await self._bottom.get(shard, ByteRange(0, 1))

    async def survey(self, shards: Sequence[Coords]) -> AsyncIterator[SurveyedShard]:
        """Yield the stored ones of these outermost shards, each followed by those within it; several indexes are read concurrently."""
        for start in range(0, len(shards), _WIDTH):
            for surveyed in await self._several(0, shards[start : start + _WIDTH]):
                async for each in self._with_inner(surveyed):
                    yield each

    async def _with_inner(self, surveyed: SurveyedShard) -> AsyncIterator[SurveyedShard]:
        yield surveyed
        if surveyed.innermost:
            return
        portion: list[Coords] = []
        async for coords, _ in surveyed.every_chunk():
            portion.append(coords)
            if len(portion) == _WIDTH:
                for inner in await self._several(surveyed.level + 1, portion):
                    async for each in self._with_inner(inner):
                        yield each
                portion.clear()
        for inner in await self._several(surveyed.level + 1, portion):
            async for each in self._with_inner(inner):
                yield each

    async def _several(self, level: int, shards: Sequence[Coords]) -> list[SurveyedShard]:
        found: dict[Coords, SurveyedShard] = {}

        async def one(shard: Coords) -> None:
            surveyed = await self._one(level, shard)
            if surveyed is not None:
                found[shard] = surveyed

        await for_each(shards, one, _WIDTH)
        return [found[shard] for shard in shards if shard in found]

    async def _one(self, level: int, shard: Coords) -> SurveyedShard | None:
        store = self._levels[level]
        stored: KnownShard | ZarrfsError | None
        try:
            stored = await store.shard(shard)
        except ZarrfsError as error:
            stored = error
        if isinstance(stored, KnownShard) and isinstance(stored.index, PagedIndex):
            try:
                return await self._surveyed_in_pages(level, store, shard, stored)
            except ZarrfsError as error:
                stored = error
        return None if stored is None else self._surveyed(level, store, shard, stored)

    async def _surveyed_in_pages(self, level: int, store: ShardedChunks, shard: Coords, stored: KnownShard) -> SurveyedShard:
        spec, grid_shape = store.spec, self._grids[level]
        possible = spec.count_within(shard, grid_shape)
        count = bad = beyond = used = 0
        async for tally in store.tallies(shard, stored):
            count += len(tally.stored)
            bad += len(tally.bad)
            used += sum(nbytes for _, nbytes in tally.stored)
            if possible < spec.chunks:
                beyond += outside(spec, shard, (pair for pair, _ in tally.stored), grid_shape)
        return SurveyedShard(
            level,
            shard,
            (store.below or store).keys(shard)[0],
            level == len(self._levels) - 1,
            spec,
            grid_shape,
            paged=(store, stored),
            stored=count - beyond,
            bad=bad,
            outside=beyond,
            possible=possible,
            # Where chunks share bytes, the sum exceeds the size of the shard.
            unused_nbytes=max(0, stored.stat.size - used - self._index_nbytes[level]),
        )

    def _surveyed(self, level: int, store: ShardedChunks, shard: Coords, stored: KnownShard | ZarrfsError) -> SurveyedShard:
        spec, grid_shape, key = store.spec, self._grids[level], (store.below or store).keys(shard)[0]
        innermost = level == len(self._levels) - 1
        index = stored.index if isinstance(stored, KnownShard) else stored
        if not isinstance(stored, KnownShard) or not isinstance(index, ShardIndex):
            return SurveyedShard(level, shard, key, innermost, spec, grid_shape, reason=str(index))
        possible = spec.count_within(shard, grid_shape)
        outside = 0
        if possible < spec.chunks:
            outside = sum(not in_grid(spec.coords_of(shard, pair), grid_shape) for pair, _ in index.stored())
        return SurveyedShard(
            level,
            shard,
            key,
            innermost,
            spec,
            grid_shape,
            index=index,
            stored=index.count - index.bad_count - outside,
            bad=index.bad_count,
            outside=outside,
            possible=possible,
            unused_nbytes=stored.stat.size - index.used_nbytes - self._index_nbytes[level],
        )
