"""Shards: values of a store that hold many chunks, and the index that says where in a shard each of them lies.

Sources: v3 final, codec ``sharding_indexed`` 1.0 ("Binary shard format"); v3 core 2022, "Sharding storage transformer", ``indexed``.

    chunk bytes, in any order, with gaps | index          index_location "end", the only one of 2022
    index | chunk bytes, in any order, with gaps          index_location "start"

The index holds a pair of unsigned 64-bit integers (offset from the beginning of the shard, nbytes) for each chunk of the shard, also for
those that lie outside of the array, in C order. Of a chunk that is not there both are 2^64 - 1; where one alone is, the index is damaged
(`with_plain_holes` names the one exception).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zarrfs.errors import MetadataError, MetadataUnsupported, ShardIndexInvalid
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.codec_spec import CodecSpec

EMPTY = 2**64 - 1
"""As offset and nbytes: there is no such chunk."""

# Of one shard. An index of more is longer than what zarrfs reads at once.
MAX_CHUNKS = 2**26

Pairs = np.ndarray[Any, np.dtype[np.uint64]]
"""One (offset, nbytes) for each chunk of a shard, of shape (chunks, 2)."""

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """How chunks are bundled in shards.

    ``chunks_per_shard``: chunks along each dimension of the array. ``index_location``: "start" or "end". ``index_codecs``: `bytes`, and
    perhaps `crc32c`. ``axes``: the dimensions of the array in the order in which the index goes through them, the slowest first; it is
    another one than their own where transpositions precede the sharding. ``codecs``: bytes -> bytes codecs that the whole shard has
    passed through.
    """

    chunks_per_shard: Shape
    index_location: str = "end"
    index_codecs: tuple[CodecSpec, ...] = (CodecSpec("bytes", {"endian": "little"}),)
    axes: tuple[int, ...] = ()
    codecs: tuple[CodecSpec, ...] = ()
    _places: Shape = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        ndim = len(self.chunks_per_shard)
        if not self.axes:
            object.__setattr__(self, "axes", tuple(range(ndim)))
        if sorted(self.axes) != list(range(ndim)) or self.index_location not in ("start", "end"):
            raise MetadataError(f"a shard index over dimensions {self.axes} at the {self.index_location} makes no sense")
        if any(count < 1 for count in self.chunks_per_shard):
            raise MetadataError(f"a shard of {self.chunks_per_shard} chunks holds nothing")
        if self.chunks > MAX_CHUNKS:
            raise MetadataUnsupported(f"shards of {self.chunks} chunks are more than zarrfs takes ({MAX_CHUNKS})")
        # Elements of the index between neighbours along each dimension of the array.
        places = [1] * ndim
        step = 1
        for axis in reversed(self.axes):
            places[axis] = step
            step *= self.chunks_per_shard[axis]
        object.__setattr__(self, "_places", tuple(places))

    @property
    def chunks(self) -> int:
        """Chunks in a shard, those outside of the array included."""
        return math.prod(self.chunks_per_shard)

    @property
    def index_shape(self) -> Shape:
        """The shape of the index as an array: chunks along its axes, and 2."""
        return (*(self.chunks_per_shard[axis] for axis in self.axes), 2)

    def grid_of_shards(self, grid_shape: Shape) -> Shape:
        """Shards along each dimension, for a grid of chunks of ``grid_shape``."""
        return tuple(-(-extent // count) for extent, count in zip(grid_shape, self.chunks_per_shard, strict=True))

    def shard_of(self, coords: Coords) -> Coords:
        """Coordinates, in the grid of shards, of the shard that holds a chunk."""
        return tuple(index // count for index, count in zip(coords, self.chunks_per_shard, strict=True))

    def pair_of(self, coords: Coords) -> int:
        """Which pair of its shard's index is a chunk's."""
        return sum(index % count * step for index, count, step in zip(coords, self.chunks_per_shard, self._places, strict=True))

    def coords_of(self, shard: Coords, place: int) -> Coords:
        """The chunk of the pair ``place`` in the index of ``shard``."""
        return tuple(
            first * count + place // step % count
            for first, count, step in zip(shard, self.chunks_per_shard, self._places, strict=True)
        )

    def count_within(self, shard: Coords, grid_shape: Shape) -> int:
        """How many chunks of ``shard`` are inside a grid of ``grid_shape``."""
        return math.prod(
            max(0, min(count, extent - first * count))
            for first, count, extent in zip(shard, self.chunks_per_shard, grid_shape, strict=True)
        )


class ShardIndex:
    """Where the chunks of one shard lie. Immutable.

    A pair that cannot be right (it leads out of the shard or into the index, or shares some bytes with another one, not all) counts for
    nothing but its own chunks: `find` raises for these. Identical pairs are legal (the same bytes for several chunks).
    """

    __slots__ = ("_bad", "_pairs", "shard_nbytes")

    def __init__(self, pairs: Pairs, shard_nbytes: int, first: int, stop: int) -> None:
        """``pairs`` as they are stored; chunks lie from byte ``first`` to before byte ``stop`` of a shard of ``shard_nbytes``."""
        self._pairs = pairs
        self.shard_nbytes = shard_nbytes
        self._bad = _bad(pairs, first, stop)

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._pairs.nbytes + self._bad.nbytes

    def find(self, place: int) -> tuple[int, int] | None:
        """Offset and nbytes of a chunk; None where there is none. Raises `ShardIndexInvalid` for a pair that cannot be right."""
        offset, nbytes = self._pairs[place].tolist()
        if offset == nbytes == EMPTY:
            return None
        if self._bad[place]:
            raise ShardIndexInvalid(f"the index of the shard says {nbytes} bytes from {offset}, where no chunk of it can lie")
        return offset, nbytes

    def stored_pairs(self) -> list[int]:
        """Of every chunk that is there, those with bad pairs included."""
        places: list[int] = np.flatnonzero(are_there(self._pairs)).tolist()
        return places

    def stored(self) -> Iterator[tuple[int, int]]:
        """Place and nbytes of every chunk that is there and can be read."""
        there = np.flatnonzero(are_there(self._pairs) & ~self._bad)
        return zip(there.tolist(), self._pairs[there, 1].tolist(), strict=True)

    @property
    def count(self) -> int:
        """Chunks that are there."""
        return int(np.count_nonzero(are_there(self._pairs)))

    @property
    def bad_count(self) -> int:
        """Chunks with pairs that cannot be right."""
        return int(np.count_nonzero(self._bad))

    @property
    def used_nbytes(self) -> int:
        """Bytes of the shard that belong to some chunk."""
        offsets, lengths = self._pairs[:, 0], self._pairs[:, 1]
        holding = are_there(self._pairs) & (lengths > 0) & ~self._bad
        # Those that begin at the same byte are identical: else they were bad.
        _, each = np.unique(offsets[holding], return_index=True)
        return int(lengths[holding][each].sum())


def are_there(pairs: Pairs) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Of each pair whether it is one of a chunk, right or wrong: whether one of its numbers is not `EMPTY`."""
    there: np.ndarray[Any, np.dtype[np.bool_]] = (pairs != EMPTY).any(axis=1)
    return there


def with_plain_holes(pairs: Pairs, index_nbytes: int) -> Pairs:
    """The pairs of an index of ``index_nbytes`` at the start of its shard, those of absent chunks as the text has them.

    zarrita 0.2.7 adds the length of the index to all offsets, so that `EMPTY` becomes ``index_nbytes - 1``; nbytes stays `EMPTY`.
    """
    shifted = (pairs[:, 0] == np.uint64(index_nbytes - 1)) & (pairs[:, 1] == EMPTY)
    return np.where(shifted[:, None], np.uint64(EMPTY), pairs) if shifted.any() else pairs


def _bad(pairs: Pairs, first: int, stop: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which pairs cannot be right. In unsigned arithmetic that cannot overflow: ends are computed for pairs inside only."""
    offsets, lengths = pairs[:, 0], pairs[:, 1]
    there = are_there(pairs)
    low, high = np.uint64(first), np.uint64(max(first, stop))
    inside = there & (offsets >= low) & (offsets <= high)
    inside[inside] = lengths[inside] <= high - offsets[inside]
    bad = there & ~inside
    holding = np.flatnonzero(inside & (lengths > 0))
    by_offset = holding[np.lexsort((lengths[holding], offsets[holding]))]
    begins = offsets[by_offset]
    ends = begins + lengths[by_offset]
    if by_offset.size > 1 and (begins[1:] < ends[:-1]).any():
        # Each distinct pair once, by where it begins: it overlaps one before it if it begins before the last of their ends, and one
        # behind it if the next begins before its own.
        is_new = np.concatenate(([True], (begins[1:] != begins[:-1]) | (ends[1:] != ends[:-1])))
        which = np.cumsum(is_new) - 1
        begins, ends = begins[is_new], ends[is_new]
        overlapping = np.zeros(len(begins), bool)
        overlapping[1:] |= begins[1:] < np.maximum.accumulate(ends)[:-1]
        overlapping[:-1] |= ends[:-1] > begins[1:]
        bad[by_offset] |= overlapping[which]
    return bad


def assemble(spec: ShardSpec, chunks: Mapping[int, Buffer], index_nbytes: int) -> tuple[list[Buffer], Pairs]:
    """The chunks of a new shard, one behind the other, in the order of ``spec``'s index, and the pairs that say so.

    ``chunks``: encoded chunks by their places in the index, in any order; one object in several places is stored once.
    ``index_nbytes``: of the encoded index, which precedes them where it is at the start.
    """
    pairs: Pairs = np.full((spec.chunks, 2), EMPTY, np.uint64)
    offset = index_nbytes if spec.index_location == "start" else 0
    pieces: list[Buffer] = []
    offsets: dict[int, int] = {}
    for place in sorted(chunks):
        piece = chunks[place]
        nbytes = memoryview(piece).nbytes
        pairs[place] = offsets.setdefault(id(piece), offset), nbytes
        if offsets[id(piece)] != offset:
            continue
        pieces.append(piece)
        offset += nbytes
    return pieces, pairs
