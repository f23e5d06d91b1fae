"""Slabs: the array divided so that a sequential reader of its elements needs each chunk once.

Take the first dimension whose chunks are longer than one element. All chunks with the same indices up to and including that dimension
form one *row* of chunks; in C order the elements of a row are contiguous. A *slab* is a run of rows, enough to justify a buffer. While
one slab is in memory, a sequential reader needs no chunk outside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from zarrfs.model.chunk_grid import ChunkGrid, Coords, Shape
from zarrfs.model.chunk_plan import Selection, boxes


@dataclass(frozen=True, slots=True)
class Row:
    """One row of chunks: elements ``start`` to ``stop`` (C order) of the array, a box of ``shape``."""

    start: int
    stop: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk in a row: ``chunk_selection`` is its part inside the array, ``row_selection`` the position of that in the row's box."""

    coords: Coords
    chunk_selection: Selection
    row_selection: Selection


@dataclass(frozen=True, slots=True)
class Block:
    """Chunks of equal shape, consecutive in C order, that form a box of ``grid`` chunks.

    Their elements are the part ``selection`` of elements ``start`` to ``stop`` (C order) of the array, in ``shape``. The dimensions are
    the first ``leading`` ones of the array, taken together, then the others: ``chunk`` is the shape of a chunk in these, of which only
    index 0 of each leading dimension is in the array. The part is shorter than ``grid`` chunks along a dimension where the array ends.
    """

    start: int
    stop: int
    shape: Shape
    selection: Selection
    grid: Shape
    chunk: Shape
    leading: int

    @property
    def count(self) -> int:
        """Number of chunks."""
        return math.prod(self.grid)


class SlabGrid:
    """The division of an array of ``shape`` on ``grid`` into slabs.

    A slab is at least one row of chunks, and more within ``target_nbytes`` and `MAX_CHUNKS`.
    """

    MAX_CHUNKS = 1 << 16
    """Limit for chunks of a few bytes each, whose overhead exceeds their elements."""

    def __init__(self, shape: Shape, grid: ChunkGrid, itemsize: int, target_nbytes: int) -> None:
        self._shape = shape
        self._grid = grid
        self._grid_shape = grid_shape = grid.grid_shape(shape)
        # Chunks of length 1 along a whole dimension: as many chunks as elements.
        self._axis = next((axis for axis, extent in enumerate(shape) if grid_shape[axis] != extent), max(0, len(shape) - 1))
        self._leading = math.prod(shape[: self._axis])
        self._rows_of_axis = grid_shape[self._axis] if shape else 1
        self._inner = math.prod(shape[self._axis + 1 :])
        self.rows = self._leading * self._rows_of_axis
        size = math.prod(shape)
        longest = min(grid.largest[self._axis], shape[self._axis]) if shape else 1
        # On average; if rows differ, a slab of short ones may be small, and one of long ones is at most twice the target.
        row_nbytes = max(1, size * itemsize // max(1, self.rows), longest * self._inner * itemsize // 2)
        self._chunks_per_row = math.prod(grid_shape[self._axis + 1 :])
        most = min(target_nbytes // row_nbytes, self.MAX_CHUNKS // max(1, self._chunks_per_row), self.rows)
        self.rows_per_slab = max(1, most)

    @property
    def slabs(self) -> int:
        """Number of slabs."""
        return -(-self.rows // self.rows_per_slab)

    def slab_at(self, element: int) -> int:
        """Return the slab that holds ``element`` (C order)."""
        if not self._shape:
            return 0
        lead, along = divmod(element // self._inner, self._shape[self._axis])
        return (lead * self._rows_of_axis + self._grid.indices(self._axis, along, along + 1)[0]) // self.rows_per_slab

    def extent(self, slab: int) -> tuple[int, int]:
        """Return the first element of a slab, and the first after it."""
        first = slab * self.rows_per_slab
        last = min(first + self.rows_per_slab, self.rows) - 1
        return self.row(first).start, self.row(last).stop

    def row_numbers(self, slab: int) -> range:
        """Return the rows of a slab."""
        first = slab * self.rows_per_slab
        return range(first, min(first + self.rows_per_slab, self.rows))

    def chunks(self, slab: int) -> int:
        """Return the number of chunks in a slab."""
        return len(self.row_numbers(slab)) * self._chunks_per_row

    def row_of(self, coords: Coords) -> int:
        """Return the row of chunk ``coords``."""
        if not coords:
            return 0
        lead = 0
        for axis in range(self._axis):
            lead = lead * self._shape[axis] + coords[axis]
        return lead * self._rows_of_axis + coords[self._axis]

    def place_of(self, coords: Coords) -> tuple[int, int]:
        """Return the slab of chunk ``coords``, and its number there."""
        slab = self.row_of(coords) // self.rows_per_slab
        return slab, self.number_in(slab, coords)

    def number_in(self, slab: int, coords: Coords) -> int:
        """Return the number of chunk ``coords`` within ``slab``, from 0."""
        inner = 0
        if coords:
            for extent, index in zip(self._grid_shape[self._axis + 1 :], coords[self._axis + 1 :], strict=True):
                inner = inner * extent + index
        return (self.row_of(coords) - slab * self.rows_per_slab) * self._chunks_per_row + inner

    def numbers(self, slab: int, start: int, stop: int) -> Iterator[range]:
        """Yield the numbers of the chunks that hold elements ``start`` to ``stop`` (C order, within ``slab``), some perhaps twice."""
        for box in boxes(self._shape, start, stop):
            ranges = [self._grid.indices(axis, o, o + n) for axis, (o, n) in enumerate(zip(box.origin, box.shape, strict=True))]
            # Fixed indices, then a range, then all indices: consecutive in C order of the grid as well.
            first, last = (self.number_in(slab, tuple(each[end] for each in ranges)) for end in (0, -1))
            yield range(first, last + 1)

    def coords_of(self, slab: int, numbers: range) -> list[Coords]:
        """Return the coordinates of the chunks with these consecutive numbers within ``slab``."""
        if not self._shape:
            return [()] * len(numbers)
        found: list[Coords] = []
        at, left = slab * self.rows_per_slab * self._chunks_per_row + numbers.start, len(numbers)
        *outer, extent = self._grid_shape
        while left:
            above, index = divmod(at, extent)
            head: Coords = ()
            for each in reversed(outer):
                above, outer_index = divmod(above, each)
                head = (outer_index, *head)
            count = min(left, extent - index)
            found += [(*head, last) for last in range(index, index + count)]
            at, left = at + count, left - count
        return found

    def blocks(self, slab: int, numbers: range) -> Iterator[Block]:
        """Yield the chunks with these consecutive numbers within ``slab``, at least one, as blocks, in order.

        The grid is uniform, and the array has dimensions.
        """
        after = slice(self._axis + 1, None)
        lengths, extents = self._grid.largest[after], self._shape[after]
        length, extent = self._grid.largest[self._axis], self._shape[self._axis]
        base = slab * self.rows_per_slab * self._chunks_per_row
        dimensions = (self._leading, self._rows_of_axis, *self._grid_shape[after])
        for box in boxes(dimensions, base + numbers.start, base + numbers.stop):
            (lead, along, *others), (leads, rows, *counts) = box.origin, box.shape
            begin, end = along * length, min((along + rows) * length, extent)
            yield Block(
                (lead * extent + begin) * self._inner,
                ((lead + leads - 1) * extent + end) * self._inner,
                (leads, end - begin, *extents),
                (
                    slice(None),
                    slice(None),
                    *(slice(o * c, min((o + n) * c, e)) for o, n, c, e in zip(others, counts, lengths, extents, strict=True)),
                ),
                box.shape,
                (1, length, *lengths),
                self._axis,
            )

    def piece(self, coords: Coords) -> Piece:
        """Return the position of chunk ``coords`` in its row."""
        inside: list[slice] = []
        within: list[slice] = []
        for axis, index in enumerate(coords):
            begin, end = self._grid.span(axis, index)
            length = min(end, self._shape[axis]) - begin
            inside.append(slice(0, length))
            within.append(slice(begin, begin + length) if axis > self._axis else slice(0, length))
        return Piece(coords, tuple(inside), tuple(within))

    def coords(self, number: int) -> Iterator[Coords]:
        """Yield the coordinates of the chunks in a row, in C order."""
        if not self._shape:
            yield ()
            return
        lead, along = divmod(number, self._rows_of_axis)
        leading: list[int] = []
        for extent in reversed(self._shape[: self._axis]):
            lead, index = divmod(lead, extent)
            leading.append(index)
        head = (*reversed(leading), along)
        yield from _below(head, self._grid_shape[self._axis + 1 :])

    def row(self, number: int) -> Row:
        """Return one row."""
        if not self._shape:
            return Row(0, 1, ())
        lead, along = divmod(number, self._rows_of_axis)
        begin, end = self._grid.span(self._axis, along)
        end = min(end, self._shape[self._axis])
        base = lead * self._shape[self._axis]
        shape = (*(1,) * self._axis, end - begin, *self._shape[self._axis + 1 :])
        return Row((base + begin) * self._inner, (base + end) * self._inner, shape)


def _below(head: Coords, extents: Shape) -> Iterator[Coords]:
    """Yield all coordinates that begin with ``head``, in C order, without the lists of indices of `itertools.product`."""
    if not extents:
        yield head
        return
    for index in range(extents[0]):
        yield from _below((*head, index), extents[1:])
