"""Inode numbers: what the kernel knows, and for how long.

An inode number is a digest of the entry's path in the mount, so that it is the same after the kernel has forgotten it, in the next
mount, and for tools that tell hard links and changes by it. Where the digest is taken (after a rename, or because the value was
replaced behind the mount and is another file now) the next free one is.

An `Inode` exists while the kernel holds lookups on it or a file of it is open. A listing of a hundred thousand entries makes the kernel
hold as many: what was only listed is kept as a pair of its folder and a few bytes, and becomes an `Inode` when something is done with it.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque

from zarrfs.vfs.node import Attributes, Directory, File, Node

ROOT_INO = 1
_RESERVED = 16
_NAMELESS = "\0"
_NODES_KEPT = 20_000


class Inode:
    """One entry that the kernel knows. ``stamp``: a digest of the size and time that the kernel was told, 0 where that does not
    matter; an entry with another one is another file."""

    __slots__ = ("ino", "lookups", "name", "node", "open_handles", "parent", "stamp")

    def __init__(self, ino: int, parent: Inode | None, name: str) -> None:
        self.ino = ino
        self.parent = parent
        self.name = name
        self.lookups = 0
        self.open_handles = 0
        self.stamp = 0
        self.node: Node | None = None

    @property
    def path(self) -> str:
        """The entry's path from the root of the mount, without a leading slash."""
        parts = []
        inode: Inode | None = self
        while inode is not None and inode.parent is not None:
            parts.append(inode.name)
            inode = inode.parent
        return "/".join(reversed(parts))

    @property
    def nameless(self) -> bool:
        """Whether its name is another file's, or nobody's, by now."""
        return self.name.startswith(_NAMELESS)

    def lies_below(self, other: Inode) -> bool:
        """Whether ``other`` is a folder on the way to this entry."""
        above = self.parent
        while above is not None and above is not other:
            above = above.parent
        return above is other


_Listed = tuple[Inode, bytes]
"""What was only listed, once: its folder, and its stamp and name in bytes. With its place in the table 190 bytes, for a name of 10."""


class InodeTable:
    """All inodes of a mount, by number."""

    def __init__(self, root: Directory) -> None:
        self.root = Inode(ROOT_INO, None, "")
        self.root.node = root
        self.root.lookups = 1
        self._inodes: dict[int, Inode | _Listed] = {ROOT_INO: self.root}
        self._displaced: dict[str, int] = {}
        self._with_nodes: deque[Inode] = deque()

    def __len__(self) -> int:
        return len(self._inodes)

    def __getitem__(self, ino: int) -> Inode:
        entry = self._inodes[ino]
        return entry if isinstance(entry, Inode) else self._promoted(ino, entry)

    def find(self, path: str) -> Inode | None:
        """The inode at ``path``, if the kernel knows it."""
        if not path:
            return self.root
        ino = self._displaced.get(path)
        inode = self._get(ino if ino is not None else _digest(path))
        return inode if inode is not None and inode.path == path else None

    def refer(self, parent: Inode, name: str, *, path: str | None = None, stamp: int = 0) -> Inode:
        """The inode for an entry, with one more lookup counted on it. ``path`` saves making it. An entry whose ``stamp`` is not what
        the kernel was told gets a new number."""
        path = path if path is not None else _join(parent.path, name)
        ino = self._displaced.get(path)
        if ino is None:
            ino = _digest(path)
        inode = self._get(ino)
        if inode is None:
            inode = self._inodes[ino] = Inode(ino, parent, name)
        elif inode.name != name or inode.parent is not parent:
            inode = self._displace(parent, name, path)
        elif stamp and inode.stamp and inode.stamp != stamp:
            self.vanished(inode)
            inode = self._displace(parent, name, path)
        inode.stamp = stamp
        inode.lookups += 1
        return inode

    def listed(self, parent: Inode, name: str, *, path: str, stamp: int) -> int:
        """As `refer`, for an entry of a listing: its number."""
        ino = _digest(path)
        if ino in self._inodes or path in self._displaced:
            return self.refer(parent, name, path=path, stamp=stamp).ino
        self._inodes[ino] = (parent, stamp.to_bytes(4, "little") + os.fsencode(name))
        return ino

    def attach(self, inode: Inode, node: Node) -> None:
        """``node`` is what ``inode`` stands for. Of very many files that nobody has open the nodes are forgotten, which are found again
        by their names."""
        if inode.node is None:
            self._with_nodes.append(inode)
        inode.node = node
        if len(self._with_nodes) > _NODES_KEPT:
            oldest = self._with_nodes.popleft()
            if oldest.open_handles or oldest.nameless or not isinstance(oldest.node, File):
                if oldest.node is not None and oldest.lookups > 0:
                    self._with_nodes.append(oldest)
            else:
                oldest.node = None

    def number(self, path: str) -> int:
        """The number that the entry at ``path`` has or would get."""
        displaced = self._displaced.get(path)
        return displaced if displaced is not None else _digest(path)

    def forget(self, ino: int, lookups: int) -> None:
        """The kernel drops ``lookups`` of its references."""
        entry = self._inodes.get(ino)
        if isinstance(entry, Inode):
            entry.lookups -= lookups
            self._collect(entry)
        elif entry is not None:
            del self._inodes[ino]

    def opened(self, inode: Inode) -> None:
        """A handle of it is open."""
        inode.open_handles += 1

    def closed(self, inode: Inode) -> None:
        """A handle of it was released."""
        inode.open_handles -= 1
        self._collect(inode)

    def move(self, inode: Inode, parent: Inode, name: str) -> None:
        """The entry has another name now, and all that lies below it; the kernel keeps their numbers. What was at that name is
        nobody's any more."""
        moved = [inode, *(self[ino] for ino, entry in list(self._inodes.items()) if _lies_below(entry, inode))]
        for each in moved:
            self._displaced.pop(each.path, None)
        inode.parent, inode.name = parent, name
        for each in moved:
            each.node = None
            path = each.path
            if _digest(path) != each.ino:
                self._displaced[path] = each.ino

    def below(self, folder: Inode) -> list[Inode]:
        """Every inode below ``folder``; of what was only listed, what lies directly in the root."""
        every = [self[ino] for ino, entry in list(self._inodes.items()) if isinstance(entry, Inode) or entry[0] is self.root]
        return every if folder is self.root else [each for each in every if each.lies_below(folder)]

    def vanished(self, inode: Inode) -> None:
        """The entry lost its name: whatever comes to be called so is another file."""
        path = inode.path
        if self._displaced.get(path) == inode.ino:
            del self._displaced[path]
        inode.name = _NAMELESS + inode.name

    def _get(self, ino: int) -> Inode | None:
        return self[ino] if ino in self._inodes else None

    def _promoted(self, ino: int, listed: _Listed) -> Inode:
        parent, packed = listed
        inode = self._inodes[ino] = Inode(ino, parent, os.fsdecode(packed[4:]))
        inode.stamp = int.from_bytes(packed[:4], "little")
        inode.lookups = 1
        return inode

    def _displace(self, parent: Inode, name: str, path: str) -> Inode:
        attempt = 1
        while (ino := _digest(f"{path}\0{attempt}")) in self._inodes:
            attempt += 1
        self._displaced[path] = ino
        inode = self._inodes[ino] = Inode(ino, parent, name)
        return inode

    def _collect(self, inode: Inode) -> None:
        if inode.lookups <= 0 and inode.open_handles <= 0 and inode is not self.root:
            self._inodes.pop(inode.ino, None)
            if self._displaced:
                path = inode.path
                if self._displaced.get(path) == inode.ino:
                    del self._displaced[path]


def stamp_of(attributes: Attributes) -> int:
    """The digest of what the kernel is told of a file; never 0. Small, so that it costs no more than it must: 8 bits are of the size
    alone."""
    if attributes.is_directory:
        return 0
    return (hash((attributes.size,)) & 0xFF) << 22 | (hash((attributes.size, attributes.mtime_ns)) & 0x3F_FFFE) | 1


def same_size(stamp: int, other: int) -> bool:
    """Whether two stamps are of files of one size, as far as stamps tell."""
    return stamp >> 22 == other >> 22


def _lies_below(entry: Inode | _Listed, folder: Inode) -> bool:
    if isinstance(entry, Inode):
        return entry.lies_below(folder)
    return entry[0] is folder or entry[0].lies_below(folder)


def _digest(path: str) -> int:
    digest = hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    # 63 bits: some programs read inode numbers as signed.
    return (int.from_bytes(digest, "little") >> 1) | _RESERVED


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name
