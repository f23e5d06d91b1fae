"""A grid of unequal chunks for tests, and arrays on it, to show that code on chunks asks the grid and assumes nothing.

    {"name": "test.unequal", "configuration": {"edges": [[3, 1, 4], [5]]}}

``edges``: lengths of the chunks along each dimension, in total at least the length of the array. A chunk is encoded whole. When the
array grows beyond them, one chunk is added; when it shrinks, they are kept.
"""

from __future__ import annotations

import itertools
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st

from tests.support.stores import fill
from zarrfs.dialects import documents
from zarrfs.dialects.quirks import Quirks
from zarrfs.dialects.v3.grids.base import GridForm
from zarrfs.errors import MetadataError
from zarrfs.model.chunk_grid import ChunkGrid, Coords, Shape
from zarrfs.stores.memory import MemoryStore

GRIDS = {"zarrfs.dialects.v3.grids": "tests.support.unequal_chunks:PLUGIN"}
"""The plug-in for `tests.support.plugged.offer`."""


@dataclass(frozen=True)
class UnequalGrid(ChunkGrid):
    """The grid (see the module)."""

    edges: tuple[Shape, ...]

    @cached_property
    def _ends(self) -> list[list[int]]:
        return [list(itertools.accumulate(lengths)) for lengths in self.edges]

    def grid_shape(self, shape: Shape) -> Shape:
        return tuple(bisect_left(ends, extent) + 1 if extent else 0 for ends, extent in zip(self._ends, shape, strict=True))

    def chunk_shape(self, coords: Coords) -> Shape:
        return tuple(lengths[index] for lengths, index in zip(self.edges, coords, strict=True))

    def span(self, axis: int, index: int) -> tuple[int, int]:
        end = self._ends[axis][index]
        return end - self.edges[axis][index], end

    def indices(self, axis: int, start: int, stop: int) -> range:
        ends = self._ends[axis]
        return range(bisect_right(ends, start), bisect_left(ends, stop) + 1) if start < stop else range(0)

    @property
    def largest(self) -> Shape:
        return tuple(max(lengths, default=0) for lengths in self.edges)

    def reversed(self) -> UnequalGrid:
        return UnequalGrid(self.edges[::-1])

    def alike(self, axis: int, index: int, stop: int) -> int:
        lengths = self.edges[axis]
        return next((each - index for each in range(index, stop) if lengths[each] != lengths[index]), stop - index)

    def resized(self, shape: Shape) -> UnequalGrid:
        return UnequalGrid(
            tuple(
                (*lengths, extent - sum(lengths)) if extent > sum(lengths) else lengths
                for lengths, extent in zip(self.edges, shape, strict=True)
            )
        )


class Unequal(GridForm):
    """The form of the grid in documents."""

    name: ClassVar[str] = "test.unequal"

    def parse(self, configuration: Mapping[str, Any], shape: Shape, quirks: Quirks) -> UnequalGrid:
        said = documents.array(documents.member(configuration, "edges"), "edges")
        edges = tuple(documents.integers(lengths, "edges") for lengths in said)
        if any(0 in lengths for lengths in edges):
            raise MetadataError("test.unequal: a chunk has at least one element")
        if len(edges) != len(shape) or any(sum(lengths) < extent for lengths, extent in zip(edges, shape, strict=True)):
            raise MetadataError("test.unequal: the edges do not fit the shape")
        return UnequalGrid(edges)

    def configuration(self, grid: ChunkGrid) -> dict[str, Any] | None:
        return {"edges": [list(lengths) for lengths in grid.edges]} if isinstance(grid, UnequalGrid) else None


PLUGIN = Unequal()


@dataclass(frozen=True)
class UnequalExample:
    """An array on such a grid, as final Zarr v3. Padding is junk in the store; ``missing`` chunks are not stored."""

    shape: Shape
    edges: tuple[Shape, ...]
    missing: frozenset[Coords] = frozenset()
    fill: int = 7
    codecs: tuple[str, ...] = ()

    @property
    def grid(self) -> UnequalGrid:
        """The grid."""
        return UnequalGrid(self.edges)

    @property
    def coords(self) -> list[Coords]:
        """The coordinates of all chunks."""
        return list(itertools.product(*map(range, self.grid.grid_shape(self.shape))))

    def box(self, coords: Coords) -> tuple[slice, ...]:
        """Return the part of the array in a chunk."""
        spans = (self.grid.span(axis, index) for axis, index in enumerate(coords))
        return tuple(slice(begin, min(end, extent)) for (begin, end), extent in zip(spans, self.shape, strict=True))

    @property
    def elements(self) -> np.ndarray[Any, Any]:
        """The elements that a reader should see."""
        whole = np.arange(1, math.prod(self.shape) + 1).astype("<i4").reshape(self.shape)
        for coords in self.missing:
            whole[self.box(coords)] = self.fill
        return whole

    @property
    def document(self) -> dict[str, Any]:
        """The ``zarr.json``."""
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": "int32",
            "chunk_grid": {"name": "test.unequal", "configuration": {"edges": [list(each) for each in self.edges]}},
            "chunk_key_encoding": {"name": "default"},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, *({"name": name} for name in self.codecs)],
            "fill_value": self.fill,
        }

    def values(self, name: str) -> Iterator[tuple[str, bytes]]:
        """Yield the keys and values of the array as node ``/name``, if no codec follows ``bytes``."""
        yield f"{name}/zarr.json", json.dumps(self.document).encode()
        for coords in self.coords:
            if coords not in self.missing:
                chunk = np.full(self.grid.chunk_shape(coords), -1, "<i4")
                inside = self.elements[self.box(coords)]
                chunk[tuple(slice(0, n) for n in inside.shape)] = inside
                yield f"{name}/{'/'.join(['c', *map(str, coords)])}", chunk.tobytes()

    def stored_in(self, values: Mapping[str, bytes], name: str) -> np.ndarray[Any, Any]:
        """Return the current elements in a store, read without zarrfs."""
        whole = np.full(self.shape, self.fill, "<i4")
        for coords in self.coords:
            value = values.get(f"{name}/{'/'.join(['c', *map(str, coords)])}")
            if value is not None:
                box = self.box(coords)
                chunk = np.frombuffer(value, "<i4").reshape(self.grid.chunk_shape(coords))
                whole[box] = chunk[tuple(slice(0, each.stop - each.start) for each in box)]
        return whole


@st.composite
def unequal_edges(draw: st.DrawFn, extent: int) -> Shape:
    """Return chunk lengths for a dimension; the last one may overhang its edge, and one more may lie beyond it."""
    lengths: list[int] = []
    while sum(lengths) < extent:
        lengths.append(draw(st.sampled_from([1, 2, 2, 3, 5])))
    return (*lengths, *draw(st.sampled_from([(), (), (2,)])))


@st.composite
def unequal_examples(draw: st.DrawFn, max_ndim: int = 3, max_extent: int = 9) -> UnequalExample:
    """Return small arrays of unequal chunks."""
    shape = tuple(draw(st.lists(st.integers(0, max_extent), max_size=max_ndim)))
    example = UnequalExample(shape, tuple(draw(unequal_edges(extent)) for extent in shape))
    missing = draw(st.frozensets(st.sampled_from(example.coords), max_size=4)) if example.coords else frozenset()
    return UnequalExample(shape, example.edges, missing)


async def store_with(example: UnequalExample) -> MemoryStore:
    """Return a store that holds ``example`` as its array ``a``."""
    store = MemoryStore()
    await fill(store, dict(example.values("a")))
    return store
