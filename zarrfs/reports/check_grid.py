"""Which places of a grid ``zarrfs check`` looks at, be they those of chunks or of shards."""

from __future__ import annotations

import math
from collections.abc import Iterator

from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.stores.base import Store

# Places that are all asked for, listed or not, where asking for one that is not there costs next to nothing.
_ASKED = 100_000


def whole_grid(grid_shape: Shape, store: Store) -> bool:
    """Whether every place of a grid is asked for, rather than those that are listed.

    Where nothing can be listed, always. Otherwise because a listing leaves out what is no value: a symbolic link in a folder, which
    is an error to whoever reads it, and not a missing chunk.
    """
    return not store.capabilities.list or (store.capabilities.hierarchical and math.prod(grid_shape) <= _ASKED)


def coordinates(grid_shape: Shape) -> Iterator[Coords]:
    """Every place of a grid, in C order. Not itertools.product, which would first make lists of grids that are as large as they say."""
    for number in range(math.prod(grid_shape)):
        coords: list[int] = []
        for extent in reversed(grid_shape):
            number, index = divmod(number, extent)
            coords.append(index)
        yield tuple(reversed(coords))
