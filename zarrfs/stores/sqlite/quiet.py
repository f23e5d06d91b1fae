"""A database in WAL mode that no program has open: read without the files that SQLite would create beside it.

SQLite creates ``-wal`` and ``-shm`` for a reader too, and a reader cannot remove them. They belong to the reader's user, so that the
owner of the database could not write to it afterwards. Where a writer has the database open, its files are there and nothing is created.
Until then all content is in the database itself, which is opened as immutable; each read verifies that this is still so.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreError
from zarrfs.keys import ByteRange
from zarrfs.stores.archive import Archive, Entry, Found, Wanted, archive_plugin
from zarrfs.stores.archive_file import ArchiveFile, begins_with
from zarrfs.stores.beside import look
from zarrfs.stores.sqlite.archive import IMMUTABLE, LOCKED, MAGIC, SqliteArchive
from zarrfs.stores.sqlite.state import HEADER_NBYTES, header_of
from zarrfs.stores.values import KeyStat

T = TypeVar("T")


class _InUse(StoreError):
    """Another program has opened the database."""


class _Unused(SqliteArchive):
    """The database as immutable. Each method raises `_InUse` once another program has it open, or it is in WAL mode no more."""

    @property
    def file(self) -> ArchiveFile:
        """The open file."""
        return self._file

    def _way(self) -> str:
        return IMMUTABLE if super()._way() == LOCKED else self._refuse()

    def _wait_for_writer(self) -> None:
        if not _is_unused(self._file):
            self._refuse()

    def _refuse(self) -> str:
        raise _InUse(f"{self.path} is used by another program", key=self.path)


class QuietSqliteArchive(Archive):
    """The database at ``path``: immutable until another program opens it, and with its locks from then on."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._lock = threading.Lock()
        self._unused: _Unused | None = None
        self._used: SqliteArchive | None = None
        try:
            self._unused = _Unused(path)
        except _InUse as error:
            # Kept, with the file that was opened: closing it would release SQLite's locks on it.
            self._refused = error
            self._used = SqliteArchive(path)

    def find(self, name: bytes) -> KeyStat | None:
        return self._ask(lambda archive: archive.find(name))

    def read(self, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        return self._ask(lambda archive: archive.read(name, ranges))

    def read_several(self, wanted: Sequence[Wanted], keep: Callable[[Buffer], Buffer]) -> list[Found]:
        return self._ask(lambda archive: archive.read_several(wanted, keep))

    def entries(self, start: bytes) -> Generator[Entry]:
        if self._used is None and self._unused is not None:
            try:
                for entry in self._unused.entries(start):
                    yield entry
                    start = entry[0] + b"\0"
                return
            except _InUse:
                pass
        yield from self._opened_with_locks().entries(start)

    def close(self) -> None:
        with self._lock:
            for archive in (self._unused, self._used):
                if archive is not None:
                    archive.close()

    def _ask(self, ask: Callable[[SqliteArchive], T]) -> T:
        if self._used is None and self._unused is not None:
            try:
                return ask(self._unused)
            except _InUse:
                pass
        return ask(self._opened_with_locks())

    def _opened_with_locks(self) -> SqliteArchive:
        with self._lock:
            if self._used is None:
                # The file that is open already: if this fails, another one would be closed with the error, at any time, and SQLite's
                # locks on the database with it, which a later attempt has taken.
                self._used = SqliteArchive(self.path, self._unused.file if self._unused is not None else None)
            return self._used


def open_archive(path: str) -> Archive:
    """Return the database at ``path``, opened in the way that suits it."""
    file = ArchiveFile(path)
    is_unused = file.size >= HEADER_NBYTES and _is_unused(file)
    # Closed before SQLite opens it.
    del file
    return QuietSqliteArchive(path) if is_unused else SqliteArchive(path)


def _is_unused(file: ArchiveFile) -> bool:
    """Return True if the database is in WAL mode, and all of its content is in it: no program has opened the files beside it."""
    real = os.path.realpath(file.path)
    try:
        log, shared = look(f"{real}-wal"), look(f"{real}-shm")
    except OSError:
        return False
    return (log is None or (not log.st_size and shared is None)) and header_of(file)[1].is_wal


def _claims(path: str) -> bool:
    return begins_with(path, MAGIC)


PLUGIN = archive_plugin("sqlite", open_archive, _claims, priority=200, suffixes=("sqlite", "sqlite3", "sqldb", "db"))
