"""Chunks that belong to no array: its document was lost, or they are left of an array that was erased or never complete.

No view shows them as data, and no other program does: without this report a store that has lost a document would be in order.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

from zarrfs.errors import NameInvalid
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.probe import holds_only_chunks, may_be_of_chunk
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.metadata import GroupNode
from zarrfs.stores.base import Store


async def orphans(hierarchy: Hierarchy, store: Store, group: GroupNode) -> AsyncIterator[NodePath]:
    """Yield the paths at and directly below ``group`` that have chunks and no array; for a group without documents only its own.

    None if the store cannot list. Keys count as chunks by their names only.
    """
    layout = hierarchy.roots.layout_of(group)
    if layout is None or not store.capabilities.list:
        return
    prefix, is_named = layout.chunk_prefix(group.path), False
    async for name, is_prefix, _, _ in store.list_dir(prefix):
        if is_prefix:
            path = group.path.child(name)
            if not await _is_orphan(hierarchy, store, path, prefix.child(name)):
                continue
            if group.explicit:
                yield path
                continue
        elif is_named or not may_be_of_chunk(name, is_prefix=False):
            continue
        yield group.path
        is_named = True
        if not group.explicit:
            return


async def _is_orphan(hierarchy: Hierarchy, store: Store, path: NodePath, prefix: Prefix) -> bool:
    try:
        if await hierarchy.node(path) is not None:
            return False
    except NameInvalid:
        return False
    return await holds_only_chunks(store, prefix, most=math.inf)
