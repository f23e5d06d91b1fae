"""Conversion of a box of elements to runs of chunks: consecutive along the last axis, with the same selection in each.

A box of a few whole rows touches all chunks of a row, each in the same few rows. Where chunks are small, one object for each of them
(`ChunkPlan.projections`) costs more than copying their elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from zarrfs.model.chunk_grid import ChunkGrid, Coords
from zarrfs.model.chunk_plan import Box, Selection


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """``count`` chunks from ``coords`` along the last axis.

    ``chunk_selection`` applies to each of them, and covers the last axis if they are several; ``box_selection`` is the part of the box
    for all of them together.
    """

    coords: Coords
    count: int
    chunk_selection: Selection
    box_selection: Selection


def runs(grid: ChunkGrid, box: Box) -> Iterator[ChunkRun]:
    """Yield the runs of chunks in a box, in C order of the grid."""
    axes = [list(_cuts(grid, axis, box)) for axis in range(len(box.origin))]
    if axes:
        axes[-1] = list(_joined(grid, box))
    for parts in itertools.product(*axes):
        yield ChunkRun(
            tuple(part[0] for part in parts),
            parts[-1][1] if parts else 1,
            tuple(part[2] for part in parts),
            tuple(part[3] for part in parts),
        )


_Cut = tuple[int, int, slice, slice]
"""First index, count, part of the chunk, part of the box."""


def _cuts(grid: ChunkGrid, axis: int, box: Box) -> Iterator[_Cut]:
    first, stop = box.origin[axis], box.origin[axis] + box.shape[axis]
    for index in grid.indices(axis, first, stop):
        begin, end = grid.span(axis, index)
        low, high = max(begin, first), min(end, stop)
        yield index, 1, slice(low - begin, high - begin), slice(low - first, high - first)


def _joined(grid: ChunkGrid, box: Box) -> Iterator[_Cut]:
    """Yield the cuts along the last axis, with chunks of the same length that are wholly in the box joined."""
    axis = len(box.origin) - 1
    first, stop = box.origin[axis], box.origin[axis] + box.shape[axis]
    indices = grid.indices(axis, first, stop)
    if not indices:
        return
    # End of the chunks that do not exceed the box.
    whole = indices.stop if grid.span(axis, indices[-1])[1] <= stop else indices.stop - 1
    index = indices.start
    while index < indices.stop:
        begin, end = grid.span(axis, index)
        count = grid.alike(axis, index, whole) if begin >= first and index < whole else 1
        low, high = max(begin, first), min(begin + count * (end - begin), stop)
        yield index, count, slice(low - begin, end - begin if count > 1 else high - begin), slice(low - first, high - first)
        index += count
