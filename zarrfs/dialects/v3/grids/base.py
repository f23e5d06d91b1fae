"""The interface of a chunk grid of the final v3: its name and its configuration.

Source: Zarr v3 core, "Chunk grids". A grid is one file; its module constant ``PLUGIN`` is an instance of `GridForm`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar

from zarrfs.dialects.quirks import Quirks
from zarrfs.model.chunk_grid import ChunkGrid, Shape


class GridForm(abc.ABC):
    """One kind of grid. ``name`` is that in documents."""

    name: ClassVar[str]

    @abc.abstractmethod
    def parse(self, configuration: Mapping[str, Any], shape: Shape, quirks: Quirks) -> ChunkGrid:
        """Return the grid of an array of ``shape``; deviations from the specification are added to ``quirks``.

        Raises `MetadataError`, `MetadataUnsupported`.
        """

    @abc.abstractmethod
    def configuration(self, grid: ChunkGrid) -> dict[str, Any] | None:
        """Return the configuration for ``grid``, the inverse of `parse`; None for a grid of another kind."""


def check_plugin(offered: object) -> None:
    """Raise TypeError for an object that is not a usable plug-in of this package: another distribution may offer anything."""
    if not isinstance(offered, GridForm):
        raise TypeError(f"a {type(offered).__name__} is no GridForm")
    if not isinstance(getattr(offered, "name", None), str):
        raise TypeError("name must be a string")
