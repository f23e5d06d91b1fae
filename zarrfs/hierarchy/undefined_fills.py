"""New arrays whose fill value no program has stated yet.

GDAL creates an array with null as the fill value (in Zarr v3 with NaN, if the type has it), writes its chunks except those of which all
elements are missing data, and then states that value in the document, ignoring errors. Until then, the stored fill value is a default,
and may be replaced: layouts without null have to have one.
"""

from __future__ import annotations

from collections import OrderedDict

from zarrfs.hierarchy.bound_paths import BoundPath, BoundPaths
from zarrfs.keys import NodePath

_REMEMBERED = 10_000


class UndefinedFills:
    """The arrays of a mount that were created without a fill value, the most recent ones; they are followed through renames."""

    def __init__(self, bound_paths: BoundPaths) -> None:
        self._bound_paths = bound_paths
        self._arrays: OrderedDict[BoundPath, None] = OrderedDict()

    def __contains__(self, path: NodePath) -> bool:
        return self._bound_paths.at(path) in self._arrays

    def add(self, path: NodePath) -> None:
        """Record that the array at ``path`` was created with an undefined fill value."""
        self._arrays[self._bound_paths.at(path)] = None
        if len(self._arrays) > _REMEMBERED:
            self._arrays.popitem(last=False)

    def discard(self, path: NodePath) -> None:
        """Record that the fill value of the array at ``path`` is definite: it was stated, or elements were left out for it."""
        self._arrays.pop(self._bound_paths.at(path), None)
