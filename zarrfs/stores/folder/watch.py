"""inotify(7) over all folders below one: which names in them changed.

The library is inotify_simple (docs/design/007-changes-behind.md): it gives the kernel's events as they are, the overflow of its queue
among them. What it leaves to its caller is here:

* A watch is of one folder, so each folder has one. It is added before the folder is listed: what comes into a new folder before the
  watch is found by the listing, what comes later is told.
* A watch follows its folder when that is renamed. Both ends of a rename inside the tree carry one number, and what lies below moves
  with it; a folder that comes from outside is listed as a new one is.
* Folders are reached by descriptors (`FolderTree`), never by paths that a symbolic link may lead elsewhere.

What inotify does not tell: what is written through a shared mapping, until the file is closed; and what other machines do, so that only
file systems of this machine are watched.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from zarrfs.stores.folder.file_systems import is_local
from zarrfs.stores.folder.names import TEMPORARY, Parts, path_of
from zarrfs.stores.folder.tree import FolderTree
from zarrfs.stores.os_errors import ABSENT

MAX_FOLDERS = 50_000
"""Watched at most: each costs the kernel and us about 1 KiB, and every other program of the user has to share their number."""

_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
_Q_OVERFLOW, _IGNORED, _ONLYDIR, _EXCL_UNLINK, _ISDIR = 0x4000, 0x8000, 0x1000000, 0x4000000, 0x40000000
# The kernel hands out whole events: 32 bytes with a short name, 272 with the longest.
_READ_NBYTES = 16 * 1024
_MASK = _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLYDIR | _EXCL_UNLINK


class Unwatchable(Exception):
    """The tree cannot be watched, or no longer; says why."""


class Overflow(Exception):
    """The kernel dropped events."""


class Event(NamedTuple):
    """An event as the kernel gave it; ``wd`` is the number of a watch."""

    wd: int
    mask: int
    cookie: int
    name: str

    @property
    def lists_folders(self) -> bool:
        """Whether understanding it takes longer than a look."""
        return bool(self.mask & _ISDIR and self.mask & (_CREATE | _MOVED_FROM | _MOVED_TO))


class Seen(NamedTuple):
    """Something that changed. Of a folder ``kind`` is ``"made"`` (it came; what is in it is told beside), ``"unmade"`` (it was empty
    and went), ``"moved"`` and ``"set"`` (it came with all that is in it, watched all the time or not), ``"erase"`` (it went)."""

    parts: Parts
    is_folder: bool
    kind: Literal["set", "erase", "times", "made", "unmade", "moved"]


class _Folder:
    """A watched folder. ``above`` is None for the root and for what is not in the tree."""

    __slots__ = ("above", "below", "name", "wd")

    def __init__(self, name: str, wd: int) -> None:
        self.name = name
        self.wd = wd
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
    """The events in what `FolderWatch.read` gave."""
    import inotify_simple

    for event in inotify_simple.parse_events(portion):
        yield Event(*event)


class FolderWatch:
    """The watches of one tree, which are all there when it is made; that lists every folder. One caller at a time, but for `read`,
    which may be called meanwhile. Raises `Unwatchable`."""

    def __init__(self, tree: FolderTree) -> None:
        self._tree = tree
        self._folders: dict[int, _Folder] = {}
        self._leaving: dict[int, _Folder] = {}
        self._displaced: dict[tuple[int, str], _Folder] = {}
        """Folders in whose place others came, by a rename."""
        self._device = -1
        self.demand_local()
        self._inotify = _inotify()
        try:
            self._add_quietly(None, "")
            if not self._folders:
                raise Unwatchable("the folder was removed")
        except BaseException:
            self._inotify.close()
            raise

    def __len__(self) -> int:
        return len(self._folders)

    def demand_local(self) -> None:
        """Raise `Unwatchable` where something is mounted in the tree of which inotify does not tell, or which may hang."""
        if places := self._tree.mounts.now():
            raise Unwatchable(f"{path_of(places[0])!r} is on another file system")

    def fileno(self) -> int:
        """A descriptor that is readable when there is something to `read`."""
        return int(self._inotify.fileno())

    def read(self) -> list[bytes]:
        """What happened since the last call, in order, for `events`; does not wait, and looks at none of it."""
        found = []
        while portion := self._some():
            found.append(portion)
        return found

    def _some(self) -> bytes:
        try:
            return os.read(self.fileno(), _READ_NBYTES)
        except BlockingIOError:
            return b""

    def understand(self, event: Event) -> Iterator[Seen]:
        """What an event means. Events have to come in order, and each iterator has to be used up before the next. New folders are
        listed, which may take a while. Raises `Overflow` and `Unwatchable`."""
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
            self._drop(folder.below.pop(name, None))
            yield Seen((*folder.parts, name), True, "unmade")
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
                self._place(arrived, folder, name)
                yield Seen((*folder.parts, name), True, "moved")
            else:
                # A mount that comes along is no change of the table.
                self._tree.mounts.recent(0)
                self.demand_local()
                self._add_quietly(folder, name)
                yield Seen((*folder.parts, name), True, "set")
        elif mask & _CREATE:
            yield Seen((*folder.parts, name), True, "made")
            yield from self._add(folder, name, telling=True)

    def drop_leaving(self) -> None:
        """No more events for now: what left the tree is not waited for."""
        for folder in (*self._leaving.values(), *self._displaced.values()):
            if folder.above is None:
                self._drop(folder)
        self._leaving.clear()
        self._displaced.clear()

    def _left(self, folder: _Folder, name: str) -> _Folder | None:
        """The folder that is no longer called that. Where two were exchanged the kernel tells of two renames: by the first one came to
        where the other was, and by the second that one leaves."""
        leaving = folder.below.pop(name, None)
        self._add_quietly(folder, name)
        if leaving is not None and folder.below.get(name) is leaving:
            return self._displaced.pop((folder.wd, name), None)
        return leaving

    def close(self) -> None:
        """End all watches."""
        self._inotify.close()
        # Each refers to those around it: nothing else would free them (`zarrfs.daemon.garbage`).
        for folder in (*self._folders.values(), *self._leaving.values(), *self._displaced.values()):
            folder.above = None
            folder.below.clear()
        self._folders.clear()
        self._leaving.clear()
        self._displaced.clear()

    def _add_quietly(self, above: _Folder | None, name: str) -> None:
        for _ in self._add(above, name, telling=False):
            pass

    def _add(self, above: _Folder | None, name: str, *, telling: bool) -> Iterator[Seen]:
        """Watch a folder and what is below it; ``telling``: gives what was found there."""
        pending: list[tuple[_Folder | None, str]] = [(above, name)]
        while pending:
            above, name = pending.pop()
            parts = (*above.parts, name) if above is not None else ()
            try:
                fd = self._tree.open_folder(parts, os.O_RDONLY)
            except PermissionError as error:
                raise Unwatchable(f"{'/'.join(parts)!r} may not be read") from error
            except OSError as error:
                if error.errno in ABSENT:
                    continue  # It is gone again, which is told next.
                raise Unwatchable(f"{'/'.join(parts)!r}: {error.strerror}") from error
            try:
                folder = self._watched(fd, above, name)
                for found, is_folder in _names(fd, folders_only=not telling):
                    if is_folder:
                        pending.append((folder, found))
                    if telling:
                        yield Seen((*parts, found), is_folder, "made" if is_folder else "set")
            finally:
                os.close(fd)

    def _watched(self, fd: int, above: _Folder | None, name: str) -> _Folder:
        place = "/".join((*above.parts, name)) if above is not None else self._tree.path
        device = os.fstat(fd).st_dev
        if above is None:
            self._device = device
        elif device != self._device and not is_local(fd):
            raise Unwatchable(f"{place!r} is on another file system")
        if len(self._folders) >= MAX_FOLDERS:
            raise Unwatchable(f"there are more than {MAX_FOLDERS} folders")
        try:
            wd = self._inotify.add_watch(f"/proc/self/fd/{fd}", _MASK)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise Unwatchable("the user has no inotify watches left (sysctl fs.inotify.max_user_watches)") from error
            raise Unwatchable(f"{place!r}: {error.strerror}") from error
        # The kernel gives one number for one folder: it may have been known by another name, and its rename is told next.
        folder = self._folders.get(wd) or self._folders.setdefault(wd, _Folder(name, wd))
        if above is not None:
            if above is folder or _lies_below(above, folder):
                raise Unwatchable(f"{place!r} is a folder that it lies in itself (a bind mount)")
            self._place(folder, above, name)
        return folder

    def _place(self, folder: _Folder, above: _Folder, name: str) -> None:
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
    """Names of the values and folders in a folder, and whether each is a folder."""
    # Each folder in it has a link to it, ``..``, beside ``.`` and its own name; some file systems do not count, and say 1. Millions of
    # chunks in a folder without folders need not be listed.
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
