"""Chunk grids: how an array is cut into chunks.

Source: v2 "Chunks"; v3 final "Chunk grids". Chunk coordinates are tuples of Python integers, one a dimension; a 0-dimensional array
has one chunk, with coordinates ``()``. A chunk is always encoded at its full shape, also where it hangs over the array's edge.

Only `RegularGrid` is here. Code that works on chunks calls the methods of `ChunkGrid` and assumes no equal lengths; a dialect puts the
grid into `ArrayMetadata`. Grids that final v3 documents name are in ``dialects/v3/grids/``.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

from zarrfs.errors import MetadataError

Coords = tuple[int, ...]
Shape = tuple[int, ...]


class ChunkGrid(abc.ABC):
    """What readers and writers need to know of a grid; axis by axis, so that no grid is ever enumerated as a whole.

    A grid is a value: immutable, hashable, equal to one that cuts the same way. A chunk is at least one element long along each dimension
    that has elements.
    """

    __slots__ = ()

    @abc.abstractmethod
    def grid_shape(self, shape: Shape) -> Shape:
        """Chunks along each dimension of an array of ``shape``, which the grid fits (`resized`); 0 along a dimension of length 0."""

    @abc.abstractmethod
    def chunk_shape(self, coords: Coords) -> Shape:
        """Elements of chunk ``coords`` along each dimension, as it is encoded (not cut at the array's edge)."""

    @abc.abstractmethod
    def span(self, axis: int, index: int) -> tuple[int, int]:
        """First element of chunks with ``index`` along ``axis``, and the first element after them (not cut at the edge)."""

    @abc.abstractmethod
    def indices(self, axis: int, start: int, stop: int) -> range:
        """Indices along ``axis`` of the chunks that hold any of the elements ``start`` to ``stop`` (exclusive)."""

    @property
    @abc.abstractmethod
    def largest(self) -> Shape:
        """Along each dimension, elements of the longest chunk: no chunk is larger than one of this shape. Cheap."""

    @property
    def is_uniform(self) -> bool:
        """True if every chunk has the shape `largest`."""
        return False

    @abc.abstractmethod
    def reversed(self) -> ChunkGrid:
        """The grid of the transposed array: the dimensions in the opposite order."""

    def alike(self, axis: int, index: int, stop: int) -> int:
        """How many chunks along ``axis`` with indices from ``index`` on, below ``stop``, are as long as the first of them: 1 or more, and
        fewer than there are where counting them costs."""
        return 1

    def resized(self, shape: Shape) -> ChunkGrid:
        """The grid that the array has when its shape becomes ``shape``. Chunks that are in both are the same."""
        return self


@dataclass(frozen=True, slots=True)
class RegularGrid(ChunkGrid):
    """Every chunk has the same shape. Source: v3 final "Regular grids".

    A chunk length of 0 is allowed only where the dimension has length 0 (zarr-python writes it there); `checked` sees to that.
    """

    chunks: Shape

    @classmethod
    def checked(cls, chunks: Shape, shape: Shape) -> RegularGrid:
        """The grid for an array of ``shape``. Raises `MetadataError` when the two do not fit."""
        if len(chunks) != len(shape):
            raise MetadataError(f"the chunk shape has {len(chunks)} dimensions, the array {len(shape)}")
        for chunk, extent in zip(chunks, shape, strict=True):
            if chunk < 0 or (chunk == 0 and extent != 0):
                raise MetadataError(f"chunk shape {chunks}: every chunk length is at least 1 (the array's shape is {shape})")
        return cls(chunks)

    def grid_shape(self, shape: Shape) -> Shape:
        return tuple(-(-extent // chunk) if chunk else 0 for extent, chunk in zip(shape, self.chunks, strict=True))

    def chunk_shape(self, coords: Coords) -> Shape:
        return self.chunks

    @property
    def largest(self) -> Shape:
        return self.chunks

    @property
    def is_uniform(self) -> bool:
        return True

    def reversed(self) -> RegularGrid:
        return RegularGrid(self.chunks[::-1])

    def alike(self, axis: int, index: int, stop: int) -> int:
        return stop - index

    def span(self, axis: int, index: int) -> tuple[int, int]:
        length = self.chunks[axis]
        return index * length, (index + 1) * length

    def indices(self, axis: int, start: int, stop: int) -> range:
        length = self.chunks[axis]
        return range(start // length, -(-stop // length)) if stop > start and length else range(0)


def in_grid(coords: Coords, grid_shape: Shape) -> bool:
    """Whether ``coords`` name a chunk of a grid of ``grid_shape``."""
    return len(coords) == len(grid_shape) and all(0 <= index < extent for index, extent in zip(coords, grid_shape, strict=True))
