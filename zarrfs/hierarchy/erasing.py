"""Removal of a prefix in steps, each of which ends well within any deadline, and in little memory, however many keys it has."""

from __future__ import annotations

import itertools
import logging
import math
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.errors import PrefixNotEmpty, StoreFull, StoreTimeout, StoreUnsupported, ZarrfsError
from zarrfs.keys import Filled, Key, Prefix
from zarrfs.model.chunk_grid import Coords, Shape, in_grid
from zarrfs.stores.base import Store, first_of

log = logging.getLogger(__name__)

_ERASED_AT_ONCE = 64

_CHUNKS_AT_ONCE = 1000

_LISTED_AT_ONCE = 1 << 15
"""Keys that are listed before they are erased; then the rest is listed again. A million took 0.2 to 0.3 GB."""

EraseOutside = bool | Callable[[Coords], bool]
"""Whether chunks outside a smaller shape may be erased: all, or those that the function names."""

IsStored = Callable[[Coords], bool]
"""Returns True for the coordinates of a key, that of a chunk or a shard, if its value belongs to a new array."""


def never(coords: Coords) -> bool:
    """Return False: no chunk is stored before the array itself."""
    return False


async def erase_in_steps(store: Store, prefix: Prefix, *, until_ns: int | None = None) -> None:
    """Run `Store.erase_prefix` in short steps: what is erased stays erased if a later step fails.

    ``until_ns``: values of a later time stay.
    """
    # Values that stay would be listed again and again.
    most = _LISTED_AT_ONCE if until_ns is None else math.inf
    pending: list[tuple[Prefix, bool]] = [(prefix, False)]
    while pending:
        here, is_empty = pending.pop()
        if is_empty:
            try:
                if store.capabilities.empty_prefixes:
                    await store.remove_prefix(here)
            except PrefixNotEmpty:
                # Entries that are not listed: links and special files.
                if until_ns is None:
                    await store.erase_prefix(here)
            continue
        keys: list[Key] = []
        entries = await first_of(store.list_dir(here), most)
        pending.append((here, len(entries) < most))
        for name, is_prefix, _, mtime_ns in entries:
            if is_prefix:
                pending.append((here.child(name), False))
            elif until_ns is None or (mtime_ns is not None and mtime_ns <= until_ns):
                keys.append(here.key(name))
        for start in range(0, len(keys), _ERASED_AT_ONCE):
            await store.erase_values(keys[start : start + _ERASED_AT_ONCE])


async def take_away(store: Store, prefix: Prefix, gone: Prefix, *, is_decided: bool = False) -> bool:
    """Rename what is to be deleted, which may take long; return False if it has to be deleted in its place.

    ``is_decided``: its documents are erased. It cannot stay, whatever the reason why it is not renamed."""
    try:
        await store.rename_prefix(prefix, gone)
    except ZarrfsError as error:
        if not await store.prefix_exists(prefix):
            # It has failed and yet taken effect.
            return True
        if isinstance(error, StoreTimeout):
            raise
        if not is_decided and not isinstance(error, StoreUnsupported | StoreFull):
            raise
        log.debug("%s: removed in place: %s", prefix, error)
        return False
    return True


async def require_removable(store: Store, prefixes: Iterable[Prefix], *, in_place: bool) -> None:
    """Raise `StoreAccessDenied` if this user may not remove one of these prefixes, or its keys: documents are erased before.

    ``in_place``: nor those below them, which need not be renamed away first."""
    pending = list(prefixes) if store.capabilities.empty_prefixes else []
    while pending:
        here = pending.pop()
        # An empty one has nothing to lose. Of others the permission is checked first, by every file system.
        if await store.peek(here, 1):
            with suppress(PrefixNotEmpty):
                await store.remove_prefix(Filled(here))
            if in_place:
                pending += [here.child(name) async for name, is_prefix, _, _ in store.list_dir(here) if is_prefix]


async def erase_most(store: Store, prefix: Prefix) -> None:
    """Erase chunks in short steps, but for the last ones, which go with their folder: without chunks it would be taken for a group."""

    async def others() -> AsyncIterator[Key]:
        left = _CHUNKS_AT_ONCE
        async for key in store.list_prefix(prefix):
            if left:
                left -= 1
            else:
                yield key

    await erase_listed(store, others)


async def erase_listed(store: Store, listing: Callable[[], AsyncIterator[Key]]) -> None:
    """Erase the keys that ``listing`` returns, in short steps; it is called again while there are more than are held at once."""
    while keys := await first_of(listing(), _LISTED_AT_ONCE):
        await erase_keys(store, keys)
        if len(keys) < _LISTED_AT_ONCE:
            return


async def erase_keys(store: Store, keys: Sequence[Key]) -> None:
    """Run `Store.erase_values` in short steps."""
    for start in range(0, len(keys), _CHUNKS_AT_ONCE):
        await store.erase_values(keys[start : start + _CHUNKS_AT_ONCE])


class Outside:
    """The stored chunks outside of a smaller grid: those of the old one in the order of `add`, 8 bytes for each index.

    A tuple takes 100 or more. Of all others, which a failed attempt or another program has left, only whether there are any."""

    def __init__(self, old_grid_shape: Shape) -> None:
        self._grid_shape = old_grid_shape
        self._indices = array("Q")
        self.are_others = False

    def __bool__(self) -> bool:
        return self.are_others or bool(self._indices)

    def __iter__(self) -> Iterator[Coords]:
        return zip(*[iter(self._indices)] * len(self._grid_shape), strict=True)

    def add(self, coords: Coords) -> None:
        """Add a chunk."""
        if in_grid(coords, self._grid_shape):
            self._indices.extend(coords)
        else:
            self.are_others = True


async def erase_chunks(chunks: ChunkStore, outside: Iterable[Coords]) -> None:
    """Erase these chunks of an array in short steps; those of shards, too, are erased when this returns."""
    left = iter(outside)
    while part := list(itertools.islice(left, _CHUNKS_AT_ONCE)):
        await chunks.update(dict.fromkeys(part))
        await chunks.publish(part)


async def erase_outside_of(grid_shape: Shape, chunks: ChunkStore, outside: Outside, *, may_be_more: bool) -> None:
    """Run `erase_chunks` for those outside of a smaller grid, whose document is stored.

    ``may_be_more``: they are listed again, as other mounts may have stored some before that document. (A transformer that goes by the
    document lists none of them any more.)"""
    await erase_chunks(chunks, outside)
    may_be_more = may_be_more or outside.are_others
    while may_be_more:
        listed = (coords async for coords, _, _ in chunks.list(outside=True) if not in_grid(coords, grid_shape))
        later = await first_of(listed, _LISTED_AT_ONCE)
        await erase_chunks(chunks, later)
        may_be_more = len(later) == _LISTED_AT_ONCE


async def remove_empty(store: Store, prefix: Prefix) -> None:
    """Remove a prefix without keys, and those below it. Raises `PrefixNotEmpty`."""
    for below in [prefix.child(name) async for name, is_prefix, _, _ in store.list_dir(prefix) if is_prefix]:
        await remove_empty(store, below)
    await store.remove_prefix(prefix)


async def erase_stored(store: Store, prefix: Prefix, chunks: ChunkStore, stored: Iterable[Coords]) -> None:
    """Erase the keys of these chunks in short steps, and the folders of them, up to ``prefix``, that are empty."""
    left = iter(stored)
    while some := list(itertools.islice(left, _CHUNKS_AT_ONCE)):
        keys = dict.fromkeys(key for coords in some for key in chunks.keys(coords))
        await store.erase_values(keys)
        await remove_empty_folders(store, prefix, keys)


async def remove_empty_folders(store: Store, prefix: Prefix, keys: Iterable[Key]) -> None:
    """Remove the folders of these keys, up to ``prefix``, that are empty."""
    folders = {prefix}
    for key in keys:
        folder = Prefix(key.rpartition("/")[0] + "/")
        while len(folder) > len(prefix):
            folders.add(folder)
            folder = Prefix(folder[:-1].rpartition("/")[0] + "/")
    for each in sorted(folders, key=len, reverse=True) if store.capabilities.empty_prefixes else ():
        with suppress(PrefixNotEmpty):
            await store.remove_prefix(each)


async def remove_chunk_folders(store: Store, prefix: Prefix, may_begin: Callable[[str], bool], inside: str = "") -> None:
    """Remove the empty folders below ``prefix`` with which a chunk key ``may_begin``; without the array they would be groups."""
    if not (store.capabilities.empty_prefixes and store.capabilities.list):
        return
    entries = store.list_dir(Prefix(prefix + inside))
    names = [name async for name, is_prefix, _, _ in entries if is_prefix and may_begin(inside + name)]
    for name in names:
        await remove_chunk_folders(store, prefix, may_begin, f"{inside}{name}/")
        with suppress(PrefixNotEmpty):
            await store.remove_prefix(Prefix(f"{prefix}{inside}{name}/"))
