"""Documents of no known layout, under names that only documents have: damaged ones, such of a later version, and other files.

No view shows them, and no node is created over them (`zarrfs.hierarchy.foreign_documents.require_own`).
"""

from __future__ import annotations

from zarrfs.hierarchy.foreign_documents import foreign
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import Key
from zarrfs.model.metadata import Node, UnsupportedNode


async def unknown_documents(hierarchy: Hierarchy, node: Node) -> list[Key]:
    """Return the keys of such documents in the place of those of ``node``, sorted. Raises the store's errors."""
    layouts = await hierarchy.layouts(node.path)
    probe = hierarchy.stored.probe(node.path, layouts, None, hierarchy.stored.get)
    # Not the document that describes the node.
    own = None if isinstance(node, UnsupportedNode) else hierarchy.document_of(node.path)[0]
    possible = await probe.may_have_documents()
    reserved = dict.fromkeys(key for layout in possible for key in layout.reserved_keys(node.path) if key != own)
    keys = await probe.possible(reserved) if reserved else []
    found = foreign(layouts, node.path, await hierarchy.documents(keys)).intersection(keys) if keys else set()
    if found and await hierarchy.roots.hidden_at(probe, ()):
        # The entry point of a hierarchy that does not count here.
        return []
    return sorted(found)
