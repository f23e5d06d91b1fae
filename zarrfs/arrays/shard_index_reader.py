"""Reading the index of a shard: whole where it is small enough to be held, else in pages (`zarrfs.arrays.paged_shard_index`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import trio

from zarrfs import threads
from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.arrays.counters import HierarchyCounters
from zarrfs.arrays.paged_shard_index import HELD_NBYTES, PAGE_PAIRS, Found, FoundPairs, PagedIndex, Tally
from zarrfs.arrays.shard_index_cache import KnownShard
from zarrfs.arrays.turns import Turns
from zarrfs.codecs.chain import CodecChain
from zarrfs.codecs.crc32c import extended
from zarrfs.errors import ChunkDecodeError, GenerationMismatch, ShardIndexInvalid
from zarrfs.keys import ByteRange
from zarrfs.model import data_type
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.shards import Pairs, ShardIndex, ShardSpec, with_plain_holes
from zarrfs.stores.values import Buffer, KeyStat

TRIES = 8
"""A shard that others replace so often while it is being read is not read."""

# An index up to this size is read and looked at without waiting for a turn.
_SMALL_NBYTES = 64 << 10
_PAGES_AT_ONCE = 16
# A checksum of what is not held is computed piece by piece.
_PIECE_NBYTES = 4 << 20
_CHECKSUM_NBYTES = 4


class ShardIndexReader:
    """Reads the indexes of the shards that ``parent`` holds. ``paged``: whether in pages; ``nbytes``: of each index, encoded."""

    def __init__(self, parent: ChunkStore, spec: ShardSpec, counters: HierarchyCounters, turns: Turns) -> None:
        self._parent = parent
        self._spec = spec
        self._counters = counters
        self._turns = turns
        self.chain = CodecChain.build(spec.index_codecs, data_type.from_name("uint64"))
        self.nbytes = self.chain.encoded_limit(spec.index_shape)
        self.paged = self.nbytes > HELD_NBYTES
        self._index_range = ByteRange(0, self.nbytes) if spec.index_location == "start" else ByteRange.suffix(self.nbytes)

    async def located(self, shard: Coords, known: KnownShard, places: Sequence[int]) -> KnownShard:
        """``known``, which tells where these chunks lie: of an index in pages, those that are needed are read. Raises
        `GenerationMismatch`."""
        index = known.index
        if not isinstance(index, PagedIndex):
            return known
        found: Found = {}
        by_page: dict[int, list[int]] = {}
        for place in places:
            by_page.setdefault(place // PAGE_PAIRS, []).append(place)
        pages = list(by_page)
        for start in range(0, len(pages), _PAGES_AT_ONCE):
            async for page, pairs in self._pages(shard, known, pages[start : start + _PAGES_AT_ONCE]):
                found |= {place: index.pair(pairs, place) for place in by_page[page]}
        return replace(known, index=FoundPairs(found))

    async def _pages(self, shard: Coords, known: KnownShard, pages: Sequence[int]) -> AsyncIterator[tuple[int, Pairs]]:
        """Pages of an index, remembered or read together."""
        index = known.index
        assert isinstance(index, PagedIndex)
        there = {page: pairs for page in pages if (pairs := index.page(page)) is not None}
        absent = [page for page in pages if page not in there]
        if absent:
            parts = await self._parent.get_parts(shard, [index.range_of(page) for page in absent], known.stat.generation)
            for page, part in zip(absent, parts, strict=True):
                there[page] = index.parsed(part)
                index.keep(page, there[page])
        for page in pages:
            yield page, there[page]

    async def tallies(self, shard: Coords, known: KnownShard) -> AsyncIterator[Tally]:
        """What each page of an index says, one after the other. Raises `GenerationMismatch`."""
        index = known.index
        assert isinstance(index, PagedIndex)
        for start in range(0, len(index.pages()), _PAGES_AT_ONCE):
            async for page, pairs in self._pages(shard, known, index.pages()[start : start + _PAGES_AT_ONCE]):
                await trio.lowlevel.checkpoint()
                yield index.tally(page, pairs)

    async def read(self, shard: Coords) -> KnownShard | None:
        """The shard as it is stored; None when it is not."""
        if self.paged:
            return await self._read_paged(shard)
        if self.nbytes <= _SMALL_NBYTES:
            return await self._read_whole(shard)
        async with self._turns.take():
            return await self._read_whole(shard)

    async def _read_paged(self, shard: Coords) -> KnownShard | None:
        """A shard whose index is not held: that it is there, and the checksum, which is that of all of it."""
        for _ in range(TRIES):
            # The end of a shard that is encoded is known when it is read.
            found = await self._got(shard, ByteRange(0, 1))
            if found is None or isinstance(found, KnownShard):
                return found
            _, stat = found
            if stat.size < self.nbytes:
                return KnownShard.read(stat, self._too_short(stat.size))
            at_start = self._spec.index_location == "start"
            start = 0 if at_start else stat.size - self.nbytes
            first, stop = (self.nbytes, stat.size) if at_start else (0, start)
            endian = self._spec.index_codecs[0].configuration.get("endian", "little")
            index = PagedIndex(self._spec.chunks, "<u8" if endian == "little" else ">u8", start, first, stop)
            try:
                async with self._turns.take():
                    bad = await self._checksum_error(shard, stat, start)
            except GenerationMismatch:
                continue
            return KnownShard.read(stat, index if bad is None else bad)
        raise restless(self._parent, shard)

    async def _checksum_error(self, shard: Coords, stat: KeyStat, start: int) -> ShardIndexInvalid | None:
        if len(self._spec.index_codecs) == 1:
            return None
        end = start + self.nbytes - _CHECKSUM_NBYTES
        checksum = 0
        for place in range(start, end, _PIECE_NBYTES):
            piece = ByteRange(place, min(_PIECE_NBYTES, end - place))
            data = (await self._parent.get_parts(shard, [piece], stat.generation))[0]
            checksum = await threads.cpu(len(data), extended, checksum, memoryview(data))
        stored = (await self._parent.get_parts(shard, [ByteRange(end, _CHECKSUM_NBYTES)], stat.generation))[0]
        if int.from_bytes(stored, "little") == checksum:
            return None
        return ShardIndexInvalid(
            f"the index of the shard cannot be read: crc32c: the stored checksum is {int.from_bytes(stored, 'little'):08x}, "
            f"the bytes have {checksum:08x}"
        )

    async def _read_whole(self, shard: Coords) -> KnownShard | None:
        found = await self._got(shard, self._index_range)
        if found is None or isinstance(found, KnownShard):
            return found
        data, stat = found
        try:
            return KnownShard.read(stat, await threads.cpu(self.nbytes, self._parsed, data, stat.size))
        except ShardIndexInvalid as error:
            return KnownShard.read(stat, error)

    async def _got(self, shard: Coords, part: ByteRange) -> tuple[Buffer, KeyStat] | KnownShard | None:
        """A part of a shard for its index; the shard without one, where it is encoded and nothing of it can be had; None where it is not
        stored."""
        try:
            found = await self._parent.get_with_stat(shard, part)
        except ChunkDecodeError as error:
            stat = await self._parent.stat(shard)
            return None if stat is None else KnownShard.read(stat, ShardIndexInvalid(str(error)))
        if found is not None:
            self._counters.shard_indexes_read += 1
        return found

    def _parsed(self, data: Buffer, shard_nbytes: int) -> ShardIndex:
        try:
            if len(data) < self.nbytes:
                raise self._too_short(shard_nbytes)
            pairs = self.chain.decode(data, self._spec.index_shape)
        except ChunkDecodeError as error:
            raise ShardIndexInvalid(f"the index of the shard cannot be read: {error}") from error
        return self.checked(np.ascontiguousarray(pairs).reshape(-1, 2), shard_nbytes)

    def _too_short(self, shard_nbytes: int) -> ShardIndexInvalid:
        return ShardIndexInvalid(f"{shard_nbytes} bytes are fewer than its index has ({self.nbytes})")

    def checked(self, pairs: Pairs, shard_nbytes: int) -> ShardIndex:
        """The index of these pairs in a shard of so many bytes."""
        if self._spec.index_location == "start":
            return ShardIndex(with_plain_holes(pairs, self.nbytes), shard_nbytes, self.nbytes, shard_nbytes)
        return ShardIndex(pairs, shard_nbytes, 0, shard_nbytes - self.nbytes)


def restless(parent: ChunkStore, shard: Coords) -> GenerationMismatch:
    """The error for a shard that was replaced each time."""
    key = parent.keys(shard)[0]
    return GenerationMismatch(f"{key!r} was replaced each time that it was being read", key=key)
