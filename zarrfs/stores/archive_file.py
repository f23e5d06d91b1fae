"""The file of an archive: opened once, read at offsets by many threads, and checked for changes.

The index of an archive holds offsets, which are wrong for another version of the file. `ArchiveFile.check` therefore verifies after each
read that the file has not changed since it was opened.
"""

from __future__ import annotations

import errno
import os
import stat as st
import time
from collections.abc import Callable
from typing import NamedTuple

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreAccessDenied, StoreError, StoreNotFound, StoreTimeout, UsageError
from zarrfs.memory.spill import buffer, is_large
from zarrfs.stores import own_files
from zarrfs.stores.os_errors import translated

_PATIENCE_S = 2.0
_PAUSE_S = 0.01
# Piece size for reads of large values.
_PIECE_NBYTES = 8 << 20


class Identity(NamedTuple):
    """Distinguishes a file from others, and its content from later content."""

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Identity:
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def __str__(self) -> str:
        return "-".join(map(str, self))


class ArchiveFile:
    """The file ``path``, open for reading. Raises `StoreNotFound`, `StoreAccessDenied`, or `StoreError` if it is not a regular file.

    ``open_path``: `own_files.open_store`, or `own_files.open_store_file` for one of several files of a store.

    Thread-safe. It has no close method: the descriptor is closed when the last thread releases this object, so that a late read never
    reads another file under the same descriptor number.
    """

    def __init__(self, path: str, open_path: Callable[[str, int], int] = own_files.open_store) -> None:
        self.path = os.path.abspath(path)
        self._fd = -1
        try:
            # Checked before it is opened: opening a device has side effects.
            fd = open_path(self.path, os.O_PATH)
            try:
                found = os.fstat(fd)
                if st.S_ISREG(found.st_mode):
                    self._fd = _open_fd(f"/proc/self/fd/{fd}")
            finally:
                os.close(fd)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreNotFound(f"{path}: no such file", key=path) from error
        except PermissionError as error:
            what = f": {error.strerror}" if error.errno == errno.EPERM else ""
            raise StoreAccessDenied(f"the file {path} may not be read{what}", key=path) from error
        except BlockingIOError as error:
            raise StoreTimeout(f"the file {path} is held by a lease of another program; try again later", key=path) from error
        except OSError as error:
            raise StoreError(f"opening {path}: {error.strerror}", key=path) from error
        except ValueError as error:
            raise UsageError(f"{path!r} cannot be a path: {error}") from error
        if not st.S_ISREG(found.st_mode):
            raise StoreNotFound(f"{path} is not a file", key=path)
        self.identity = Identity.of(found)
        self.size = self.identity.size
        self.mtime_ns = self.identity.mtime_ns

    def read(self, start: int, stop: int, key: str) -> bytes:
        """Return bytes ``start`` to ``stop``, for ``key`` (a key, or the archive's path). Raises `StoreError` past the end."""
        if not 0 <= start <= stop <= self.size:
            raise StoreError(f"reading {key!r}: it lies outside of {self.path}, which is damaged", key=key)
        with translated("reading", key):
            content = os.pread(self._fd, stop - start, start)
        if len(content) < stop - start:
            raise self._changed(key)
        return content

    def read_value(self, start: int, stop: int, key: str) -> Buffer:
        """Return bytes as `read`; a large value is read into a mapped file (`zarrfs.memory.spill`)."""
        if not is_large(stop - start) or not 0 <= start <= stop <= self.size:
            return self.read(start, stop, key)
        return self._read_large(start, stop, key)

    def read_now(self, start: int, stop: int, key: str) -> Buffer:
        """Return bytes as `read_value`, of a file that other programs enlarge: up to its present end."""
        if is_large(stop - start):
            return self._read_large(start, stop, key)
        with translated("reading", key):
            content = os.pread(self._fd, stop - start, start)
        if len(content) < stop - start:
            raise StoreError(f"reading {key!r}: {self.path} is cut short", key=key)
        return content

    def _read_large(self, start: int, stop: int, key: str) -> Buffer:
        target = buffer(stop - start)
        done = 0
        with translated("reading", key):
            while done < len(target) and (count := os.preadv(self._fd, [target[done : done + _PIECE_NBYTES]], start + done)):
                done += count
                threads.go_on()
        if done < len(target):
            raise self._changed(key)
        return target

    def check(self, key: str) -> None:
        """Raise `StoreError` unless the file is unchanged since it was opened, and still at its path.

        A file that was moved away or removed, with no other in its place, is still the archive.
        """
        with translated("looking at", self.path):
            try:
                found = os.stat(self.path)
            except (FileNotFoundError, NotADirectoryError):
                found = os.fstat(self._fd)
        if Identity.of(found) != self.identity:
            raise self._changed(key)

    def look(self, nbytes: int) -> tuple[Identity, bytes]:
        """Return the identity of the file at the path now, and the first bytes of the open file: for mutable files. Raises `OSError`."""
        return Identity.of(os.stat(self.path)), os.pread(self._fd, nbytes, 0)

    def status(self) -> os.stat_result:
        """Return the status of the open file. Raises `OSError`."""
        return os.fstat(self._fd)

    @property
    def descriptor_path(self) -> str:
        """Return a path by which a library opens this very file, never a replacement; valid while this object exists."""
        return f"/proc/self/fd/{self._fd}"

    def _changed(self, key: str) -> StoreError:
        return StoreError(f"reading {key!r}: {self.path} was changed or replaced since it was opened; mount it again", key=key)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _open_fd(path: str) -> int:
    """Open ``path``; return a descriptor. Raises BlockingIOError, and OSError.

    The holder of a lease on the file (fcntl(2)) gets some time to release it, but not the kernel's 45 s for each open.
    """
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(_PAUSE_S)


def begins_with(path: str, magic: bytes, offset: int = 0, open_path: Callable[[str, int], int] = own_files.open_store) -> bool:
    """Return True if ``path`` is a readable file (not a device, not a pipe) with ``magic`` at ``offset``.

    ``open_path``: see `ArchiveFile`. Raises `StoreTimeout`.
    """
    try:
        file = ArchiveFile(path, open_path)
        return file.size >= offset + len(magic) and file.read(offset, offset + len(magic), path) == magic
    except StoreTimeout:
        raise
    except (StoreError, UsageError):
        return False
