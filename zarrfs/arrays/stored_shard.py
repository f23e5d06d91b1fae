"""A stored shard and the places of its chunks, with errors that name its key: an index does not know it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.arrays.paged_shard_index import PagedIndex
from zarrfs.arrays.shard_index_cache import KnownShard
from zarrfs.errors import ShardIndexInvalid
from zarrfs.keys import Key
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.shards import ShardIndex
from zarrfs.stores.values import KeyStat


@dataclass(frozen=True, slots=True)
class StoredShard:
    """A stored shard: its coordinates, keys and size, and its index or the reason why the index is unreadable."""

    coords: Coords
    keys: tuple[Key, ...]
    nbytes: int
    index: ShardIndex | PagedIndex | ShardIndexInvalid


@contextmanager
def naming(parent: ChunkStore, shard: Coords) -> Iterator[None]:
    """Add a shard of ``parent`` to the errors of its index. Those of a shard around it have their key already."""
    try:
        yield
    except ShardIndexInvalid as error:
        if error.key is not None:
            raise
        key = parent.keys(shard)[0]
        raise ShardIndexInvalid(f"shard {key!r}: {error}", key=key) from error


def placed(
    parent: ChunkStore, shard: Coords, known: KnownShard | None, index: int, *, fresh: bool
) -> tuple[tuple[int, int], KeyStat] | None:
    """Return position and stat of a chunk in a shard of ``parent``; None if absent.

    Also None for an invalid position in a shard that is not ``fresh``: a sound one may have replaced it. Raises `ShardIndexInvalid`.
    """
    try:
        with naming(parent, shard):
            found, stat = (known.find(index), known.stat_of(index)) if known is not None else (None, None)
    except ShardIndexInvalid:
        if fresh:
            raise
        return None
    return None if found is None or stat is None else (found, stat)
