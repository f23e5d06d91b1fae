"""What a chunk grid of the final v3 is: a name, and what its configuration means.

Source: Zarr v3 core, "Chunk grids". One file a grid; its module constant ``PLUGIN`` is an instance of `GridForm`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

from zarrfs.dialects.quirks import Quirks
from zarrfs.model.chunk_grid import ChunkGrid, Shape


class GridForm(abc.ABC):
    """One kind of grid. ``name``: as documents have it."""

    name: ClassVar[str]

    @abc.abstractmethod
    def parse(self, configuration: Mapping[str, Any], shape: Shape, quirks: Quirks) -> ChunkGrid:
        """The grid of an array of ``shape``; deviations from the text are added to ``quirks``. Raises `MetadataError`,
        `MetadataUnsupported`."""

    @abc.abstractmethod
    def configuration(self, grid: ChunkGrid) -> dict[str, Any] | None:
        """What `parse` makes ``grid`` of; None for a grid of another kind."""


def check_plugin(offered: object) -> None:
    """Raise TypeError for what is no plug-in of this package, or none that can be used: another distribution may offer anything."""
    if not isinstance(offered, GridForm):
        raise TypeError(f"a {type(offered).__name__} is no GridForm")
    if not isinstance(getattr(offered, "name", None), str):
        raise TypeError("its name has to be a string")
