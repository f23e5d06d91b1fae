"""Folders of ``raw/`` in a store that cannot list: the prefixes of the documents and chunks of its nodes.

They are found by name, not listed. Other keys of the store are in folders that cannot be found.
"""

from __future__ import annotations

from zarrfs.dialects.base import Layout
from zarrfs.errors import NameInvalid
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import ROOT, Prefix
from zarrfs.model.metadata import ArrayNode, Node


async def leads_to_node(hierarchy: Hierarchy, prefix: Prefix) -> bool:
    """Return True if keys of a node may begin with ``prefix``: the hierarchy has the node, and its layout such keys."""
    for layout in await hierarchy.layouts(ROOT):
        if any(key.startswith(prefix) for key in layout.document_keys(ROOT)):
            return True
        path = layout.node_of_prefix(prefix)
        if path is not None and _is_of(layout, await hierarchy.node(path)):
            return True
        if await _leads_to_chunk(hierarchy, layout, prefix):
            return True
    return False


async def _leads_to_chunk(hierarchy: Hierarchy, layout: Layout, prefix: Prefix) -> bool:
    above = layout.chunk_prefix(ROOT)
    if above.startswith(prefix):
        return _is_of(layout, await hierarchy.node(ROOT))
    if not prefix.startswith(above):
        return False
    path, parts = ROOT, prefix[len(above) : -1].split("/")
    for number in range(len(parts) + 1):
        node = await hierarchy.node(path)
        if isinstance(node, ArrayNode):
            inside = "/".join(parts[number:])
            encoding, ndim = node.metadata.chunk_key_encoding, node.metadata.ndim
            return prefix.startswith(node.chunk_prefix) and (not inside or encoding.may_begin(inside, ndim))
        if number == len(parts):
            # A group without an own prefix for documents: below it there may be chunks.
            return _is_of(layout, node)
        try:
            path = path.child(parts[number])
        except NameInvalid:
            return False
    return False


def _is_of(layout: Layout, node: Node | None) -> bool:
    """Return True if ``node`` has its keys where ``layout`` puts them, and not in the places of another dialect."""
    return node is not None and node.dialect == layout.dialect.name
