"""Archives changed by others: a file that is cut, replaced or removed while it is open, and a writer that never stops."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from trio.testing import trio_test

from tests.support import archives
from tests.support.large_buffers import large_from
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreAccessDenied, StoreError, StoreNotFound
from zarrfs.keys import ByteRange
from zarrfs.memory import spill
from zarrfs.stores import archive as archive_module
from zarrfs.stores import lmdb as lmdb_module
from zarrfs.stores.archive import ArchiveStore
from zarrfs.stores.archive_file import ArchiveFile
from zarrfs.stores.lmdb import LmdbArchive
from zarrfs.stores.sqlite import archive as sqlite_module
from zarrfs.stores.sqlite import rows
from zarrfs.stores.sqlite.archive import SqliteArchive
from zarrfs.stores.sqlite.state import State

VALUES = {"d/k": b"value" * 20, "e": b"", "f": b"1"}


@pytest.fixture
def all_is_large(tmp_path: Path) -> Iterator[None]:
    with large_from(1, tmp_path):
        yield


# --- files --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("all_is_large")
def test_a_large_value_is_read_in_pieces_and_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(bytes(range(200)))
    file = ArchiveFile(str(path))
    assert bytes(file.read_value(50, 150, "k")) == bytes(range(50, 150))
    with pytest.raises(StoreError, match=r"reading 'k': it lies outside of .*, which is damaged"):
        file.read_value(150, 201, "k")
    os.truncate(path, 100)
    for read in (file.read_value, file.read):
        with pytest.raises(StoreError, match=r"reading 'k': .* was changed or replaced since it was opened; mount it again"):
            read(50, 150, "k")


def test_a_path_that_leads_in_a_circle_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError, match=r"opening .*loop: Too many levels"):
        ArchiveFile(str(tmp_path / "loop"))
    with pytest.raises(StoreNotFound, match="is not a file"):
        ArchiveFile(str(tmp_path))


@pytest.mark.parametrize("make", [archives.sqlite, archives.lmdb, archives.lmdb_file], ids=["sqlite", "lmdb", "lmdb-file"])
def test_a_database_that_was_removed_or_replaced_is_told_of(tmp_path: Path, make: archives.Make) -> None:
    path = make(tmp_path, VALUES)
    data = path / "data.mdb" if path.is_dir() else path
    archive: Any = (SqliteArchive if make is archives.sqlite else LmdbArchive)(str(path))
    try:
        found = archive.read(b"d/k", [ByteRange(2, 5)])
        assert found is not None and [bytes(part) for part in found[1]] == [b"lueva"]
        assert archive.find(b"d/") is archive.find(b"") is archive.find(b"g") is None
        data.rename(tmp_path / "elsewhere")
        for ask in (lambda: archive.find(b"d/k"), lambda: list(archive.entries(b""))):
            with pytest.raises(StoreError, match=r"stat failed: No such file|unable to open database file"):
                ask()
        data.write_bytes((tmp_path / "elsewhere").read_bytes())
        with pytest.raises(StoreError, match="was replaced since it was opened; mount it again"):
            archive.find(b"d/k")
    finally:
        archive.close()


@pytest.mark.parametrize("make", [archives.sqlite, archives.lmdb], ids=["sqlite", "lmdb"])
@pytest.mark.usefixtures("all_is_large")
def test_large_values_of_a_database_lie_in_files(tmp_path: Path, make: archives.Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_PIECE_NBYTES", 7)
    archive: Any = (SqliteArchive if make is archives.sqlite else LmdbArchive)(str(make(tmp_path, VALUES)))
    try:
        stat, parts = archive.read(b"d/k", [ByteRange(3, 50), ByteRange.suffix(1), ByteRange(90, 0)])
        assert (stat.size, [bytes(part) for part in parts]) == (100, [VALUES["d/k"][3:53], b"e", b""])
        assert spill.is_mapped(parts[0])
    finally:
        archive.close()


@trio_test
async def test_an_archive_that_cannot_be_closed_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a database on a hung file system waits for it."""
    monkeypatch.setattr(archive_module, "_CLOSE_S", 0.01)
    answered = threading.Event()

    class Hung(SqliteArchive):
        def close(self) -> None:
            answered.wait()
            super().close()

    store = ArchiveStore(Hung(str(archives.sqlite(tmp_path, VALUES))), "")
    await store.aclose()
    assert not answered.is_set()
    answered.set()


# --- SQLite -------------------------------------------------------------------------------------------------------------------------


def test_a_database_that_is_cut_within_its_header_is_told_of(tmp_path: Path) -> None:
    path = archives.sqlite(tmp_path, VALUES)
    with closing(SqliteArchive(str(path))) as archive:
        os.truncate(path, 50)
        with pytest.raises(StoreError, match="is cut short: it has no whole header"):
            archive.find(b"d/k")


class Restless(SqliteArchive):
    """A database that another program changes each time its state is taken."""

    writer: sqlite3.Connection
    writes = 0

    def _state(self) -> State:
        state = super()._state()
        if self.writes:
            self.writes += 1
            self.writer.execute("INSERT OR REPLACE INTO zarr VALUES ('f', ?)", (bytes(self.writes),))
        return state


def test_a_value_that_is_replaced_all_the_time_is_read_as_of_one_moment(tmp_path: Path) -> None:
    path = archives.sqlite(tmp_path, VALUES)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer, closing(Restless(str(path))) as archive:
        writer.execute("PRAGMA journal_mode = WAL")
        archive.writer, archive.writes = writer, 1
        generations = set()
        for _ in range(3):
            found = archive.read(b"f", [ByteRange()])
            assert found is not None and bytes(found[1][0]) == bytes(archive.writes) and found[0].size == archive.writes
            generations.add(found[0].generation)
        assert len(generations) == 3 and archive.writes < 100


@pytest.mark.parametrize("ask", [lambda it: it.read(b"f", [ByteRange()]), lambda it: list(it.entries(b""))])
def test_without_locks_a_value_that_is_replaced_all_the_time_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[SqliteArchive], object]
) -> None:
    monkeypatch.setattr(sqlite_module, "is_safe_path", lambda _: False)
    monkeypatch.setattr(sqlite_module.os, "geteuid", lambda: 0)
    path = archives.sqlite(tmp_path, VALUES)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer, closing(Restless(str(path))) as archive:
        assert not archive._locked
        archive.writer, archive.writes = writer, 1
        with pytest.raises(StoreError, match=r"reading .* changed during each attempt"):
            ask(archive)
        assert 1 < archive.writes < 100


def test_another_database_copied_over_it_is_read_and_not_mixed_with_the_first(tmp_path: Path) -> None:
    """Both have the same size and the same counter, by which SQLite judges its cached pages."""
    (tmp_path / "other").mkdir()
    path = archives.sqlite(tmp_path, {"k": b"1" * 50_000, "l": b"1" * 50_000})
    other = archives.sqlite(tmp_path / "other", {"k": b"2" * 50_000, "l": b"2" * 50_000})
    with closing(SqliteArchive(str(path))) as archive:
        before = archive.read(b"k", [ByteRange(0, 30_000)])
        path.write_bytes(other.read_bytes())
        for name in (b"k", b"l"):
            found = archive.read(name, [ByteRange()])
            assert before is not None and found is not None and found[0].generation != before[0].generation
            assert bytes(found[1][0]) == b"2" * 50_000


def test_a_database_copied_over_while_a_value_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    path = archives.sqlite(tmp_path, {"k": b"1" * 50_000})
    other = archives.sqlite(tmp_path / "other", {"k": b"2" * 50_000}).read_bytes()

    pending = [other]
    part = rows.Rows.part

    def overwritten(self: rows.Rows, connection: sqlite3.Connection, name: bytes, start: int, stop: int) -> Buffer:
        if pending and start:
            path.write_bytes(pending.pop())
        return part(self, connection, name, start, stop)

    with closing(SqliteArchive(str(path))) as archive:
        monkeypatch.setattr(rows.Rows, "part", overwritten)
        found = archive.read(b"k", [ByteRange(0, 10_000), ByteRange(10_000)])
        assert found is not None and {bytes(part)[:1] for part in found[1]} == {b"2"}


class Unmakeable(SqliteArchive):
    """A database in WAL mode on a read-only file system: SQLite cannot create the files that it needs beside it."""

    def _check_table(self) -> None:
        if self._locked:
            with self._connection(""):
                error = sqlite3.OperationalError("unable to open database file")
                error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
                raise error
        super()._check_table()


def test_a_database_beside_which_nothing_can_be_made_is_read_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "is_safe_path", lambda _: True)
    path = archives.sqlite(tmp_path, VALUES)
    with closing(Unmakeable(str(path))) as archive:
        assert [name for name, *_ in archive.entries(b"")] == [b"d/k", b"e", b"f"]
        assert archive.find(b"f") is not None


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_changes_beside_a_database_are_not_passed_over(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "is_safe_path", lambda _: True)
    path = archives.sqlite(tmp_path, VALUES)
    Path(f"{path}{suffix}").write_bytes(b"changes")
    with pytest.raises(StoreError, match="unable to open database file"):
        Unmakeable(str(path))


def test_where_nobody_can_tell_whether_there_are_changes_there_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "is_safe_path", lambda _: True)
    path = archives.sqlite(tmp_path, VALUES)

    class Unseen(Unmakeable):
        def _beside(self, suffix: str) -> os.stat_result | None:
            raise OSError("nothing can be seen there")

    with pytest.raises(StoreError, match="unable to open database file"):
        Unseen(str(path))


def test_a_folder_that_cannot_be_looked_at_is_an_error_that_names_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unseen(path: str) -> bool:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(sqlite_module, "is_safe_path", unseen)
    with pytest.raises(StoreError, match=r"store\.sqldb: stat failed: Permission denied"):
        SqliteArchive(str(archives.sqlite(tmp_path, VALUES)))


def test_what_is_no_store_is_refused_without_locks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "is_safe_path", lambda _: False)
    monkeypatch.setattr(sqlite_module.os, "geteuid", lambda: 0)
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE other(k, v)")
    with pytest.raises(StoreNotFound, match=r"without a table zarr\(k, v\)"):
        SqliteArchive(str(path))


# --- LMDB ---------------------------------------------------------------------------------------------------------------------------


class Overtaken(LmdbArchive):
    """An archive without locks: while its pages are read, a writer reuses them, ``times`` times."""

    times = 0

    def _require_valid(self, transaction: Any) -> None:
        super()._require_valid(transaction)
        if self.times:
            self.times -= 1
            raise lmdb_module._Overtaken(f"reading the LMDB {self.path}: changed during each attempt", key=self.path)


@pytest.mark.parametrize("ask", [lambda it: it.find(b"d/k"), lambda it: it.find(b"g"), lambda it: list(it.entries(b""))])
def test_what_a_writer_overtook_is_read_again_but_not_for_ever(tmp_path: Path, ask: Callable[[LmdbArchive], object]) -> None:
    with closing(Overtaken(str(archives.lmdb(tmp_path, VALUES)))) as archive:
        expected = ask(archive)
        archive.times = 3
        assert ask(archive) == expected and not archive.times
        archive.times = 1000
        with pytest.raises(StoreError, match="changed during each attempt"):
            ask(archive)
        assert archive.times > 900


def test_a_listing_that_was_overtaken_goes_on_where_it_was(tmp_path: Path) -> None:
    with closing(Overtaken(str(archives.lmdb(tmp_path, VALUES)))) as archive:
        entries = archive.entries(b"")
        assert next(entries)[0] == b"d/k"
        archive.times = 2
        assert [name for name, *_ in entries] == [b"e", b"f"]


def test_an_environment_that_may_not_be_read_is_told_of_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(LmdbArchive(str(archives.lmdb(tmp_path, VALUES)))) as archive:

        def refused() -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(archive, "_check_size", refused)
        with pytest.raises(StoreAccessDenied, match="may not be read") as raised:
            archive.find(b"d/k")
        assert raised.value.key == "d/k"
