"""The index of a shard that is too large to be held: read in pages, on demand.

Such an index is never checked as a whole. An entry is checked on its own (it must be in the shard, outside the index), not against all
others: where two chunks overlap, each one is what its bytes decode to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from zarrfs.buffers import Buffer
from zarrfs.errors import ShardIndexInvalid, TooLarge
from zarrfs.keys import ByteRange
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.shards import EMPTY, Pairs, ShardSpec, are_there

HELD_NBYTES = 4 << 20
"""Maximum size of an index that is held whole; shards with a larger one are read-only."""

PAGE_PAIRS = 4096
_PAIR_NBYTES = 16
MAX_WRITTEN = HELD_NBYTES // _PAIR_NBYTES
"""Maximum number of chunks of a shard that is written."""
_PAGES_KEPT = 16

Found = dict[int, tuple[int, int] | ShardIndexInvalid | None]


class FoundPairs:
    """Index entries of some chunks, by place."""

    __slots__ = ("_found",)

    def __init__(self, found: Found) -> None:
        self._found = found

    def find(self, index: int) -> tuple[int, int] | None:
        """Return the result of `ShardIndex.find`, for one of these places."""
        found = self._found[index]
        if isinstance(found, ShardIndexInvalid):
            raise found
        return found


@dataclass(frozen=True, slots=True)
class Tally:
    """Content of one page. ``stored``: place and nbytes of readable chunks; ``bad``: places of chunks with an invalid entry."""

    stored: list[tuple[int, int]]
    bad: list[int]


class PagedIndex:
    """The index of one generation of a shard. ``start``: its first byte in the shard; chunks are in ``first`` up to ``stop``."""

    __slots__ = ("_dtype", "_first", "_pages", "_start", "_stop", "count_of_pairs")

    nbytes = _PAGES_KEPT * PAGE_PAIRS * _PAIR_NBYTES
    """Maximum memory in bytes."""

    def __init__(self, pairs: int, dtype: str, start: int, first: int, stop: int) -> None:
        self.count_of_pairs = pairs
        self._dtype = dtype
        self._start = start
        self._first = first
        self._stop = stop
        self._pages: OrderedDict[int, Pairs] = OrderedDict()

    def pages(self) -> range:
        """Return all page numbers."""
        return range(-(-self.count_of_pairs // PAGE_PAIRS))

    def range_of(self, page: int) -> ByteRange:
        """Return the byte range of a page in the shard."""
        first = page * PAGE_PAIRS
        return ByteRange(self._start + first * _PAIR_NBYTES, (min(first + PAGE_PAIRS, self.count_of_pairs) - first) * _PAIR_NBYTES)

    def missing(self, indices: Iterable[int]) -> list[int]:
        """Return the pages needed for these chunks that are not cached."""
        return [page for page in dict.fromkeys(index // PAGE_PAIRS for index in indices) if page not in self._pages]

    def parsed(self, data: Buffer) -> Pairs:
        """Return the entries of a page."""
        pairs: Pairs = np.frombuffer(data, self._dtype).astype("<u8", copy=False).reshape(-1, 2)
        return pairs

    def keep(self, page: int, pairs: Pairs) -> None:
        """Cache a page; the least recently used one is evicted."""
        self._pages[page] = pairs
        while len(self._pages) > _PAGES_KEPT:
            self._pages.popitem(last=False)

    def page(self, page: int) -> Pairs | None:
        """Return a page if it is cached."""
        found = self._pages.get(page)
        if found is not None:
            self._pages.move_to_end(page)
        return found

    def pair(self, pairs: Pairs, index: int) -> tuple[int, int] | ShardIndexInvalid | None:
        """Return the entry of a chunk from ``pairs``, the page that it is on."""
        offset, nbytes = pairs[index % PAGE_PAIRS].tolist()
        if nbytes == EMPTY:
            return None
        if not (self._first <= offset and offset + nbytes <= self._stop):
            return ShardIndexInvalid(f"shard index: {nbytes} bytes at {offset} are outside the chunk area of the shard")
        return offset, nbytes

    def tally(self, page: int, pairs: Pairs) -> Tally:
        """Return the content of a page."""
        offsets, lengths = pairs[:, 0], pairs[:, 1]
        there = are_there(pairs)
        low, high = np.uint64(self._first), np.uint64(max(self._first, self._stop))
        sound = there & (offsets >= low) & (offsets <= high)
        sound[sound] = lengths[sound] <= high - offsets[sound]
        indices = np.flatnonzero(sound)
        first = page * PAGE_PAIRS
        return Tally(
            list(zip((indices + first).tolist(), lengths[indices].tolist(), strict=True)),
            (np.flatnonzero(there & ~sound) + first).tolist(),
        )


def not_at_once(spec: ShardSpec) -> TooLarge:
    """Return the error for a shard above `MAX_WRITTEN` chunks, which is neither written nor listed as a whole."""
    return TooLarge(f"shard of {spec.chunks} chunks: read-only, above the limit of {MAX_WRITTEN} chunks for writes")


def outside(spec: ShardSpec, shard: tuple[int, ...], indices: Iterator[int], grid_shape: Shape) -> int:
    """Return how many of these chunks of a shard are outside the grid."""
    flat = np.fromiter(indices, np.int64)
    beyond = np.zeros(flat.size, bool)
    step = 1
    for axis in reversed(spec.axes):
        index = shard[axis] * spec.chunks_per_shard[axis] + flat // step % spec.chunks_per_shard[axis]
        beyond |= index >= grid_shape[axis]
        step *= spec.chunks_per_shard[axis]
    return int(np.count_nonzero(beyond))
