"""Folders that are held open, so that one that comes to be in the place of another is told from it: the file system may give it the same
inode number at once, but not while somebody has the first one open.

Each takes a descriptor, of which a process has few: the one that was asked for longest ago is given up for the next.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict

from zarrfs.keys import Prefix
from zarrfs.stores.anchor import Anchor, Nowhere
from zarrfs.stores.folder.calls import Closing, lstat
from zarrfs.stores.folder.names import Parts, generation_of, parts_of, path_of
from zarrfs.stores.folder.presupposed import HeldFolder
from zarrfs.stores.folder.tree import FolderTree
from zarrfs.stores.values import Generation

_MOST = 1024


class Anchors:
    """Those of one tree that share descriptors: one in ``part`` of those that the process may have."""

    def __init__(self, tree: FolderTree, part: int) -> None:
        self.tree = tree
        self._part = part
        self._root = _name_of(tree.root)
        self._fds: OrderedDict[int, int] = OrderedDict()
        self._last = 0
        # Threads begin their lookups there: a descriptor that is closed may be another folder's the next moment.
        self._lock = threading.Lock()

    def hold(self, parts: Parts) -> Anchor | None:
        """One of a folder of this machine; None where it may not be opened."""
        try:
            fd = self._opened(parts)
        except (FileNotFoundError, NotADirectoryError):
            return Nowhere()
        if fd is None:
            return None
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        with self._lock:
            while len(self._fds) >= max(1, min(_MOST, soft // self._part)):
                os.close(self._fds.popitem(last=False)[1])
            self._last += 1
            self._fds[self._last] = fd
        return FolderAnchor(self, self._last)

    def is_held(self, number: int) -> bool:
        """Whether it was not given up for others."""
        return number in self._fds

    def is_at(self, number: int, parts: Parts) -> bool:
        """Whether it is what lies there, as far as anybody can tell."""
        with self._lock:
            held = self._fds.get(number)
            if held is None or self._is_called(held, parts):
                return True
        try:
            there = self._opened(parts)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if there is None:
            return True
        try:
            return os.path.samestat(os.fstat(held), os.fstat(there))
        finally:
            os.close(there)

    def _is_called(self, fd: int, parts: Parts) -> bool:
        """Whether the kernel says that its path is this one: of the file systems of this machine, where it then lies there. One call,
        however deep it is. False does not say that it is elsewhere."""
        return self._root is not None and _name_of(fd) == f"{self._root.rstrip('/')}/{path_of(parts)}"

    def is_erased(self, number: int) -> bool:
        """Whether the folder was removed."""
        with self._lock:
            held = self._fds.get(number)
            return held is not None and os.fstat(held).st_nlink == 0

    def generation(self, number: int, name: str) -> Generation | None:
        """Of a file in the folder; None where there is none."""
        folder = self.opened(number)
        if folder is None:
            return None
        with Closing(folder) as fd:
            found = lstat(fd, name)
        return None if found is None else generation_of(found)

    def place(self, number: int) -> Parts | None:
        """Where below the root of the tree it is now."""
        held = self._fds.get(number)
        if held is None:
            return None
        root = os.readlink(f"/proc/self/fd/{self.tree.root}")
        there = os.readlink(f"/proc/self/fd/{held}")
        parts = tuple(there[len(root) :].strip("/").split("/"))
        # What a name looks like is no proof: the kernel adds words to that of a folder which was removed.
        return parts if there.startswith(f"{root.rstrip('/')}/") and self.is_at(number, parts) else None

    def let_go(self, number: int) -> None:
        """Nobody asks for it any more."""
        with self._lock:
            fd = self._fds.pop(number, None)
            if fd is not None:
                os.close(fd)

    def opened(self, number: int) -> int | None:
        """Another descriptor of the folder, for the caller to close."""
        with self._lock:
            held = self._fds.get(number)
            return None if held is None else os.dup(held)

    def close(self) -> None:
        """Let go of all."""
        for number in list(self._fds):
            self.let_go(number)

    def _opened(self, parts: Parts) -> int | None:
        """Raises `FileNotFoundError` and `NotADirectoryError`; None where it is not known."""
        if not self.tree.local or self.tree.mounts.over(parts) is not None:
            # Opening it might wait for a server.
            return None
        try:
            return self.tree.open_folder(parts)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError:
            return None


def _name_of(fd: int) -> str | None:
    """The path of what is open, as the kernel has it; None where there is no /proc."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


class FolderAnchor(HeldFolder):
    """Held open for as long as there is this object."""

    def __init__(self, anchors: Anchors, number: int) -> None:
        self._anchors = anchors
        self._number = number
        self.tree = anchors.tree

    def opened(self) -> int | None:
        return self._anchors.opened(self._number)

    @property
    def holds(self) -> bool:
        return self._anchors.is_held(self._number)

    def is_at(self, prefix: Prefix) -> bool:
        return self._anchors.is_at(self._number, parts_of(prefix))

    def generation(self, name: str) -> Generation | None:
        return self._anchors.generation(self._number, name)

    @property
    def is_erased(self) -> bool:
        return self._anchors.is_erased(self._number)

    def place(self) -> Prefix | None:
        parts = self._anchors.place(self._number)
        return Prefix("").child(path_of(parts)) if parts is not None else None

    def __del__(self) -> None:
        self._anchors.let_go(self._number)
