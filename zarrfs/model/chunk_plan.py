"""Conversion of a range of an array's elements in C order to the parts of chunks that hold them.

A whole-array file has its elements in C order, so a read is a range of elements. Such a range is at most ``2 * ndim - 1`` boxes: part of
a first row, whole rows, part of a last row, dimension by dimension. Each box is cut along the chunk grid. The cost is proportional to the
size of the range, never to that of the grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import contains

from zarrfs.model.chunk_grid import ChunkGrid, Coords, Shape

Selection = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """A hyperrectangle of elements that is contiguous in C order.

    ``origin`` and ``shape`` are in elements; ``offset`` is the number of elements between the start of the range and the box.
    """

    origin: Coords
    shape: Shape
    offset: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def is_within(self, shape: Shape) -> bool:
        """Return True if all elements of the box are within an array of ``shape``."""
        return all(start + extent <= length for start, extent, length in zip(self.origin, self.shape, shape, strict=True))


@dataclass(frozen=True, slots=True)
class ChunkProjection:
    """The part of one chunk within a box: ``chunk_selection`` within the chunk, ``box_selection`` within the box."""

    coords: Coords
    chunk_selection: Selection
    box_selection: Selection


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """Elements ``start`` to ``stop`` (exclusive, C order) of an array of ``shape``, as boxes and their projections on ``grid``."""

    shape: Shape
    grid: ChunkGrid
    start: int
    stop: int

    def boxes(self) -> Iterator[Box]:
        """Yield the boxes, in C order; together they are the range."""
        if self.stop > self.start:
            yield from boxes(self.shape, self.start, self.stop)

    def projections(self, box: Box) -> Iterator[ChunkProjection]:
        """Yield every chunk that a box touches, in C order of the grid, with the selections that copy between the two."""
        axes = [self._cuts(axis, box) for axis in range(len(self.shape))]
        for parts in itertools.product(*axes):
            yield ChunkProjection(
                tuple(part[0] for part in parts), tuple(part[1] for part in parts), tuple(part[2] for part in parts)
            )

    def coords(self) -> Iterator[Coords]:
        """Yield each chunk that the range touches, once; generated one by one, as there may be as many as elements."""
        before: list[list[range]] = []
        for box in self.boxes():
            ranges = [self.grid.indices(axis, o, o + n) for axis, (o, n) in enumerate(zip(box.origin, box.shape, strict=True))]
            for coords in product(ranges):
                if not any(all(map(contains, other, coords)) for other in before):
                    yield coords
            before.append(ranges)

    def _cuts(self, axis: int, box: Box) -> list[tuple[int, slice, slice]]:
        first, stop = box.origin[axis], box.origin[axis] + box.shape[axis]
        cuts = []
        for index in self.grid.indices(axis, first, stop):
            begin, end = self.grid.span(axis, index)
            low, high = max(begin, first), min(end, stop)
            cuts.append((index, slice(low - begin, high - begin), slice(low - first, high - first)))
        return cuts


def run_length(shape: Shape, grid: ChunkGrid) -> int:
    """Return the average number of elements, consecutive in C order, that one chunk holds."""
    return max(1, shape[-1] // max(1, grid.grid_shape(shape)[-1])) if shape else 1


def product(ranges: list[range]) -> Iterator[Coords]:
    """Yield the result of `itertools.product`, without its tuples of all the indices."""
    if not ranges:
        yield ()
        return
    for head in product(ranges[:-1]):
        for index in ranges[-1]:
            yield (*head, index)


def boxes(shape: Shape, start: int, stop: int) -> Iterator[Box]:
    """Yield the boxes that elements ``start`` to ``stop`` (exclusive, C order) of an array of ``shape`` consist of, in C order."""
    return _boxes(shape, start, stop, (), 0)


def _boxes(shape: Shape, start: int, stop: int, outer: Coords, offset: int) -> Iterator[Box]:
    """Yield the boxes of elements ``start`` to ``stop`` of the sub-array at fixed indices ``outer``; ``offset`` is that of ``start``."""
    padding = (1,) * len(outer)
    if not shape:
        yield Box(outer, padding, offset)
        return
    row = math.prod(shape[1:])
    first, within_first = divmod(start, row)
    last, within_last = divmod(stop, row)
    if first == last:
        yield from _boxes(shape[1:], within_first, within_last, (*outer, first), offset)
        return
    if within_first:
        yield from _boxes(shape[1:], within_first, row, (*outer, first), offset)
        offset += row - within_first
        first += 1
    if first < last:
        yield Box((*outer, first, *(0,) * (len(shape) - 1)), (*padding, last - first, *shape[1:]), offset)
        offset += (last - first) * row
    if within_last:
        yield from _boxes(shape[1:], 0, within_last, (*outer, last), offset)
