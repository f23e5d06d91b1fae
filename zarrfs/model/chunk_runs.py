"""From a box of elements to runs of chunks: chunks one after the other along the last axis, of which the same part is concerned.

A box of a few whole rows touches as many chunks as there are in a row, of each of them the same few rows. Where chunks are small, naming
each of them (`ChunkPlan.projections`) costs more than moving their elements.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from zarrfs.model.chunk_grid import ChunkGrid, Coords
from zarrfs.model.chunk_plan import Box, Selection


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """``count`` chunks from ``coords`` on along the last axis. ``chunk_selection``: within each of them, along the last axis all of it
    where they are several; ``box_selection``: within the box, of all of them together."""

    coords: Coords
    count: int
    chunk_selection: Selection
    box_selection: Selection


def runs(grid: ChunkGrid, box: Box) -> Iterator[ChunkRun]:
    """The runs of chunks that make up a box, in C order of the grid."""
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
"""First index, how many, part of the chunk, part of the box."""


def _cuts(grid: ChunkGrid, axis: int, box: Box) -> Iterator[_Cut]:
    first, stop = box.origin[axis], box.origin[axis] + box.shape[axis]
    for index in grid.indices(axis, first, stop):
        begin, end = grid.span(axis, index)
        low, high = max(begin, first), min(end, stop)
        yield index, 1, slice(low - begin, high - begin), slice(low - first, high - first)


def _joined(grid: ChunkGrid, box: Box) -> Iterator[_Cut]:
    """The cuts along the last axis, chunks of the same length that lie whole in the box together."""
    axis = len(box.origin) - 1
    first, stop = box.origin[axis], box.origin[axis] + box.shape[axis]
    indices = grid.indices(axis, first, stop)
    if not indices:
        return
    # Behind the last chunk that does not lead out of the box.
    whole = indices.stop if grid.span(axis, indices[-1])[1] <= stop else indices.stop - 1
    index = indices.start
    while index < indices.stop:
        begin, end = grid.span(axis, index)
        count = grid.alike(axis, index, whole) if begin >= first and index < whole else 1
        low, high = max(begin, first), min(begin + count * (end - begin), stop)
        yield index, count, slice(low - begin, end - begin if count > 1 else high - begin), slice(low - first, high - first)
        index += count
