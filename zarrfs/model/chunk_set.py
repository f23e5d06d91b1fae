"""A set of chunks of one grid, for arrays of millions of chunks: a bit for each, where a coordinate tuple takes 100 bytes or more."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import contains

from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.model.chunk_plan import product

# Chunks for each integer of bits: a lone chunk takes no more than two tuples.
_PAGE = 1024


class ChunkSet(Collection[Coords]):
    """Coordinates within a grid of ``grid_shape``, iterated in C order. Its size depends on its members, not on the grid."""

    __slots__ = ("_count", "_grid_shape", "_pages")

    def __init__(self, grid_shape: Shape) -> None:
        self._grid_shape = grid_shape
        # Bits of the numbers (C order) from a multiple of `_PAGE` on. Only pages with members are in it.
        self._pages: dict[int, int] = {}
        self._count = 0

    def __contains__(self, coords: object) -> bool:
        number = self._number(coords) if isinstance(coords, tuple) else None
        return number is not None and bool(self._pages.get(number // _PAGE, 0) >> number % _PAGE & 1)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Coords]:
        """Yield the members; those of a page as they were when its first one was yielded."""
        for page in sorted(self._pages):
            yield from self._of(page, self._pages.get(page, 0))

    def within(self, ranges: Sequence[range]) -> Iterator[Coords]:
        """Yield the members in a box of the grid, a range of each dimension, in C order.

        Goes through the fewer: all members, or the pages of each row of the box along the last dimension.
        """
        if not ranges or self._count < math.prod(map(len, ranges[:-1])) * (len(ranges[-1]) // _PAGE + 1):
            yield from (coords for coords in self if all(map(contains, ranges, coords)))
            return
        for head in product(list(ranges[:-1])) if ranges[-1] else ():
            start = self._number((*head, ranges[-1].start))
            if start is None:
                raise ValueError(f"box {ranges} is not in a grid of shape {self._grid_shape}")
            stop = start + len(ranges[-1])
            for page in range(start // _PAGE, (stop - 1) // _PAGE + 1):
                if bits := self._pages.get(page, 0):
                    first = page * _PAGE
                    above = bits >> max(0, start - first) << max(0, start - first)
                    yield from self._of(page, above & (1 << min(_PAGE, stop - first)) - 1)

    def add(self, coords: Coords) -> None:
        """Add a chunk. Raises `ValueError` if the grid has no such chunk."""
        number = self._number(coords)
        if number is None:
            raise ValueError(f"chunk {coords} is not in a grid of shape {self._grid_shape}")
        page, bit = number // _PAGE, 1 << number % _PAGE
        before = self._pages.get(page, 0)
        if not before & bit:
            self._pages[page] = before | bit
            self._count += 1

    def update(self, several: Iterable[Coords]) -> None:
        """Run `add` for several chunks."""
        for coords in several:
            self.add(coords)

    def discard(self, coords: Coords) -> None:
        """Remove a chunk, if it is in the set."""
        if coords not in self or (number := self._number(coords)) is None:
            return
        page = number // _PAGE
        self._pages[page] ^= 1 << number % _PAGE
        self._count -= 1
        if not self._pages[page]:
            del self._pages[page]

    def union(self, other: ChunkSet) -> ChunkSet:
        """Return a new set with the members of both, which are of the same grid."""
        both = ChunkSet(self._grid_shape)
        both._pages = self._pages | {page: self._pages.get(page, 0) | bits for page, bits in other._pages.items()}
        both._count = sum(bits.bit_count() for bits in both._pages.values())
        return both

    def _of(self, page: int, bits: int) -> Iterator[Coords]:
        """Yield the chunks of these bits of a page."""
        while bits:
            lowest = bits & -bits
            bits ^= lowest
            yield self._coords(page * _PAGE + lowest.bit_length() - 1)

    def _number(self, coords: Coords) -> int | None:
        """Return the number of a chunk in C order; None if it is outside the grid, where it would be that of another."""
        if len(coords) != len(self._grid_shape):
            return None
        number = 0
        for index, extent in zip(coords, self._grid_shape, strict=True):
            if not 0 <= index < extent:
                return None
            number = number * extent + index
        return number

    def _coords(self, number: int) -> Coords:
        coords = []
        for extent in reversed(self._grid_shape):
            number, index = divmod(number, extent)
            coords.append(index)
        return tuple(reversed(coords))
