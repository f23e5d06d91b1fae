"""Nodes that no view shows because no node may have their names: documents that other programs stored at such a place."""

from __future__ import annotations

from collections.abc import AsyncIterator

from zarrfs.errors import NameInvalid
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import Key
from zarrfs.model.metadata import GroupNode
from zarrfs.stores.base import Store

_ANY = "x"


async def misnamed(hierarchy: Hierarchy, store: Store, group: GroupNode) -> AsyncIterator[Key]:
    """Yield the documents directly in ``group`` of nodes whose names its layout does not allow. None if the store cannot list.

    That of the folder of a consolidated copy, which is no node, is none of them.
    """
    layout = hierarchy.roots.layout_of(group)
    if layout is None or not store.capabilities.list:
        return
    prefix, copy = layout.listing_prefix(group.path), layout.copy_key(group.path)
    start = prefix + _ANY
    ends = [key[len(start) :] for key in layout.document_keys(group.path.child(_ANY)) if key.startswith(start)]
    async for entry, is_prefix, _, _ in store.list_dir(prefix):
        if layout.child_names(group.path, () if is_prefix else (entry,), (entry,) if is_prefix else ()):
            continue
        for end in ends:
            is_in_folder = end.startswith("/")
            if is_prefix != is_in_folder or not (is_in_folder or entry.endswith(end)):
                continue
            name = entry if is_in_folder else entry.removesuffix(end)
            key = Key(prefix + name + end)
            if copy is not None and copy.startswith(prefix.child(name)):
                continue
            if (not is_in_folder or await store.stat(key) is not None) and not await _is_node(hierarchy, group, name):
                yield key


async def _is_node(hierarchy: Hierarchy, group: GroupNode, name: str) -> bool:
    """Return True if a node of any layout has this name."""
    try:
        return await hierarchy.node(group.path.child(name)) is not None
    except NameInvalid:
        return False
