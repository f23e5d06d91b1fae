"""One entry that the kernel holds, with what the kernel has of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from zarrfs.errors import StaleEntry
from zarrfs.fuse.stamps import is_same, later, same_size
from zarrfs.vfs.node import Directory, File, VfsNode

NAMELESS = "\0"
"""First character of the name of an entry that has lost it."""
NOW = 1 << 63
"""Later than any `time.monotonic_ns()`."""


class Inode:
    """One entry that the kernel holds.

    ``stamp``: digest of the size, time and generation of the kernel's attributes, 0 if irrelevant; an entry with another one is another
    file. ``doubtful``: several answers were given, and it is unknown which one the kernel took last. ``is_folder``: the kernel's type of
    it, which never changes; None if the kernel has none. ``size``: the kernel's size of a file, in bytes, -1 if unknown. ``pages``: the
    oldest `Handle.pages` of pages that the kernel may have, None if unknown. ``writes``: number of WRITE requests. ``expired``: the
    kernel has dropped its attributes since the last answer that had them. ``name_expired``: the kernel was told to look its name up at
    its next use, and has not done so. ``below``: the inodes in a folder, without those that were only listed.
    """

    __slots__ = (
        "_changed_ns",
        "_changing",
        "_moved_ns",
        "_node",
        "_node_ns",
        "below",
        "doubtful",
        "expired",
        "ino",
        "is_folder",
        "lookups",
        "name",
        "name_expired",
        "open_handles",
        "pages",
        "parent",
        "size",
        "stamp",
        "writes",
    )

    def __init__(self, ino: int, parent: Inode | None, name: str) -> None:
        self.ino = ino
        self.parent = parent
        self.name = name
        self.lookups = 0
        self.open_handles = 0
        self.stamp = 0
        self.doubtful = False
        self.is_folder: bool | None = None
        self.size = -1
        self.pages: object = None
        self.writes = 0
        self.expired = False
        self.name_expired = False
        self.below: set[Inode] | None = None
        self._node: VfsNode | None = None
        self._node_ns = 0
        self._moved_ns = 0
        self._changing = 0
        self._changed_ns = -1

    @property
    def node(self) -> VfsNode | None:
        """The node found here; None once the entry, or a folder on the way to it, was renamed."""
        if self._node is not None and self.has_moved(self._node_ns):
            self._node = None
        return self._node

    @node.setter
    def node(self, node: VfsNode | None) -> None:
        self._node, self._node_ns = node, time.monotonic_ns()

    def has_moved(self, since_ns: int) -> bool:
        """Return True if the entry, or a folder on the way to it, was renamed since then."""
        each: Inode | None = self
        while each is not None and each._moved_ns < since_ns:
            each = each.parent
        return each is not None

    @property
    def is_outdated(self) -> bool:
        """True if it is a folder that was replaced by another one."""
        node = self.node
        return isinstance(node, Directory) and node.is_outdated

    @property
    def path(self) -> str:
        """Path of the entry from the root of the mount, without a leading slash."""
        parts = []
        inode: Inode | None = self
        while inode is not None and inode.parent is not None:
            parts.append(inode.name)
            inode = inode.parent
        return "/".join(reversed(parts))

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let its own programs change it in the body: with other attributes it remains the same file."""
        self._changing += 1
        try:
            yield
        finally:
            self._changing -= 1
            self.changed()

    def changed(self) -> None:
        """Record that it was changed through this mount; see `settled`."""
        self._changed_ns = time.monotonic_ns()
        self.stamp = 0

    def settled(self, stamp: int, since_ns: int) -> int:
        """Return the ``stamp`` of attributes requested at ``since_ns``; 0 if it may have changed since then, as in `changing`, or in that
        another file had its name.

        With the older stamp it would become another file, with a size and pages of its own in the kernel, while the same one is open.
        """
        if not self._changing and self._changed_ns < since_ns and self._moved_ns < since_ns:
            return stamp
        self.stamp = 0
        return 0

    def replied(self, stamp: int) -> None:
        """Record that the kernel gets attributes with this ``stamp``."""
        self.doubtful = self.doubtful or not is_same(self.stamp, stamp)
        self.stamp = later(stamp, self.stamp)
        self.expired = False

    def may_be_of_another_size(self, size: int) -> bool:
        """Return True if the kernel may have another size from before a request that might have changed the file: it has no stamp."""
        return not (self.stamp or self.expired or self._changing) and self.size not in (-1, size)

    def require_size(self, size: int) -> None:
        """Raise `StaleEntry` if the kernel has another size: it would append there, without asking. After the error it asks.

        The pages may be of that value, too."""
        if self.size not in (-1, size):
            self.doubtful = True
            raise StaleEntry(f"{self.path!r}: has another size now", key=self.path)

    def is_still(self, stamp: int) -> bool:
        """Return True if an entry with this ``stamp`` is the file whose attributes the kernel has.

        An open whole-array file stays the same when elements, and with them its time, change: with two numbers one file would have pages
        that differ.
        """
        if self.open_handles and isinstance(self._node, File) and self._node.in_parts:
            return same_size(self.stamp, stamp) or is_same(self.stamp, stamp)
        return is_same(self.stamp, stamp)

    @property
    def called(self) -> str:
        """Its present or last name."""
        return self.name.lstrip(NAMELESS)

    @property
    def is_lost(self) -> bool:
        """True if it, or a folder that contains it, has lost its name."""
        each: Inode | None = self
        while each is not None and not each.nameless:
            each = each.parent
        return each is not None

    @property
    def nameless(self) -> bool:
        """True if its name is free, or another file's."""
        return self.name.startswith(NAMELESS)

    def put_into(self, parent: Inode) -> None:
        """Make it an entry of the folder ``parent``."""
        self.parent = parent
        if parent.below is None:
            parent.below = set()
        parent.below.add(self)

    def take_out(self) -> None:
        """Take it out of `below` of its folder, which stays its ``parent``."""
        parent = self.parent
        if parent is not None and parent.below is not None:
            parent.below.discard(self)
            if not parent.below:
                parent.below = None
