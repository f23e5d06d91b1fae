"""The index of a shard that is too large to be held: read in pages, as they are needed.

Of such an index nothing is known as a whole. A pair is checked for itself (it has to lie in the shard, outside of the index), and not
against all others: where two chunks overlap, each is what the bytes there decode to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from zarrfs.errors import ShardIndexInvalid, TooLarge
from zarrfs.keys import ByteRange
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.shards import EMPTY, Pairs, ShardSpec, are_there, with_plain_holes
from zarrfs.stores.values import Buffer

HELD_NBYTES = 4 << 20
"""An index of up to so many bytes is held whole, and a shard with such an index can be written."""

PAGE_PAIRS = 4096
_PAIR_NBYTES = 16
MAX_WRITTEN = HELD_NBYTES // _PAIR_NBYTES
"""The most chunks of a shard that is written."""
_PAGES_KEPT = 16

Found = dict[int, tuple[int, int] | ShardIndexInvalid | None]


class FoundPairs:
    """What the index says of some chunks, by place."""

    __slots__ = ("_found",)

    def __init__(self, found: Found) -> None:
        self._found = found

    def find(self, place: int) -> tuple[int, int] | None:
        """As `ShardIndex.find`, of one of those places."""
        found = self._found[place]
        if isinstance(found, ShardIndexInvalid):
            raise found
        return found


@dataclass(frozen=True, slots=True)
class Tally:
    """What one page says. ``stored``: place and nbytes of the chunks that can be read; ``bad``: places of those that cannot."""

    stored: list[tuple[int, int]]
    bad: list[int]


class PagedIndex:
    """The index of one shard, of one generation. ``start``: its first byte in the shard; chunks lie from ``first`` to before ``stop``."""

    __slots__ = ("_dtype", "_first", "_pages", "_start", "_stop", "count_of_pairs")

    nbytes = _PAGES_KEPT * PAGE_PAIRS * _PAIR_NBYTES
    """Bytes of memory, at most."""

    def __init__(self, pairs: int, dtype: str, start: int, first: int, stop: int) -> None:
        self.count_of_pairs = pairs
        self._dtype = dtype
        self._start = start
        self._first = first
        self._stop = stop
        self._pages: OrderedDict[int, Pairs] = OrderedDict()

    def pages(self) -> range:
        """All pages."""
        return range(-(-self.count_of_pairs // PAGE_PAIRS))

    def range_of(self, page: int) -> ByteRange:
        """Where a page lies in the shard."""
        first = page * PAGE_PAIRS
        return ByteRange(self._start + first * _PAIR_NBYTES, (min(first + PAGE_PAIRS, self.count_of_pairs) - first) * _PAIR_NBYTES)

    def missing(self, places: Iterable[int]) -> list[int]:
        """The pages that are needed for these chunks and are not there."""
        return [page for page in dict.fromkeys(place // PAGE_PAIRS for place in places) if page not in self._pages]

    def parsed(self, data: Buffer) -> Pairs:
        """The pairs of a page."""
        pairs: Pairs = np.frombuffer(data, self._dtype).astype("<u8", copy=False).reshape(-1, 2)
        return with_plain_holes(pairs, self._first) if self._start == 0 and self._first else pairs

    def keep(self, page: int, pairs: Pairs) -> None:
        """A page that was read; the least recently used goes."""
        self._pages[page] = pairs
        while len(self._pages) > _PAGES_KEPT:
            self._pages.popitem(last=False)

    def page(self, page: int) -> Pairs | None:
        """A page, if it is there."""
        found = self._pages.get(page)
        if found is not None:
            self._pages.move_to_end(page)
        return found

    def pair(self, pairs: Pairs, place: int) -> tuple[int, int] | ShardIndexInvalid | None:
        """What ``pairs``, the page that it is on, say of a chunk."""
        offset, nbytes = pairs[place % PAGE_PAIRS].tolist()
        if offset == nbytes == EMPTY:
            return None
        if not (self._first <= offset and offset + nbytes <= self._stop):
            return ShardIndexInvalid(f"the index of the shard says {nbytes} bytes from {offset}, where no chunk of it can lie")
        return offset, nbytes

    def tally(self, page: int, pairs: Pairs) -> Tally:
        """All that a page says."""
        offsets, lengths = pairs[:, 0], pairs[:, 1]
        there = are_there(pairs)
        low, high = np.uint64(self._first), np.uint64(max(self._first, self._stop))
        sound = there & (offsets >= low) & (offsets <= high)
        sound[sound] = lengths[sound] <= high - offsets[sound]
        places = np.flatnonzero(sound)
        first = page * PAGE_PAIRS
        return Tally(
            list(zip((places + first).tolist(), lengths[places].tolist(), strict=True)),
            (np.flatnonzero(there & ~sound) + first).tolist(),
        )


def not_at_once(spec: ShardSpec) -> TooLarge:
    """Why a shard of so many chunks is neither written nor looked at as a whole."""
    return TooLarge(f"a shard of {spec.chunks} chunks is read only: zarrfs writes shards of up to {MAX_WRITTEN}")


def outside(spec: ShardSpec, shard: tuple[int, ...], places: Iterator[int], grid_shape: Shape) -> int:
    """How many of these chunks of a shard lie outside a grid."""
    flat = np.fromiter(places, np.int64)
    beyond = np.zeros(flat.size, bool)
    step = 1
    for axis in reversed(spec.axes):
        index = shard[axis] * spec.chunks_per_shard[axis] + flat // step % spec.chunks_per_shard[axis]
        beyond |= index >= grid_shape[axis]
        step *= spec.chunks_per_shard[axis]
    return int(np.count_nonzero(beyond))
