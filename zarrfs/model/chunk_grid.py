"""Chunk grids: the division of an array into chunks.

Source: v2 "Chunks"; v3 final "Chunk grids". Chunk coordinates are tuples of Python integers, one for each dimension; a 0-dimensional
array has one chunk, with coordinates ``()``. A chunk is always encoded at its full shape, also where it exceeds the array's edge.

This module has only `RegularGrid`. Code that works on chunks calls the methods of `ChunkGrid` and assumes no equal lengths; a dialect
puts the grid into `ArrayMetadata`. Grids named in final v3 documents are in ``dialects/v3/grids/``.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import lru_cache
from operator import lt

from zarrfs.errors import MetadataError

Coords = tuple[int, ...]
Shape = tuple[int, ...]


class ChunkGrid(abc.ABC):
    """The interface of a grid for readers and writers; axis by axis, so that no grid is ever enumerated as a whole.

    A grid is a value: immutable, hashable, equal to one that divides the same way. A chunk is at least one element long along each
    dimension that has elements.
    """

    __slots__ = ()

    @abc.abstractmethod
    def grid_shape(self, shape: Shape) -> Shape:
        """Return the number of chunks along each dimension of an array of ``shape``, which fits the grid; 0 for a length of 0."""

    @abc.abstractmethod
    def chunk_shape(self, coords: Coords) -> Shape:
        """Return the shape of chunk ``coords`` in elements, as encoded (not cut at the array's edge)."""

    @abc.abstractmethod
    def span(self, axis: int, index: int) -> tuple[int, int]:
        """Return the first element of chunks with ``index`` along ``axis``, and the first one after them (not cut at the edge)."""

    @abc.abstractmethod
    def indices(self, axis: int, start: int, stop: int) -> range:
        """Return the indices along ``axis`` of the chunks that hold any of the elements ``start`` to ``stop`` (exclusive)."""

    @property
    @abc.abstractmethod
    def largest(self) -> Shape:
        """Length of the longest chunk along each dimension, in elements: no chunk is larger than this shape. Cheap."""

    @property
    def is_uniform(self) -> bool:
        """True if every chunk has the shape `largest`."""
        return False

    @abc.abstractmethod
    def reversed(self) -> ChunkGrid:
        """Return the grid of the transposed array: the dimensions in the opposite order."""

    def alike(self, axis: int, index: int, stop: int) -> int:
        """Return how many chunks along ``axis``, from ``index`` and below ``stop``, have the length of the first one.

        The result is at least 1, and may be too low if counting is costly.
        """
        return 1

    def resized(self, shape: Shape) -> ChunkGrid:
        """Return the grid of the array after a resize to ``shape``. Chunks that are in both grids are the same."""
        return self


@dataclass(frozen=True, slots=True)
class RegularGrid(ChunkGrid):
    """Every chunk has the same shape. Source: v3 final "Regular grids".

    A chunk length of 0 is allowed only if the dimension has length 0 (zarr-python writes it then); `checked` enforces this.
    """

    chunks: Shape

    @classmethod
    def checked(cls, chunks: Shape, shape: Shape) -> RegularGrid:
        """Return the grid for an array of ``shape``. Raises `MetadataError` if the two do not fit."""
        if len(chunks) != len(shape):
            raise MetadataError(f"chunk shape has {len(chunks)} dimensions, array has {len(shape)}")
        for chunk, extent in zip(chunks, shape, strict=True):
            if chunk < 0 or (chunk == 0 and extent != 0):
                raise MetadataError(f"chunk shape {chunks}: each length must be at least 1 (array shape {shape})")
        return cls(chunks)

    def grid_shape(self, shape: Shape) -> Shape:
        return _grid_shape(self.chunks, shape)

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


@lru_cache(256)
def _grid_shape(chunks: Shape, shape: Shape) -> Shape:
    return tuple(-(-extent // chunk) if chunk else 0 for extent, chunk in zip(shape, chunks, strict=True))


def in_grid(coords: Coords, grid_shape: Shape) -> bool:
    """Return True if ``coords`` name a chunk of a grid of ``grid_shape``."""
    return len(coords) == len(grid_shape) and all(map(lt, coords, grid_shape)) and min(coords, default=0) >= 0
