"""Shards behind bytes -> bytes codecs, decoded to plain shards.

Source: v3 final, "Codecs": codecs that follow ``sharding_indexed`` in a chain apply to the whole shard. No part of such a shard can be
read by itself; the last decoded ones are therefore cached.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from zarrfs import threads
from zarrfs.arrays.chunk_store import ChunkStore, StoredChunk, Written
from zarrfs.arrays.turns import Turns
from zarrfs.buffers import Buffer
from zarrfs.codecs import lookup
from zarrfs.codecs.base import BYTE, BytesBytesCodec
from zarrfs.errors import ChunkDecodeError, ChunkError, GenerationMismatch, MetadataError, StoreError, TooLarge
from zarrfs.keys import WHOLE, ByteRange, Key
from zarrfs.memory.spill import Buffers, in_memory, is_intact, refuse_lost
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.stores.values import Generation, KeyStat

# Readers go through the shards of an array in order. Large ones are in files.
_REMEMBERED = 8
_REMEMBERED_NBYTES = 16 << 20


class DecompressedShards:
    """LRU cache of decoded shards, for all arrays of a mount."""

    def __init__(self) -> None:
        self._decoded: OrderedDict[tuple[int, Coords], tuple[Buffer, KeyStat]] = OrderedDict()
        self._serials = itertools.count(1)

    def serial(self) -> int:
        """Return a number unique to the caller, for its cache keys."""
        return next(self._serials)

    def get(self, key: tuple[int, Coords]) -> tuple[Buffer, KeyStat] | None:
        """Return a cached shard of any generation; None, too, if the disk may have lost bytes of its file."""
        found = self._decoded.get(key)
        if found is not None and not is_intact(found[0]):
            self.discard(key)
            return None
        if found is not None:
            self._decoded.move_to_end(key)
        return found

    def put(self, key: tuple[int, Coords], decoded: tuple[Buffer, KeyStat]) -> None:
        """Add a shard to the cache."""
        self._decoded[key] = decoded
        while len(self._decoded) > _REMEMBERED or (
            len(self._decoded) > 1 and sum(in_memory(len(data)) for data, _ in self._decoded.values()) > _REMEMBERED_NBYTES
        ):
            self._decoded.popitem(last=False)

    def discard(self, key: tuple[int, Coords]) -> None:
        """Remove a shard from the cache."""
        self._decoded.pop(key, None)


class CompressedShards(ChunkStore):
    """The values of ``parent`` without ``codecs`` (in the order of encoding), none of which is longer than ``limit`` bytes.

    `list` returns encoded sizes.
    """

    def __init__(
        self, parent: ChunkStore, codecs: Sequence[CodecSpec], limit: int, decoded: DecompressedShards, turns: Turns
    ) -> None:
        self._parent = self.below = parent
        self._codecs: list[BytesBytesCodec] = []
        self._limits = [limit]
        for spec in codecs:
            _, codec = lookup.resolve(spec, BYTE)
            if not isinstance(codec, BytesBytesCodec):
                raise MetadataError(f"codec {spec.name!r} cannot follow sharding")
            self._codecs.append(codec)
            self._limits.append(codec.encoded_limit(self._limits[-1]))
        self._decoded = decoded
        self._serial = decoded.serial()
        self._turns = turns

    def keys(self, coords: Coords) -> tuple[Key, ...]:
        return self._parent.keys(coords)

    def unit(self, coords: Coords) -> Coords:
        return self._parent.unit(coords)

    def exclusive(self, coords: Coords) -> AbstractAsyncContextManager[None]:
        return self._parent.exclusive(coords)

    async def get_with_stat(self, coords: Coords, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        whole = await self._whole(coords)
        if whole is None:
            return None
        data, stat = whole
        return _part(data, byte_range, Buffers()), stat

    async def get_parts(self, coords: Coords, byte_ranges: Sequence[ByteRange], generation: Generation) -> list[Buffer]:
        whole = await self._whole(coords)
        if whole is None or whole[1].generation != generation:
            raise GenerationMismatch(f"{self.keys(coords)[0]!r} was changed concurrently", key=self.keys(coords)[0])
        buffers = Buffers()
        return [_part(whole[0], each, buffers) for each in byte_ranges]

    async def get_several(self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE) -> list[Buffer | ChunkError | None]:
        values: list[Buffer | ChunkError | None] = []
        buffers = Buffers()
        for each in coords:
            try:
                whole = await self._whole(each)
            except ChunkError as error:
                values.append(error)
            else:
                values.append(_part(whole[0], byte_range, buffers) if whole is not None else None)
        return values

    async def stat(self, coords: Coords) -> KeyStat | None:
        stat = await self._parent.stat(coords)
        if stat is None:
            return None
        known = self._decoded.get((self._serial, coords))
        if known is not None and known[1].generation == stat.generation:
            return known[1]
        # Shards need only the generation; the decoded size is known once the value is read.
        return stat

    async def list(self, *, outside: bool = False, under: Coords = ()) -> AsyncIterator[StoredChunk]:
        async for chunk in self._parent.list(outside=outside, under=under):
            yield chunk

    async def update(self, chunks: Mapping[Coords, Buffer | None]) -> None:
        encoded: dict[Coords, Buffer | None] = {}
        for coords, data in chunks.items():
            encoded[coords] = None if data is None else await threads.cpu(len(data), self._encode, data)
        await self._parent.update(encoded)

    async def merge(self, chunks: Mapping[Coords, Written]) -> Mapping[Coords, Generation | None]:
        encoded: dict[Coords, Written] = {}
        for coords, written in chunks.items():
            data = written.data
            encoded[coords] = written._replace(data=None if data is None else await threads.cpu(len(data), self._encode, data))
            self._decoded.discard((self._serial, coords))
        return await self._parent.merge(encoded)

    async def _whole(self, coords: Coords) -> tuple[Buffer, KeyStat] | None:
        stat = await self._parent.stat(coords)
        cache_key = (self._serial, coords)
        known = self._decoded.get(cache_key)
        if known is not None and stat is not None and known[1].generation == stat.generation:
            return known
        if stat is None:
            self._decoded.discard(cache_key)
            return None
        async with self._turns.take():
            # Another task may have decoded it meanwhile.
            known = self._decoded.get(cache_key)
            if known is not None and known[1].generation == stat.generation:
                return known
            # One byte more than the maximum: an oversized value is refused without being read whole.
            found = await self._parent.get_with_stat(coords, ByteRange(0, self._limits[-1] + 1))
            if found is None:
                self._decoded.discard(cache_key)
                return None
            data, stat = found
            try:
                whole = await threads.cpu(len(data), self._decode, data)
            except (ChunkDecodeError, StoreError, TooLarge) as error:
                key = self.keys(coords)[0]
                raise type(error)(f"decoding shard {key!r}: {error}", key=key) from error
            decoded = whole, stat._replace(size=len(whole))
            self._decoded.put(cache_key, decoded)
            return decoded

    def _decode(self, data: Buffer) -> Buffer:
        if len(data) > self._limits[-1]:
            raise ChunkDecodeError(f"stored size exceeds the maximum of {self._limits[-1]} bytes")
        for codec, limit in zip(reversed(self._codecs), reversed(self._limits[:-1]), strict=True):
            decoded = codec.decode(data, limit)
            refuse_lost(data)
            data = decoded
        return data

    def _encode(self, data: Buffer) -> Buffer:
        for codec in self._codecs:
            encoded = codec.encode(data)
            refuse_lost(data)
            data = encoded
        return data


def _part(data: Buffer, byte_range: ByteRange, buffers: Buffers) -> Buffer:
    """Return a part of a decoded shard, as a copy if small: caches and open files would keep the whole shard, and count the part."""
    start, stop = byte_range.resolve(len(data))
    part = memoryview(data)[start:stop]
    if len(part) == len(data) or not buffers.has_memory(len(part)):
        return part
    copy = bytes(part)
    refuse_lost(data)
    return copy
