"""Names that depend on the plug-ins of stores and dialects."""

from __future__ import annotations

import os

from zarrfs import registry
from zarrfs.errors import UsageError


def store_name(url: str) -> str:
    """Return the last part of a store's path, without ``.zarr``, ``.zip`` and the like: the name of files of its root array."""
    # As the store was found: a file may have any name.
    layers = [url] if url.startswith("/") and os.path.lexists(url) else url.split("|")
    # If the last layer has no path (``x.zip|zip:``), that of the one before it.
    name = next(filter(None, map(_last_part, reversed(layers))), "")
    suffixes = {suffix for plugin in registry.plugins("zarrfs.stores") for suffix in plugin.suffixes}
    while True:
        stem, dot, suffix = name.rpartition(".")
        if not stem or not dot or suffix.lower() not in suffixes:
            break
        name = stem
    return name or "array"


def _last_part(layer: str) -> str:
    """Return the last part of the path of a layer of a URL, or of a path."""
    if not layer.startswith("/"):
        layer = layer.partition(":")[2]
        if layer.startswith("//"):
            layer = layer.partition("?")[0]
    return layer.rstrip("/").rsplit("/", 1)[-1]


def known_dialect(name: str) -> str:
    """Return ``name``, a dialect and perhaps its form that new nodes can have. Raises `UsageError` for any other."""
    every = [each for each in registry.plugins("zarrfs.dialects") if each.writable]
    known = sorted([*(each.name for each in every), *(f"{each.name}:{form}" for each in every for form in each.forms)])
    if name not in known:
        raise UsageError(f"new_dialect: unknown dialect {name!r}; the dialects are {', '.join(known)}")
    return name
