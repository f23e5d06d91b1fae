"""The consolidated copy in a group's ``zarr.json``: the documents of all nodes below, for stores that cannot list.

Source: Zarr v3 core, section "Additional fields"; the rest is from zarr-python:

    "consolidated_metadata": {"kind": "inline", "must_understand": false, "metadata": {"a": {...}, "g": {...}, "g/b": {...}}}

It is a copy: a node's own document takes precedence. Null, and an object of another kind that may be ignored, mean that there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zarrfs.dialects import documents
from zarrfs.dialects.consolidated import children_by_path, prefixes_of
from zarrfs.dialects.v3.names import node_path
from zarrfs.errors import MetadataError
from zarrfs.keys import NodePath

MEMBER = "consolidated_metadata"
LOOSE = documents.ATTRIBUTES | {(MEMBER, "metadata")}
"""For `documents.parse_object`: the parts of a node's document that may stay unparsed."""


@dataclass(frozen=True, slots=True)
class ConsolidatedCopy:
    """``documents`` by node path; ``children``: names of the nodes directly below each path that has any."""

    documents: Mapping[NodePath, Any]
    children: Mapping[NodePath, frozenset[str]]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> ConsolidatedCopy | None:
        """Return the copy in the root group's ``document``; None if there is none. Raises `MetadataError`; a bad path is omitted."""
        members = copied_documents(document)
        if members is None:
            return None
        kept = {}
        for name, each in members.items():
            path = node_path(name)
            if path is not None:
                kept[path] = each
        return cls(kept, children_by_path(kept))


def copied_documents(document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the documents in the copy in ``document``, by path relative to its group; None if it has no copy."""
    copy = document.get(MEMBER)
    if copy is None:
        return None
    copy = documents.mapping(copy, MEMBER)
    if copy.get("kind") != "inline":
        if copy.get("must_understand") is False:
            return None
        raise MetadataError(f"{MEMBER} must be of kind 'inline', not {documents.shortened(copy.get('kind'))}")
    return documents.mapping(documents.member(copy, "metadata"), f"metadata in {MEMBER}")


class CopiedDocuments:
    """The documents in a copy, ``copied``, by path relative to its group."""

    def __init__(self, copied: Mapping[str, Any]) -> None:
        self._documents = copied
        self._parents: set[str] | None = None
        self._are_known = True

    def is_group(self, relative: str) -> bool:
        """Return True if the copy has a group at ``relative``."""
        document = self._documents.get(relative)
        if document is None or not documents.is_object(document):
            return False
        return documents.parsed(relative, document, documents.ATTRIBUTES).get("node_type") == "group"

    def below(self, relative: str) -> list[str]:
        """Return the paths below ``relative``."""
        if self._parents is None:
            try:
                self._parents = prefixes_of(self._documents)
            except MetadataError:
                # The copy is not read, but kept up to date.
                self._parents, self._are_known = set(), False
        may_be_above = relative in self._parents or not self._are_known
        return [name for name in self._documents if name.startswith(relative + "/")] if may_be_above else []
