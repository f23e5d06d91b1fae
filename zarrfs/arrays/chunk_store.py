"""Chunks of an array as encoded bytes: where they lie in a store, and which exist.

A `ChunkStore` maps chunk coordinates to encoded bytes; what is in the bytes is the codec chain's business. `StoredChunks` is the plain
one: one store key a chunk. Others lie over it (docs/design/008-shards.md): `zarrfs.arrays.sharded` where a key holds many,
`zarrfs.arrays.delayed` where what was written waits; `zarrfs.arrays.layers` puts them together.
"""

from __future__ import annotations

import abc
import itertools
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from zarrfs.errors import ChunkError, GenerationMismatch, StoreUnsupported
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.model.chunk_grid import Coords, Shape, in_grid
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.stores.base import Store
from zarrfs.stores.expecting import check, set_over
from zarrfs.stores.values import ABSENT, Buffer, Generation, KeyStat

StoredChunk = tuple[Coords, int, int | None]
"""Coordinates, stored bytes, mtime_ns (None where the store keeps none)."""

# A value that others replace so often while a part of it is to be changed is not changed; and of one that takes long to be made, how
# often that is tried before others are kept out.
_TRIES = 64
_TRIES_UNLOCKED = 3


_stamps = itertools.count(1)


class Merge(abc.ABC):
    """A change of some elements of a chunk, to be made in the value that is stored when it is published.

    ``limit``: the most bytes that are read of what is stored. ``is_slow``: it takes so long that others are not kept out meanwhile.
    """

    limit: int
    is_slow: bool

    @abc.abstractmethod
    def working(self) -> AbstractAsyncContextManager[None]:
        """The memory that `onto` takes; entered before any lock of a chunk or shard."""

    @abc.abstractmethod
    async def onto(self, stored: Buffer | None) -> Buffer | None:
        """The chunk that is ``stored`` (None: none is), with the change made in it; that very object where it is to stay as it is; None
        where it is to be erased. May be called several times."""

    @abc.abstractmethod
    def lasting(self, made: Buffer | None) -> Lasting:
        """The change that gave ``made``, for when the writer is gone. After `onto`."""


class Lasting(Merge):
    """A change that is kept for longer than the writer's elements: ``packed`` tells which they are, in as few bytes as that takes."""

    packed: Buffer

    @abc.abstractmethod
    def kept(self, made: Buffer | None, packed: Buffer) -> Lasting:
        """The same, in other memory."""

    @abc.abstractmethod
    def after(self, earlier: Lasting) -> Lasting:
        """Both changes, of which this one was made in what the ``earlier`` one gave."""


class Written(NamedTuple):
    """A chunk that was written (``data`` None: erased), the generation that it has by that, and when.

    ``merge``: the change by which it became so from the stored chunk of generation ``base`` (``""``: from none): where another one is
    stored by now, the change is made in that. ``expected``: it is stored only over this generation, else `GenerationMismatch`; None:
    over any.
    """

    data: Buffer | None
    generation: Generation
    mtime_ns: int
    merge: Lasting | None = None
    base: Generation = ""
    expected: Generation | None = None


def new_generation() -> Generation:
    """One that nothing else in this process has."""
    return f"zarrfs-{next(_stamps)}"


class ChunkStore(abc.ABC):
    """Encoded chunks by coordinates. Coordinates are inside the grid; the caller checks. ``below``: what these chunks lie in, if that
    holds chunks too."""

    below: ChunkStore | None = None

    @abc.abstractmethod
    async def get_with_stat(self, coords: Coords, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        """A part of an encoded chunk, and what `stat` tells of that very value; None when it is not stored."""

    @abc.abstractmethod
    async def get_parts(self, coords: Coords, byte_ranges: Sequence[ByteRange], generation: Generation) -> list[Buffer]:
        """Parts of one encoded chunk, of the generation that `stat` told. Raises `GenerationMismatch` when that is no longer there."""

    @abc.abstractmethod
    async def get_several(self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE) -> list[Buffer | ChunkError | None]:
        """Several encoded chunks, or the same part of each, in the order asked for; None for each that is not stored, and for one that
        cannot be had while others can, the reason."""

    async def get(self, coords: Coords, byte_range: ByteRange = WHOLE) -> Buffer | None:
        """The encoded chunk, or a part of it; None when it is not stored."""
        value = (await self.get_several([coords], byte_range))[0]
        if isinstance(value, ChunkError):
            raise value
        return value

    async def get_stamped(
        self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE
    ) -> list[tuple[Buffer, Generation] | ChunkError | None]:
        """As `get_several`, with the generation of each that is stored."""
        found: list[tuple[Buffer, Generation] | ChunkError | None] = []
        for each in coords:
            try:
                value = await self.get_with_stat(each, byte_range)
            except ChunkError as error:
                found.append(error)
            else:
                found.append(None if value is None else (value[0], value[1].generation))
        return found

    @abc.abstractmethod
    async def stat(self, coords: Coords) -> KeyStat | None:
        """Stored size, time and generation; None when it is not stored."""

    @abc.abstractmethod
    def list(self, *, outside: bool = False, under: Coords = ()) -> AsyncIterator[StoredChunk]:
        """Every chunk inside the grid that is stored, in no particular order; with ``outside``, those outside the grid too. ``under``:
        only those whose coordinates begin with these; no more is listed, or read, than has to be for them."""

    @abc.abstractmethod
    def keys(self, coords: Coords) -> tuple[Key, ...]:
        """Store keys that hold the chunk: what a sync of it has to sync."""

    @abc.abstractmethod
    def unit(self, coords: Coords) -> Coords:
        """What tells the key of the store that holds the chunk from others: chunks of one unit are best written together."""

    async def settled(self) -> None:
        """Return when nobody is moving or erasing the array."""

    def holding(self) -> AbstractAsyncContextManager[None]:
        """Around several operations that publish together: the array stays where it is, and is asked for once."""
        return nullcontext()

    @abc.abstractmethod
    async def update(self, chunks: Mapping[Coords, Buffer | None]) -> None:
        """Store these encoded chunks; None erases one. Of one unit, all or none are stored."""

    async def modify(self, changes: Mapping[Coords, Buffer | Merge | None]) -> None:
        """As `update`, where some chunks are changed in part: what others store of them is not lost. The caller has the memory for it
        (`Merge.working`). Of one unit, all or none are stored."""
        units: dict[Coords, dict[Coords, Buffer | Merge | None]] = {}
        for coords, change in changes.items():
            units.setdefault(self.unit(coords), {})[coords] = change
        now = time.time_ns()
        for unit in units.values():
            async with self.exclusive(next(iter(unit))):
                made, merges = split(unit)
                for coords, (stored, _) in (await self.stored(merges)).items():
                    data = await merges[coords].onto(stored)
                    if data is not stored:
                        made[coords] = data
                if made:
                    await self.merge({coords: Written(data, new_generation(), now) for coords, data in made.items()})

    async def stored(self, merges: Mapping[Coords, Merge]) -> dict[Coords, tuple[Buffer | None, Generation]]:
        """What is stored of these chunks, and its generations; None and ``""`` for one that is not. Raises the `ChunkError` of one that
        cannot be had."""
        if not merges:
            return {}
        found: dict[Coords, tuple[Buffer | None, Generation]] = {}
        limit = max(merge.limit for merge in merges.values())
        for coords, value in zip(merges, await self.get_stamped(list(merges), ByteRange(0, limit + 1)), strict=True):
            if isinstance(value, ChunkError):
                raise value
            found[coords] = value if value is not None else (None, "")
        return found

    @abc.abstractmethod
    def exclusive(self, coords: Coords) -> AbstractAsyncContextManager[None]:
        """While held, nobody else changes a part of what holds the chunk: see `Store.exclusive`."""

    @abc.abstractmethod
    async def merge(self, chunks: Mapping[Coords, Written]) -> Mapping[Coords, Generation | None]:
        """As `update`, for a caller that holds `exclusive` of every unit. Gives the generations that the chunks have by that; None where
        the store does not tell."""

    async def publish(self, coords: Iterable[Coords] | None = None) -> None:
        """Return when these chunks (None: all) are in the store as far as they were written: what `update` keeps back goes there."""

    async def set_times(self, coords: Coords, mtime_ns: int) -> None:
        """Give the chunk's key this time. Raises `StoreUnsupported` where it has none of its own."""
        raise StoreUnsupported("chunks have no times of their own here")


class HasChunkPrefix(Protocol):
    """Something that tells where chunks lie: an array's node, or one that moves (`zarrfs.arrays.live_node`)."""

    @property
    def chunk_prefix(self) -> Prefix:
        """What the keys of the chunks begin with, now."""


@dataclass(frozen=True, slots=True)
class FixedPrefix:
    """Chunks that lie there, whatever else is."""

    chunk_prefix: Prefix


class StoredChunks(ChunkStore):
    """One store key for each chunk of a grid of ``grid_shape``: the prefix that ``node`` has, and what ``encoding`` makes of the
    coordinates."""

    def __init__(self, store: Store, node: HasChunkPrefix, encoding: ChunkKeyEncoding, grid_shape: Shape) -> None:
        self._store = store
        self._node = node
        self._encoding = encoding
        self._grid_shape = grid_shape

    def key(self, coords: Coords) -> Key:
        """The store key of a chunk."""
        return self._encoding.key(self._node.chunk_prefix, coords)

    def keys(self, coords: Coords) -> tuple[Key, ...]:
        return (self.key(coords),)

    def unit(self, coords: Coords) -> Coords:
        return coords

    async def get_with_stat(self, coords: Coords, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        return await self._store.get_with_stat(self.key(coords), byte_range)

    async def get_parts(self, coords: Coords, byte_ranges: Sequence[ByteRange], generation: Generation) -> list[Buffer]:
        key = self.key(coords)
        values = await self._store.get_partial_values([(key, each) for each in byte_ranges], if_generation=generation)
        return [value for value in values if value is not None]

    async def get_several(self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE) -> list[Buffer | ChunkError | None]:
        if len(coords) == 1 and byte_range == WHOLE:
            return [await self._store.get(self.key(coords[0]))]
        return [*await self._store.get_partial_values([(self.key(each), byte_range) for each in coords])]

    async def stat(self, coords: Coords) -> KeyStat | None:
        return await self._store.stat(self.key(coords))

    async def modify(self, changes: Mapping[Coords, Buffer | Merge | None]) -> None:
        for coords, change in changes.items():
            if isinstance(change, Merge):
                await self._modify(coords, change)
            else:
                await self.update({coords: change})

    async def _modify(self, coords: Coords, merge: Merge) -> None:
        """Whole sets (in ``raw/``, by another program) may come at any time, and have the change made anew; so do other changes, as long
        as none keeps them out."""
        key = self.key(coords)
        for number in range(_TRIES):
            try:
                if merge.is_slow and number < _TRIES_UNLOCKED:
                    made = await self._made(key, merge)
                    async with self._store.exclusive(key):
                        await self._put_over(key, *made)
                else:
                    async with self._store.exclusive(key):
                        await self._put_over(key, *await self._made(key, merge))
            except GenerationMismatch:
                continue
            return
        raise GenerationMismatch(f"{key!r} was replaced each time that a part of it was to be changed", key=key)

    async def _made(self, key: Key, merge: Merge) -> tuple[Buffer | None, Buffer | None, Generation]:
        """What becomes of what is stored, that, and its generation."""
        found = await self._store.get_with_stat(key, ByteRange(0, merge.limit + 1))
        stored, generation = (found[0], found[1].generation) if found is not None else (None, "")
        return await merge.onto(stored), stored, generation

    async def _put_over(self, key: Key, data: Buffer | None, stored: Buffer | None, generation: Generation) -> None:
        if data is not stored:
            await self._put(key, data, generation)

    async def update(self, chunks: Mapping[Coords, Buffer | None]) -> None:
        erased = []
        for coords, value in chunks.items():
            if value is None:
                erased.append(self.key(coords))
            else:
                await self._store.set(self.key(coords), value)
        if len(erased) == 1:
            await self._store.erase(erased[0])
        elif erased:
            await self._store.erase_values(erased)

    def exclusive(self, coords: Coords) -> AbstractAsyncContextManager[None]:
        return self._store.exclusive(self.key(coords))

    async def merge(self, chunks: Mapping[Coords, Written]) -> Mapping[Coords, Generation | None]:
        return {coords: await self._put(self.key(coords), written.data, written.expected) for coords, written in chunks.items()}

    async def set_times(self, coords: Coords, mtime_ns: int) -> None:
        await self._store.set_times(self.key(coords), mtime_ns)

    async def list(self, *, outside: bool = False, under: Coords = ()) -> AsyncIterator[StoredChunk]:
        if not self._grid_shape and not self._encoding.scalar:
            stat = await self.stat(())
            if stat is not None:
                yield (), stat.size, stat.mtime_ns
            return
        # Keys with a separator of "/" lie in nested prefixes.
        nested = self._encoding.separator == "/"
        depth = (len(self._grid_shape) if nested else 1) + self._encoding.prefix.count("/")
        folders = under[: len(self._grid_shape) - 1] if nested and not self._encoding.backwards else ()
        inside = "".join([self._encoding.prefix, *(f"{index}/" for index in folders)]) if folders else ""
        async for chunk in self._below(Prefix(self._node.chunk_prefix + inside), inside, depth - inside.count("/")):
            if chunk[0][: len(under)] == under and (outside or in_grid(chunk[0], self._grid_shape)):
                yield chunk

    async def _put(self, key: Key, value: Buffer | None, expected: Generation | None) -> Generation | None:
        """Set or erase a key; only over the ``expected`` generation, if one is given."""
        if value is not None and expected is not None:
            return await set_over(self._store, key, value, expected or ABSENT)
        if value is not None:
            return await self._store.set(key, value)
        if expected is not None:
            await check(self._store, key, expected or ABSENT)
        await self._store.erase(key)
        return None

    async def _below(self, prefix: Prefix, relative: str, depth: int) -> AsyncIterator[StoredChunk]:
        ndim = len(self._grid_shape)
        async for name, is_prefix, size, mtime_ns in self._store.list_dir(prefix):
            if not is_prefix:
                coords = self._encoding.decode(relative + name, ndim)
                if coords is not None:
                    yield coords, size, mtime_ns
            elif depth > 1 and self._encoding.may_begin(relative + name):
                async for chunk in self._below(prefix.child(name), f"{relative}{name}/", depth - 1):
                    yield chunk


def split(
    changes: Mapping[Coords, Buffer | Merge | None],
) -> tuple[dict[Coords, Buffer | None], dict[Coords, Merge]]:
    """Chunks that are replaced or erased, and those that are changed in part."""
    whole: dict[Coords, Buffer | None] = {}
    merges: dict[Coords, Merge] = {}
    for coords, change in changes.items():
        if isinstance(change, Merge):
            merges[coords] = change
        else:
            whole[coords] = change
    return whole, merges
