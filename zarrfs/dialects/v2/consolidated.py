"""The consolidated copy ``.zmetadata``: every document of a hierarchy under one key, for stores that cannot list.

It is not in the v2 specification; zarr-python 2 (`zarr.consolidate_metadata`), GDAL and netCDF-C write it at the root of the hierarchy,
zarr-python 3 in any group:

    {"zarr_consolidated_format": 1, "metadata": {".zgroup": {"zarr_format": 2}, "a/.zarray": {...}, "a/.zattrs": {...}}}

It is a copy: a node's own documents take precedence, and an unreadable copy hides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zarrfs.dialects.consolidated import children_by_path, zmetadata_documents
from zarrfs.errors import NameInvalid
from zarrfs.keys import NodePath
from zarrfs.model.unparsed import Unparsed

NODE_DOCUMENTS = (".zarray", ".zgroup")


@dataclass(frozen=True, slots=True)
class ConsolidatedCopy:
    """``documents`` by their keys relative to the root of the hierarchy; ``children``: names of the nodes below each path."""

    documents: Mapping[str, dict[str, Any] | Unparsed]
    children: Mapping[NodePath, frozenset[str]]

    @classmethod
    def parse(cls, key: str, data: bytes) -> ConsolidatedCopy:
        """Return the copy in ``data``, the value of ``key``. Raises `MetadataError`; a bad member is omitted."""
        members = zmetadata_documents(key, data)
        return cls(members, children_by_path(_node_paths(members)))


def _node_paths(names: Iterable[str]) -> Iterator[NodePath]:
    """Yield the paths of the nodes whose documents are in the copy."""
    for key in names:
        prefix, _, name = key.rpartition("/")
        if name in NODE_DOCUMENTS:
            with suppress(NameInvalid):
                yield NodePath(f"/{prefix}")
