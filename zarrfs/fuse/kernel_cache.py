"""What the kernel may remember of a mount: for how long, and what it is told to forget.

It keeps names and attributes for ``timeout`` seconds, in which a change behind the mount is not seen. Where every change is told
(`zarrfs.stores.base.Store.watch`) it may keep them for `TOLD_SECONDS`: not for ever, since what is written through a shared mapping is
not told. What may have changed while an answer was made is kept for the shorter time: the kernel cannot be told to forget what it does
not know yet. So are the attributes of folders, whose times change with whatever is in them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator

from zarrfs.fuse.inodes import Inode, InodeTable
from zarrfs.fuse.notifier import Notifier
from zarrfs.vfs.changed_entry import ChangedEntry, MovedEntry
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Directory, File, Node

TOLD_SECONDS = 300.0


class KernelCache:
    """Of one mount. ``told()``: whether every change is told now."""

    def __init__(self, inodes: InodeTable, notifier: Notifier, *, timeout: float, told: Callable[[], bool]) -> None:
        self._inodes = inodes
        self._notifier = notifier
        self._timeout = timeout
        self._told = told
        self.epoch = 0
        """Counts changes: it is what it was while nothing changed."""
        self.names_changed = False
        """Whether the kernel was told to forget a name since somebody last set this to False."""

    def seconds(self, epoch: int) -> tuple[float, float]:
        """How long the attributes of a folder may be kept that were asked for at ``epoch``, and how long a name and those of a file."""
        if self._timeout and epoch == self.epoch and self._told():
            return self._timeout, max(self._timeout, TOLD_SECONDS)
        return self._timeout, self._timeout

    def changed(self, entries: Iterable[ChangedEntry], *, behind: bool = False) -> Iterator[None]:
        """Entries are different now: the kernel is told what it has to forget, while the caller goes on with what this returns. From now
        on no answer that was begun before is kept for long.

        Of an entry that is ``known`` the pages are right; those of a ``superseded`` one stay with its inode. ``behind``: it was changed
        behind the mount, so that a value that nobody has open is another file as well.
        """
        self.epoch += 1
        return self._changing(entries, behind)

    def forgotten(self, path: str, superseded: Container[str]) -> Iterator[None]:
        """As `changed`: anything at ``path`` and below may be different. ``superseded``: paths of files whose open handles keep the old
        value."""
        self.epoch += 1
        return self._forgetting(path, superseded)

    def moved(self, entries: Iterable[MovedEntry]) -> None:
        """Entries have other names now, through another view: the kernel finds the same files and folders there, and whoever has them
        open, or stands in them, goes on."""
        self.epoch += 1
        for entry in entries:
            old, new, is_folder = entry.old, entry.new, entry.is_folder
            inode = self._inodes.find(old)
            if inode is None or inode.parent is None or (inode.node is not None and isinstance(inode.node, Directory) != is_folder):
                continue
            self.names_changed = True
            self._notifier.entry(inode.parent.ino, inode.name)
            if (replaced := self._inodes.find(new)) is not None and replaced.parent is not None:
                self._notifier.entry(replaced.parent.ino, replaced.name)
                self._inodes.vanished(replaced)
            folder, _, name = new.rpartition("/")
            self._inodes.move(inode, self._inodes.at(folder), name)

    def _changing(self, entries: Iterable[ChangedEntry], behind: bool) -> Iterator[None]:
        for entry in entries:
            yield
            inode = self._inodes.find(entry.path)
            if inode is None:
                continue
            inode.stamp = 0
            unheard = behind and not entry.known and not inode.open_handles and _is_one_value(inode.node)
            superseded = entry.superseded or unheard
            if (entry.gone or superseded) and inode.parent is not None:
                self.names_changed = True
                self._notifier.entry(inode.parent.ino, inode.name)
            if superseded:
                self._inodes.vanished(inode)
            elif inode.node is None or isinstance(inode.node, File):
                # Until the kernel has heard of it, who opens the file would have the size of the old value with the bytes of the new one.
                inode.doubtful = inode.doubtful or not entry.known
                self._notifier.inode(inode.ino, attributes_only=entry.known)

    def _forgetting(self, path: str, superseded: Container[str]) -> Iterator[None]:
        top = self._inodes.find(path)
        if top is None:
            return
        # A folder before what is in it: with its name the kernel forgets what nobody uses of that, and tells us; then it is done.
        self._forget(top, superseded)
        for inode in self._inodes.below(top):
            yield
            if inode is not None:
                self._forget(inode, superseded)

    def _forget(self, inode: Inode, superseded: Container[str]) -> None:
        if inode.parent is None or inode.nameless:
            return
        inode.stamp = 0
        # Names that were only listed go with the folder they are in.
        self._notifier.entry(inode.parent.ino, inode.name)
        if inode.open_handles and inode.path in superseded:
            self._inodes.vanished(inode)
        elif inode.node is None or isinstance(inode.node, File):
            inode.doubtful = True
            self._notifier.inode(inode.ino)


def _is_one_value(node: Node | None) -> bool:
    """Whether another content makes it another file; a whole array goes on with other chunks."""
    return isinstance(node, StagedFile) and not node.content.in_parts
