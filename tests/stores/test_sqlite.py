"""SQLite databases: tables of any writer, active writers, and malicious databases."""

from __future__ import annotations

import os
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, nullcontext
from pathlib import Path
from typing import ClassVar

import pytest
import trio
from trio.testing import trio_test

from tests.support import archives
from tests.support.stores import contents, names
from zarrfs.errors import GenerationMismatch, StoreError, StoreNotFound, StoreTimeout, StoreUnsupported
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.archive_file import Identity
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store
from zarrfs.stores.sqlite import archive as module
from zarrfs.stores.sqlite import connections
from zarrfs.stores.sqlite.rows import Rows
from zarrfs.stores.sqlite.state import State

TABLE = "CREATE TABLE zarr(k TEXT PRIMARY KEY, v BLOB)"


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[Store]:
    store = await open_store(str(path))
    try:
        yield store
    finally:
        await store.aclose()


def made(path: Path, *statements: str | tuple[str, tuple[object, ...]]) -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(*((statement,) if isinstance(statement, str) else statement))
    return path


def overwrite(path: Path, start: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(content)


def interior(child: int) -> bytes:
    """Return an inner page of a table, of 4096 bytes, with 401 references to the page ``child``."""
    count = 400
    starts = range(4096 - 5 * count, 4096, 5)
    head = struct.pack(">BHHHBI", 5, 0, count, starts[0], 0, child) + struct.pack(f">{count}H", *starts)
    return head.ljust(starts[0], b"\0") + struct.pack(">IB", child, 1) * count


def put(key: object, value: object) -> tuple[str, tuple[object, ...]]:
    return "INSERT OR REPLACE INTO zarr(k, v) VALUES (?, ?)", (key, value)


@pytest.mark.logs("without a name")
@trio_test
async def test_keys_and_values_of_every_type(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [put("text", b"1"), put(b"blob", b"22"), put(b"d/\xff", b"3"), put("d/ü", "text ü"), put("null", None), put(None, b"x"),
            put(5, b"number"), put("n", 1234), put("z", b""), put("", b"nameless")]  # fmt: skip
    async with opened(made(tmp_path / "x", TABLE, *rows)) as store:
        expected = {"text": b"1", "blob": b"22", "d/\udcff": b"3", "d/ü": "text ü".encode(), "5": b"number", "n": b"1234", "z": b""}
        assert await contents(store) == expected
        assert await names(store) == {(key, False): len(expected[key]) for key in ("text", "blob", "5", "n", "z")} | {
            ("d", True): 0
        }
        assert await store.get_partial_values([(Key("d/ü"), ByteRange(3, 3)), (Key("n"), ByteRange.suffix(2))]) == [
            b"t \xc3",
            b"34",
        ]
        for absent in ("null", "d/\xff", "tex", "text/"[:-1] + "x", "\ud800"):
            assert await store.get(Key(absent)) is None
    assert len(caplog.records) == 1


@trio_test
async def test_text_wins_over_a_blob_of_the_same_bytes(tmp_path: Path) -> None:
    async with opened(made(tmp_path / "x", TABLE, put(b"k", b"blob"), put("k", b"text"), put(b"a", b"1"), put("b", b"2"))) as store:
        assert await contents(store) == {"a": b"1", "b": b"2", "k": b"text"}
        assert (await names(store))["k", False] == 4


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE zarr(k TEXT PRIMARY KEY, v BLOB) WITHOUT ROWID",
        "CREATE TABLE zarr(v BLOB, k TEXT)",
        "CREATE TABLE zarr(rowid INTEGER, k TEXT PRIMARY KEY, v BLOB)",
        "CREATE TABLE zarr(_rowid_ INTEGER, oid INTEGER, rowid INTEGER, K TEXT COLLATE NOCASE, V BLOB)",
    ],
)
@trio_test
async def test_tables_of_other_forms(tmp_path: Path, table: str) -> None:
    values = {f"{name}/{number}": os.urandom(number * 977) for name in ("a", "B", "a-", "A") for number in range(5)}
    async with opened(made(tmp_path / "x", table, *(put(key, value) for key, value in values.items()))) as store:
        assert await contents(store) == values
        (part,) = await store.get_partial_values([(Key("a/4"), ByteRange(1000, 2000))])
        assert part == values["a/4"][1000:3000]


@trio_test
async def test_of_several_rows_of_one_key_one_is_listed(tmp_path: Path) -> None:
    rows = [put("k", b"1"), put("a/b", b"22"), put("k", b"333"), put(b"k", b"4444"), put("a/b", b"5")]
    async with opened(made(tmp_path / "x", "CREATE TABLE zarr(k TEXT, v BLOB)", *rows)) as store:
        assert [entry[:2] async for entry in store.list_dir(Prefix(""))] == [("a", True), ("k", False)]
        assert await contents(store) == {"k": b"1", "a/b": b"22"}


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE other(k TEXT, v BLOB)"],
        ["CREATE TABLE zarr(key TEXT, value BLOB)"],
        ["CREATE VIEW zarr AS SELECT 'k' AS k, randomblob(1000000000) AS v"],
        ["CREATE TABLE zarr(k TEXT, v BLOB AS (zeroblob(1000000000)))"],
        ["CREATE TABLE zarr(k TEXT AS (v), v BLOB)"],
        ["CREATE VIRTUAL TABLE zarr USING fts5(k, v)"],
    ],
)
@trio_test
async def test_what_is_no_table_of_keys_and_values_is_refused(tmp_path: Path, statements: list[str]) -> None:
    path = made(tmp_path / "other.db", *statements)
    with pytest.raises(StoreNotFound, match=r"other\.db is an SQLite database without a table zarr") as raised:
        await open_store(str(path))
    assert "\n" not in str(raised.value)


@trio_test
async def test_text_in_utf_16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnsupported, match="UTF-8"):
        await open_store(str(made(tmp_path / "x", "PRAGMA encoding = 'UTF-16'", TABLE)))


@trio_test
async def test_a_value_is_not_read_for_its_size(tmp_path: Path) -> None:
    path = made(tmp_path / "x", TABLE, ("INSERT INTO zarr VALUES ('large', zeroblob(200000000))", ()), put("small", b"1"))
    # Damage pages that are not needed: the chain of pages of the large value is broken.
    overwrite(path, 100 << 20, os.urandom(1 << 20))
    async with opened(path) as store:
        assert await names(store) == {("large", False): 200_000_000, ("small", False): 1}
        assert await store.get_partial_values([(Key("large"), ByteRange(10, 5))]) == [bytes(5)]
        with pytest.raises(StoreError, match=r"'large'.*SQLite database"):
            await store.get_partial_values([(Key("large"), ByteRange(150_000_000, 10))])
        assert await store.get(Key("small")) == b"1"


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
@trio_test
async def test_another_program_writes_meanwhile(tmp_path: Path, mode: str) -> None:
    path = archives.sqlite(tmp_path, {"k": b"old"})
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute(f"PRAGMA journal_mode = {mode}")
        async with opened(path) as store:
            before = await store.stat(Key("k"))
            assert before is not None and await store.get(Key("k")) == b"old"
            for value in (b"new", b"NEW", b"longer"):
                writer.execute(*put("k", value))
                found = await store.get_with_stat(Key("k"), ByteRange())
                assert found is not None and found[0] == value and found[1].size == len(value)
                with pytest.raises(GenerationMismatch):
                    await store.get_partial_values([(Key("k"), ByteRange())], if_generation=before.generation)
                assert await store.stat(Key("k")) == found[1]
                before = found[1]
            writer.execute("DELETE FROM zarr")
            assert await contents(store) == {}


@trio_test
async def test_a_value_that_is_being_changed_is_old_or_new(tmp_path: Path) -> None:
    path = archives.sqlite(tmp_path, {"k": b"old" * 5000})
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        async with opened(path) as store:
            writer.execute("BEGIN")
            writer.execute(*put("k", b"new" * 7000))
            assert await store.get(Key("k")) == b"old" * 5000
            writer.execute("COMMIT")
            assert await store.get(Key("k")) == b"new" * 7000


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_what_is_committed_while_a_read_begins_is_told_as_what_it_is(tmp_path: Path, mode: str) -> None:
    path = archives.sqlite(tmp_path, {"k": b"old"})
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute(f"PRAGMA journal_mode = {mode}")

        class Interrupted(module.SqliteArchive):
            pending: ClassVar[list[bytes]] = []

            def _state(self) -> State:
                state = super()._state()
                if self.pending:
                    writer.execute(*put("k", self.pending.pop()))
                return state

        with closing(Interrupted(str(path))) as archive:
            archive.pending.append(b"newer")
            found = archive.read(b"k", [ByteRange()])
            assert found is not None and found[1] == [b"newer"] and found[0] == archive.find(b"k")


def test_a_read_sees_the_state_at_its_beginning_however_long_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archives.sqlite(tmp_path, {"k": b"old", "l": b"old"})
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writes = 0
        row = Rows._row

        def slow(self: Rows, connection: sqlite3.Connection, name: bytes, what: str) -> tuple[int, ...] | None:
            nonlocal writes
            writes += 1
            for key in "kl":
                writer.execute(*put(key, b"newer" * writes))
            return row(self, connection, name, what)

        with closing(module.SqliteArchive(str(path))) as archive:
            monkeypatch.setattr(Rows, "_row", slow)
            found = archive.read(b"k", [ByteRange()])
            assert found is not None and found[1] == [b"old"] and found[0].size == 3
            later = archive.find(b"k")
            assert later is not None and later.generation != found[0].generation
            several = archive.read_several([(b"k", [ByteRange()]), (b"l", [ByteRange()])], bytes)
            assert several[0] is not None and several[0] == several[1] and several[0][0].generation != later.generation


@pytest.mark.parametrize("numbers", [True, False])
def test_several_values_are_read_as_each_alone(numbers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [put(f"d/{number:03}", bytes([number]) * number) for number in range(200)]
    table = TABLE if numbers else f"{TABLE} WITHOUT ROWID"
    path = made(tmp_path / "x", table, *rows, put(b"blob", b"22"), put("text", "ü"), put("null", None))
    transactions = 0
    begun = module.SqliteArchive._begun

    def counted(self: module.SqliteArchive, connection: sqlite3.Connection, last: bool) -> State | None:
        nonlocal transactions
        transactions += 1
        return begun(self, connection, last)

    monkeypatch.setattr(module.SqliteArchive, "_begun", counted)
    names = [f"d/{number:03}".encode() for number in reversed(range(200))] + [b"absent", b"blob", b"", b"text", b"null", b"a/"]
    wanted = [(name, [ByteRange(), ByteRange(1, 2)]) for name in names]
    with closing(module.SqliteArchive(str(path))) as archive:
        alone = [archive.read(*each) for each in wanted]
        transactions = 0
        together = archive.read_several(wanted, bytes)
        assert [each and (each[0], [*map(bytes, each[1])]) for each in alone] == together
        assert together[0] is not None and together[names.index(b"null")] is None and transactions == 4


def test_the_value_that_cannot_be_read_is_named_among_several(tmp_path: Path) -> None:
    path = made(tmp_path / "x", TABLE, *(put(f"d/{number}", bytes([number]) * 9000) for number in range(50)))
    # An overflow page of one of them belongs to none.
    content = path.read_bytes()
    at = content.index(bytes([7]) * 2000)
    page = at // 4096 * 4096
    overwrite(path, page, b"\xff" * 4)
    with closing(module.SqliteArchive(str(path))) as archive:
        with pytest.raises(StoreError, match="reading 'd/7'") as raised:
            archive.read_several([(f"d/{number}".encode(), [ByteRange()]) for number in range(50)], bytes)
        assert raised.value.key == "d/7"
        others = archive.read_several([(f"d/{number}".encode(), [ByteRange()]) for number in range(7)], bytes)
        assert [each and each[1] for each in others] == [[bytes([number]) * 9000] for number in range(7)]


def test_the_generation_changes_although_sizes_and_times_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many kernels and file systems have one time for all changes within milliseconds; the log is used again from its beginning."""
    at = time.time_ns()

    def same_time(found: os.stat_result) -> Identity:
        return Identity(found.st_dev, found.st_ino, found.st_size, at)

    monkeypatch.setattr(Identity, "of", same_time)
    path = archives.sqlite(tmp_path, {"k": b"v000"})
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        for number in range(50):
            writer.execute(*put("k", b"w%03d" % number))
        with closing(module.SqliteArchive(str(path))) as archive:
            seen: dict[str, bytes] = {}
            for number in range(30):
                if number % 10 == 0:
                    writer.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
                writer.execute(*put("k", b"x%03d" % number))
                found = archive.read(b"k", [ByteRange()])
                assert found is not None and found[1] == [b"x%03d" % number] and found[0].generation is not None
                assert seen.setdefault(found[0].generation, bytes(found[1][0])) == found[1][0]


WAL_WRITER = """import sqlite3, sys
writer = sqlite3.connect(sys.argv[1], isolation_level=None)
writer.execute("PRAGMA journal_mode = WAL")
writer.execute("REPLACE INTO zarr VALUES (?, ?)", ("k", sys.argv[2].encode()))
print(flush=True)
sys.stdin.read()
writer.close()
"""


def test_the_files_of_wal_mode_are_removed_while_they_are_in_use(tmp_path: Path) -> None:
    """The content of before was read for good, whatever the next writer stored."""
    path = archives.sqlite(tmp_path, {"k": b"old"})
    command = [sys.executable, "-c", WAL_WRITER, str(path)]
    with subprocess.Popen([*command, "last"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        archive = module.SqliteArchive(str(path))
        found = archive.read(b"k", [ByteRange()])
        assert found is not None and found[1] == [b"last"]
    with closing(archive):
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink()
        subprocess.run([*command, "new"], stdin=subprocess.DEVNULL, check=True, capture_output=True)
        with pytest.raises(StoreError, match="was removed or replaced while it was in use"):
            archive.read(b"k", [ByteRange()])
    with closing(module.SqliteArchive(str(path))) as again:
        found = again.read(b"k", [ByteRange()])
        assert found is not None and found[1] == [b"new"]


def test_the_last_writer_removes_the_files_of_wal_mode_before_they_are_opened(tmp_path: Path) -> None:
    """Each read was an error until the next mount."""
    path = archives.sqlite(tmp_path, {"k": b"old"})
    archive = None
    for number in range(3):
        command = [sys.executable, "-c", WAL_WRITER, str(path), str(number)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            archive = archive or module.SqliteArchive(str(path))
            found = archive.read(b"k", [ByteRange()])
            assert found is not None and found[1] == [b"%d" % number]
            # So that the next one has another inode.
            os.link(f"{path}-shm", tmp_path / f"kept{number}")
            # As after an error, and when a read has seen the file, but not yet opened it.
            archive._commits.close()
            while archive._idle:
                archive._idle.pop()[0].close()
        assert not path.with_name(path.name + "-shm").exists()
    assert archive is not None
    archive.close()


@trio_test
async def test_our_looking_at_the_file_leaves_the_locks_of_sqlite(tmp_path: Path) -> None:
    """Closing any descriptor of a file releases the locks of the process on it."""
    path = archives.sqlite(tmp_path, {"k": b"v", "l": b"w"})
    program = "import sqlite3, sys\nsqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN EXCLUSIVE')"
    async with opened(path) as store:
        archive = store._archive  # type: ignore[attr-defined]
        with closing(archive.entries(b"")) as entries:
            assert next(entries)[0] == b"k"
            await store.get(Key("l"))
            tried = await trio.run_process([sys.executable, "-c", program, str(path)], check=False, capture_stderr=True)
            assert b"locked" in tried.stderr
        await trio.run_process([sys.executable, "-c", program, str(path)])


@trio_test
async def test_a_database_that_is_locked_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    path = archives.sqlite(tmp_path, {"k": b"v"})
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreTimeout, match="locked"):
            await open_store(str(path))
        writer.execute("ROLLBACK")
        async with opened(path) as store:
            writer.execute("BEGIN EXCLUSIVE")
            with pytest.raises(StoreTimeout, match=r"'k'.*locked"):
                await store.get(Key("k"))
            writer.execute("ROLLBACK")
            assert await store.get(Key("k")) == b"v"


@trio_test
async def test_a_database_that_is_being_enlarged_is_not_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit writes the first page before the new ones."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.01)
    path = archives.sqlite(tmp_path, {"k": b"v"})
    pages = path.read_bytes()[28:32]
    async with opened(path) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("BEGIN EXCLUSIVE")
            overwrite(path, 28, b"\0\0\1\0")
            with pytest.raises(StoreTimeout, match=r"'k'.*locked"):
                await store.get(Key("k"))
            with pytest.raises(StoreTimeout, match="locked"):
                await names(store)
            overwrite(path, 28, pages)
            writer.execute("ROLLBACK")
        assert await contents(store) == {"k": b"v"}


@trio_test
async def test_a_write_that_has_to_be_undone_first_is_told_of(tmp_path: Path) -> None:
    path = archives.sqlite(tmp_path, {"k": b"old" * 50_000})
    program = (
        "import os, sqlite3, sys\n"
        "writer = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "writer.execute('PRAGMA cache_size = 1')\n"
        "writer.execute('BEGIN')\n"
        "writer.execute('UPDATE zarr SET v = zeroblob(150000)')\n"
        "os._exit(0)\n"
    )
    await trio.run_process([sys.executable, "-c", program, str(path)])
    with pytest.raises(StoreError, match="its writer ended within a write, which has to be undone"):
        await open_store(str(path))
    with closing(sqlite3.connect(path)) as other:
        other.execute("SELECT count(*) FROM zarr").fetchall()
    async with opened(path) as store:
        assert await contents(store) == {"k": b"old" * 50_000}


@trio_test
async def test_nothing_is_written(tmp_path: Path) -> None:
    path = archives.sqlite(tmp_path, {"k": b"v"})
    before = path.read_bytes(), path.stat().st_mtime_ns
    async with opened(path) as store:
        await contents(store)
        archive = store._archive  # type: ignore[attr-defined]
        with archive._connection("") as connection:
            for statement in ("DELETE FROM zarr", "CREATE TABLE t(x)", "SELECT load_extension('x')"):
                with pytest.raises(sqlite3.Error):
                    connection.execute(statement)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert os.listdir(tmp_path) == [path.name]


@trio_test
async def test_a_damaged_database_is_an_error_that_names_it(tmp_path: Path) -> None:
    values = {f"d/{number}": bytes(3000) for number in range(50)}
    path = archives.sqlite(tmp_path, values)
    whole = path.read_bytes()
    seen = 0
    for page in range(len(whole) // 4096):
        path.write_bytes(whole[: page * 4096 + 100] + os.urandom(3000) + whole[page * 4096 + 3100 :])
        try:
            store = await open_store(str(path))
            await contents(store)
            await store.aclose()
        except StoreError as error:
            seen += 1
            assert str(path) in str(error)  # noqa: PT017
    assert seen


@pytest.mark.timeout(60)
@pytest.mark.parametrize("index", [True, False])
@trio_test
async def test_pages_that_hold_one_page_without_end(tmp_path: Path, index: bool) -> None:
    """A file of 16 pages with 401**12 rows: whatever passes over them all is an error, soon."""
    table = "CREATE TABLE zarr(k TEXT PRIMARY KEY, v BLOB)" if index else "CREATE TABLE zarr(k TEXT, v BLOB)"
    path = made(tmp_path / "x", "PRAGMA page_size = 4096", table, put("a", b"1"))
    with closing(sqlite3.connect(path)) as connection:
        ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE type = 'table'")
    content = path.read_bytes()
    pages = [content[start : start + 4096] for start in range(0, len(content), 4096)]
    pages.append(pages[root - 1])
    for _ in range(12):
        pages.append(interior(len(pages)))
    pages[root - 1] = interior(len(pages))
    path.write_bytes(b"".join(pages))
    overwrite(path, 28, struct.pack(">I", len(pages)))
    with pytest.raises(StoreError, match="more rows than its file can hold") if not index else nullcontext():
        async with opened(path) as store:
            assert await names(store) == {("a", False): 1}


@trio_test
async def test_parts_of_a_value_in_a_table_without_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is a pass over all rows: the work of one is no measure for that of all."""
    monkeypatch.setattr(connections, "_LEAST_STEPS", 0)
    rows = [put(f"{number}", bytes(number % 7)) for number in range(5000)]
    path = made(tmp_path / "x", "CREATE TABLE zarr(k TEXT, v BLOB)", *rows, put("z", bytes(range(100))))
    async with opened(path) as store:
        wanted = [(Key("z"), ByteRange(number, 1)) for number in range(100)]
        assert await store.get_partial_values(wanted) == [bytes([number]) for number in range(100)]
        assert len(await names(store)) == 5001


@trio_test
async def test_rows_that_are_in_the_log_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_LEAST_STEPS", 0)
    path = made(tmp_path / "x", "CREATE TABLE zarr(k TEXT, v BLOB)")
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA wal_autocheckpoint = 0", "BEGIN"):
            writer.execute(statement)
        for number in range(20_000):
            writer.execute(*put(f"{number}", b"1"))
        writer.execute("COMMIT")
        async with opened(path) as store:
            assert len(await names(store)) == 20_000


@trio_test
async def test_any_name_of_a_file(tmp_path: Path) -> None:
    for name in ("a b?mode=rwc&x#y%20", "ü", "\udcff"):
        folder = tmp_path / f"in {name}"
        folder.mkdir()
        async with opened(archives.sqlite(folder, {"k": name.encode("utf-8", "surrogateescape")})) as store:
            assert await store.get(Key("k")) == os.fsencode(name)


def test_a_python_without_sqlite_says_so(tmp_path: Path) -> None:
    path = made(tmp_path / "x", TABLE)
    program = (
        "import sys, trio\nsys.modules['sqlite3'] = None\nfrom zarrfs.stores.opening import open_store\n"
        "from zarrfs.errors import StoreUnsupported\n"
        "try:\n    trio.run(open_store, sys.argv[1])\nexcept StoreUnsupported as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    assert "this Python lacks SQLite" in done.stdout


@trio_test
async def test_a_dbm_of_python_is_refused_by_name(tmp_path: Path) -> None:
    """What zarr 2.18 writes as ``DBMStore`` with Python 3.13, whose ``dbm`` is an SQLite database by default."""
    path = tmp_path / "store.dbm"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE Dict (key BLOB UNIQUE NOT NULL, value BLOB NOT NULL)")
    with pytest.raises(StoreUnsupported, match=r"a DBM of the kind dbm\.sqlite3"):
        await open_store(str(path))
