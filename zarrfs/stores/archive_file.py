"""The file that an archive is: opened once, read at offsets by many threads, and watched for being another than it was.

An index of an archive holds offsets; in another file they point at other bytes. So whoever has read something looks afterwards, by
`ArchiveFile.check`, whether the file is still the one that was opened: then it was when it was read.
"""

from __future__ import annotations

import os
import stat as st
import time
from typing import NamedTuple

from zarrfs import threads
from zarrfs.errors import StoreAccessDenied, StoreError, StoreNotFound, StoreTimeout, UsageError
from zarrfs.memory.spill import buffer, is_large
from zarrfs.stores.os_errors import translated
from zarrfs.stores.values import Buffer

_PATIENCE_S = 2.0
_PAUSE_S = 0.01
# What is large is read in such pieces.
_PIECE_NBYTES = 8 << 20


class Identity(NamedTuple):
    """What tells a file from another, and its content from a later one."""

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
    """The file ``path``, open for reading. Raises `StoreNotFound`, `StoreAccessDenied`, or `StoreError` for what is no file.

    Any thread may read. There is no method that closes it: the descriptor is closed when the last thread that may use it has let go
    of this object, so that a late read never finds another file under its number.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._fd = -1
        try:
            # Looked at before it is opened: opening a device has effects of its own.
            place = os.open(self.path, os.O_PATH | os.O_CLOEXEC)
            try:
                found = os.fstat(place)
                if st.S_ISREG(found.st_mode):
                    self._fd = _opened(f"/proc/self/fd/{place}")
            finally:
                os.close(place)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreNotFound(f"there is no file {path}", key=path) from error
        except PermissionError as error:
            raise StoreAccessDenied(f"the file {path} may not be read", key=path) from error
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

    def read(self, start: int, stop: int, place: str) -> bytes:
        """Bytes ``start`` to ``stop``, for ``place`` (a key, or the archive's path). Raises `StoreError` when the file ends before."""
        if not 0 <= start <= stop <= self.size:
            raise StoreError(f"reading {place!r}: it lies outside of {self.path}, which is damaged", key=place)
        with translated("reading", place):
            content = os.pread(self._fd, stop - start, start)
        if len(content) < stop - start:
            raise self._changed(place)
        return content

    def read_value(self, start: int, stop: int, place: str) -> Buffer:
        """As `read`; what is large lies in a mapped file (`zarrfs.memory.spill`)."""
        if not is_large(stop - start) or not 0 <= start <= stop <= self.size:
            return self.read(start, stop, place)
        target = buffer(stop - start)
        done = 0
        with translated("reading", place):
            while done < len(target) and (count := os.preadv(self._fd, [target[done : done + _PIECE_NBYTES]], start + done)):
                done += count
                threads.go_on()
        if done < len(target):
            raise self._changed(place)
        return target

    def check(self, place: str) -> None:
        """Raise `StoreError` unless the file is what it was when it was opened, and what lies at its path.

        A file that was moved away or removed, with nothing else in its place, is still the archive.
        """
        with translated("looking at", self.path):
            try:
                found = os.stat(self.path)
            except (FileNotFoundError, NotADirectoryError):
                found = os.fstat(self._fd)
        if Identity.of(found) != self.identity:
            raise self._changed(place)

    def look(self, nbytes: int) -> tuple[Identity, bytes]:
        """What lies at the path now, and how the file that was opened begins now: for files that may change. Raises `OSError`."""
        return Identity.of(os.stat(self.path)), os.pread(self._fd, nbytes, 0)

    @property
    def descriptor_path(self) -> str:
        """A path by which a library opens this very file, and no other that was put in its place; while this object is there."""
        return f"/proc/self/fd/{self._fd}"

    def _changed(self, place: str) -> StoreError:
        return StoreError(f"reading {place!r}: {self.path} was changed or replaced since it was opened; mount it again", key=place)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


def _opened(path: str) -> int:
    """A descriptor. Who has a lease on the file (fcntl(2)) has some time to let go, but not the kernel's 45 s for each time that it is
    opened. Raises BlockingIOError, and OSError."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(_PAUSE_S)


def begins_with(path: str, magic: bytes, offset: int = 0) -> bool:
    """Whether ``path`` is a file (not a device, not a pipe) with ``magic`` at ``offset``; no for one that may not be read.

    Raises `StoreTimeout`.
    """
    try:
        file = ArchiveFile(path)
        return file.size >= offset + len(magic) and file.read(offset, offset + len(magic), path) == magic
    except StoreTimeout:
        raise
    except (StoreError, UsageError):
        return False
