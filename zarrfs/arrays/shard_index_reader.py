"""Reads of shard indexes: whole if small enough to be held, else in pages (`zarrfs.arrays.paged_shard_index`)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import numpy as np
import trio

from zarrfs import threads
from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.paged_shard_index import HELD_NBYTES, PAGE_PAIRS, Found, FoundPairs, PagedIndex, Tally
from zarrfs.arrays.shard_index_cache import KnownShard
from zarrfs.arrays.turns import Turns
from zarrfs.buffers import Buffer
from zarrfs.codecs.chain import CodecChain
from zarrfs.codecs.crc32c import extended
from zarrfs.errors import ChunkDecodeError, GenerationMismatch, ShardIndexInvalid
from zarrfs.keys import ByteRange
from zarrfs.model import data_type
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.shards import Pairs, ShardIndex, ShardSpec
from zarrfs.stores.values import KeyStat

log = logging.getLogger(__name__)

TRIES = 8
"""Attempts to read a shard that others keep replacing."""

# Indexes up to this size are read and checked without a turn.
_SMALL_NBYTES = 64 << 10
_PAGES_AT_ONCE = 16
# The checksum of an index that is not held is computed in pieces of this size.
_PIECE_NBYTES = 4 << 20
_CHECKSUM_NBYTES = 4


class ShardIndexReader:
    """Reader of the indexes of ``parent``'s shards. ``paged``: they are read in pages; ``nbytes``: encoded size of each index."""

    def __init__(self, parent: ChunkStore, spec: ShardSpec, counters: WorkCounters, turns: Turns) -> None:
        self._parent = parent
        self._spec = spec
        self._counters = counters
        self._turns = turns
        self.chain = CodecChain.build(spec.index_codecs, data_type.from_name("uint64"))
        self.nbytes = self.chain.encoded_limit(spec.index_shape)
        self.paged = self.nbytes > HELD_NBYTES
        self._index_range = ByteRange(0, self.nbytes) if spec.index_location == "start" else ByteRange.suffix(self.nbytes)

    async def located(self, shard: Coords, known: KnownShard, wanted: Sequence[int]) -> KnownShard:
        """Return ``known`` with the positions of these chunks; the required pages of a paged index are read.

        Raises `GenerationMismatch`.
        """
        index = known.index
        if not isinstance(index, PagedIndex):
            return known
        found: Found = {}
        by_page: dict[int, list[int]] = {}
        for pair in wanted:
            by_page.setdefault(pair // PAGE_PAIRS, []).append(pair)
        pages = list(by_page)
        for start in range(0, len(pages), _PAGES_AT_ONCE):
            async for page, pairs in self._pages(shard, known, pages[start : start + _PAGES_AT_ONCE]):
                found |= {pair: index.pair(pairs, pair) for pair in by_page[page]}
        return replace(known, index=FoundPairs(found))

    async def _pages(self, shard: Coords, known: KnownShard, pages: Sequence[int]) -> AsyncIterator[tuple[int, Pairs]]:
        """Yield pages of an index, cached or read together."""
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
        """Yield the content of each page of an index, in order. Raises `GenerationMismatch`."""
        index = known.index
        assert isinstance(index, PagedIndex)
        for start in range(0, len(index.pages()), _PAGES_AT_ONCE):
            async for page, pairs in self._pages(shard, known, index.pages()[start : start + _PAGES_AT_ONCE]):
                await trio.lowlevel.checkpoint()
                yield index.tally(page, pairs)

    async def read(self, shard: Coords) -> KnownShard | None:
        """Return the shard as stored; None if absent.

        An unreadable index is logged: a copy of the listed chunks lacks those of the shard.
        """
        known = await self._read(shard)
        if known is not None and isinstance(known.index, ShardIndexInvalid):
            log.info("shard %r: its chunks are not listed, and cannot be read: %s", self._parent.keys(shard)[0], known.index)
        return known

    async def _read(self, shard: Coords) -> KnownShard | None:
        if self.paged:
            return await self._read_paged(shard)
        if self.nbytes <= _SMALL_NBYTES:
            return await self._read_whole(shard)
        async with self._turns.take():
            return await self._read_whole(shard)

    async def _read_paged(self, shard: Coords) -> KnownShard | None:
        """Return a shard whose index is not kept in memory, after verifying the existence and the checksum of the index."""
        for _ in range(TRIES):
            # The end of an encoded shard is known once it is read.
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
        for offset in range(start, end, _PIECE_NBYTES):
            piece = ByteRange(offset, min(_PIECE_NBYTES, end - offset))
            data = (await self._parent.get_parts(shard, [piece], stat.generation))[0]
            checksum = await threads.cpu(len(data), extended, checksum, memoryview(data))
        stored = (await self._parent.get_parts(shard, [ByteRange(end, _CHECKSUM_NBYTES)], stat.generation))[0]
        if int.from_bytes(stored, "little") == checksum:
            return None
        return ShardIndexInvalid(
            f"shard index: decode failed: crc32c: stored checksum {int.from_bytes(stored, 'little'):08x}, computed {checksum:08x}"
        )

    async def _read_whole(self, shard: Coords) -> KnownShard | None:
        found = await self._got(shard, self._index_range)
        if found is None or isinstance(found, KnownShard):
            return found
        data, stat = found
        try:
            return KnownShard.read(stat, await threads.cpu(self.nbytes, self._parsed, data, stat.size))
        except ShardIndexInvalid as error:
            return KnownShard.read(stat, error.again())

    async def _got(self, shard: Coords, part: ByteRange) -> tuple[Buffer, KeyStat] | KnownShard | None:
        """Return a part of a shard for its index; None if the shard is absent.

        For an encoded shard that cannot be decoded, returns the shard with that error as its index.
        """
        before = None
        for _ in range(TRIES):
            try:
                found = await self._parent.get_with_stat(shard, part)
            except ChunkDecodeError as error:
                stat = await self._parent.stat(shard)
                if stat is None:
                    return None
                if before is not None and stat.generation == before:
                    return KnownShard.read(stat, ShardIndexInvalid(str(error), key=error.key))
                # The error is of this shard only if that was stored before the read.
                before = stat.generation
                continue
            if found is not None:
                self._counters.shard_indexes_read += 1
            return found
        raise restless(self._parent, shard)

    def _parsed(self, data: Buffer, shard_nbytes: int) -> ShardIndex:
        try:
            if len(data) < self.nbytes:
                raise self._too_short(shard_nbytes)
            pairs = self.chain.decode(data, self._spec.index_shape)
        except ChunkDecodeError as error:
            raise ShardIndexInvalid(f"shard index: decode failed: {error}") from error
        return self.checked(np.ascontiguousarray(pairs).reshape(-1, 2), shard_nbytes)

    def _too_short(self, shard_nbytes: int) -> ShardIndexInvalid:
        return ShardIndexInvalid(f"shard of {shard_nbytes} bytes: shorter than its index ({self.nbytes} bytes)")

    def checked(self, pairs: Pairs, shard_nbytes: int) -> ShardIndex:
        """Return the checked index with these entries, for a shard of ``shard_nbytes`` bytes."""
        if self._spec.index_location == "start":
            return ShardIndex(pairs, shard_nbytes, self.nbytes, shard_nbytes)
        return ShardIndex(pairs, shard_nbytes, 0, shard_nbytes - self.nbytes)


def restless(parent: ChunkStore, shard: Coords) -> GenerationMismatch:
    """Return the error for a shard that was replaced during each attempt to read it."""
    key = parent.keys(shard)[0]
    return GenerationMismatch(f"{key!r}: access failed: the value was replaced during each attempt", key=key)
