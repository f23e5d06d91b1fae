"""Programs that keep data of their own, on a mounted raw/: git, sqlite3, fio."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounting import Mounted, mounted, run
from tests.support.programs import demand

pytestmark = pytest.mark.fuse


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    with mounted(tmp_path_factory.mktemp("store")) as mount:
        yield mount
        assert "Traceback" not in mount.log()
        assert not mount.errors()


@pytest.fixture
def folder(mount: Mounted, request: pytest.FixtureRequest) -> Path:
    path = mount.path / "raw" / request.node.name.replace("[", "-").replace("]", "")
    path.mkdir()
    return path


@pytest.fixture
def behind(mount: Mounted, folder: Path) -> Path:
    """The same folder in the store."""
    return mount.store / folder.name


def test_git(folder: Path, behind: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demand("git")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    git = ("git", "-C", folder, "-c", "user.name=x", "-c", "user.email=x@localhost")
    run(*git, "init", "-q", "-b", "main")
    for round_ in range(3):
        for number in range(5):
            (folder / f"file{number}").write_text(f"{round_ * number}\n" * 100)
        run(*git, "add", ".")
        run(*git, "commit", "-q", "-m", f"round {round_}")
    run(*git, "gc", "-q")
    run(*git, "fsck", "--strict", "--full")
    assert run(*git, "status", "--porcelain").stdout == b""
    run("git", "-c", f"safe.directory={behind}/.git", "clone", "-q", behind, tmp_path / "clone")
    assert len(run("git", "-C", tmp_path / "clone", "log", "--oneline").stdout.splitlines()) == 3
    run("diff", "-r", "-x", ".git", folder, tmp_path / "clone")


def test_sqlite3_with_a_rollback_journal(folder: Path, behind: Path) -> None:
    demand("sqlite3")
    database = folder / "t.db"
    script = "pragma journal_mode=delete; create table t(a, b);"
    script += "".join(f"begin; insert into t values ({n}, hex(randomblob(500))); commit;" for n in range(20))
    script += "begin; delete from t; rollback; delete from t where a < 5; pragma integrity_check;"
    assert run("sqlite3", database, script).stdout.split() == [b"delete", b"ok"]
    assert run("sqlite3", behind / "t.db", "select count(*), min(a) from t; pragma integrity_check").stdout.split() == [
        b"15|5",
        b"ok",
    ]
    assert os.listdir(behind) == ["t.db"]


def test_sqlite3_takes_back_what_a_killed_writer_began(folder: Path, behind: Path) -> None:
    demand("sqlite3")
    database = folder / "t.db"
    run("sqlite3", database, "create table t(a); insert into t values ('old');")
    # Almost without a cache, the transaction is in the file before its commit; the journal undoes it.
    script = "pragma cache_size=1; begin; update t set a = 'new'; insert into t select hex(randomblob(9000)) from t;"
    script += "insert into t select hex(randomblob(9000)) from t, t; select 'begun';\n"
    with subprocess.Popen(["sqlite3", str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(script.encode())
        writer.stdin.flush()
        assert writer.stdout.readline() == b"begun\n"
        assert "t.db-journal" in os.listdir(folder)
        busy = run("sqlite3", database, "insert into t values ('other')", check=False)
        assert b"locked" in busy.stderr
        writer.kill()
    assert run("sqlite3", database, "select a from t; pragma integrity_check").stdout.split() == [b"old", b"ok"]
    assert os.listdir(behind) == ["t.db"]


@pytest.mark.parametrize("engine", ["psync", "mmap"])
@pytest.mark.parametrize("pattern", ["randwrite", "write"])
def test_fio_verifies(engine: str, pattern: str, folder: Path, behind: Path, tmp_path: Path) -> None:
    demand("fio")
    job = ("fio", "--name=v", f"--filename={folder}/f", "--size=2m", "--bs=4k", f"--output={tmp_path}/fio", "--verify_state_save=0")
    check = ("--verify=crc32c", "--verify_fatal=1", "--do_verify=1")
    run(*job, *check, f"--rw={pattern}", f"--ioengine={engine}", "--fsync=64")
    assert (behind / "f").read_bytes() == (folder / "f").read_bytes()
    for other in ("psync", "mmap"):
        run(*job, *check, "--rw=read", f"--ioengine={other}")
