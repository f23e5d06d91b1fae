"""An independent implementation of the ``indexed`` shard format of 2022; and grids of chunks in nested shards.

Source: v3 core 2022, "Sharding storage transformer (version 1.0)", "Binary shard format".
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

EMPTY = 2**64 - 1

Coords = tuple[int, ...]


def encode_shard(
    chunks: Mapping[int, bytes], count: int, *, order: Sequence[int] | None = None, gaps: Sequence[bytes] = ()
) -> bytes:
    """Return a shard of ``count`` chunks; ``order`` is that of their bytes.

    ``gaps`` are unused bytes before each, the last one after all.
    """
    body, pairs = b"", [(EMPTY, EMPTY)] * count
    for number, place in enumerate(sorted(chunks) if order is None else order):
        body += gaps[number] if number < len(gaps) else b""
        pairs[place] = len(body), len(chunks[place])
        body += chunks[place]
    body += b"".join(gaps[len(chunks) :])
    return body + index_of(pairs)


def index_of(pairs: Sequence[tuple[int, int]]) -> bytes:
    """Return the index with these pairs of offset and nbytes."""
    return b"".join(struct.pack("<QQ", *pair) for pair in pairs)


def decode_shard(shard: bytes, count: int) -> dict[int, bytes]:
    """Return chunks by their position in the index."""
    assert len(shard) >= 16 * count, "shorter than its index"
    index = shard[len(shard) - 16 * count :]
    chunks = {}
    for place, (offset, nbytes) in enumerate(struct.iter_unpack("<QQ", index)):
        if (offset, nbytes) != (EMPTY, EMPTY):
            assert offset + nbytes <= len(shard) - 16 * count, "a chunk reaches out of the shard"
            chunks[place] = shard[offset : offset + nbytes]
    return chunks


@dataclass(frozen=True)
class Grid:
    """Chunks of a grid in shards of ``levels`` (chunks per shard, innermost first), and the construction of keys."""

    shape: Coords
    levels: tuple[Coords, ...]
    prefix: str = "data/root/foo/"
    separator: str = "/"
    before: str = "c"
    scalar: str = "c0"

    def key(self, coords: Coords) -> str:
        return self.prefix + (self.before + self.separator.join(map(str, coords)) if coords else self.scalar)

    def coords(self) -> Iterator[Coords]:
        """Return the coordinates of every chunk of the grid."""
        return itertools.product(*map(range, self.shape))

    def by_key(self) -> dict[str, Coords]:
        """Return every chunk of the grid under its key."""
        return {self.key(coords): coords for coords in self.coords()}

    @property
    def above(self) -> Grid:
        """The shards of the innermost level as a grid of their own."""
        shape = tuple(math.ceil(extent / count) for extent, count in zip(self.shape, self.levels[0], strict=True))
        return Grid(shape, self.levels[1:], self.prefix, self.separator, self.before, self.scalar)

    def decoded(self, values: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return every chunk in ``values``, which has keys of the outermost shards and others. Checks each shard."""
        if not self.levels:
            return {key: values[key] for key in self.by_key() if key in values}
        found = {}
        for key, shard in self.above.by_key().items():
            value = self.above.decoded(values).get(key)
            if value is not None:
                chunks = decode_shard(value, math.prod(self.levels[0]))
                assert chunks, f"{key} holds nothing"
                for place, chunk in chunks.items():
                    coords = self._coords(shard, place)
                    assert all(index < extent for index, extent in zip(coords, self.shape, strict=True)), "outside of the grid"
                    found[self.key(coords)] = chunk
        return found

    def _coords(self, shard: Coords, place: int) -> Coords:
        inside = []
        for count in reversed(self.levels[0]):
            place, index = divmod(place, count)
            inside.append(index)
        return tuple(first * count + index for first, count, index in zip(shard, self.levels[0], reversed(inside), strict=True))
