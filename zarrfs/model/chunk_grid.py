"""Chunk grids: how an array is cut into chunks.

Source: v2 "Chunks"; v3 final "Chunk grids". Chunk coordinates are tuples of Python integers, one a dimension; a 0-dimensional array
has one chunk, with coordinates ``()``. A chunk is always encoded at its full shape, also where it hangs over the array's edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from zarrfs.errors import MetadataError

Coords = tuple[int, ...]
Shape = tuple[int, ...]


class ChunkGrid(Protocol):
    """What readers need to know of a grid; axis by axis, so that no grid is ever enumerated as a whole."""

    def grid_shape(self, shape: Shape) -> Shape:
        """Chunks along each dimension of an array of ``shape``; 0 along a dimension of length 0."""

    def chunk_shape(self, coords: Coords) -> Shape:
        """Elements of chunk ``coords`` along each dimension, as it is encoded (not cut at the array's edge)."""

    def span(self, axis: int, index: int) -> tuple[int, int]:
        """First element of chunks with ``index`` along ``axis``, and the first element after them (not cut at the edge)."""

    def indices(self, axis: int, start: int, stop: int) -> range:
        """Indices along ``axis`` of the chunks that hold any of the elements ``start`` to ``stop`` (exclusive)."""


@dataclass(frozen=True, slots=True)
class RegularGrid:
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

    def span(self, axis: int, index: int) -> tuple[int, int]:
        length = self.chunks[axis]
        return index * length, (index + 1) * length

    def indices(self, axis: int, start: int, stop: int) -> range:
        length = self.chunks[axis]
        return range(start // length, -(-stop // length)) if stop > start and length else range(0)


def in_grid(coords: Coords, grid_shape: Shape) -> bool:
    """Whether ``coords`` name a chunk of a grid of ``grid_shape``."""
    return len(coords) == len(grid_shape) and all(0 <= index < extent for index, extent in zip(coords, grid_shape, strict=True))
