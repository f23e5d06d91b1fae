"""Root reads a store of another user: nothing outside of it is written, created or given away, whatever is beside it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import pytest
import trio

from tests.support import archives
from tests.support.attackers import EVE, act, home, needs_root, repeating, snapshot
from tests.support.mounting import mounted, zarrfs
from zarrfs.errors import StoreAccessDenied, StoreNotFound
from zarrfs.keys import ByteRange
from zarrfs.options.config import MountConfig
from zarrfs.reports.check import check
from zarrfs.reports.info import describe
from zarrfs.stores.lmdb import LmdbArchive
from zarrfs.stores.opening import open_store
from zarrfs.stores.sqlite.archive import SqliteArchive

pytestmark = needs_root

VALUES = {
    ".zgroup": b'{"zarr_format": 2}',
    "a/.zarray": b'{"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i2", "fill_value": 0, "order": "C", '
    b'"compressor": null, "filters": null}',
    "a/0": bytes(4),
    "a/1": bytes(4),
}


def a_folder(folder: Path, values: dict[str, bytes]) -> Path:
    for key, value in values.items():
        path = folder / "store.zarr" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)
    return folder / "store.zarr"


def in_wal_mode(folder: Path, values: dict[str, bytes]) -> Path:
    path = archives.sqlite(folder, values)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    return path


KINDS: dict[str, Callable[[Path, dict[str, bytes]], Path]] = {
    "folder": a_folder,
    **{name: archives.MAKERS[name] for name in ("zip", "sqlite", "lmdb", "lmdb-file", "dbm")},  # type: ignore[dict-item]
    "sqlite-wal": in_wal_mode,
}
SUFFIXES = ("-journal", "-wal", "-shm", "-lock", ".lock", ".dat", ".dir", ".bak", ".pag", ".db", ".tmp", "~")
LOCKS = ("lock.mdb", ".lock", "LOCK", ".zarrfs")


@pytest.fixture
def eve() -> Iterator[Path]:
    """Eve's home. Beside it is ``root``, a folder of root's with a file that only root may read."""
    with home() as place:
        victim = place.parent / "root/victim"
        victim.write_bytes(b"of root\n" * 100)
        victim.chmod(0o600)
        yield place


def link(target: Path, at: Path, kind: str) -> None:
    """Create an attacker's link at ``at``. She could create hard links herself where fs.protected_hardlinks is 0."""
    if not os.path.lexists(at):
        match kind:
            case "symbolic":
                at.symlink_to(target)
            case "dangling":
                at.symlink_to(target.with_name("created-by-root"))
            case "hard":
                at.hardlink_to(target)
            case "pipe":
                os.mkfifo(at)
        os.chown(at, EVE, EVE, follow_symlinks=False) if kind != "hard" else None


def prepared(eve: Path, kind: str, how: str) -> Path:
    """Return a store of Eve's, with links under all names that a program might open beside it."""
    store = KINDS[kind](eve, VALUES)
    victim = eve.parent / "root/victim"
    for suffix in SUFFIXES:
        link(victim, store.with_name(store.name + suffix), how)
    if store.is_dir():
        if (store / "lock.mdb").exists():
            (store / "lock.mdb").unlink()
        for name in LOCKS:
            link(victim, store / name, how)
    elif kind == "lmdb-file":
        store.with_name(store.name + "-lock").unlink()
        link(victim, store.with_name(store.name + "-lock"), how)
    for path in (eve, *eve.rglob("*")):
        if path.lstat().st_nlink == 1 or path.is_dir():
            os.chown(path, EVE, EVE, follow_symlinks=False)
    return store


@pytest.mark.logs("neither listed nor followed")
@pytest.mark.parametrize("how", ["symbolic", "dangling", "hard", "pipe"])
@pytest.mark.parametrize("kind", KINDS)
def test_info_and_check_change_nothing(kind: str, how: str, eve: Path) -> None:
    store = prepared(eve, kind, how)
    config = MountConfig(store=str(store))
    before = snapshot(eve.parent)
    # Refused where the library would follow the link in any case.
    with pytest.raises(StoreAccessDenied, match="is a link") if kind.startswith("sqlite") else nullcontext():
        trio.run(describe, config, "/")
    with pytest.raises(StoreAccessDenied, match="is a link") if kind.startswith("sqlite") else nullcontext():
        assert trio.run(check, config, "/").bad.count == 0
    assert snapshot(eve.parent) == before


@pytest.mark.parametrize(("kind", "lock"), [("lmdb", "store.lmdb/lock.mdb"), ("lmdb-file", "single.lmdb-lock")])
def test_a_link_as_the_lock_of_an_lmdb(kind: str, lock: str, eve: Path) -> None:
    store = KINDS[kind](eve, VALUES)
    victim = eve.parent / "root/victim"
    for path in (eve, *eve.rglob("*")):
        os.chown(path, EVE, EVE)
    act(EVE, 'ln -sf "$1" "$2"', victim, eve / lock)
    before = snapshot(eve.parent)
    for command in "info", "check":
        done = zarrfs(command, str(store))
        assert done.returncode == 0, done.stderr
    assert snapshot(eve.parent) == before


@pytest.mark.fuse
@pytest.mark.parametrize("kind", KINDS)
def test_a_mount_for_reading_changes_nothing(kind: str, eve: Path) -> None:
    store = prepared(eve, kind, "symbolic")
    if kind.startswith("sqlite"):
        for suffix in "-journal", "-wal", "-shm":
            store.with_name(store.name + suffix).unlink()
    before = snapshot(eve.parent)
    with mounted(store, "-o", f"ro,allow_other,uid={EVE}") as mount:
        assert (mount.path / "npy/a.npy").read_bytes().endswith(bytes(8))
        for path in mount.path.rglob("*"):
            if path.is_file():
                path.read_bytes()
    assert snapshot(eve.parent) == before


def test_what_lies_in_folders_of_root_is_opened_with_its_locks(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    environment = LmdbArchive(str(archives.lmdb(tmp_path / "in", VALUES)))
    assert environment._locked and environment.find(b"a/0")
    environment.close()
    environment = LmdbArchive(str(archives.lmdb_file(tmp_path / "in", VALUES)))
    assert environment._locked and environment.find(b"a/0")
    environment.close()
    with closing(SqliteArchive(str(in_wal_mode(tmp_path / "in", VALUES)))) as database:
        assert database._locked and database.find(b"a/0")


@pytest.mark.parametrize("what", ["folder", "writable folder", "lock", "data", "hard link", "no lock"])
def test_an_lmdb_is_locked_by_plain_files_of_ours_alone(what: str, tmp_path: Path) -> None:
    path = archives.lmdb(tmp_path, VALUES)
    match what:
        case "folder":
            os.chown(path, EVE, EVE)
        case "writable folder":
            path.chmod(0o775)
        case "lock":
            os.chown(path / "lock.mdb", EVE, EVE)
        case "data":
            os.chown(path / "data.mdb", EVE, EVE)
        case "hard link":
            (path / "other").hardlink_to(path / "lock.mdb")
        case "no lock":
            (path / "lock.mdb").unlink()
    before = snapshot(tmp_path)
    environment = LmdbArchive(str(path))
    assert not environment._locked and environment.find(b"a/0")
    environment.close()
    assert snapshot(tmp_path) == before


def test_files_that_are_exchanged_while_they_are_opened(eve: Path) -> None:
    """The attacker creates the link after all checks."""
    victim = eve.parent / "root/victim"
    store = archives.lmdb(eve, VALUES)
    database = in_wal_mode(eve, VALUES)
    for path in (eve, *eve.rglob("*")):
        os.chown(path, EVE, EVE)
    act(EVE, 'ln -s "$1" "$2/lock.link" && cp "$2/lock.mdb" "$2/lock.file"', victim, store)
    (eve / "shm.link").hardlink_to(victim)
    before = {path: (*found[:7], found[8]) for path, found in snapshot(victim.parent).items()}

    def swap() -> None:
        for name in "lock.file", "lock.link":
            (store / name).rename(store / "lock.mdb.new")
            (store / "lock.mdb").rename(store / name) if (store / "lock.mdb").exists() else None
            (store / "lock.mdb.new").rename(store / "lock.mdb")
        for suffix in "-shm", "-wal":
            (eve / "shm.link").rename(eve / f"store.sqldb{suffix}")
            (eve / f"store.sqldb{suffix}").rename(eve / "shm.link")

    with repeating(EVE, swap):
        for _ in range(300):
            for opened in (lambda: LmdbArchive(str(store)), lambda: SqliteArchive(str(database))):
                try:
                    opened().close()
                except StoreAccessDenied as error:
                    refused = str(error)
                    assert "not opened" in refused or "changes in" in refused
    # Renaming one of its names changes the file's ctime; that change is Eve's.
    assert {path: (*found[:7], found[8]) for path, found in snapshot(victim.parent).items()} == before


def test_a_database_that_others_may_exchange_is_read_and_its_changes_are_seen(eve: Path) -> None:
    path = archives.sqlite(eve, {"k": b"old"})
    os.chown(path, EVE, EVE)
    with closing(SqliteArchive(str(path))) as database:
        assert not database._locked
        for value in (b"new", b"newer" * 3000, b"x"):
            with closing(sqlite3.connect(path)) as writer, writer:
                writer.execute("UPDATE zarr SET v = ?", (value,))
            found = database.read(b"k", [ByteRange()])
            assert found is not None and found[1] == [value]
        # The database is now in WAL mode, and a file beside it holds its changes.
        with closing(sqlite3.connect(path, isolation_level=None)) as writer:
            writer.execute("PRAGMA journal_mode = WAL")
            writer.execute("UPDATE zarr SET v = 'in the log'")
            with pytest.raises(Exception, match=r"changes in .*-wal"):
                database.read(b"k", [ByteRange()])


def test_a_database_with_a_writer_is_waited_for(eve: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zarrfs.stores.sqlite import archive as module

    monkeypatch.setattr(module, "_PATIENCE_S", 0.1)
    path = archives.sqlite(eve, {f"k{number}": bytes(5000) for number in range(400)})
    with closing(SqliteArchive(str(path))) as database, closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 5")
        writer.execute("BEGIN")
        writer.execute("UPDATE zarr SET v = zeroblob(6000)")
        with pytest.raises(Exception, match="locked"):
            database.find(b"k1")
        writer.execute("ROLLBACK")
        found = database.find(b"k1")
        assert found is not None and found.size == 5000


def test_a_device_under_the_name_of_an_archive_is_not_opened(eve: Path) -> None:
    """Opening a device has effects: this pipe stands for one, and reports that it was opened."""
    device = eve / "x.zip"
    os.mkfifo(device)
    # A pipe can be opened for writing only after it was opened for reading.
    watch = subprocess.Popen(
        [sys.executable, "-c", "import os, sys; os.open(sys.argv[1], os.O_WRONLY); print('opened')", str(device)],
        stdout=subprocess.PIPE,
    )
    try:
        for name in "x.zip", "x.zip|zip:", "zip:x.zip", "sqlite:x.zip", "lmdb:x.zip", "dbm:x.zip":
            scheme, _, rest = name.partition(":")
            place = f"{eve}/{name}" if name.startswith("x") else f"{scheme}:{eve}/{rest}"
            with pytest.raises(StoreNotFound):
                trio.run(open_store, place)
        assert watch.poll() is None
    finally:
        watch.kill()
        watch.wait()
        assert watch.stdout is not None
        watch.stdout.close()
    assert stat.S_ISFIFO(device.stat().st_mode)
    with pytest.raises(OSError, match=os.strerror(errno.ENXIO)):
        os.open(device, os.O_WRONLY | os.O_NONBLOCK)


@pytest.mark.parametrize("kind", ["zip", "sqlite"])
def test_a_lease_on_an_archive_does_not_keep_root(kind: str, eve: Path) -> None:
    """Opening a file with a lease on it waits for the lease holder, up to 45 s each time."""
    store = KINDS[kind](eve, VALUES)
    os.chown(store, EVE, EVE)

    def hold() -> None:
        file = os.open(store, os.O_RDWR)
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        while True:
            signal.pause()

    with repeating(EVE, hold):
        until = time.monotonic() + 10
        while str(store.stat().st_ino) not in Path("/proc/locks").read_text() and time.monotonic() < until:
            os.sched_yield()
        done = zarrfs("info", str(store))
    assert done.returncode == 1 and "held by a lease" in done.stderr, done
