"""Whether a user may write to a folder store at all: else its mount is read-only."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice

from zarrfs.stores.folder.file_systems import RemoteMounts

# Folders looked at: enough for the groups at the root of a store.
_MOST = 256


def is_writable(root: int, mounts: RemoteMounts) -> bool:
    """Return True if this user may write to the folder ``root`` (a descriptor), or to a folder directly in it.

    In a shared store the groups may belong to several users, and the root to none of them. Who has taken the permission to write to the
    root away from themselves has protected the store.
    """
    if permits(root, "."):
        return True
    if os.fstat(root).st_uid == os.geteuid():
        return False
    with suppress(OSError), os.scandir(root) as entries:
        folders = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        # A file system of another machine or program may not answer.
        return any(not mounts.meet((name,)) and permits(root, name) for name in islice(folders, _MOST))
    return False


def permits(folder: int, name: str) -> bool:
    """Return True if this user may create and remove names in the folder ``name`` of ``folder`` (a descriptor)."""
    return os.access(name, os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True)
