"""The chunk of a 0-dimensional array, whose key is not called alike by all software of a dialect."""

from __future__ import annotations

from dataclasses import replace

from zarrfs.dialects.base import Layout
from zarrfs.model.metadata import ArrayNode, Node
from zarrfs.stores.base import Store


async def with_stored_scalar(store: Store, layout: Layout, node: Node) -> Node:
    """``node`` with the name that its only chunk is stored under, where the layout leaves several (`Layout.scalar_names`)."""
    if not isinstance(node, ArrayNode) or node.metadata.shape:
        return node
    names = layout.scalar_names(node)
    if len(names) > 1:
        for name in names:
            if await store.stat(node.chunk_prefix.key(name)) is not None:
                encoding = replace(node.metadata.chunk_key_encoding, scalar=name)
                return replace(node, metadata=replace(node.metadata, chunk_key_encoding=encoding))
    return node
