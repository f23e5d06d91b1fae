"""The state of an SQLite database: its header, and the count of commits in WAL mode."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from zarrfs.errors import StoreError
from zarrfs.stores.archive_file import ArchiveFile, Identity
from zarrfs.stores.values import Generation, KeyStat

if TYPE_CHECKING:
    import sqlite3

_WAL = 2


class State(NamedTuple):
    """Time and generation of a whole database; ``commits`` is `Commits.count` in WAL mode, else None.

    ``lacks``: bytes that are missing in the file, according to its header.
    """

    mtime_ns: int
    generation: Generation
    commits: int | None = None
    lacks: int = 0

    def stat(self, size: int) -> KeyStat:
        """Return the status of a value of ``size`` bytes."""
        return KeyStat(size, self.mtime_ns, self.generation)


class Header(NamedTuple):
    """The header of a database. Source: SQLite, "Database File Format", section 1.3."""

    page_size: int
    read_version: int
    changes: int
    pages: int
    pages_as_of: int

    @classmethod
    def of(cls, head: bytes) -> Header:
        """Raises `struct.error` unless ``head`` has `HEADER_NBYTES`."""
        return cls(*_HEADER.unpack(head))

    @property
    def nbytes(self) -> int:
        """The minimum size of the file, in bytes, according to the header."""
        page_size = 65536 if self.page_size == 1 else self.page_size
        # Writers before 2010 do not update the number of pages.
        return page_size * (self.pages if self.pages_as_of == self.changes else 1)

    @property
    def is_wal(self) -> bool:
        """True if the database is in WAL mode."""
        return self.read_version == _WAL


_HEADER = struct.Struct(">16xHxB4xII60xI4x")
HEADER_NBYTES = _HEADER.size


def header_of(file: ArchiveFile) -> tuple[Identity, Header]:
    """Return identity and header of the database ``file``. Raises `StoreError`, also if it is not the one that was opened."""
    try:
        found, head = file.look(HEADER_NBYTES)
        header = Header.of(head)
    except struct.error as error:
        raise StoreError(f"{file.path} is cut short: it has no whole header", key=file.path) from error
    except OSError as error:
        raise StoreError(f"{file.path}: stat failed: {error.strerror}", key=file.path) from error
    if found[:2] != file.identity[:2]:
        raise replaced(file.path)
    return found, header


def replaced(path: str) -> StoreError:
    """Return the error for a database that is not the one that was opened."""
    return StoreError(f"{path} was replaced since it was opened; mount it again", key=path)


class Commits:
    """Counts the commits to a database in WAL mode since the first call of `count`, or more.

    A commit in WAL mode changes neither the counter in the header nor, once the log is used again from its beginning, the size of any
    file. It changes a time, which on many kernels and file systems is the same for all changes within several milliseconds.
    ``PRAGMA data_version`` of one connection changes with each commit of another one. Thread-safe.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._seen = 0
        self._count = 0

    def count(self) -> int:
        """Return another number than before a commit. Raises `sqlite3.Error`."""
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
                (self._seen,) = self._connection.execute("PRAGMA data_version").fetchone()
                return self._count
            try:
                (seen,) = self._connection.execute("PRAGMA data_version").fetchone()
            except BaseException:
                # The versions of the next connection are unrelated to those of this one.
                self._count += 1
                self._close()
                raise
            self._count += seen != self._seen
            self._seen = seen
            return self._count

    def close(self) -> None:
        """Release the connection."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
