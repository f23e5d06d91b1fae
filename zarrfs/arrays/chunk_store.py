"""Chunks of an array as encoded bytes: their keys in a store, and which of them exist.

A `ChunkStore` maps chunk coordinates to encoded bytes; the codec chain gives the bytes their meaning. `StoredChunks` is the base: one
store key per chunk. Other layers are on top of it (docs/design/008-shards.md): `zarrfs.arrays.sharded` for keys that hold many chunks,
`zarrfs.arrays.delayed` for queued writes; `zarrfs.arrays.layers` stacks them.
"""

from __future__ import annotations

import abc
import itertools
import math
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkError, GenerationMismatch, StoreAccessDenied, StoreUnsupported
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.model.chunk_grid import Coords, Shape, in_grid
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.base import Store
from zarrfs.stores.expecting import check, set_over
from zarrfs.stores.values import ABSENT, Generation, KeyStat

StoredChunk = tuple[Coords, int, int | None]
"""Coordinates, stored bytes, mtime_ns (None if the store keeps none)."""

# Attempts to change a part of a value that others keep replacing; and, for a slow change, attempts without a lock before the lock is
# taken.
_TRIES = 64
_TRIES_UNLOCKED = 3
# Folders listed in about 1 ms where none waits.
_FOLDERS_NOW = 16
# Chunks looked up by their keys instead of listing their folder; and the most, if it has as many names.
_FEW = 64
_MOST_BY_KEY = 4096


_stamps = itertools.count(1)


class Merge(abc.ABC):
    """A change of some elements of a chunk, applied to the stored value at publish time.

    ``limit`` is the maximum number of stored bytes that are read. ``is_slow``: the first attempts run without excluding other writers.
    """

    limit: int
    is_slow: bool

    @abc.abstractmethod
    def working(self) -> AbstractAsyncContextManager[None]:
        """Reserve the memory that `onto` takes; entered before any lock of a chunk or shard."""

    @abc.abstractmethod
    async def onto(self, stored: Buffer | None) -> Buffer | None:
        """Return the chunk ``stored`` (None: missing) with the change applied; None to erase it.

        Returns the very object ``stored`` if the chunk stays as it is. May be called several times.
        """

    @abc.abstractmethod
    def lasting(self, result: Buffer | None) -> Lasting:
        """Return the change that produced ``result``, for use without the writer. Called after `onto`."""


class Lasting(Merge):
    """A change that outlives the writer's elements: ``packed`` holds which elements it sets, in compact form."""

    packed: Buffer

    @abc.abstractmethod
    def kept(self, result: Buffer | None, packed: Buffer) -> Lasting:
        """Return the same change, held in other memory."""

    @abc.abstractmethod
    def after(self, earlier: Lasting) -> Lasting:
        """Return both changes combined, where this one was applied to the result of ``earlier``."""

    @abc.abstractmethod
    def resized(self, array: ArrayNode) -> None:
        """Apply the change to chunks of ``array``, which is the same one in another shape, from now on."""


class Written(NamedTuple):
    """A chunk that was written (``data`` None: erased), its new generation, and its time.

    ``merge`` is the change that produced it from the stored chunk of generation ``base`` (``""``: from none): if another chunk is stored
    by now, the change is applied to that. ``expected``: store only over this generation, else raise `GenerationMismatch`; None: over
    any.
    """

    data: Buffer | None
    generation: Generation
    mtime_ns: int
    merge: Lasting | None = None
    base: Generation = ""
    expected: Generation | None = None


def new_generation() -> Generation:
    """Return a generation that is unique in this process."""
    return f"zarrfs-{next(_stamps)}"


class ChunkStore(abc.ABC):
    """Encoded chunks by coordinates, which are inside the grid (checked by the caller).

    ``below`` is the store of chunks that this one is built on, if any.
    """

    below: ChunkStore | None = None

    @abc.abstractmethod
    async def get_with_stat(self, coords: Coords, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        """Return a part of an encoded chunk, and the `stat` of that very value; None if it is not stored."""

    @abc.abstractmethod
    async def get_parts(self, coords: Coords, byte_ranges: Sequence[ByteRange], generation: Generation) -> list[Buffer]:
        """Return parts of one encoded chunk of this `stat` generation. Raises `GenerationMismatch` if that is no longer there."""

    @abc.abstractmethod
    async def get_several(self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE) -> list[Buffer | ChunkError | None]:
        """Return several encoded chunks, or the same part of each, in the order requested.

        None stands for a chunk that is not stored, an error for one that is unavailable while others are available.
        """

    async def get(self, coords: Coords, byte_range: ByteRange = WHOLE) -> Buffer | None:
        """Return the encoded chunk, or a part of it; None if it is not stored."""
        value = (await self.get_several([coords], byte_range))[0]
        if isinstance(value, ChunkError):
            key = self.keys(coords)[0]
            raise value if value.key is not None else type(value)(f"{key!r}: {value}", key=key)
        return value

    async def get_stamped(
        self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE
    ) -> list[tuple[Buffer, Generation] | ChunkError | None]:
        """Return the result of `get_several`, with the generation of each stored chunk."""
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
        """Return stored size, time and generation; None if the chunk is not stored."""

    @abc.abstractmethod
    def list(self, *, outside: bool = False, under: Coords = ()) -> AsyncIterator[StoredChunk]:
        """Return every stored chunk inside the grid, in no particular order; with ``outside``, also those outside the grid.

        ``under``: only chunks whose coordinates begin with these; nothing else is listed or read beyond what these need.
        """

    def list_now(self) -> Sequence[StoredChunk]:
        """Return `list`, if available without waiting and few; else raise `WouldWait`."""
        raise WouldWait

    @abc.abstractmethod
    def keys(self, coords: Coords) -> tuple[Key, ...]:
        """Return the store keys that hold the chunk: those to sync for it."""

    @abc.abstractmethod
    def unit(self, coords: Coords) -> Coords:
        """Return coordinates that identify the store key of the chunk: chunks of one unit are best written together."""

    async def wait_stable(self) -> None:
        """Return when no task is moving or erasing the array."""

    async def confirm(self) -> None:
        """Raise `StaleEntry` if another program has replaced the array: its chunks need not be those of the documents."""

    def holding(self) -> AbstractAsyncContextManager[None]:
        """Keep the array in place around several operations that publish together, with one confirmation for all."""
        return nullcontext()

    @abc.abstractmethod
    async def update(self, chunks: Mapping[Coords, Buffer | None]) -> None:
        """Store these encoded chunks; None erases one. Chunks of one unit are stored together or not at all."""

    async def modify(self, changes: Mapping[Coords, Buffer | Merge | None]) -> None:
        """Run `update` with some chunks changed in part: concurrent changes to their other elements are kept.

        The caller has reserved the memory (`Merge.working`). Chunks of one unit are stored together or not at all.
        """
        units: dict[Coords, dict[Coords, Buffer | Merge | None]] = {}
        for coords, change in changes.items():
            units.setdefault(self.unit(coords), {})[coords] = change
        now = time.time_ns()
        for unit in units.values():
            async with self.exclusive(next(iter(unit))):
                result, merges = split(unit)
                for coords, (stored, _) in (await self.stored(merges)).items():
                    data = await merges[coords].onto(stored)
                    if data is not stored:
                        result[coords] = data
                if result:
                    await self.merge({coords: Written(data, new_generation(), now) for coords, data in result.items()})

    async def stored(self, merges: Mapping[Coords, Merge]) -> dict[Coords, tuple[Buffer | None, Generation]]:
        """Return the stored values of these chunks with their generations; None and ``""`` for a missing one.

        Raises the `ChunkError` of an unavailable one.
        """
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
        """Exclude other changes to parts of the key that holds the chunk: see `Store.exclusive`."""

    @abc.abstractmethod
    async def merge(self, chunks: Mapping[Coords, Written]) -> Mapping[Coords, Generation | None]:
        """Run `update` for a caller that holds `exclusive` of every unit; return the new generations of the chunks.

        A generation is None if the store returns none.
        """

    async def publish(self, coords: Iterable[Coords] | None = None) -> None:
        """Return when the written state of these chunks (None: all) is in the store: writes that `update` queued are flushed."""

    async def set_times(self, coords: Coords, mtime_ns: int) -> None:
        """Set the time of the chunk's key. Raises `StoreUnsupported` if the chunk has no key of its own."""
        raise StoreUnsupported("set times: chunks have no times of their own here")


class HasChunkPrefix(Protocol):
    """Supplier of the prefix of chunks: an array's node, or one that moves (`zarrfs.arrays.live_node`)."""

    @property
    def chunk_prefix(self) -> Prefix:
        """Current prefix of the keys of the chunks."""


@dataclass(frozen=True, slots=True)
class FixedPrefix:
    """A constant chunk prefix."""

    chunk_prefix: Prefix


class StoredChunks(ChunkStore):
    """One store key for each chunk of a grid of ``grid_shape``: the prefix of ``node``, then the coordinates in ``encoding``."""

    def __init__(self, store: Store, node: HasChunkPrefix, encoding: ChunkKeyEncoding, grid_shape: Shape) -> None:
        self._store = store
        self._node = node
        self._encoding = encoding
        self._grid_shape = grid_shape

    def key(self, coords: Coords) -> Key:
        """Return the store key of a chunk."""
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
        keys = self._encoding.keys(self._node.chunk_prefix, coords)
        return [*await self._store.get_partial_values([(key, byte_range) for key in keys])]

    async def stat(self, coords: Coords) -> KeyStat | None:
        return await self._store.stat(self.key(coords))

    async def modify(self, changes: Mapping[Coords, Buffer | Merge | None]) -> None:
        for coords, change in changes.items():
            if isinstance(change, Merge):
                await self._modify(coords, change)
            else:
                await self.update({coords: change})

    async def _modify(self, coords: Coords, merge: Merge) -> None:
        """Apply ``merge`` to a stored chunk, again if the value changes meanwhile.

        Whole sets (in ``raw/``, by another program) may come at any time; so may other merges in the attempts without the lock.
        """
        key = self.key(coords)
        for number in range(_TRIES):
            try:
                if merge.is_slow and number < _TRIES_UNLOCKED:
                    result = await self._result(key, merge)
                    async with self._store.exclusive(key):
                        await self._put_over(key, *result)
                else:
                    async with self._store.exclusive(key):
                        await self._put_over(key, *await self._result(key, merge))
            except GenerationMismatch:
                continue
            return
        raise GenerationMismatch(f"{key!r}: partial change failed: the value was replaced during each attempt", key=key)

    async def _result(self, key: Key, merge: Merge) -> tuple[Buffer | None, Buffer | None, Generation]:
        """Return the merged value, the stored value, and the generation of the latter."""
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
        nested, depth = self._nesting
        if under and not (nested or outside) and (few := await self._few(under)) is not None:
            for chunk in few:
                yield chunk
            return
        folders = under[: len(self._grid_shape) - 1] if nested and not self._encoding.backwards else ()
        inside = "".join([self._encoding.prefix, *(f"{index}/" for index in folders)]) if folders else ""
        async for chunk in self._below(Prefix(self._node.chunk_prefix + inside), inside, depth - inside.count("/")):
            if chunk[0][: len(under)] == under and (outside or in_grid(chunk[0], self._grid_shape)):
                yield chunk

    async def _few(self, under: Coords) -> Sequence[StoredChunk] | None:
        """Return the chunks below ``under`` by their keys, if these are few, or fewer than the names in the one folder of all keys.

        A program that lists a folder for each ``under`` would otherwise list all chunks each time. None if `list` has to list them.
        """
        rest = self._grid_shape[len(under) :]
        if (count := math.prod(rest)) > _MOST_BY_KEY or not in_grid(under, self._grid_shape[: len(under)]):
            return None
        folder = "".join(self._encoding.prefix.rpartition("/")[:2])
        with suppress(StoreAccessDenied):  # A symbolic link is denied by its key, and not listed.
            if count <= _FEW or len(await self._store.peek(Prefix(self._node.chunk_prefix + folder), count) or ()) == count:
                every = [(*under, *inner) for inner in itertools.product(*map(range, rest))]
                return [(each, stat.size, stat.mtime_ns) for each in every if (stat := await self.stat(each)) is not None]
        return None

    def list_now(self) -> Sequence[StoredChunk]:
        if not self._grid_shape and not self._encoding.scalar:
            stat = self._store.stat_now(self.key(()))
            return [((), stat.size, stat.mtime_ns)] if stat is not None else []
        found: list[StoredChunk] = []
        pending = [(self._node.chunk_prefix, "", self._nesting[1])]
        folders = 0
        while pending:
            prefix, relative, depth = pending.pop()
            if (folders := folders + 1) > _FOLDERS_NOW:
                raise WouldWait
            for name, is_prefix, size, mtime_ns in self._store.list_dir_now(prefix):
                if not is_prefix:
                    coords = self._encoding.decode(relative + name, len(self._grid_shape))
                    if coords is not None and in_grid(coords, self._grid_shape):
                        found.append((coords, size, mtime_ns))
                elif depth > 1 and self._encoding.may_begin(relative + name, len(self._grid_shape)):
                    pending.append((prefix.child(name), f"{relative}{name}/", depth - 1))
        return found

    @property
    def _nesting(self) -> tuple[bool, int]:
        """True if keys with a separator of "/" are in nested prefixes; the number of their names."""
        nested = self._encoding.separator == "/"
        return nested, (len(self._grid_shape) if nested else 1) + self._encoding.prefix.count("/")

    async def _put(self, key: Key, value: Buffer | None, expected: Generation | None) -> Generation | None:
        """Set or erase a key; only over the ``expected`` generation, if one is given."""
        if value is not None and expected is not None:
            return await set_over(self._store, key, value, expected or ABSENT)
        if value is not None:
            return await self._store.set(key, value)
        if expected:
            await self._store.erase_if(key, expected)
        elif expected is None:
            await self._store.erase(key)
        else:
            await check(self._store, key, ABSENT)
        return None

    async def _below(self, prefix: Prefix, relative: str, depth: int) -> AsyncIterator[StoredChunk]:
        ndim = len(self._grid_shape)
        async for name, is_prefix, size, mtime_ns in self._store.list_dir(prefix):
            if not is_prefix:
                coords = self._encoding.decode(relative + name, ndim)
                if coords is not None:
                    yield coords, size, mtime_ns
            elif depth > 1 and self._encoding.may_begin(relative + name, ndim):
                async for chunk in self._below(prefix.child(name), f"{relative}{name}/", depth - 1):
                    yield chunk


def split(
    changes: Mapping[Coords, Buffer | Merge | None],
) -> tuple[dict[Coords, Buffer | None], dict[Coords, Merge]]:
    """Return the chunks that are replaced or erased, and those that are changed in part."""
    whole: dict[Coords, Buffer | None] = {}
    merges: dict[Coords, Merge] = {}
    for coords, change in changes.items():
        if isinstance(change, Merge):
            merges[coords] = change
        else:
            whole[coords] = change
    return whole, merges
