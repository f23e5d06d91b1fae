"""Shards: store values that hold many chunks, and the index with the position of each chunk in its shard.

Sources: v3 final, codec ``sharding_indexed`` 1.0 ("Binary shard format"); v3 core 2022, "Sharding storage transformer", ``indexed``.

    chunk bytes, in any order, with gaps | index          index_location "end", the only one of 2022
    index | chunk bytes, in any order, with gaps          index_location "start"

The index has a pair of unsigned 64-bit integers (offset from the beginning of the shard, nbytes) for each chunk of the shard, also for
those outside the array, in C order. For an absent chunk both are 2^64 - 1. nbytes alone decides: zarrita 0.2.7 adds the length of an
index at the start to every offset, so that 2^64 - 1 overflows. No chunk has that many bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zarrfs.buffers import Buffer
from zarrfs.errors import MetadataError, MetadataUnsupported, ShardIndexInvalid
from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.codec_spec import CodecSpec

EMPTY = 2**64 - 1
"""Offset and nbytes of an absent chunk."""

# Limit of one shard. A longer index exceeds what zarrfs reads at once.
MAX_CHUNKS = 2**26

Pairs = np.ndarray[Any, np.dtype[np.uint64]]
"""One (offset, nbytes) for each chunk of a shard, of shape (chunks, 2)."""


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The bundling of chunks in shards.

    ``chunks_per_shard``: chunks along each dimension of the array. ``index_location``: "start" or "end". ``index_codecs``: `bytes`, and
    optionally `crc32c`. ``axes``: the dimensions of the array in index order, the slowest first; they differ from array order if
    transpositions precede the sharding. ``codecs``: bytes -> bytes codecs applied to the whole shard.
    """

    chunks_per_shard: Shape
    index_location: str = "end"
    index_codecs: tuple[CodecSpec, ...] = (CodecSpec("bytes", {"endian": "little"}),)
    axes: tuple[int, ...] = ()
    codecs: tuple[CodecSpec, ...] = ()
    _strides: Shape = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        ndim = len(self.chunks_per_shard)
        if not self.axes:
            object.__setattr__(self, "axes", tuple(range(ndim)))
        if sorted(self.axes) != list(range(ndim)) or self.index_location not in ("start", "end"):
            raise MetadataError(f"shard index: invalid dimensions {self.axes} or location {self.index_location!r}")
        if any(count < 1 for count in self.chunks_per_shard):
            raise MetadataError(f"shard of {self.chunks_per_shard} chunks: each count must be at least 1")
        if self.chunks > MAX_CHUNKS:
            raise MetadataUnsupported(f"shards of {self.chunks} chunks exceed the limit of {MAX_CHUNKS}")
        # Index distance between neighbours along each dimension of the array.
        strides = [1] * ndim
        step = 1
        for axis in reversed(self.axes):
            strides[axis] = step
            step *= self.chunks_per_shard[axis]
        object.__setattr__(self, "_strides", tuple(strides))

    @property
    def chunks(self) -> int:
        """Number of chunks in a shard, including those outside the array."""
        return math.prod(self.chunks_per_shard)

    @property
    def index_shape(self) -> Shape:
        """Shape of the index as an array: chunks along its axes, and 2."""
        return (*(self.chunks_per_shard[axis] for axis in self.axes), 2)

    def grid_of_shards(self, grid_shape: Shape) -> Shape:
        """Return the number of shards along each dimension, for a grid of chunks of ``grid_shape``."""
        return tuple(-(-extent // count) for extent, count in zip(grid_shape, self.chunks_per_shard, strict=True))

    def shard_of(self, coords: Coords) -> Coords:
        """Return the coordinates, in the grid of shards, of the shard that holds a chunk."""
        return tuple(index // count for index, count in zip(coords, self.chunks_per_shard, strict=True))

    def pair_of(self, coords: Coords) -> int:
        """Return the place of a chunk's pair in the index of its shard."""
        return sum(index % count * step for index, count, step in zip(coords, self.chunks_per_shard, self._strides, strict=True))

    def coords_of(self, shard: Coords, index: int) -> Coords:
        """Return the chunk of the pair at ``index`` in the index of ``shard``."""
        return tuple(
            first * count + index // step % count
            for first, count, step in zip(shard, self.chunks_per_shard, self._strides, strict=True)
        )

    def count_within(self, shard: Coords, grid_shape: Shape) -> int:
        """Return the number of chunks of ``shard`` inside a grid of ``grid_shape``."""
        return math.prod(
            max(0, min(count, extent - first * count))
            for first, count, extent in zip(shard, self.chunks_per_shard, grid_shape, strict=True)
        )


class ShardIndex:
    """The positions of the chunks of one shard. Immutable.

    An invalid pair (outside the shard, inside the index, or sharing some but not all bytes with another one) affects only its own chunk:
    `find` raises for it. Identical pairs are legal (the same bytes for several chunks).
    """

    __slots__ = ("_bad", "_pairs", "shard_nbytes")

    def __init__(self, pairs: Pairs, shard_nbytes: int, first: int, stop: int) -> None:
        """``pairs`` as stored; chunks are between byte ``first`` and byte ``stop`` (exclusive) of a shard of ``shard_nbytes``."""
        self._pairs = pairs
        self.shard_nbytes = shard_nbytes
        self._bad = _bad(pairs, first, stop)

    def __len__(self) -> int:
        return len(self._pairs)

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self._pairs.nbytes + self._bad.nbytes

    def find(self, index: int) -> tuple[int, int] | None:
        """Return offset and nbytes of a chunk; None if absent. Raises `ShardIndexInvalid` for an invalid pair."""
        offset, nbytes = self._pairs[index].tolist()
        if nbytes == EMPTY:
            return None
        if self._bad[index]:
            raise ShardIndexInvalid(f"shard index: {nbytes} bytes at {offset} are outside the chunk area of the shard")
        return offset, nbytes

    def stored_pairs(self) -> list[int]:
        """Return the places of all stored chunks, including those with invalid pairs."""
        indices: list[int] = np.flatnonzero(are_there(self._pairs)).tolist()
        return indices

    def stored(self) -> Iterator[tuple[int, int]]:
        """Yield place and nbytes of every stored chunk with a valid pair."""
        there = np.flatnonzero(are_there(self._pairs) & ~self._bad)
        return zip(there.tolist(), self._pairs[there, 1].tolist(), strict=True)

    @property
    def count(self) -> int:
        """Number of stored chunks."""
        return int(np.count_nonzero(are_there(self._pairs)))

    @property
    def bad_count(self) -> int:
        """Number of chunks with invalid pairs."""
        return int(np.count_nonzero(self._bad))

    @property
    def used_nbytes(self) -> int:
        """Number of bytes of the shard that belong to a chunk."""
        offsets, lengths = self._pairs[:, 0], self._pairs[:, 1]
        holding = are_there(self._pairs) & (lengths > 0) & ~self._bad
        # Valid pairs that begin at the same byte are identical.
        _, each = np.unique(offsets[holding], return_index=True)
        return int(lengths[holding][each].sum())


def are_there(pairs: Pairs) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each pair whether its chunk is stored, valid or not: whether nbytes is not `EMPTY`."""
    there: np.ndarray[Any, np.dtype[np.bool_]] = pairs[:, 1] != EMPTY
    return there


def _bad(pairs: Pairs, first: int, stop: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return which pairs are invalid. The unsigned arithmetic cannot overflow: ends are computed only for pairs inside."""
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
        # Each distinct pair once, ordered by its beginning: it overlaps an earlier one if it begins before the maximum of their ends, and
        # a later one if the next begins before its own end.
        is_new = np.concatenate(([True], (begins[1:] != begins[:-1]) | (ends[1:] != ends[:-1])))
        number = np.cumsum(is_new) - 1
        begins, ends = begins[is_new], ends[is_new]
        overlapping = np.zeros(len(begins), bool)
        overlapping[1:] |= begins[1:] < np.maximum.accumulate(ends)[:-1]
        overlapping[:-1] |= ends[:-1] > begins[1:]
        bad[by_offset] |= overlapping[number]
    return bad


def assemble(spec: ShardSpec, chunks: Mapping[int, Buffer], index_nbytes: int) -> tuple[list[Buffer], Pairs]:
    """Return the chunks of a new shard, consecutive, in the order of ``spec``'s index, and the pairs that locate them.

    ``chunks``: encoded chunks by their places in the index, in any order; one object in several places is stored once.
    ``index_nbytes``: size of the encoded index, which precedes the chunks if it is at the start.
    """
    pairs: Pairs = np.full((spec.chunks, 2), EMPTY, np.uint64)
    offset = index_nbytes if spec.index_location == "start" else 0
    pieces: list[Buffer] = []
    offsets: dict[int, int] = {}
    for index in sorted(chunks):
        piece = chunks[index]
        nbytes = memoryview(piece).nbytes
        pairs[index] = offsets.setdefault(id(piece), offset), nbytes
        if offsets[id(piece)] != offset:
            continue
        pieces.append(piece)
        offset += nbytes
    return pieces, pairs
