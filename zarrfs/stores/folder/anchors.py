"""Folders held by descriptors, which distinguish a folder from its successor at the same path.

The file system may reuse the inode number of a removed folder, except while a descriptor of the folder is open. Descriptors are few: the
least recently used folder is released for the next one.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict

from zarrfs.keys import Prefix
from zarrfs.stores.anchor import AbsentFolder, Anchor
from zarrfs.stores.folder.calls import Closing, lstat
from zarrfs.stores.folder.names import Parts, generation_of, parts_of, path_of
from zarrfs.stores.folder.presupposed import HeldFolder
from zarrfs.stores.folder.tree import FolderTree
from zarrfs.stores.os_errors import translated
from zarrfs.stores.values import Generation

_MAX_OPEN = 1024
_REMOVED = " (deleted)"
"""What the kernel appends to the path of a removed folder. A folder that exists may be called so, too."""


class Anchors:
    """The anchors of one tree, which use at most one in ``part`` of the descriptors of the process."""

    def __init__(self, tree: FolderTree, part: int) -> None:
        self.tree = tree
        self._part = part
        self._root = _name_of(tree.root)
        self._fds: OrderedDict[int, int] = OrderedDict()
        self._last = 0
        # Lookups in threads start at these descriptors: a closed one may be another folder's the next moment. Reentrant, because the
        # garbage collector may run in any of the methods and finalize another anchor in the same thread.
        self._lock = threading.RLock()

    def hold(self, parts: Parts) -> Anchor | None:
        """Return the anchor of a folder of this machine; None if it must not be opened."""
        try:
            fd = self._open_fd(parts)
        except (FileNotFoundError, NotADirectoryError):
            return AbsentFolder()
        if fd is None:
            return None
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        with self._lock:
            while len(self._fds) >= max(1, min(_MAX_OPEN, soft // self._part)):
                os.close(self._fds.popitem(last=False)[1])
            self._last += 1
            self._fds[self._last] = fd
        return FolderAnchor(self, self._last)

    def is_held(self, number: int) -> bool:
        """Return True if the anchor was not released for others: then it is used now."""
        with self._lock:
            if number not in self._fds:
                return False
            self._fds.move_to_end(number)
            return True

    def is_at(self, number: int, parts: Parts) -> bool:
        """Return True if ``parts`` is this folder, or that is unknown."""
        with self._lock:
            held = self._fds.get(number)
            if held is None or self._is_called(held, parts):
                return True
        try:
            there = self._open_fd(parts)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if there is None:
            return True
        try:
            return os.path.samestat(os.fstat(held), os.fstat(there))
        finally:
            os.close(there)

    def _is_called(self, fd: int, parts: Parts) -> bool:
        """Return True if the kernel names the path ``parts`` for the descriptor: proof that the folder is there, on local file systems.

        It takes one system call at any depth. False proves nothing.
        """
        path = path_of(parts)
        return self._root is not None and not path.endswith(_REMOVED) and _name_of(fd) == f"{self._root.rstrip('/')}/{path}"

    def is_erased(self, number: int) -> bool:
        """Return True if the folder was removed."""
        with self._lock:
            held = self._fds.get(number)
            if held is None:
                return False
            found, name = os.fstat(held), _name_of(held)
        if found.st_nlink == 0:
            return True
        # Of a removed folder, overlayfs still counts a name.
        if name is None or not name.endswith(_REMOVED):
            return False
        try:
            return not os.path.samestat(found, os.lstat(name))
        except OSError:
            return True

    def generation(self, number: int, name: str) -> Generation | None:
        """Return the generation of a file in the folder; None if absent."""
        folder = self.open_fd(number)
        if folder is None:
            return None
        with Closing(folder) as fd:
            found = lstat(fd, name)
        return None if found is None else generation_of(found)

    def present_parts(self, number: int) -> Parts | None:
        """Return its present position below the root of the tree."""
        held = self._fds.get(number)
        if held is None:
            return None
        root, there = _name_of(self.tree.root), _name_of(held)
        if root is None or there is None:
            return None
        parts = tuple(there[len(root) :].strip("/").split("/"))
        # The path alone is no proof: the kernel appends words to that of a removed folder.
        return parts if there.startswith(f"{root.rstrip('/')}/") and self.is_at(number, parts) else None

    def let_go(self, number: int) -> None:
        """Release an anchor that is no longer in use."""
        with self._lock:
            fd = self._fds.pop(number, None)
            if fd is not None:
                os.close(fd)

    def open_fd(self, number: int) -> int | None:
        """Return another descriptor of the folder, which the caller closes."""
        with self._lock:
            held = self._fds.get(number)
            return None if held is None else os.dup(held)

    def close(self) -> None:
        """Release all anchors."""
        for number in list(self._fds):
            self.let_go(number)

    def _open_fd(self, parts: Parts) -> int | None:
        """Return a descriptor; None if unknown. Raises `FileNotFoundError` and `NotADirectoryError`."""
        if not self.tree.local or self.tree.mounts.over(parts) is not None:
            # An open might wait for a server.
            return None
        try:
            return self.tree.open_folder(parts)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError:
            return None


def _name_of(fd: int) -> str | None:
    """Return the kernel's path of a descriptor; None without /proc."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


class FolderAnchor(HeldFolder):
    """A folder held open for the lifetime of this object. Methods raise `StoreError`: its disk may fail, or descriptors be used up."""

    def __init__(self, anchors: Anchors, number: int) -> None:
        self._anchors = anchors
        self._number = number
        self.tree = anchors.tree

    def open_fd(self) -> int | None:
        return self._anchors.open_fd(self._number)

    @property
    def holds(self) -> bool:
        return self._anchors.is_held(self._number)

    def is_at(self, prefix: Prefix) -> bool:
        with translated("looking at", prefix):
            return self._anchors.is_at(self._number, parts_of(prefix))

    def generation(self, name: str) -> Generation | None:
        with translated("looking at", name):
            return self._anchors.generation(self._number, name)

    @property
    def is_erased(self) -> bool:
        with translated("looking at", self._anchors.tree.path):
            return self._anchors.is_erased(self._number)

    def prefix(self) -> Prefix | None:
        with translated("looking at", self._anchors.tree.path):
            parts = self._anchors.present_parts(self._number)
        return Prefix("").child(path_of(parts)) if parts is not None else None

    def __del__(self) -> None:
        self._anchors.let_go(self._number)
