"""The consolidated copy ``.zmetadata``: every document of a hierarchy under one key, for stores that cannot list.

It is not in the v2 specification; zarr-python 2 (`zarr.consolidate_metadata`), GDAL and netCDF-C write it at the root of the hierarchy,
zarr-python 3 in any group:

    {"zarr_consolidated_format": 1, "metadata": {".zgroup": {"zarr_format": 2}, "a/.zarray": {...}, "a/.zattrs": {...}}}

It is a copy: a node's own documents take precedence, and an unreadable copy hides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zarrfs.dialects import documents
from zarrfs.errors import MetadataError, NameInvalid
from zarrfs.keys import NodePath
from zarrfs.model.unparsed import Unparsed

NODE_DOCUMENTS = (".zarray", ".zgroup")
_LOOSE = frozenset({("metadata",)})


@dataclass(frozen=True, slots=True)
class ConsolidatedCopy:
    """``documents`` by their keys relative to the root of the hierarchy; ``children``: names of the nodes below each path."""

    documents: Mapping[str, dict[str, Any] | Unparsed]
    children: Mapping[NodePath, frozenset[str]]

    @classmethod
    def parse(cls, key: str, data: bytes) -> ConsolidatedCopy:
        """Return the copy in ``data``, the value of ``key``. Raises `MetadataError`; a bad member is omitted."""
        with documents.naming(key):
            document = documents.parse_object(key, data, _LOOSE)
            version = document.get("zarr_consolidated_format")
            if version != 1:
                raise MetadataError(f"zarr_consolidated_format must be 1, not {documents.shortened(version)}")
            members = documents.mapping(documents.member(document, "metadata"), "metadata")
        kept = {name: each for name, each in members.items() if documents.is_object(each)}
        return cls(kept, _children(kept))


def _children(members: Mapping[str, Any]) -> dict[NodePath, frozenset[str]]:
    """Return every node with a document, and every path above one: an implicit group."""
    below: dict[NodePath, set[str]] = {}
    for key in members:
        prefix, _, name = key.rpartition("/")
        if name not in NODE_DOCUMENTS:
            continue
        try:
            path = NodePath(f"/{prefix}")
        except NameInvalid:
            continue
        while path != "/" and path.name not in below.setdefault(path.parent, set()):
            below[path.parent].add(path.name)
            path = path.parent
    return {path: frozenset(names) for path, names in below.items()}
