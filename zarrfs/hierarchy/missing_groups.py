"""Groups above a new node that need documents first."""

from __future__ import annotations

from zarrfs.dialects.base import Layout
from zarrfs.hierarchy.consolidated import begins_at, is_implicit
from zarrfs.hierarchy.foreign_documents import require_own
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import NodePath
from zarrfs.model.metadata import GroupNode


async def missing_groups(hierarchy: Hierarchy, layout: Layout, path: NodePath) -> list[NodePath]:
    """Return the groups above ``path`` without documents that the dialect requires, or that are unstored so far, the first one first."""
    required, missing = {*layout.required_groups(path)}, []
    for above in path.ancestors():
        if above not in required and not hierarchy.empty_groups.is_unstored(above):
            continue
        node = await hierarchy.node(above)
        # The root of another hierarchy is a group anyway, and its entry point may have the name of this group's document.
        others = [other for other in await hierarchy.layouts(above) if other.dialect != layout.dialect]
        if (node is None or is_implicit(node)) and not any(begins_at(other, above) for other in others):
            missing.append(above)
    return missing


async def require_own_and_readable(hierarchy: Hierarchy, layout: Layout, path: NodePath) -> None:
    """Raise `MetadataError` if a document of a node at ``path``, or of a group above that has none, would replace another file.

    Also if such a group has attributes already that cannot be read: they stay, and with its document it would be a bad node.
    """
    missing = await missing_groups(hierarchy, layout, path)
    for each in (*missing, path):
        require_own(layout, each, await hierarchy.documents(layout.shared_keys(each)))
    for each in missing if layout.dialect.has_groups else ():
        if kept := await hierarchy.documents(layout.document_keys(each)):
            layout.parse(each, kept | layout.format(GroupNode(path=each, dialect=layout.dialect.name)))
