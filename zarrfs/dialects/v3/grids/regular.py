"""``regular``: every chunk has the same shape.

Source: Zarr v3 core, "Regular grids", which requires lengths above zero; a length of 0 is accepted if the dimension has no elements.

    {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from zarrfs.dialects import documents
from zarrfs.dialects.quirks import Quirks
from zarrfs.dialects.v3.extension import check_members
from zarrfs.dialects.v3.grids.base import GridForm
from zarrfs.model.chunk_grid import ChunkGrid, RegularGrid, Shape


class Regular(GridForm):
    """See the module's docstring."""

    name: ClassVar[str] = "regular"

    def parse(self, configuration: Mapping[str, Any], shape: Shape, quirks: Quirks) -> RegularGrid:
        check_members(configuration, ("chunk_shape",), "chunk grid 'regular'")
        chunks = documents.shape(documents.member(configuration, "chunk_shape"), "chunk_shape")
        grid = RegularGrid.checked(chunks, shape)
        if 0 in chunks:
            quirks.append("chunk length 0 along a dimension of length 0")
        return grid

    def configuration(self, grid: ChunkGrid) -> dict[str, Any] | None:
        return {"chunk_shape": [max(1, length) for length in grid.chunks]} if isinstance(grid, RegularGrid) else None


PLUGIN = Regular()
