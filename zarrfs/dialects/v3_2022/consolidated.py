"""The consolidated copy of zarr-python 2.16 in hierarchies of 2022: every document under one key, for stores that cannot list.

It is in no specification; `zarr.consolidate_metadata` puts it below a group of its own, which is not a node of the hierarchy:

    meta/root/consolidated.group.json      {"attributes": {}}
    meta/root/consolidated/.zmetadata      {"zarr_consolidated_format": 1, "metadata": {"meta/root/a.array.json": {...}, ...}}

The names of its members are the keys of the documents, from the root of the hierarchy. A node's own document takes precedence, and an
unreadable copy hides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zarrfs.dialects import documents
from zarrfs.dialects.consolidated import children_by_path, zmetadata_documents
from zarrfs.dialects.drafts import DraftKeys
from zarrfs.dialects.v3_2022.names import is_path
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.unparsed import Unparsed

GROUP = NodePath("/consolidated")
_KEY = "meta/root/consolidated/.zmetadata"
LOOSE = documents.ATTRIBUTES | {("metadata",)}
"""For `documents.parse_object`: the parts of a document of these hierarchies that may stay unparsed."""


def copy_key(prefix: Prefix) -> Key:
    """Return the key of the copy in a hierarchy at ``prefix``."""
    return prefix.key(_KEY)


@dataclass(frozen=True, slots=True)
class ConsolidatedCopy:
    """``documents`` by their names in the copy; ``children``: names of the nodes directly below each path that has any."""

    documents: Mapping[str, dict[str, Any] | Unparsed]
    children: Mapping[NodePath, frozenset[str]]

    @classmethod
    def parse(cls, key: Key, data: bytes, keys: DraftKeys) -> ConsolidatedCopy:
        """Return the copy in ``data``, the value of ``key``. ``keys`` are relative to the root of the hierarchy.

        Raises `MetadataError`; a bad member is omitted.
        """
        members = zmetadata_documents(key, data)
        paths = map(keys.node_of_document, members)
        return cls(members, children_by_path(path for path in paths if path is not None and is_path(path) and path != GROUP))
