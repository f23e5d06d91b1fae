"""Folder operations that may run on the event loop's thread.

Such an operation may wait for a disk of this machine, never for a server, whatever is mounted in the folder at any time: each name is
looked up with `open_within`, which never leaves the folder's own file system and costs no more calls than a lookup of its parts. If it
refuses, or the result is neither a file, nor a folder, nor absence, `WouldWait` is raised, and a thread uses `FolderTree`.

The table of mounts covers the other cases: an automounter's mountpoints, which mount on lookup, so that names below them go to a thread;
mounts on entries of a listed folder (`Scan` does not look them up); and all mounts, where openat2(2) is missing. A mount that enters the
store together with a renamed folder does not change the table: for a second, its entry in the parent folder may be taken for one of the
store's own.
"""

from __future__ import annotations

import errno
import os
import stat as st

from zarrfs.buffers import Buffer
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.folder.names import Parts, changed, generation_of
from zarrfs.stores.folder.one_file_system import open_within
from zarrfs.stores.folder.presupposed import held_on_the_way
from zarrfs.stores.folder.scan import Scan
from zarrfs.stores.folder.tree import FolderTree, Ranges
from zarrfs.stores.values import Generation

_AGE = 0.05
_LOOK = os.O_PATH | os.O_NOFOLLOW
_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW
_VALUE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class InlineTree:
    """The files below the folder of ``tree``. Every method may raise `WouldWait`, and `OSError`."""

    def __init__(self, tree: FolderTree) -> None:
        self._tree = tree
        self._has_openat2 = True
        self._reads_nowait = True

    def stat(self, parts: Parts) -> os.stat_result | None:
        """Return the result of `FolderTree.stat`."""
        fd = self._open(parts, _LOOK)
        if fd is None:
            return None
        try:
            found = os.fstat(fd)
        finally:
            os.close(fd)
        if st.S_ISREG(found.st_mode):
            return found
        if st.S_ISDIR(found.st_mode):
            return None
        raise WouldWait

    def folder_mtime_ns(self, parts: Parts) -> int | None:
        """Return the result of `FolderTree.folder_mtime_ns`."""
        fd = self._open(parts, os.O_PATH | _FOLDER)
        if fd is None:
            return None
        try:
            return os.fstat(fd).st_mtime_ns
        finally:
            os.close(fd)

    def read_with_stat(
        self, parts: Parts, ranges: Ranges, if_generation: Generation | None, at_once: int
    ) -> tuple[list[Buffer], os.stat_result] | None:
        """Return the result of `FolderTree.read_with_stat` if in the page cache and at most ``at_once`` bytes."""
        if not self._reads_nowait:
            raise WouldWait
        fd = self.open_value(parts)
        if fd is None:
            return None
        try:
            stat = os.fstat(fd)
            if not st.S_ISREG(stat.st_mode):
                raise WouldWait
            if if_generation is not None and generation_of(stat) != if_generation:
                raise changed(parts)
            spans = [byte_range.resolve(stat.st_size) for byte_range in ranges]
            if sum(stop - start for start, stop in spans) > at_once:
                raise WouldWait
            return [self.pread_cached(fd, start, stop) for start, stop in spans], stat
        finally:
            os.close(fd)

    def scan(self, parts: Parts) -> Scan | None:
        """Return the result of `FolderTree.scan`."""
        fd = self._open(parts, os.O_RDONLY | _FOLDER)
        return None if fd is None else self._tree.scan_of(fd, parts)

    def _open(self, parts: Parts, flags: int) -> int | None:
        """Return a descriptor; None if absent, or not of the kind that ``flags`` require."""
        tree = self._tree
        if not tree.local or tree.mounts.over(parts) is not None:
            raise WouldWait
        if not self._has_openat2:
            return self._open_by_parts(parts, flags)
        held = held_on_the_way(tree, parts)
        try:
            return open_within(tree.root, parts, flags) if held is None else open_within(held[0], parts[held[1] :], flags)
        except OSError as error:
            match error.errno:
                case errno.ENOENT:
                    return None
                case errno.ENOTDIR:
                    self._require_file_above(parts)
                    return None
                case errno.EXDEV:
                    # It exists, perhaps under another name than in the table.
                    tree.mounts.recent(_AGE)
                    raise WouldWait from error
                case errno.ELOOP | errno.ENAMETOOLONG:
                    raise WouldWait from error
                case errno.ENOSYS | errno.EPERM:
                    self._has_openat2 = False
                    return self._open_by_parts(parts, flags)
            raise
        finally:
            if held is not None:
                os.close(held[0])

    def _require_file_above(self, parts: Parts) -> None:
        """Raise `WouldWait` unless the first of them that is not a folder is a file, which has no entries."""
        for depth in range(1, len(parts) + 1):
            fd = self._open(parts[:depth], _LOOK)
            if fd is None:
                return
            try:
                mode = os.fstat(fd).st_mode
            finally:
                os.close(fd)
            if st.S_ISREG(mode):
                return
            if not st.S_ISDIR(mode):
                break
        raise WouldWait

    def _open_by_parts(self, parts: Parts, flags: int) -> int | None:
        if self._tree.mounts.now():
            raise WouldWait
        try:
            if not parts:
                return self._tree.open_folder(parts, flags)
            with self._tree.folder(parts[:-1]) as folder:
                return os.open(parts[-1], flags | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise WouldWait from error
            raise

    def open_value(self, parts: Parts) -> int | None:
        """Return a descriptor of a value, which the caller closes; None if absent."""
        # Checked before it is opened: opening a device has side effects.
        return self._open(parts, _VALUE) if self.stat(parts) is not None else None

    def pread_cached(self, fd: int, start: int, stop: int) -> Buffer:
        """Return bytes ``start`` to ``stop`` of a file, if they are in the page cache."""
        if not self._reads_nowait:
            raise WouldWait
        if start == stop:
            return b""
        buffer = bytearray(stop - start)
        try:
            done = os.preadv(fd, [buffer], start, os.RWF_NOWAIT)
        except BlockingIOError as error:
            raise WouldWait from error
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise
            self._reads_nowait = False
            raise WouldWait from error
        if done < len(buffer):
            raise WouldWait
        return buffer
