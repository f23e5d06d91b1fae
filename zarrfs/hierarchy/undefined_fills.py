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
    """The arrays of a mount that were created without a fill value, the most recent ones; they are followed through renames.

    Each with its default, one element. With any other fill value it is no longer undefined: a program has stated one behind the view, in
    ``raw/`` or outside of the mount, where it may also have replaced the array.
    """

    def __init__(self, bound_paths: BoundPaths) -> None:
        self._bound_paths = bound_paths
        self._arrays: OrderedDict[BoundPath, bytes] = OrderedDict()

    def is_at(self, path: NodePath, fill: bytes) -> bool:
        """Return True if ``fill``, of the array at ``path``, is still the default."""
        return self._arrays.get(self._bound_paths.at(path)) == fill

    def add(self, path: NodePath, fill: bytes) -> None:
        """Record that the array at ``path`` was created with an undefined fill value, for which it has the default ``fill``."""
        self._arrays[self._bound_paths.at(path)] = fill
        if len(self._arrays) > _REMEMBERED:
            self._arrays.popitem(last=False)

    def discard(self, path: NodePath) -> None:
        """Record that the fill value of the array at ``path`` is definite: it was stated, or elements were left out for it."""
        self._arrays.pop(self._bound_paths.at(path), None)
