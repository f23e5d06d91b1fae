"""An SQLite database with a table of keys and values, read-only: zarr-python 2's ``SQLiteStore``. A plain path, or ``sqlite:PATH``.

Source: zarr 2.18 ``SQLiteStore``: ``CREATE TABLE zarr(k TEXT PRIMARY KEY, v BLOB)``. Recognised by SQLite's magic number; a database
without that table is refused by name. Keys that are blobs instead of text are keys too.

The content of the database is not trusted: the table has to be a real one with real columns (no view, no virtual table, no generated
column), and the connection runs queries only and loads no extensions. A connection is used by one thread at a time, and each read of
a value is one transaction.

SQLite opens files beside the database (``-journal``, ``-wal``, ``-shm``) by their names; in WAL mode it creates and writes two of them,
and, as root, changes their owner to the database's. It follows no symbolic links there, but it would overwrite and give away hard links
of other files. Each of them must therefore be a plain file, else the database is refused. In a folder that other users can write to,
root opens a database so that SQLite never touches these files: ``nolock`` (SQLite then only looks for a journal, to read it), and
``immutable`` for one in WAL mode. Changes in a WAL file cannot be read this way and must not be ignored: such a database is refused.
Without locks a connection is used as long as the database stays unchanged, and only while no program writes.

SQLite keeps no version of a row, so the generation of a value is that of the database: its identity and its change counter; in WAL
mode, where commits do not change the counter, also the count of commits seen (`zarrfs.stores.sqlite.state.Commits`). A concurrent
write by another program changes the generation of every value. With locks, the state is determined when a read begins, and a read
that takes longer than the time between two commits succeeds.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreAccessDenied, StoreError, StoreNotFound, StoreTimeout, StoreUnsupported, TooLarge
from zarrfs.keys import ByteRange
from zarrfs.stores.archive import Archive, Entry, Found, Wanted, is_key, kept, warn_of_nameless
from zarrfs.stores.archive_file import ArchiveFile, Identity, begins_with
from zarrfs.stores.beside import is_plain, is_safe_path, look
from zarrfs.stores.sqlite.connections import code, connect, connect_to, descriptors, kinds, limit_work, most_work
from zarrfs.stores.sqlite.rows import Rows
from zarrfs.stores.sqlite.state import HEADER_NBYTES, Commits, State, header_of, replaced
from zarrfs.stores.values import Generation, KeyStat

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

MAGIC = b"SQLite format 3\0"
_JOURNAL = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"
LOCKED, UNLOCKED, IMMUTABLE = "mode=ro", "mode=ro&nolock=1", "mode=ro&immutable=1"
_KEPT = 8
"""Idle connections that are kept open."""
_PATIENCE_S = 5.0
"""Seconds to wait for a writer's lock."""

_BUSY_S = 0.01
"""Seconds between checks for the end of a write, where there are no locks."""
_HEAP_NBYTES = 48 << 20
"""Memory limit of SQLite for all connections together: it holds whole rows where it has to search them for a value."""

_MAX_ENTRIES = 2048
"""Entries of a listing that are read at once, where there are no locks."""

_TOGETHER = 64
"""Values that are read in one transaction: without WAL mode, no program can write during it."""

_TRIES = 8
"""Attempts to read a value while another program writes to the database."""


class _CutShort(StoreError):
    """The file is shorter than its header states."""


class SqliteArchive(Archive):
    """The table ``zarr`` of the database at ``path``, which is ``file`` if given."""

    def __init__(self, path: str, file: ArchiveFile | None = None) -> None:
        # Kept open: closing a file of the database releases all locks that SQLite has on it in this process.
        self._file = file or ArchiveFile(path)
        self.path = self._file.path
        if self._file.size < HEADER_NBYTES or self._file.read(0, len(MAGIC), path) != MAGIC:
            raise StoreNotFound(f"{path} is not an SQLite database", key=path)
        try:
            import sqlite3
        except ImportError as error:
            raise StoreUnsupported(f"{path} is an SQLite database, and this Python lacks SQLite: {error}", key=path) from error
        self.inode = self._file.identity[:2]
        self._idle: list[tuple[sqlite3.Connection, Generation]] = []
        self._closed = False
        self._error: type[Exception] = sqlite3.Error
        self._commits = Commits(self._connect)
        # The state of the log before the first commit that is counted.
        self._log: str | None = None
        # Device and inode of the file beside it that all connections share, which exists as long as one of them has it open.
        self._shared: tuple[int, int] | None = None
        self._unique = itertools.count()
        self._options = self._way()
        try:
            self._check_table()
        except StoreError as error:
            if not self._locked:
                raise
            # A database in WAL mode needs files beside it, which cannot be created on read-only storage. Changes in existing ones must
            # not be ignored.
            if code(error.__cause__) == sqlite3.SQLITE_READONLY and self._is_being_written():
                raise StoreError(
                    f"{self.path} is not read: its writer ended within a write, which has to be undone; any other program of SQLite "
                    "does that when it reads the database",
                    key=self.path,
                ) from error
            if code(error.__cause__) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or self._has_journal():
                raise
            self._options = IMMUTABLE
            self._check_table()
        have_blobs, have_nameless = self._of_one_state(b"", _peculiarities)
        self._rows = Rows(self._have_numbers, have_blobs)
        if have_nameless:
            warn_of_nameless(self.path)

    def find(self, name: bytes) -> KeyStat | None:
        found = self.read(name, ())
        return None if found is None else found[0]

    def read(self, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        return self._of_one_state(name, partial(self._found, name, ranges)) if is_key(name) else None

    def read_several(self, wanted: Sequence[Wanted], keep: Callable[[Buffer], Buffer]) -> list[Found]:
        def ask(connection: sqlite3.Connection, state: State) -> list[Found]:
            most = self._most_work()
            return [kept(self._found(*each, connection, state, most), keep) for each in portion]

        found: list[Found] = []
        for start in range(0, len(wanted), _TOGETHER):
            portion = wanted[start : start + _TOGETHER]
            try:
                found += self._of_one_state(portion[0][0], ask)
            except StoreTimeout:
                raise
            except StoreError:
                # One of them is the cause, and named if it is read alone.
                found += super().read_several(portion, keep)
        return found

    def _found(
        self, name: bytes, ranges: Sequence[ByteRange], connection: sqlite3.Connection, state: State, most: int | None = None
    ) -> Found:
        most = self._most_work() if most is None else most
        limit_work(connection, most)
        size = self._rows.size_of(connection, name)
        if size is None:
            return None
        parts = []
        for each in ranges:
            limit_work(connection, most)
            parts.append(self._rows.part(connection, name, *each.resolve(size)))
        return state.stat(size), parts

    def entries(self, start: bytes) -> Generator[Entry]:
        if self._locked:
            with self._connection(start) as connection:
                try:
                    state = self._begun(connection, last=True)
                    assert state is not None
                    yield from self._entries(connection, start, state)
                finally:
                    _end(connection)
            return

        def ask(connection: sqlite3.Connection, state: State) -> list[Entry]:
            return list(islice(self._entries(connection, start, state), most))

        most = 0
        entries: list[Entry] = []
        while len(entries) == most:
            most = min(2 * most + 16, _MAX_ENTRIES)
            entries = self._of_one_state(start, ask)
            yield from entries
            start = entries[-1][0] + b"\0" if entries else start

    def _entries(self, connection: sqlite3.Connection, start: bytes, state: State) -> Generator[Entry]:
        with closing(self._rows.from_name(connection, start)) as found:
            for name, size in found:
                yield name, size, state.mtime_ns

    def _of_one_state(self, name: bytes, ask: Callable[[sqlite3.Connection, State], T]) -> T:
        """Return ``ask(connection, state)``, which reads this state of the database and no other."""
        for left in reversed(range(_TRIES)):
            state: State | None = None
            try:
                with self._connection(name) as connection:
                    try:
                        state = self._begun(connection, not left)
                        answer = None if state is None else ask(connection, state)
                        is_settled = state is not None and not self._is_other(state)
                    finally:
                        _end(connection)
                    if is_settled:
                        return answer  # type: ignore[return-value]
            except StoreError as error:
                # Without locks a write can cause any error.
                is_of_write = isinstance(error, _CutShort) or (not self._locked and isinstance(error.__cause__, self._error))
                if not left or not is_of_write or not self._is_other(state):
                    raise
        key = name.decode("utf-8", "surrogateescape")
        raise StoreError(f"reading {key!r}: {self.path} changed during each attempt", key=key)

    def _begun(self, connection: sqlite3.Connection, last: bool) -> State | None:
        """Begin a transaction, and return the state that it sees; None if another program committed at that moment.

        In the ``last`` attempt such a state gets a generation that no other read has.
        """
        before = self._state()
        if not self._locked or before.commits is not None:
            self._require_whole(before)
        connection.execute("BEGIN")
        # The first query determines the state. With locks, it stays the same until the end of the transaction.
        connection.execute("SELECT 1 FROM zarr LIMIT 1").fetchone()
        if not self._locked:
            return before
        if before.commits is None:
            before = self._state()
            if before.commits is None:
                # Not earlier: a commit writes the header before it enlarges the file.
                self._require_whole(before)
                return before
        elif before.commits == self._commits.count():
            return before
        return before._replace(generation=f"{before.generation}-{next(self._unique)}") if last else None

    def close(self) -> None:
        self._closed = True
        self._commits.close()
        while self._idle:
            self._idle.pop()[0].close()

    @property
    def _locked(self) -> bool:
        return self._options == LOCKED

    def _way(self) -> str:
        """Return the options of a connection. Raises `StoreAccessDenied` for a database that cannot be opened safely."""
        try:
            # SQLite looks for the other files beside the target of a symbolic link.
            self._real = os.path.realpath(self.path)
            target = os.stat(self._real)
            beside = {suffix: look(self._real + suffix) for suffix in ("-journal", "-wal", "-shm")}
            safe = is_safe_path(os.path.dirname(self._real))
        except OSError as error:
            raise StoreError(f"{self.path}: stat failed: {error.strerror}", key=self.path) from error
        if (target.st_dev, target.st_ino) != self.inode:
            raise replaced(self.path)
        root = os.geteuid() == 0
        for suffix, found in beside.items():
            # Several users may write to one database in turn.
            if found is not None and not is_plain(found, target.st_uid if root else found.st_uid):
                raise StoreAccessDenied(
                    f"{self.path} is not opened: {self._real}{suffix} is a link, or no file of the database's owner", key=self.path
                )
        if not root or safe:
            return LOCKED
        self._require_no_wal()
        # The file format read version: 2 for WAL.
        return IMMUTABLE if self._file.read(19, 20, self.path) == b"\2" else UNLOCKED

    def _require_no_wal(self) -> None:
        if self._beside("-wal") is not None:
            raise StoreAccessDenied(
                f"{self.path} is not read by root with changes in {self._real}-wal, since other users can write to this folder: "
                "close it there, or `PRAGMA wal_checkpoint(TRUNCATE)`",
                key=self.path,
            )

    def _wait_for_writer(self) -> None:
        """Wait, without locks, until no transaction is in progress. Raises `StoreTimeout`."""
        until = time.monotonic() + _PATIENCE_S
        while self._is_being_written():
            if time.monotonic() > until:
                raise StoreTimeout(f"the SQLite database {self.path}: it is locked by its journal", key=self.path)
            time.sleep(_BUSY_S)
        self._require_no_wal()

    def _is_other(self, state: State | None) -> bool:
        """Return True if the database is not in ``state`` any more, or, without locks, is being written.

        With locks, only a program other than SQLite can change it during a transaction, and only if it is not in WAL mode.
        """
        if self._locked and state is not None and state.commits is not None:
            return False
        return self._state() != state or (not self._locked and (self._is_being_written() or self._beside("-wal") is not None))

    def _is_being_written(self) -> bool:
        # A finished journal may be kept, overwritten by zeros.
        return begins_with(self._real + "-journal", _JOURNAL)

    def _state(self) -> State:
        """Return time and generation of the whole database. Raises `StoreError` if it is not the one that was opened."""
        found, header = header_of(self._file)
        generation = f"{found}-{header.changes}"
        try:
            # In WAL mode changes are in this file.
            log, shared = (self._beside(each) if self._locked else None for each in ("-wal", "-shm"))
        except OSError as error:
            raise StoreError(f"{self.path}: stat failed: {error.strerror}", key=self.path) from error
        # In WAL mode pages that are not in the file may be in the log.
        lacks = max(0, header.nbytes - found.size) if log is None else 0
        if not self._locked or not header.is_wal:
            return State(found.mtime_ns, generation, lacks=lacks)
        self._require_shared(shared)
        if self._log is None:
            self._log = "" if log is None else str(Identity.of(log))
        # Last, so that little time passes until a transaction begins.
        commits = self._commits.count()
        return State(found.mtime_ns, f"{generation}-{self._log}-{commits}", commits, lacks)

    def _require_shared(self, found: os.stat_result | None) -> None:
        """Raise `StoreError` if another program has removed the files of WAL mode while a connection here has them open.

        Writers then make others, and do not see this reader: it would see the content of before for good, or pages of both."""
        inode = None if found is None else (found.st_dev, found.st_ino)
        if self._shared is not None and self._shared != inode and self._shared in descriptors().values():
            raise StoreError(f"{self._real}-shm was removed or replaced while it was in use; mount again", key=self.path)
        # No connection here had it open when the last writer ended, who then removes it: they open the next one.
        self._shared = inode

    def _require_whole(self, state: State) -> None:
        """Raise `_CutShort` if pages are missing: SQLite would read zeros."""
        if state.lacks:
            raise _CutShort(f"{self.path} is cut short: {state.lacks} bytes are missing at its end", key=self.path)

    def _beside(self, suffix: str) -> os.stat_result | None:
        """Return the status of the file beside the database with this suffix; None if absent or empty."""
        found = look(self._real + suffix)
        return found if found is not None and found.st_size else None

    def _has_journal(self) -> bool:
        try:
            return any(self._beside(suffix) is not None for suffix in ("-wal", "-journal"))
        except OSError:
            return True

    def _check_table(self) -> None:
        import sqlite3

        with self._connection("") as connection:
            if connection.execute("PRAGMA encoding").fetchone() != (b"UTF-8",):
                raise StoreUnsupported(f"{self.path} is an SQLite database whose text is not UTF-8", key=self.path)
            table = connection.execute("SELECT type, rootpage FROM sqlite_master WHERE name = 'zarr'").fetchone()
            columns = {name.lower(): hidden for _, name, _, _, _, _, hidden in connection.execute("PRAGMA table_xinfo(zarr)")}
            # A column of that name would hide the row number.
            self._have_numbers = not {b"_rowid_", b"rowid", b"oid"} & columns.keys()
            if table is None and {each[1] for each in connection.execute("PRAGMA table_info(Dict)")} == {b"key", b"value"}:
                raise StoreUnsupported(
                    f"{self.path} is a DBM of the kind dbm.sqlite3 (Python 3.13): only dbm.dumb can be opened; copy it with Python's dbm",
                    key=self.path,
                )
            if table is None or table[0] != b"table" or not table[1] or columns.get(b"k") != 0 or columns.get(b"v") != 0:
                raise StoreNotFound(
                    f"{self.path} is an SQLite database without a table zarr(k, v): it is no Zarr store", key=self.path
                )
            if self._have_numbers:
                try:
                    connection.execute("SELECT _rowid_ FROM zarr LIMIT 1").close()
                except sqlite3.OperationalError:
                    # WITHOUT ROWID.
                    self._have_numbers = False

    @contextmanager
    def _connection(self, name: bytes | str) -> Generator[sqlite3.Connection]:
        """Return a connection that no other thread uses. Errors of SQLite become a `StoreError` that names ``name``."""
        import sqlite3

        key = name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name
        try:
            connection, state = self._taken()
            try:
                limit_work(connection, self._most_work())
                yield connection
            except GeneratorExit:
                # The listing was closed early.
                self._give_back(connection, state)
                raise
            except BaseException:
                connection.close()
                raise
            self._give_back(connection, state)
        except sqlite3.Error as error:
            message = f"reading {key!r}: " if key else ""
            if code(error) == sqlite3.SQLITE_INTERRUPT:
                raise StoreError(
                    f"{message}the SQLite database {self.path} has more rows than its file can hold: it is damaged",
                    key=key or self.path,
                ) from error
            raise kinds().get(code(error), StoreError)(
                f"{message}the SQLite database {self.path}: {error}", key=key or self.path
            ) from error
        except MemoryError as error:
            raise TooLarge(
                f"reading {key!r}: SQLite would need more than {_HEAP_NBYTES} bytes of memory, with other reads at this time: "
                f"{self.path} has no row numbers, or no index of its keys",
                key=key,
            ) from error

    def _taken(self) -> tuple[sqlite3.Connection, Generation]:
        """Return a connection, and the state of the file that its cached pages are valid for.

        With locks, SQLite finds out by the counter in the header, which is the same in another database that was copied over this one.
        """
        if not self._locked:
            self._wait_for_writer()
        found, header = header_of(self._file)
        state = f"{found}-{header.changes}"
        while True:
            try:
                connection, seen = self._idle.pop()
            except IndexError:
                return self._connect(), state
            if seen == state:
                return connection, state
            connection.close()

    def _most_work(self) -> int:
        return most_work(self._file.descriptor_path, *([self._real + "-wal"] if self._locked else []))

    def _give_back(self, connection: sqlite3.Connection, state: Generation) -> None:
        if self._closed or len(self._idle) >= _KEPT:
            connection.close()
        else:
            self._idle.append((connection, state))

    def _connect(self) -> sqlite3.Connection:
        if self._locked:
            return connect(self._real, self._options, _PATIENCE_S, _HEAP_NBYTES)
        return connect_to(self.inode, self._real, self._options, _PATIENCE_S, _HEAP_NBYTES)


def _peculiarities(connection: sqlite3.Connection, _: State) -> tuple[bool, bool]:
    """Return True if some keys are blobs, and True if one is empty."""
    return (
        connection.execute("SELECT 1 FROM zarr WHERE k >= x'' LIMIT 1").fetchone() is not None,
        connection.execute("SELECT 1 FROM zarr WHERE k IN ('', x'') LIMIT 1").fetchone() is not None,
    )


def _end(connection: sqlite3.Connection) -> None:
    """End the transaction, unless an error has ended it."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
