"""Inode numbers: what the kernel holds, and for how long.

An inode number is a digest of the number of the entry's folder and its name, so that it stays the same after the kernel has forgotten it,
in the next mount, and for tools that detect hard links and changes by it. If the digest is taken (after a rename, or because another
program replaced the value, which is another file now) the next free number is used. A renamed folder keeps its number, and so does all
below it, at no cost. The numbers of the last `_NUMBERS_KEPT` such names are kept although the kernel has forgotten them: it may do so
between the ``lstat`` and the ``open`` of a program that takes another number for another file.

An `Inode` exists while the kernel holds lookups on it or a file of it is open. A listing of a hundred thousand entries makes the kernel
hold as many: an entry that was only listed is kept as a few bytes, and becomes an `Inode` at its first use.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from zarrfs.fuse.inode import NAMELESS, NOW, Inode
from zarrfs.fuse.stamps import later
from zarrfs.vfs.node import Directory, File, VfsNode

ROOT_INO = 1
_RESERVED = 16
UNKNOWN_FILE = 1 << 31
"""For `InodeTable.listed`: the stamp of a file without attributes for the kernel."""
_NODES_KEPT = 20_000
_NUMBERS_KEPT = 4096
_LIGHT_NBYTES, _HEAVY_NBYTES = 8 << 10, 16 << 20


_Listed = bytes
"""An entry that was only listed, once: the number of its folder, its stamp and its name.

With its slot in the table 150 bytes, for a name of 10, and nothing for the garbage collector to traverse.
"""
_INO_NBYTES, _STAMP_NBYTES = 8, 4
_NAME_AT = _INO_NBYTES + _STAMP_NBYTES


class InodeTable:
    """All inodes of a mount, by number. The cost of an operation does not depend on their number."""

    def __init__(self, root: Directory) -> None:
        self.root = Inode(ROOT_INO, None, "")
        self.root.node = root
        self.root.lookups = 1
        self.on_displaced: Callable[[Inode], None] = lambda inode: None
        """Called with an inode whose name turns out to be another file's: no notice by name concerns it from then on."""
        self._inodes: dict[int, Inode | _Listed] = {ROOT_INO: self.root}
        self._displaced: dict[tuple[int, str], int] = {}
        self._forgotten: deque[tuple[int, str]] = deque()
        self._open: set[Inode] = set()
        self._with_nodes: deque[Inode] = deque()
        self._heavy: OrderedDict[int, tuple[Inode, int]] = OrderedDict()
        self._heavy_nbytes = 0

    def __len__(self) -> int:
        return len(self._inodes)

    def __getitem__(self, ino: int) -> Inode:
        entry = self._inodes[ino]
        return entry if isinstance(entry, Inode) else self._promoted(ino, entry, self[_folder_of(entry)])

    def find(self, path: str) -> Inode | None:
        """Return the inode at ``path``, if the kernel holds it."""
        inode = self.root
        if not path:
            return inode
        *folders, last = path.split("/")
        for name in folders:
            entry = self._inodes.get(self._number(inode.ino, name))
            # The kernel holds nothing below an entry that was only listed.
            if not isinstance(entry, Inode) or entry.name != name or entry.parent is not inode:
                return None
            inode = entry
        found = self._known(self._number(inode.ino, last), inode)
        return found if found is not None and found.name == last and found.parent is inode else None

    def at(self, path: str) -> Inode:
        """Return the inode at ``path``, held by the kernel or not: the kernel may hold something below it."""
        inode = self.root
        for name in path.split("/") if path else ():
            ino = self._number(inode.ino, name)
            found = self._known(ino, inode)
            if found is None:
                found = self._added(ino, inode, name)
            elif found.name != name or found.parent is not inode:
                found = self._displace(inode, name)
            inode = found
        return inode

    def refer(self, parent: Inode, name: str, *, is_folder: bool, stamp: int = 0, since_ns: int = NOW) -> Inode:
        """Return the inode of an entry, with one more lookup. ``since_ns``: see `Inode.settled`.

        An entry whose ``stamp`` differs from the kernel's attributes gets a new number, and so does a folder in place of a file: the
        kernel drops an inode that changes its type.
        """
        ino = self._number(parent.ino, name)
        inode = self._known(ino, parent)
        if inode is None:
            inode = self._added(ino, parent, name)
        elif inode.name != name or inode.parent is not parent:
            inode = self._displace(parent, name)
        elif (
            not inode.is_still(stamp := inode.settled(stamp, since_ns))
            or inode.is_folder not in (None, is_folder)
            or inode.is_outdated
        ):
            self.displaced(inode)
            inode = self._displace(parent, name)
        inode.is_folder = is_folder
        inode.stamp = later(stamp, inode.stamp)
        inode.expired = inode.name_expired = False
        inode.lookups += 1
        return inode

    def listed(self, parent: Inode, name: str, *, stamp: int, since_ns: int = NOW) -> int:
        """Return the number for an entry of a listing; see `refer`.

        Folders have the stamp 0 there, and files another: `UNKNOWN_FILE` if irrelevant.
        """
        ino = _digest(parent.ino, name)
        if ino in self._inodes or (parent.ino, name) in self._displaced:
            return self.refer(parent, name, stamp=stamp % UNKNOWN_FILE, is_folder=not stamp, since_ns=since_ns).ino
        self._inodes[ino] = parent.ino.to_bytes(_INO_NBYTES, "little") + stamp.to_bytes(_STAMP_NBYTES, "little") + os.fsencode(name)
        return ino

    def may_have_another_size(self, ino: int, size: int) -> bool:
        """Return True if the kernel may have a later size of a file that was just `listed` than ``size``, -1 if that is unknown."""
        entry = self._inodes.get(ino)
        if not isinstance(entry, Inode):
            return False
        return entry.size != size if entry.open_handles else not entry.stamp and size >= 0

    def is_settled(self, ino: int) -> bool:
        """Return False if the attributes last recorded for an inode may have changed since they were requested (`Inode.settled`)."""
        entry = self._inodes.get(ino)
        return not isinstance(entry, Inode) or bool(entry.stamp)

    def attach(self, inode: Inode, node: VfsNode, since_ns: int = NOW) -> None:
        """Set the node of ``inode``, requested at ``since_ns``: it is not that of a name given to the inode since then.

        Of very many nodes of files that are not open, or some that hold much memory, the oldest are dropped, and found again by name.
        """
        if inode.node is None:
            self._with_nodes.append(inode)
        inode.node = node
        inode._node_ns = min(inode._node_ns, since_ns)
        if isinstance(node, File) and (nbytes := node.held_nbytes) > _LIGHT_NBYTES:
            self._hold(inode, nbytes)
        if len(self._with_nodes) > _NODES_KEPT:
            oldest = self._with_nodes.popleft()
            if oldest.open_handles or oldest.nameless or not isinstance(oldest.node, File):
                if oldest.node is not None and oldest.lookups > 0:
                    self._with_nodes.append(oldest)
            else:
                oldest.node = None

    def _hold(self, inode: Inode, nbytes: int) -> None:
        before = self._heavy.pop(inode.ino, None)
        self._heavy[inode.ino] = inode, nbytes
        self._heavy_nbytes += nbytes - (before[1] if before is not None else 0)
        while self._heavy_nbytes > _HEAVY_NBYTES and len(self._heavy) > 1:
            oldest, held = self._heavy.popitem(last=False)[1]
            self._heavy_nbytes -= held
            if not oldest.open_handles and not oldest.nameless:
                oldest.node = None

    def number(self, path: str) -> int:
        """Return the present or future number of the entry at ``path``."""
        ino = ROOT_INO
        for name in path.split("/") if path else ():
            ino = self._number(ino, name)
        return ino

    def forget(self, ino: int, lookups: int) -> None:
        """Drop ``lookups`` references of the kernel."""
        entry = self._inodes.get(ino)
        if isinstance(entry, Inode):
            entry.lookups -= lookups
            self._collect(entry)
        elif entry is not None:
            del self._inodes[ino]

    def add_open(self, inode: Inode) -> None:
        """Count an open handle."""
        inode.open_handles += 1
        self._open.add(inode)

    def closed(self, inode: Inode) -> None:
        """Count a released handle."""
        inode.open_handles -= 1
        if not inode.open_handles:
            self._open.discard(inode)
        self._collect(inode)

    def with_open_below(self, folder: Inode) -> set[Inode]:
        """Return the inodes below ``folder`` that are open, or that contain one."""
        found: set[Inode] = set()
        for inode in self._open:
            way = []
            each: Inode | None = inode
            while each is not None and each is not folder:
                way.append(each)
                each = each.parent
            if each is folder:
                found.update(way)
        return found

    def move(self, inode: Inode, parent: Inode, name: str) -> None:
        """Rename an entry, and with it all below; the kernel keeps their numbers. A previous entry of that name is left without one."""
        self._undisplace(inode)
        inode.take_out()
        inode.name = name
        inode.put_into(parent)
        inode._moved_ns = time.monotonic_ns()
        if _digest(parent.ino, name) != inode.ino:
            self._displaced[parent.ino, name] = inode.ino
        else:
            # Perhaps kept of an earlier file of this name, which is not found by it any more.
            self._displaced.pop((parent.ino, name), None)

    def below(self, folder: Inode) -> Iterator[Inode | None]:
        """Yield every inode below ``folder``, those of a folder after it, and of entries only listed those directly in the root.

        The table may change during iteration: entries added meanwhile may be left out. Yields None from time to time.
        """
        folders = [folder]
        while folders:
            for inode in list(folders.pop().below or ()):
                yield inode
                if inode.below:
                    folders.append(inode)
        if folder is not self.root:
            return
        for ino in list(self._inodes):
            entry = self._inodes.get(ino)
            listed = not isinstance(entry, Inode) and entry is not None and _folder_of(entry) == ROOT_INO
            yield self[ino] if listed else None

    def vanished(self, inode: Inode) -> None:
        """Remove the name of an entry: a later entry of that name is another file."""
        self._undisplace(inode)
        inode.name = NAMELESS + inode.name

    def displaced(self, inode: Inode) -> None:
        """Run `vanished` for an entry whose name turns out to be another file's."""
        self.vanished(inode)
        self.on_displaced(inode)

    def _number(self, folder: int, name: str) -> int:
        displaced = self._displaced.get((folder, name)) if self._displaced else None
        return displaced if displaced is not None else _digest(folder, name)

    def _known(self, ino: int, parent: Inode) -> Inode | None:
        """Return the inode with this number, which belongs to an entry of ``parent``."""
        entry = self._inodes.get(ino)
        if entry is None:
            return None
        if not isinstance(entry, Inode):
            # Of another folder, if the number is also kept of an entry that was renamed from there.
            folder = _folder_of(entry)
            return self._promoted(ino, entry, parent if folder == parent.ino else self[folder])
        if entry.parent is not parent and entry.parent is not None and entry.parent.ino == parent.ino:
            # The kernel dropped the folder and looked it up again while it held entries in it: their notices need the present folder.
            entry.take_out()
            entry.put_into(parent)
        return entry

    def _promoted(self, ino: int, listed: _Listed, parent: Inode) -> Inode:
        inode = self._added(ino, parent, os.fsdecode(listed[_NAME_AT:]))
        stamp = int.from_bytes(listed[_INO_NBYTES:_NAME_AT], "little")
        inode.stamp, inode.is_folder = stamp % UNKNOWN_FILE, not stamp
        inode.lookups = 1
        return inode

    def _added(self, ino: int, parent: Inode, name: str) -> Inode:
        inode = self._inodes[ino] = Inode(ino, None, name)
        inode.put_into(parent)
        return inode

    def _displace(self, parent: Inode, name: str) -> Inode:
        attempt = 1
        while (ino := _digest(parent.ino, f"{name}\0{attempt}")) in self._inodes:
            attempt += 1
        self._displaced[parent.ino, name] = ino
        return self._added(ino, parent, name)

    def _undisplace(self, inode: Inode) -> None:
        if self._displaced and inode.parent is not None:
            entry = inode.parent.ino, inode.name
            if self._displaced.get(entry) == inode.ino:
                del self._displaced[entry]

    def _collect(self, inode: Inode) -> None:
        if inode.lookups <= 0 and inode.open_handles <= 0 and inode is not self.root and self._inodes.get(inode.ino) is inode:
            del self._inodes[inode.ino]
            self._keep_number(inode)
            inode.take_out()
            if not inode.below:
                # Else what the kernel still holds below it is of this folder, and of no other.
                self._drop_node(inode)

    def _drop_node(self, inode: Inode) -> None:
        """Drop the node of an entry that the kernel has forgotten: with it are held folders, and what is known of an array."""
        inode.node = None
        held = self._heavy.get(inode.ino)
        if held is not None and held[0] is inode:
            del self._heavy[inode.ino]
            self._heavy_nbytes -= held[1]

    def _keep_number(self, inode: Inode) -> None:
        """Keep the number of an entry that the kernel has forgotten, if it is not the digest of its name."""
        if not self._displaced or inode.parent is None:
            return
        entry = inode.parent.ino, inode.name
        if self._displaced.get(entry) != inode.ino:
            return
        self._forgotten.append(entry)
        if len(self._forgotten) > _NUMBERS_KEPT:
            oldest = self._forgotten.popleft()
            # The kernel may hold it again, and another entry may have got its number meanwhile.
            present = self._inodes.get(self._displaced.get(oldest, 0))
            if not isinstance(present, Inode) or present.parent is None or (present.parent.ino, present.name) != oldest:
                self._displaced.pop(oldest, None)


def _folder_of(listed: _Listed) -> int:
    return int.from_bytes(listed[:_INO_NBYTES], "little")


def _digest(folder: int, name: str) -> int:
    named = folder.to_bytes(_INO_NBYTES, "little") + name.encode("utf-8", "surrogateescape")
    # 63 bits: some programs read inode numbers as signed.
    return (int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little") >> 1) | _RESERVED
