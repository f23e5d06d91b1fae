"""Dimension names in documents of Zarr v2, which have none: the attribute ``_ARRAY_DIMENSIONS``, by xarray's convention.

For arrays of dialects with `Dialect.has_dimension_names` the attribute is derived from the names, and the names from the attribute.
Names of which some are null, and an attribute of another form, have no counterpart and stay unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from zarrfs import registry
from zarrfs.model.metadata import ArrayNode

DIMENSIONS = "_ARRAY_DIMENSIONS"

Names = tuple[str | None, ...]


def shown_names(node: ArrayNode) -> list[str | None] | None:
    """Return the attribute that the view adds to an array; None for none.

    An array without dimensions gets an empty list: xarray opens no array without the attribute.
    """
    names = node.metadata.dimension_names
    if DIMENSIONS in node.attributes or not has_names(node.dialect):
        return None
    if not node.metadata.ndim:
        return []
    return list(names) if names and all(names) else None


def names_from(attributes: Mapping[str, Any], ndim: int) -> Names | None:
    """Return the names that the attribute gives to ``ndim`` dimensions; None if it is absent or has another form."""
    names = attributes.get(DIMENSIONS)
    if not isinstance(names, list) or len(names) != ndim or not all(isinstance(name, str) and name for name in names):
        return None
    return tuple(names)


@cache
def has_names(dialect: str) -> bool:
    """Return True if documents of the dialect have dimension names."""
    return any(each.name == dialect and each.has_dimension_names for each in registry.plugins("zarrfs.dialects"))
