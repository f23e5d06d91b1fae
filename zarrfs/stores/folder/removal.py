"""Removal of folders with their entries, below one folder. Raises `OSError`."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable

from zarrfs import threads
from zarrfs.stores.folder.calls import nothing_if_absent, unlink
from zarrfs.stores.folder.names import TEMPORARY, Parts
from zarrfs.stores.folder.tree import FolderTree
from zarrfs.stores.folder.writable import permits
from zarrfs.stores.os_errors import ABSENT

_TRIES = 16
"""Attempts to empty a folder into which other programs put new entries."""


def remove_values(tree: FolderTree, values: Iterable[Parts]) -> None:
    """Remove these values as `FolderTree.remove` does."""
    for parts in values:
        threads.go_on()
        tree.remove(parts)


def remove_folder(tree: FolderTree, parts: Parts, is_filled: bool = False) -> None:
    """Remove an empty folder, including leftovers under temporary names. Raises ENOTEMPTY.

    ``is_filled``: raises EACCES instead if this user may not remove its entries."""
    with nothing_if_absent:
        with tree.folder(parts, os.O_RDONLY) as folder, os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
            if all(TEMPORARY.fullmatch(name) for name in names):
                for name in names:
                    unlink(folder, name)
        with tree.folder(parts[:-1]) as above:
            try:
                os.rmdir(parts[-1], dir_fd=above)
            except OSError as error:
                if is_filled and error.errno in (errno.ENOTEMPTY, errno.EEXIST) and not permits(above, parts[-1]):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from error
                raise
        tree.unsynced.add(parts[:-1])


def remove_tree(tree: FolderTree, parts: Parts) -> None:
    """Remove a folder and all its entries, of any kind; of the root folder the entries only."""
    with tree.unsynced.erasing(parts):
        _remove_all(tree, parts)


def _remove_all(tree: FolderTree, parts: Parts) -> None:
    # Not recursive, and each folder is looked up from the root: any depth costs neither stack nor descriptors.
    pending = [(parts, _TRIES)]
    while pending:
        here, tries = pending.pop()
        try:
            below = _remove_files(tree, here)
            if below:
                if not tries:
                    raise OSError(errno.ENOTEMPTY, "other programs keep putting files into it")
                pending.append((here, tries - 1))
                pending.extend(((*here, name), _TRIES) for name in below)
            elif here:
                with tree.folder(here[:-1]) as above:
                    os.rmdir(here[-1], dir_fd=above)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and tries:
                pending.append((here, tries - 1))
            elif error.errno not in ABSENT:
                raise
            elif here == parts:
                tree.require_no_link(parts)


def _remove_files(tree: FolderTree, parts: Parts) -> list[str]:
    """Remove all entries of a folder except folders; return the names of those."""
    below = []
    with tree.folder(parts, os.O_RDONLY) as folder, os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.name)
            else:
                unlink(folder, entry.name)
    return below
