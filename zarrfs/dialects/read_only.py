"""A read-only layout: for dialects that are not writable (`Dialect.writable`)."""

from __future__ import annotations

from zarrfs.dialects.base import Documents, Edit, Layout
from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.keys import Key, NodePath
from zarrfs.model.metadata import ArrayNode, GroupNode


class ReadOnlyLayout(Layout):
    """The writing half of a layout that writes nothing. Consolidated copies stay as they are."""

    def format(self, node: GroupNode | ArrayNode) -> dict[Key, bytes]:
        raise NotRepresentable(f"documents of {self.dialect.name} are read-only")

    def amend(self, path: NodePath, documents: Documents, edit: Edit) -> dict[Key, bytes]:
        raise MetadataError(f"documents of {self.dialect.name} are read-only", key=path)
