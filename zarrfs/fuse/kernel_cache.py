"""Kernel cache of a mount: how long entries are valid, and their invalidation.

The kernel keeps names and attributes for ``timeout`` seconds, during which changes by other programs are not seen. If every change is
reported (`zarrfs.stores.base.Store.watch`) it may keep them for `WATCHED_SECONDS`: not indefinitely, since writes through a shared
mapping are not reported. An answer during which anything changed gets the shorter time, and one during which its own entry changed is
used once, because the kernel cannot invalidate what it does not have yet. Attributes of folders, whose times change with their content,
get the shorter time too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from zarrfs.fuse.inode import Inode
from zarrfs.fuse.inodes import InodeTable
from zarrfs.fuse.notifier import Notifier
from zarrfs.vfs.changed_entry import ChangedEntry, MovedEntry
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Directory, File, VfsNode

WATCHED_SECONDS = 300.0

_RECORDS = 1 << 16
# Folders whose names have expired and were not looked up since.
_EXPIRED_KEPT = 4096


@dataclass(slots=True)
class Leaving:
    """A request that renames a file (``of_move``) or removes it, and the ``entries`` that say so."""

    of_move: bool
    entries: list[ChangedEntry] = field(default_factory=list)


class KernelCache:
    """The kernel cache of one mount. ``is_watched()``: True while every change is reported."""

    def __init__(self, inodes: InodeTable, notifier: Notifier, *, timeout: float, is_watched: Callable[[], bool]) -> None:
        self._inodes = inodes
        inodes.on_displaced = self._forget_parts
        self._notifier = notifier
        self._timeout = timeout
        self._is_watched = is_watched
        self._leaving: dict[str, Leaving] = {}
        # The oldest first.
        self._expired: dict[Inode, None] = {}
        # The epoch of the last change of a path, by its hash: of many changes during a long listing, each concerns few other names.
        self._changed = array("Q", bytes(8 * _RECORDS))
        self._all_changed = 0
        self.epoch = 0
        """Counts changes: equal values mean that nothing changed between."""

    def seconds(self, epoch: int, path: str | None = None) -> tuple[float, float]:
        """Return the validity of a folder's attributes requested at ``epoch``, and that of a name and a file's attributes, in seconds.

        ``path``: of the entry, unless it cannot have changed since then.
        """
        if path is not None and epoch != self.epoch and epoch < max(self._all_changed, self._changed[hash(path) % _RECORDS]):
            return 0, 0
        if self._timeout and epoch == self.epoch and self._is_watched():
            return self._timeout, max(self._timeout, WATCHED_SECONDS)
        return self._timeout, self._timeout

    def changed(self, entries: Iterable[ChangedEntry], *, external: bool = False) -> Iterator[None]:
        """Invalidate changed entries, in steps, while the caller iterates over the result. Answers begun before get a short validity.

        The pages of a ``known`` entry are right; those of a ``superseded`` one stay with its inode. ``external``: changed by another
        program, so that a value that is not open becomes another file as well.
        """
        self.epoch += 1
        return self._changing(entries, external)

    def names_changed(self, *folders: Inode) -> int:
        """Record that a request of the kernel has changed names in these folders, whose attributes it then invalidates by itself.

        Returns the new epoch.
        """
        self.epoch += 1
        for folder in folders:
            self._record(folder.path)
        return self.epoch

    @contextmanager
    def dropping_attributes(self, *folders: Inode) -> Iterator[None]:
        """Let the body answer a request that changes names in these folders: the kernel then drops their attributes by itself."""
        expired = [folder for folder in folders if not folder.expired]
        for folder in expired:
            folder.expired = True
        try:
            yield
        except BaseException:
            # The kernel keeps their attributes.
            for folder in expired:
                folder.expired = False
                self._folder_changed(folder.path)
            raise

    @contextmanager
    def leaving(self, inode: Inode | None, *folders: Inode, of_move: bool) -> Iterator[Leaving]:
        """Let the body answer a request that takes its name from ``inode``; a notice of that is not needed: the kernel does the same.

        ``folders``: see `dropping_attributes`. ``of_move``: the request renames it, and its bytes and attributes are the same then.
        """
        leaving, path = Leaving(of_move), inode.path if inode is not None else None
        with self.dropping_attributes(*folders):
            if path is None or path in self._leaving:
                # The path is that of another request if a folder above was replaced.
                yield leaving
                return
            self._leaving[path] = leaving
            try:
                yield leaving
            except BaseException:
                del self._leaving[path]
                # The kernel keeps the name.
                for _ in self._changing(leaving.entries, external=False):
                    pass
                raise
            del self._leaving[path]

    def forgotten(self, path: str, superseded: Container[str]) -> Iterator[None]:
        """Invalidate, as `changed`, everything at ``path`` and below.

        ``superseded``: paths of files whose open handles keep the old value.
        """
        self.epoch += 1
        self._all_changed = self.epoch
        return self._forgetting(path, superseded)

    def moved(self, entries: Iterable[MovedEntry]) -> None:
        """Record renames through another view: the new names have the same inodes, and open files and folders stay valid."""
        self.epoch += 1
        self._all_changed = self.epoch
        for entry in entries:
            old, new, is_folder = entry.old, entry.new, entry.is_folder
            self._folder_changed(_folder_of(old))
            self._folder_changed(_folder_of(new))
            inode = self._inodes.find(old)
            if inode is None or inode.parent is None or (inode.node is not None and isinstance(inode.node, Directory) != is_folder):
                continue
            if is_folder:
                # The kernel keeps names in use, and with them, after their last close, the folder under its old name. As long as it does,
                # it looks up the new name in vain (ESTALE) while another rename is in progress.
                for each in self._inodes.with_open_below(inode):
                    if each.parent is not None and not each.nameless:
                        self._notifier.entry(each.parent.ino, each.name)
            self._notifier.entry(inode.parent.ino, inode.name)
            if (replaced := self._inodes.find(new)) is not None and replaced.parent is not None:
                self._notifier.entry(replaced.parent.ino, replaced.name)
                self._inodes.vanished(replaced)
            self._inodes.move(inode, self._inodes.at(_folder_of(new)), new.rpartition("/")[2])

    def _changing(self, entries: Iterable[ChangedEntry], external: bool) -> Iterator[None]:
        for entry in entries:
            yield
            self._record(entry.path)
            leaving = self._leaving.get(entry.path)
            if leaving is not None and leaving.of_move == entry.of_move and entry.gone and not (entry.superseded or external):
                leaving.entries.append(entry)
                self._record(_folder_of(entry.path))
                continue
            if not external:
                # A name that the kernel does not hold may be new, and a store that replaces a value by a rename changes the folder, too.
                self._folder_changed(_folder_of(entry.path))
            inode = self._inodes.find(entry.path)
            if inode is None:
                continue
            if external:
                inode.stamp = 0
            else:
                inode.changed()
            unheard = external and not entry.known and not inode.open_handles and _is_one_value(inode.node)
            superseded = entry.superseded or unheard
            if superseded or not inode.is_folder:
                if (entry.gone or superseded) and inode.parent is not None:
                    self._notifier.entry(inode.parent.ino, inode.name)
            elif entry.gone and inode.parent is not None and not inode.name_expired:
                # Mostly the folder is still there: an invalidated name would make it a removed one for programs that stand in it.
                self._notifier.entry(inode.parent.ino, inode.name, may_stay=True)
                self._expire(inode)
            if superseded:
                self._superseded(inode)
            elif inode.is_folder:
                if inode.node is None:
                    self._attributes_changed(inode)
            elif inode.node is None or isinstance(inode.node, File):
                # Until the kernel has the notice, an open would combine the old size with the new bytes.
                inode.doubtful = inode.doubtful or not entry.known
                # After a write the kernel requests the attributes again by itself.
                if not (entry.known and inode.expired):
                    self._notifier.inode(inode.ino, attributes_only=entry.known)

    def _expire(self, inode: Inode) -> None:
        """Record that the name of a folder has expired; of too many, invalidate the oldest.

        The kernel holds such a name until it is looked up, or memory is short: of folders that are gone, for long.
        """
        inode.name_expired = True
        self._expired.pop(inode, None)
        self._expired[inode] = None
        if len(self._expired) > _EXPIRED_KEPT:
            oldest = next(iter(self._expired))
            del self._expired[oldest]
            if oldest.name_expired and oldest.parent is not None and self._inodes.find(oldest.path) is oldest:
                self._notifier.entry(oldest.parent.ino, oldest.name)

    def _folder_changed(self, path: str) -> None:
        """Invalidate the attributes of the folder at ``path``, in which a name or value has changed, once until the kernel asks again."""
        self._record(path)
        folder = self._inodes.find(path)
        if folder is not None and not (isinstance(folder.node, Directory) and folder.node.keeps_its_time):
            self._attributes_changed(folder)

    def _attributes_changed(self, folder: Inode) -> None:
        if not folder.expired:
            self._notifier.inode(folder.ino, attributes_only=True)
            folder.expired = True

    def _record(self, path: str) -> None:
        self._changed[hash(path) % _RECORDS] = self.epoch

    def _forgetting(self, path: str, superseded: Container[str]) -> Iterator[None]:
        self._folder_changed(_folder_of(path))
        top = self._inodes.find(path)
        if top is None:
            return
        # A folder before its content: with its name the kernel drops unused inodes below, and sends FORGET; nothing more is needed.
        self._forget(top, superseded)
        for inode in self._inodes.below(top):
            yield
            if inode is not None:
                self._forget(inode, superseded)

    def _forget(self, inode: Inode, superseded: Container[str]) -> None:
        if inode.parent is None or inode.nameless:
            return
        inode.stamp = 0
        # Names that were only listed are dropped with their folder.
        self._notifier.entry(inode.parent.ino, inode.name)
        if inode.open_handles and inode.path in superseded:
            self._superseded(inode)
        elif inode.node is None or isinstance(inode.node, File):
            inode.doubtful = True
            self._notifier.inode(inode.ino)

    def _superseded(self, inode: Inode) -> None:
        self._inodes.vanished(inode)
        self._forget_parts(inode)

    def _forget_parts(self, inode: Inode) -> None:
        """Invalidate the pages of a file that has lost its name, if they may be of parts that are gone."""
        if isinstance(inode.node, File) and inode.node.in_parts:
            self._notifier.inode(inode.ino)


def _folder_of(path: str) -> str:
    """Return the path of the folder that holds ``path``."""
    return path.rpartition("/")[0]


def _is_one_value(node: VfsNode | None) -> bool:
    """Return True if another content makes another file; a whole-array file stays the same with other chunks."""
    return isinstance(node, StagedFile) and not node.content.in_parts
