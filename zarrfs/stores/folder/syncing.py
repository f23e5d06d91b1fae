"""What has to be durable in a folder when `zarrfs.stores.base.Store.sync` returns."""

from __future__ import annotations

from collections.abc import Sequence

from zarrfs.keys import Contents, IfUnsynced, Key, Prefix
from zarrfs.stores.folder.names import parts_of
from zarrfs.stores.folder.tree import FolderTree


def sync_targets(tree: FolderTree, targets: Sequence[Key | Prefix]) -> None:
    """Run `Store.sync`. Raises `OSError`."""
    needed = [each for each in targets if not isinstance(each, IfUnsynced) or _may_be_lost(tree, each)]
    values = [parts_of(each) for each in needed if not isinstance(each, Prefix)]
    contents = [parts_of(each) for each in needed if isinstance(each, Contents)]
    tree.sync(values, [parts_of(each) for each in needed if type(each) is Prefix], contents)


def _may_be_lost(tree: FolderTree, key: Key) -> bool:
    parts = parts_of(key)
    return tree.unsynced.may_have(parts) or tree.unsynced.may_be_renamed(parts)
