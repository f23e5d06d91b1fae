"""Copies of elements between arrays of different memory layouts: fast for any order of dimensions, and cancellable.

NumPy iterates over the dimensions in the order of one of the two arrays. If the other one has them in another order, each of its cache
lines, and pages, is visited once for each of its elements; and if dimensions are many and short, the innermost loop is over two elements.
Dimensions with the same layout in both arrays are therefore merged, and the remaining ones, unless contiguous in both, are copied tile by
tile: a tile has long runs in both arrays, and fits into the processor's caches.

A thread whose caller was cancelled ends between two pieces (`zarrfs.threads.go_on`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from zarrfs import threads
from zarrfs.buffers import NDArray

PIECE_NBYTES = 8 << 20
"""Bytes copied between two checks for cancellation; a few milliseconds."""
# NumPy copies this size as fast, or within a millisecond or two.
_AT_ONCE_NBYTES = 1 << 20
# Size of a tile in elements: its runs in both arrays, and its total.
_RUN = 128
_TILE = _RUN * _RUN
# Run length in bytes from which NumPy is as fast as the memory.
_LONG_NBYTES = 64
# Number of tile dimensions up to which NumPy's loops are as fast as a table.
_FEW = 3


def copy(out: NDArray, source: NDArray) -> None:
    """Run ``out[...] = source``, for arrays of the same shape and the same type except for byte order, without overlap."""
    if out.nbytes <= _AT_ONCE_NBYTES or out.dtype.hasobject:
        np.copyto(out, source, casting="equiv")
        return
    axes = _merged(out, source)
    if not axes:
        # A single large element has no dimension.
        np.copyto(out, source, casting="equiv")
        return
    shape = tuple(axis.extent for axis in axes)
    out = as_strided(out, shape, tuple(axis.out for axis in axes))
    source = as_strided(source, shape, tuple(axis.source for axis in axes), writeable=False)
    if _is_run(axes, out.itemsize) or out.itemsize >= _LONG_NBYTES:
        for piece in _pieces(shape, out.itemsize):
            np.copyto(out[piece], source[piece], casting="equiv")
            threads.go_on()
    else:
        _copy_tiles(out, source, axes)


class _Axis(NamedTuple):
    extent: int
    out: int
    source: int


def _merged(out: NDArray, source: NDArray) -> list[_Axis]:
    """Return the dimensions, outermost of ``out`` first, with those that are contiguous in both arrays merged."""
    axes = sorted(map(_Axis, out.shape, out.strides, source.strides), key=lambda axis: -abs(axis.out))
    merged: list[_Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        before = merged[-1] if merged else None
        if before is not None and (before.out, before.source) == (axis.extent * axis.out, axis.extent * axis.source):
            merged[-1] = axis._replace(extent=before.extent * axis.extent)
        else:
            merged.append(axis)
    return merged


def _is_run(axes: list[_Axis], itemsize: int) -> bool:
    last = axes[-1]
    return last.source in (0, itemsize) and last.extent * itemsize >= _LONG_NBYTES


def _pieces(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[int | slice, ...]]:
    """Yield indices of arrays of ``shape``, one piece at a time."""
    axis, row = len(shape) - 1, itemsize
    while axis and row * shape[axis] <= PIECE_NBYTES:
        row *= shape[axis]
        axis -= 1
    step = max(1, PIECE_NBYTES // row)
    for outer in itertools.product(*map(range, shape[:axis])):
        for start in range(0, shape[axis], step):
            yield (*outer, slice(start, start + step))


def _copy_tiles(out: NDArray, source: NDArray, axes: list[_Axis]) -> None:
    sizes = _tile(axes)
    gathers: dict[tuple[int, ...], _Gather] = {}
    most = PIECE_NBYTES // out.itemsize
    done = 0
    # Not `itertools.product`, which first creates tuples of what may be millions of numbers.
    for numbers in np.ndindex(*(-(-axis.extent // size) for axis, size in zip(axes, sizes, strict=True))):
        index = tuple(
            number if size == 1 else slice(number * size, number * size + size) for number, size in zip(numbers, sizes, strict=True)
        )
        target, tile = out[index], source[index]
        gather = gathers.get(tile.shape)
        if gather is None:
            gather = gathers[tile.shape] = _Gather(tile)
        gather.copy(target, tile)
        done += target.size
        if done >= most:
            done = 0
            threads.go_on()


def _tile(axes: list[_Axis]) -> list[int]:
    """Return the extents of a tile: enough of the innermost dimensions of both arrays for a run in each."""
    sizes = [1] * len(axes)
    by_source = sorted(range(len(axes)), key=lambda number: abs(axes[number].source))
    for order in (range(len(axes) - 1, -1, -1), by_source):
        run = 1
        for number in order:
            if run >= _RUN:
                break
            sizes[number] = max(sizes[number], min(axes[number].extent, -(-_RUN // run)))
            run *= sizes[number]
    for number in reversed(range(len(axes))):
        room = _TILE // math.prod(sizes)
        sizes[number] = min(axes[number].extent, sizes[number] * max(1, room))
    return sizes


class _Gather:
    """The copy method for tiles of one shape and the same strides.

    For few dimensions it is NumPy's copy; else the tile is gathered in the order of the source, where it has long runs, and permuted to
    the other order by a table.
    """

    def __init__(self, tile: NDArray) -> None:
        order = sorted(range(tile.ndim), key=lambda number: -abs(tile.strides[number]))
        self._back = np.argsort(order)
        self._order = order
        self._table: NDArray | None = None
        if tile.ndim > _FEW:
            there = np.arange(tile.size, dtype=np.intp).reshape([tile.shape[number] for number in order])
            self._table = np.ascontiguousarray(there.transpose(self._back)).reshape(-1)
            self._near: NDArray = np.empty([tile.shape[number] for number in order], tile.dtype)
            self._far: NDArray = np.empty(tile.shape, tile.dtype)

    def copy(self, target: NDArray, tile: NDArray) -> None:
        """Run ``target[...] = tile``."""
        if self._table is not None:
            self._near[...] = tile.transpose(self._order)
            self._near.reshape(-1).take(self._table, out=self._far.reshape(-1), mode="clip")
            tile = self._far
        np.copyto(target, tile, casting="equiv")
