"""Groups above a new node that need documents first."""

from __future__ import annotations

from zarrfs.dialects.base import Layout
from zarrfs.hierarchy.consolidated import begins_at, is_implicit
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import NodePath


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
