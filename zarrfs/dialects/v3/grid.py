"""The ``chunk_grid`` of an array document of the final v3: dispatch by name to ``grids/``.

Source: Zarr v3 core, "chunk_grid" (array metadata).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from zarrfs import registry
from zarrfs.dialects.documents import dump, shortened
from zarrfs.dialects.quirks import Quirks
from zarrfs.dialects.v3.extension import Extension, extension_to_json
from zarrfs.dialects.v3.grids.base import GridForm
from zarrfs.errors import MetadataUnsupported, NotRepresentable
from zarrfs.model.chunk_grid import ChunkGrid, RegularGrid, Shape
from zarrfs.model.unparsed import Unparsed


def parse_grid(named: Extension, shape: Shape, quirks: Quirks) -> ChunkGrid:
    """Return the grid of an array of ``shape``. Raises `MetadataError`, `MetadataUnsupported`."""
    if (form := _forms().get(named.name)) is not None:
        return form.parse(named.configuration, shape, quirks)
    if named.name in ("rectilinear", "rectangular"):
        raise MetadataUnsupported(f"chunk grid {named.name}: chunks of different shapes are not supported yet")
    raise MetadataUnsupported(f"chunk grid {shortened(named.name)}: unknown")


def grid_to_json(grid: ChunkGrid) -> dict[str, Any] | Unparsed:
    """Return the member ``chunk_grid`` for ``grid``. Raises `NotRepresentable`."""
    for form in _forms().values():
        if (configuration := form.configuration(grid)) is not None:
            member = extension_to_json(form.name, configuration)
            # One line per chunk length would exceed the limit of a document's size.
            return member if isinstance(grid, RegularGrid) else Unparsed(dump(member))
    raise NotRepresentable(f"Zarr v3 has no chunk grid for {type(grid).__name__}")


@cache
def _forms() -> dict[str, GridForm]:
    return {form.name: form for form in registry.plugins("zarrfs.dialects.v3.grids")}
