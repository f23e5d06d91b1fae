"""Keys of a grid among the other keys of a store: chunk keys, and prefixes that cut through the grid.

data/root/                    above the grid
data/root/foo/                the grid's own prefix: every chunk key begins with it
data/root/foo/c3/             cuts through the grid: chunk keys below it have 3 as their first index (its *lead* is ``(3,)``)
data/root/foo/notes/          no chunk key begins with it
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from zarrfs.keys import Key, Prefix
from zarrfs.model.chunk_grid import Coords, Shape, in_grid
from zarrfs.model.chunk_key import ChunkKeyEncoding


@dataclass(frozen=True, slots=True)
class GridKeys:
    """Chunk keys of a grid of ``grid_shape``: ``prefix`` followed by the ``encoding`` of the coordinates."""

    prefix: Prefix
    encoding: ChunkKeyEncoding
    grid_shape: Shape

    def key(self, coords: Coords) -> Key:
        """Return the key of a chunk."""
        return self.prefix.key(self.encoding.encode(coords))

    def decode(self, key: str) -> Coords | None:
        """Return the coordinates in ``key``, inside the grid or not; None if it is not a chunk key of this number of dimensions."""
        if not key.startswith(self.prefix):
            return None
        return self.encoding.decode(key[len(self.prefix) :], len(self.grid_shape))

    def holds(self, coords: Coords) -> bool:
        """Return True if the coordinates are inside the grid."""
        return in_grid(coords, self.grid_shape)

    def holds_some(self, lead: Coords) -> bool:
        """Return True if the grid has chunks that begin with these indices."""
        return all(index < extent for index, extent in zip(lead, self.grid_shape, strict=False)) and 0 not in self.grid_shape

    def lies_below(self, prefix: Prefix) -> bool:
        """Return True if ``prefix`` is above the grid: a proper prefix of the grid's own prefix."""
        return len(prefix) < len(self.prefix) and self.prefix.startswith(prefix)

    def lead(self, prefix: Prefix) -> Coords | None:
        """Return the leading indices common to chunk keys that begin with ``prefix``, inside the grid or not; None without such keys.

        It is empty for the grid's own prefix, and for a part of the key in front of the indices. ``prefix`` is not above the grid.
        """
        if not prefix.startswith(self.prefix):
            return None
        relative = prefix[len(self.prefix) :]
        ndim, before = len(self.grid_shape), self.encoding.prefix
        if ndim == 0:
            return () if self.encoding.scalar.startswith(relative) else None
        if before.startswith(relative):
            return ()
        length = relative.count("/") - before.count("/")
        if self.encoding.separator != "/" or not 0 < length < ndim:
            return None
        return self.encoding.decode(relative[:-1] + self.encoding.suffix, length)

    def below(self, lead: Coords) -> Prefix:
        """Return the prefix of chunk keys whose first indices are ``lead``, not all; the grid's own if indices form no prefixes."""
        if not lead or self.encoding.separator != "/":
            return self.prefix
        return Prefix(f"{self.prefix}{self.encoding.prefix}{'/'.join(map(str, lead))}/")

    def name(self, prefix: Prefix, coords: Coords) -> tuple[str, bool]:
        """Return the entry of a chunk in a listing of ``prefix``, with which its key begins, and whether it is a prefix."""
        name, slash, _ = self.key(coords)[len(prefix) :].partition("/")
        return name, bool(slash)


def leads(ranges: Sequence[range], most: int) -> Iterator[Coords]:
    """Yield all index tuples out of ``ranges``, one per dimension; beyond ``most``, only the leading indices common to all."""
    count = 1
    for each in ranges:
        count *= len(each)
    if count <= most:
        yield from itertools.product(*ranges)
    else:
        yield tuple(each[0] for each in itertools.takewhile(lambda each: len(each) == 1, ranges))
