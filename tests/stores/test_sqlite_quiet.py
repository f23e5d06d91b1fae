"""A database in WAL mode that no program has open is read without files beside it."""

from __future__ import annotations

import gc
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from trio.testing import trio_test

from tests.support import archives
from tests.support.stores import contents
from zarrfs.errors import StoreError
from zarrfs.keys import ByteRange
from zarrfs.stores.archive import Archive
from zarrfs.stores.opening import open_store
from zarrfs.stores.sqlite import archive as sqlite
from zarrfs.stores.sqlite import quiet
from zarrfs.stores.sqlite.archive import SqliteArchive
from zarrfs.stores.sqlite.state import State

VALUES = {"k": b"old", "l": b"old too", "m/n": bytes(5000)}
CHANGE = "UPDATE zarr SET v = x'6e6577' WHERE k = 'k'"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = archives.sqlite(tmp_path, VALUES)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    return path


@pytest.fixture
def archive(path: Path) -> Iterator[Archive]:
    with closing(quiet.open_archive(str(path))) as archive:
        yield archive


def value(archive: Archive, name: bytes = b"k") -> bytes:
    found = archive.read(name, [ByteRange()])
    assert found is not None
    return bytes(found[1][0])


@trio_test
async def test_nothing_is_made_beside_it(path: Path) -> None:
    store = await open_store(str(path))
    try:
        assert await contents(store) == VALUES
    finally:
        await store.aclose()
    assert os.listdir(path.parent) == [path.name]


def test_a_writer_is_noticed(path: Path, archive: Archive) -> None:
    before = archive.find(b"k")
    with closing(archive.entries(b"")) as listing, closing(sqlite3.connect(path, isolation_level=None)) as writer:
        assert next(listing)[0] == b"k"
        writer.execute(CHANGE)
        assert value(archive) == b"new" and value(archive, b"l") == b"old too"
        after = archive.find(b"k")
        assert before is not None and after is not None and before.generation != after.generation
        assert [name for name, *_ in listing] == [b"l", b"m/n"]
        writer.execute("DELETE FROM zarr")
        assert archive.find(b"k") is None and list(archive.entries(b"")) == []


def test_several_values_are_read_in_one_transaction(path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    transactions = 0
    begun = SqliteArchive._begun

    def counted(self: SqliteArchive, connection: sqlite3.Connection, last: bool) -> State | None:
        nonlocal transactions
        transactions += 1
        return begun(self, connection, last)

    monkeypatch.setattr(SqliteArchive, "_begun", counted)

    def values() -> list[bytes]:
        found = archive.read_several([(name.encode(), [ByteRange()]) for name in VALUES], bytes)
        return [bytes(each[1][0]) for each in found if each is not None]

    assert values() == list(VALUES.values()) and transactions == 1
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute(CHANGE)
        # It is opened with locks now.
        assert value(archive) == b"new"
        transactions = 0
        assert values() == [b"new", b"old too", bytes(5000)] and transactions == 1


def test_a_writer_that_came_and_went_is_noticed(path: Path, archive: Archive) -> None:
    assert value(archive) == b"old"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute(CHANGE)
    assert os.listdir(path.parent) == [path.name]
    assert value(archive) == b"new"
    assert os.listdir(path.parent) == [path.name]


def test_a_writer_that_leaves_wal_mode_is_noticed(path: Path, archive: Archive) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = DELETE")
        writer.execute("BEGIN")
        writer.execute(CHANGE)
        assert value(archive) == b"old"
        writer.execute("COMMIT")
        assert value(archive) == b"new"


def test_one_whose_writer_left_changes_beside_it_is_read_with_them(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute(CHANGE)
        archive = quiet.open_archive(str(path))
        assert isinstance(archive, SqliteArchive)
        with closing(archive):
            assert value(archive) == b"new"


def test_a_failed_opening_takes_no_locks_with_it(path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that it had opened was closed with its error, later, and with that the locks of the next opening were gone.

    The last writer then removed the files that readers here had open: each read was an error until the next mount."""
    monkeypatch.setattr(sqlite, "_PATIENCE_S", 0.0)
    program = (
        "import sqlite3, sys\n"
        "writer = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "writer.execute('PRAGMA locking_mode = ' + sys.argv[2])\n"
        "writer.execute('UPDATE zarr SET v = ? WHERE k = ?', (sys.argv[3].encode(), 'k'))\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
        "writer.close()\n"
    )
    errors = []
    for number, mode in enumerate(("EXCLUSIVE", "NORMAL", "NORMAL")):
        command = [sys.executable, "-c", program, str(path), mode, str(number)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            if not number:
                with pytest.raises(StoreError, match="locked") as raised:
                    value(archive)
                errors.append(raised)
                del raised
            else:
                assert value(archive) == b"%d" % number
                errors.clear()
                gc.collect()
        assert path.with_name(f"{path.name}-shm").exists() == (number > 0)


def test_a_writer_at_the_moment_of_opening(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = sqlite3.connect(path, isolation_level=None)

    def unused(_: object) -> bool:
        writer.execute(CHANGE)
        monkeypatch.undo()
        return True

    with closing(writer):
        monkeypatch.setattr(quiet, "_is_unused", unused)
        with closing(quiet.open_archive(str(path))) as archive:
            assert value(archive) == b"new"


def test_another_database_in_its_place_is_an_error(tmp_path: Path, path: Path, archive: Archive) -> None:
    (tmp_path / "other").mkdir()
    archives.sqlite(tmp_path / "other", {"k": b"other"}).replace(path)
    for _ in range(2):
        with pytest.raises(StoreError, match="was replaced since it was opened; mount it again"):
            archive.find(b"k")
