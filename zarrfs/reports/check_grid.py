"""Grid positions that ``zarrfs check`` reads, of chunks or of shards."""

from __future__ import annotations

import math
from collections.abc import Iterator

from zarrfs.model.chunk_grid import Coords, Shape
from zarrfs.stores.base import Store

# Maximum of positions that are all read, listed or not, in a store where reading an absent key is nearly free.
_ASKED = 100_000


def whole_grid(grid_shape: Shape, store: Store) -> bool:
    """Return True if every position of a grid is read, instead of the listed ones.

    Always in a store that cannot list. Otherwise because a listing omits entries that are no values: a symbolic link in a folder, which
    is an error for its readers, not a missing chunk.
    """
    return not store.capabilities.list or (store.capabilities.hierarchical and math.prod(grid_shape) <= _ASKED)


def coordinates(grid_shape: Shape) -> Iterator[Coords]:
    """Yield every position of a grid, in C order. Not itertools.product, which would first build lists as long as the grid's sides."""
    for number in range(math.prod(grid_shape)):
        coords: list[int] = []
        for extent in reversed(grid_shape):
            number, index = divmod(number, extent)
            coords.append(index)
        yield tuple(reversed(coords))
