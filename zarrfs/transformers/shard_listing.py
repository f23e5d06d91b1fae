"""Exact listings of the chunk keys in front of shards.

Source: v3 core 2022, "Sharding storage transformer (version 1.0)", "API implementation": ``list_prefix`` and ``list_dir``. The text
allows ``list_dir`` to name empty prefixes. This implementation does not: it reads indexes until each possible prefix is found or all
indexes are read.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence

from zarrfs.arrays.chunk_store import StoredChunk
from zarrfs.arrays.shard_index_cache import KnownShard
from zarrfs.arrays.sharded import WIDTH, ShardedChunks
from zarrfs.keys import Key, Prefix
from zarrfs.model.chunk_grid import Coords
from zarrfs.stores.base import Store
from zarrfs.stores.values import DirEntry
from zarrfs.transformers.sharded_grid import ShardedGrid


class ShardListing:
    """Lists ``chunks`` of ``grid``, whose shards ``inner`` stores beside other keys."""

    def __init__(self, inner: Store, grid: ShardedGrid, chunks: ShardedChunks) -> None:
        self._inner = inner
        self._grid = grid
        self._chunks = chunks

    async def list_prefix(self, prefix: Prefix) -> AsyncIterator[Key]:
        lead = self._grid.lead(prefix)
        if lead:
            async for shard, known in self._chunks.known(self.shards(prefix, lead)):
                for coords, _, _ in self._stored(shard, known, lead):
                    yield self._grid.chunks.key(coords)
        portion: list[Coords] = []
        async for key in self._inner.list_prefix(prefix):
            stored = self._grid.shards.decode(key)
            if stored is None:
                yield key
            elif not lead and self._grid.shards.holds(stored):
                portion.append(stored)
                if len(portion) == WIDTH:
                    for each in await self._keys_in(portion):
                        yield each
                    portion.clear()
        for each in await self._keys_in(portion):
            yield each

    async def list_dir(self, prefix: Prefix) -> AsyncGenerator[DirEntry, None]:
        """List entries: sizes are of encoded chunks, times are of their shards; prefixes of chunks have no time."""
        lead = self._grid.lead(prefix)
        if lead is None:
            async for entry in self._inner.list_dir(prefix):
                below = prefix.child(entry[0])
                on_the_way = entry[1] and (below == self._grid.chunks.prefix or self._grid.chunks.lies_below(below))
                if not on_the_way or await self.prefix_exists(below):
                    yield entry
            return
        ndim, axis = len(self._grid.chunks.grid_shape), len(lead)
        leaves = not self._grid.chunks.name(prefix, (*lead, *[0] * (ndim - axis)))[1]
        seen: set[str] = set()

        def listed(shard: Coords) -> bool:
            """Return True if this listing already contains the prefixes of all chunks of shards that begin with ``shard``."""
            if leaves or len(shard) <= axis:
                return False
            rest = (0,) * (ndim - axis - 1)
            return all(
                self._grid.chunks.name(prefix, (*lead, index, *rest))[0] in seen for index in self._grid.range_of(axis, shard[axis])
            )

        others: list[DirEntry] = []
        async for shard, known in self._chunks.known(self.shards(prefix, lead, listed, others), WIDTH if leaves else 1):
            for coords, nbytes, mtime_ns in self._stored(shard, known, lead):
                name, is_prefix = self._grid.chunks.name(prefix, coords)
                if not is_prefix:
                    yield name, False, nbytes, mtime_ns
                elif name not in seen:
                    seen.add(name)
                    yield name, True, 0, None
        if self._grid.behind(prefix, lead) != prefix or not self._grid.chunks.holds_some(lead):
            others = [entry async for entry in self._inner.list_dir(prefix)]
        for entry in others:
            name, is_prefix, _, _ = entry
            if not is_prefix:
                if self._grid.chunks.decode(prefix + name) is None:
                    yield entry
            elif self._grid.chunks.lead(prefix.child(name)) is None:
                yield entry
            elif name not in seen and await self._holds_others(prefix.child(name)):
                yield name, True, 0, None

    async def prefix_exists(self, prefix: Prefix) -> bool:
        """Return True if ``prefix`` exists; an empty one may, above the grid or at it, unless ``inner`` has only hidden keys below it."""
        lead = self._grid.lead(prefix)
        if lead:
            entries = self.list_dir(prefix)
            try:
                return await anext(entries, None) is not None
            finally:
                await entries.aclose()
        if lead is None and not self._grid.chunks.lies_below(prefix):
            return await self._inner.prefix_exists(prefix)
        hidden = False
        async for key in self._inner.list_prefix(prefix):
            shard = self._grid.shards.decode(key)
            if shard is None or await self._keys_in([shard]):
                return True
            hidden = True
        return not hidden and await self._inner.prefix_exists(prefix)

    async def shards(
        self,
        prefix: Prefix,
        lead: Coords,
        skip: Callable[[Coords], bool] = lambda shard: False,
        others: list[DirEntry] | None = None,
    ) -> AsyncIterator[Coords]:
        """Return stored shards that may hold chunks of the grid whose keys begin with ``prefix``.

        Shards for whose coordinates, or a leading part of them, ``skip`` is true are left out. Other entries of the topmost listing are
        appended to ``others``.
        """
        pending: list[tuple[Prefix, Coords]] = [(self._grid.behind(prefix, lead), ())] if self._grid.chunks.holds_some(lead) else []
        beside = others
        while pending:
            here, first = pending.pop()
            if skip(first):
                continue
            async for entry in self._inner.list_dir(here):
                name, is_prefix, _, _ = entry
                shard = None if is_prefix else self._grid.shards.decode(here + name)
                if shard is not None and self._grid.shards.holds(shard) and not skip(shard):
                    yield shard
                if is_prefix:
                    below = here.child(name)
                    indices = self._grid.shards.lead(below)
                    if indices is not None and self._grid.shards.holds_some(indices):
                        pending.append((below, indices))
                if shard is None and beside is not None:
                    beside.append(entry)
            beside = None

    def _stored(self, shard: Coords, known: KnownShard, lead: Coords = ()) -> Iterator[StoredChunk]:
        """Return the readable chunks of a shard inside the grid whose first indices are ``lead``."""
        for chunk in self._chunks.stored_in(shard, known):
            if chunk[0][: len(lead)] == lead:
                yield chunk

    async def _keys_in(self, shards: Sequence[Coords]) -> list[Key]:
        return [
            self._grid.chunks.key(coords)
            async for shard, known in self._chunks.known(_each(shards))
            for coords, _, _ in self._stored(shard, known)
        ]

    async def _holds_others(self, prefix: Prefix) -> bool:
        """Return True if a key below ``prefix`` is not a chunk key."""
        async for key in self._inner.list_prefix(prefix):
            if self._grid.chunks.decode(key) is None:
                return True
        return False


async def _each(shards: Sequence[Coords]) -> AsyncIterator[Coords]:
    for shard in shards:
        yield shard
