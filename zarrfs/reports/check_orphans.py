"""Chunks that belong to no array: its document was lost, or they are left of an array that was erased or never complete.

No view shows them as data, and no other program does: without this report a store that has lost a document would be in order.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import suppress

from zarrfs.errors import NameInvalid
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.probe import holds_only_chunks, may_be_of_chunk
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.stores.base import Store


async def orphans(hierarchy: Hierarchy, store: Store, group: GroupNode) -> AsyncIterator[NodePath]:
    """Yield the paths at and directly below ``group`` that have chunks and no array; for a group without documents only its own.

    None if the store cannot list. Keys count as chunks by their names only.
    """
    layout = hierarchy.roots.layout_of(group)
    if layout is None or not store.capabilities.list:
        return
    prefix, own = layout.chunk_prefix(group.path), None
    async for name, is_prefix, _, _ in store.list_dir(prefix):
        if is_prefix:
            found = await _orphan(hierarchy, store, group, name, prefix.child(name))
        elif may_be_of_chunk(name, is_prefix=False) and not await _is_of_scalar(hierarchy, group, name, prefix.key(name)):
            found = group.path
        else:
            found = None
        if found is None or found == own:
            continue
        if not group.explicit:
            yield group.path
            return
        yield found
        own = found if found == group.path else own


async def _orphan(hierarchy: Hierarchy, store: Store, group: GroupNode, name: str, prefix: Prefix) -> NodePath | None:
    """Return the path of the folder ``name`` in ``group`` if it has chunks and is no node; None if not, or if no node may be there."""
    with suppress(NameInvalid):
        path = group.path.child(name)
        if await hierarchy.node(path) is None and await holds_only_chunks(store, prefix, most=math.inf):
            return path
    return None


async def _is_of_scalar(hierarchy: Hierarchy, group: GroupNode, name: str, key: Key) -> bool:
    """Return True if ``key`` is the chunk of an array in ``group`` without dimensions: in the draft of 2019 it has the array's name."""
    with suppress(NameInvalid):
        node = await hierarchy.node(group.path.child(name))
        return isinstance(node, ArrayNode) and not node.metadata.ndim and key in hierarchy.array_of(node).chunks.keys(())
    return False
