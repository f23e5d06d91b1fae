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
from zarrfs.dialects.drafts import DraftKeys
from zarrfs.dialects.v3_2022.names import is_path
from zarrfs.errors import MetadataError
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
        with documents.naming(key):
            document = documents.parse_object(key, data, LOOSE)
            version = document.get("zarr_consolidated_format")
            if version != 1:
                raise MetadataError(f"zarr_consolidated_format must be 1, not {documents.shortened(version)}")
            members = documents.mapping(documents.member(document, "metadata"), "metadata")
        kept = {name: each for name, each in members.items() if documents.is_object(each)}
        return cls(kept, _children(kept, keys))


def _children(members: Mapping[str, Any], keys: DraftKeys) -> dict[NodePath, frozenset[str]]:
    """Return every node with a document, and every path above one: an implicit group."""
    below: dict[NodePath, set[str]] = {}
    for name in members:
        path = keys.node_of_document(name)
        if path is None or not is_path(path) or path == GROUP:
            continue
        while path != "/" and path.name not in below.setdefault(path.parent, set()):
            below[path.parent].add(path.name)
            path = path.parent
    return {path: frozenset(names) for path, names in below.items()}
