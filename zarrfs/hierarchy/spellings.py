"""Two names of one node or folder: file systems that ignore case, or the form of Unicode, find it under other names than its own.

Only its own name is listed. (Inode numbers tell less: FUSE file systems may give one file several.)
"""

from __future__ import annotations

import unicodedata

from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import NodePath, Prefix
from zarrfs.stores.base import Store


async def is_same_node(hierarchy: Hierarchy, path: NodePath, new_path: NodePath) -> bool:
    """Return True if what is found at ``new_path`` is the node at ``path`` itself, which is to be renamed to it."""
    if path.parent != new_path.parent or _folded(path.name) != _folded(new_path.name):
        return False
    names = await hierarchy.child_names(path.parent)
    return path.name in names and new_path.name not in names


async def is_same_folder(store: Store, old: Prefix, new: Prefix) -> bool:
    """Return True if what is found at ``new`` is the folder ``old`` itself, which is to be renamed to it."""
    above, name, new_name = Prefix(old[: old.rfind("/", 0, -1) + 1]), old[:-1].rpartition("/")[2], new[:-1].rpartition("/")[2]
    if above.child(new_name) != new or _folded(name) != _folded(new_name):
        return False
    names = {each async for each, *_ in store.list_dir(above)}
    return name in names and new_name not in names


def _folded(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()
