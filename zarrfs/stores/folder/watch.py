"""inotify(7) over a tree of folders: reports the names that changed.

The library is inotify_simple (docs/design/007-changes-behind.md), which returns the kernel's events unchanged, including overflows of
its queue. This module adds:

* A watch is of one folder, so each folder has one. It is added before the folder is listed: entries that appear in a new folder before
  the watch are listed, later ones are reported.
* A watch follows its folder through renames. Both ends of a rename inside the tree have one cookie, and folders below move with it; a
  folder from outside is listed like a new one.
* Folders are opened by descriptors (`FolderTree`), never by paths, which a symbolic link may redirect.

inotify does not report writes through a shared mapping until the file is closed, nor changes by other machines; only file systems of
this machine are therefore watched.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from zarrfs.stores.folder.file_systems import is_local
from zarrfs.stores.folder.names import TEMPORARY, Parts, is_apart, path_of
from zarrfs.stores.folder.tree import FolderTree
from zarrfs.stores.os_errors import ABSENT

MAX_FOLDERS = 50_000
"""Limit on watched folders: each costs the kernel and zarrfs about 1 KiB, and all programs of a user share one number of watches."""

_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
_Q_OVERFLOW, _IGNORED, _ONLYDIR, _EXCL_UNLINK, _ISDIR = 0x4000, 0x8000, 0x1000000, 0x4000000, 0x40000000
# A folder without folders, with a hundred entries at most.
_LINKS, _FEW_NBYTES = 2, 4096
# The kernel returns whole events: 32 bytes with a short name, 272 with the longest.
_READ_NBYTES = 16 * 1024
_MASK = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLYDIR | _EXCL_UNLINK


class Unwatchable(Exception):
    """The tree cannot be watched, or no longer; the message is the reason."""


class Overflow(Exception):
    """The kernel dropped events."""


class Event(NamedTuple):
    """An event of the kernel; ``wd`` is the number of a watch."""

    wd: int
    mask: int
    cookie: int
    name: str


class Seen(NamedTuple):
    """A change of a value or folder.

    For a folder ``kind`` is ``"mkdir"`` (created; its entries are reported separately), ``"rmdir"`` (removed empty), ``"moved"`` and
    ``"set"`` (it came with all its entries, watched before or not), ``"erase"`` (it left)."""

    parts: Parts
    is_folder: bool
    kind: Literal["set", "erase", "times", "mkdir", "rmdir", "moved"]


class _Folder:
    """A watched folder. ``above`` is None for the root and for a folder outside the tree.

    ``has_missed``: it was not at its place when something was made in it."""

    __slots__ = ("above", "below", "has_missed", "inode", "name", "wd")

    def __init__(self, name: str, wd: int, inode: int) -> None:
        self.name = name
        self.wd = wd
        self.inode = inode
        self.has_missed = False
        self.above: _Folder | None = None
        self.below: dict[str, _Folder] = {}

    @property
    def is_in_tree(self) -> bool:
        folder = self
        while folder.above is not None:
            folder = folder.above
        return folder.name == ""

    @property
    def parts(self) -> Parts:
        names = []
        folder = self
        while folder.above is not None:
            names.append(folder.name)
            folder = folder.above
        return tuple(reversed(names))


def events(portion: bytes) -> Iterator[Event]:
    """Return the events in a portion that `FolderWatch.read` returned."""
    import inotify_simple

    for event in inotify_simple.parse_events(portion):
        yield Event(*event)


class FolderWatch:
    """The watches of one tree, all added by the constructor, which lists every folder. Raises `Unwatchable`.

    For one caller at a time, except `read`, which may run concurrently."""

    def __init__(self, tree: FolderTree) -> None:
        self._tree = tree
        self._folders: dict[int, _Folder] = {}
        self._leaving: dict[int, _Folder] = {}
        self._displaced: dict[tuple[int, str], _Folder] = {}
        """Folders that a rename replaced by others."""
        self._device = -1
        self.require_local()
        self._inotify = _inotify()
        self._ready = select.poll()
        self._ready.register(self._inotify.fileno(), select.POLLIN)
        try:
            self._add_quietly(None, "")
            if not self._folders:
                raise Unwatchable("the folder was removed")
        except BaseException:
            self._inotify.close()
            raise

    def __len__(self) -> int:
        return len(self._folders)

    def require_local(self) -> None:
        """Raise `Unwatchable` if a file system is mounted in the tree that inotify does not cover, or that may hang."""
        if mountpoints := self._tree.mounts.now():
            raise Unwatchable(f"{path_of(mountpoints[0])!r} is on another file system")

    def fileno(self) -> int:
        """Return a descriptor that is readable when `read` has events."""
        return int(self._inotify.fileno())

    def has_events(self) -> bool:
        """Return True if `read` has events."""
        return bool(self._ready.poll(0))

    def read(self) -> list[bytes]:
        """Return the events since the last call, in order and unparsed, for `events`; does not wait."""
        found = []
        while portion := self._some():
            found.append(portion)
        return found

    def _some(self) -> bytes:
        try:
            return os.read(self.fileno(), _READ_NBYTES)
        except BlockingIOError:
            return b""

    @staticmethod
    def is_of_value(event: Event) -> bool:
        """Return True if `understand` neither lists a folder nor raises."""
        return not event.mask & (_ISDIR | _IGNORED | _Q_OVERFLOW)

    def is_quick(self, event: Event) -> bool:
        """Return True if `understand` needs no thread: it lists no folder, or a new one that has few entries, and no folder."""
        wd, mask, _, name = event
        if not mask & _ISDIR or not mask & (_CREATE | _MOVED_FROM | _MOVED_TO):
            return True
        above = self._folders.get(wd)
        if not mask & _CREATE or above is None:
            return False
        try:
            with self._tree.folder((*above.parts, name)) as fd:
                found = os.fstat(fd)
        except OSError:
            return False
        return found.st_nlink <= _LINKS and found.st_size <= _FEW_NBYTES

    def understand(self, event: Event) -> Iterator[Seen]:
        """Return the changes that an event means. Raises `Overflow` and `Unwatchable`.

        Events have to come in order, and each iterator has to be exhausted before the next. Lists new folders, which may take a while."""
        wd, mask, cookie, name = event
        if mask & _Q_OVERFLOW:
            raise Overflow
        if mask & _IGNORED:
            self._folders.pop(wd, None)
            return
        folder = self._folders.get(wd)
        if folder is None or not name or not folder.is_in_tree:
            return
        if not mask & _ISDIR:
            if name[0] != "." or not TEMPORARY.fullmatch(name):
                gone, times = mask & (_DELETE | _MOVED_FROM), mask & _ATTRIB
                yield Seen((*folder.parts, name), False, "erase" if gone else "times" if times else "set")
        elif mask & _DELETE:
            there = folder.below.get(name)
            if there is not None and not self._is_there(there):
                del folder.below[name]
                self._drop(there)
            yield Seen((*folder.parts, name), True, "rmdir")
        elif mask & _MOVED_FROM:
            leaving = self._left(folder, name)
            if leaving is not None:
                leaving.above = None
                self._leaving[cookie] = leaving
            yield Seen((*folder.parts, name), True, "erase")
        elif mask & _MOVED_TO:
            arrived = self._leaving.pop(cookie, None)
            if arrived is not None:
                there = folder.below.pop(name, None)
                if there is not None:
                    there.above = None
                    self._displaced[wd, name] = there
                self._put(arrived, folder, name)
                self._add_missed(arrived)
                yield Seen((*folder.parts, name), True, "moved")
            else:
                # A mount that moves with a renamed folder does not change the mount table.
                self._tree.mounts.recent(0)
                self.require_local()
                self._add_quietly(folder, name)
                yield Seen((*folder.parts, name), True, "set")
        elif mask & _CREATE:
            yield Seen((*folder.parts, name), True, "mkdir")
            yield from self._add(folder, name, reporting=True)

    def drop_leaving(self) -> None:
        """Drop the watches of folders that left the tree, since no more events are expected for now."""
        for folder in (*self._leaving.values(), *self._displaced.values()):
            if folder.above is None:
                self._drop(folder)
        self._leaving.clear()
        self._displaced.clear()

    def _opened(self, above: _Folder | None, parts: Parts) -> int:
        """Return a descriptor of the folder ``parts``, directly in ``above``. Raises `OSError`.

        ENOENT, too, if that is not at its place any more: events to come tell where it is now."""
        try:
            fd = self._tree.open_folder(parts, os.O_RDONLY)
        except OSError as error:
            if above is not None and error.errno in ABSENT:
                above.has_missed |= not self._is_there(above)
            raise
        if above is None or self._is_there(above):
            return fd
        os.close(fd)
        above.has_missed = True
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def _is_there(self, folder: _Folder) -> bool:
        """Return True if a folder is at its place: another one was removed there, before this one was found."""
        try:
            with self._tree.folder(folder.parts) as fd:
                return os.fstat(fd).st_ino == folder.inode
        except OSError:
            return False

    def _add_missed(self, folder: _Folder) -> None:
        """Watch what was made at and below a folder when it was not found, since it was moved."""
        pending = [folder]
        while pending:
            folder = pending.pop()
            if folder.has_missed and folder.above is not None:
                folder.has_missed = False
                self._add_quietly(folder.above, folder.name)
            pending.extend(folder.below.values())

    def _left(self, folder: _Folder, name: str) -> _Folder | None:
        """Return the folder that lost this name.

        An exchange is reported as two renames: in the first, a folder takes the place of the other; in the second, the other leaves."""
        leaving = folder.below.pop(name, None)
        self._add_quietly(folder, name)
        if leaving is not None and folder.below.get(name) is leaving:
            return self._displaced.pop((folder.wd, name), None)
        return leaving

    def close(self) -> None:
        """Remove all watches."""
        self._inotify.close()
        # The folders form reference cycles: nothing else would free them (`zarrfs.daemon.garbage`).
        for folder in (*self._folders.values(), *self._leaving.values(), *self._displaced.values()):
            folder.above = None
            folder.below.clear()
        self._folders.clear()
        self._leaving.clear()
        self._displaced.clear()

    def _add_quietly(self, above: _Folder | None, name: str) -> None:
        for _ in self._add(above, name, reporting=False):
            pass

    def _add(self, above: _Folder | None, name: str, *, reporting: bool) -> Iterator[Seen]:
        """Watch a folder and all below it; if ``reporting``, yield what was found there."""
        pending: list[tuple[_Folder | None, str]] = [(above, name)]
        while pending:
            above, name = pending.pop()
            parts = (*above.parts, name) if above is not None else ()
            try:
                fd = self._opened(above, parts)
            except PermissionError as error:
                if is_apart(parts):
                    # That of an operation of another user: nothing in it is shown.
                    continue
                raise Unwatchable(f"{'/'.join(parts)!r} may not be read") from error
            except OSError as error:
                if error.errno in ABSENT:
                    # It was removed again, which the next event reports, but not what was in it meanwhile.
                    if reporting:
                        yield Seen(parts, True, "set")
                    continue
                raise Unwatchable(f"{'/'.join(parts)!r}: {error.strerror}") from error
            try:
                folder = self._watched(fd, above, name)
                for found, is_folder in _names(fd, folders_only=not reporting):
                    if is_folder:
                        pending.append((folder, found))
                    if reporting:
                        yield Seen((*parts, found), is_folder, "mkdir" if is_folder else "set")
            except OSError as error:
                raise Unwatchable(f"{'/'.join(parts)!r}: {error.strerror}") from error
            finally:
                os.close(fd)

    def _watched(self, fd: int, above: _Folder | None, name: str) -> _Folder:
        path = "/".join((*above.parts, name)) if above is not None else self._tree.path
        found = os.fstat(fd)
        device = found.st_dev
        if above is None:
            self._device = device
        elif device != self._device and not is_local(fd):
            raise Unwatchable(f"{path!r} is on another file system")
        if len(self._folders) >= MAX_FOLDERS:
            raise Unwatchable(f"there are more than {MAX_FOLDERS} folders")
        try:
            wd = self._inotify.add_watch(f"/proc/self/fd/{fd}", _MASK)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise Unwatchable("the user has no inotify watches left (sysctl fs.inotify.max_user_watches)") from error
            raise Unwatchable(f"{path!r}: {error.strerror}") from error
        # The kernel has one number per folder: it may be known under another name, whose rename is the next event.
        folder = self._folders.get(wd) or self._folders.setdefault(wd, _Folder(name, wd, found.st_ino))
        if above is not None:
            if above is folder or _lies_below(above, folder):
                raise Unwatchable(f"{path!r} is a folder that it lies in itself (a bind mount)")
            self._put(folder, above, name)
        return folder

    def _put(self, folder: _Folder, above: _Folder, name: str) -> None:
        if folder.above is not None and folder.above.below.get(folder.name) is folder:
            del folder.above.below[folder.name]
        there = above.below.get(name)
        if there is not None and there is not folder:
            self._drop(there)
        folder.above, folder.name = above, name
        above.below[name] = folder

    def _drop(self, folder: _Folder | None) -> None:
        pending = [folder] if folder is not None else []
        while pending:
            folder = pending.pop()
            pending.extend(folder.below.values())
            folder.above = None
            folder.below = {}
            if self._folders.pop(folder.wd, None) is not None:
                with suppress(OSError):
                    self._inotify.rm_watch(folder.wd)


def _lies_below(folder: _Folder, other: _Folder) -> bool:
    above = folder.above
    while above is not None and above is not other:
        above = above.above
    return above is not None


def _names(fd: int, *, folders_only: bool) -> Iterator[tuple[str, bool]]:
    """Return the names of values and folders in a folder, and True for each folder."""
    # Each subfolder adds a link (``..``) to the folder's own two; some file systems do not count, and return 1. A folder of millions of
    # chunks without subfolders need not be listed.
    links = os.fstat(fd).st_nlink
    missing = links - 2 if links >= 2 else -1
    if folders_only and not missing:
        return
    with os.scandir(fd) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield entry.name, True
                missing -= 1
                if folders_only and not missing:
                    return
            elif not folders_only and entry.is_file(follow_symlinks=False) and not TEMPORARY.fullmatch(entry.name):
                yield entry.name, False


def _inotify() -> Any:
    try:
        import inotify_simple
    except ImportError as error:
        raise Unwatchable("inotify_simple is not installed (pip install 'zarrfs[watch]')") from error
    try:
        return inotify_simple.INotify(nonblocking=True)
    except OSError as error:
        raise Unwatchable(f"inotify: {error.strerror} (sysctl fs.inotify.max_user_instances)") from error
