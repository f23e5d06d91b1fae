"""Logs, caches, exit reports and links of zarrfs itself, in folders where another user has created links."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.support.attackers import EVE, act, exchanging, home, needs_root, repeating, snapshot
from tests.support.claiming_mount import claiming_mount
from tests.support.mounting import ROOT, mounted, mountpoint, run, zarrfs
from zarrfs.command import install
from zarrfs.errors import UsageError, ZarrfsError
from zarrfs.lifecycle import exit_report, runtime_folder
from zarrfs.options import log_file
from zarrfs.options.cache_directory import cache_directory
from zarrfs.options.config import MountConfig
from zarrfs.stores import own_files
from zarrfs.vfs.spill_buffer import SpillBuffer

pytestmark = needs_root


@pytest.fixture
def eve() -> Iterator[Path]:
    """Eve's home. Beside it is ``root``, a folder of root's with a file that only root may read."""
    with home() as place:
        victim = place.parent / "root/victim"
        victim.write_bytes(b"of root\n")
        victim.chmod(0o600)
        yield place


def open_log(path: Path) -> None:
    with log_file.open_to_append(str(path)) as file:
        file.write(b"a line\n")


# --- logs

TRICKS = {
    "link": 'ln -s "$1/root/victim" "$2/z.log"',
    "dangling link": 'ln -s "$1/root/new" "$2/z.log"',
    "link of a folder": 'ln -s "$1/root" "$2/logs"',
    "link on the way": 'mkdir "$2/a" && ln -s "$1/root" "$2/a/b"',
    "link to a link": 'ln -s "$2/other" "$2/z.log" && ln -s "$1/root/victim" "$2/other"',
    "file of hers": 'touch "$2/z.log" && chmod 666 "$2/z.log"',
    "pipe": 'mkfifo "$2/z.log"',
}
PLACES = {"link of a folder": "logs/victim", "link on the way": "a/b/c/new.log"}


@pytest.mark.parametrize("trick", TRICKS)
def test_a_log_file_that_is_a_link_of_somebody_else(trick: str, eve: Path) -> None:
    act(EVE, TRICKS[trick], eve.parent, eve)
    before = snapshot(eve.parent)
    path = eve / PLACES.get(trick, "z.log")
    with pytest.raises(UsageError, match="choose another with --log-file"):
        open_log(path)
    with pytest.raises(UsageError, match="choose another with --log-file"):
        log_file.configure("info", str(path))
    assert snapshot(eve.parent) == before


def test_a_log_file_that_is_a_hard_link(eve: Path) -> None:
    (eve / "z.log").hardlink_to(eve.parent / "root/victim")
    before = snapshot(eve.parent)
    with pytest.raises(UsageError, match="not a regular file of this user"):
        open_log(eve / "z.log")
    assert snapshot(eve.parent) == before


def test_a_new_log_file_in_the_folder_of_somebody_else(eve: Path) -> None:
    open_log(eve / "new/z.log")
    open_log(eve / "new/z.log")
    assert (eve / "new/z.log").read_bytes() == b"a line\n" * 2


def test_links_of_root_lead_to_the_log(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "logs").symlink_to("to")
    (tmp_path / "to/z.log").symlink_to(tmp_path / "to/../to/real.log")
    open_log(tmp_path / "logs/z.log")
    assert (tmp_path / "to/real.log").read_bytes() == b"a line\n"
    (tmp_path / "to/loop").symlink_to("loop")
    with pytest.raises(UsageError, match="symbolic links"):
        open_log(tmp_path / "to/loop")
    open_log(Path("/dev/null"))
    program = "from zarrfs.options import log_file as logs\nlogs.configure('info', '/dev/stdout')\nlogs.log.info('hello')"
    assert b"hello" in run(sys.executable, "-P", "-c", program).stdout


def test_a_log_that_is_exchanged_for_a_link_is_not_written_through_it(eve: Path, capsys: pytest.CaptureFixture[str]) -> None:
    act(EVE, 'mkdir "$1/logs"', eve)
    path = eve / "logs/z.log"
    with closing(log_file._Handler(str(path))) as handler:
        record = logging.LogRecord("zarrfs", logging.INFO, "", 0, "%s", ("a line",), None)
        handler.emit(record)
        act(EVE, 'mv "$1/logs/z.log" "$1/logs/z.1" && ln -s "$1/../root/victim" "$1/logs/z.log"', eve)
        before = snapshot(eve.parent / "root")
        handler.emit(record)
        handler.emit(record)
        assert snapshot(eve.parent / "root") == before
        assert (eve / "logs/z.1").read_text() == "a line\n"
        assert capsys.readouterr().err == "a line\n" * 2
        # A file removed without replacement is created again.
        act(EVE, 'rm "$1/logs/z.log"', eve)
        handler.emit(record)
        assert path.read_text() == "a line\n"


def test_a_log_that_is_exchanged_while_it_is_opened(eve: Path) -> None:
    act(EVE, 'mkdir "$1/logs" && ln -s "$1/../root" "$1/link"', eve)
    before = snapshot(eve.parent / "root")
    written = refused = 0
    with exchanging(EVE, eve / "logs", eve / "link"):
        for number in range(2000):
            try:
                os.close(own_files.open_file(str(eve / f"logs/{number}"), os.O_WRONLY | os.O_CREAT))
                written += 1
            except OSError:
                refused += 1
    assert written and refused
    assert snapshot(eve.parent / "root") == before


def test_a_folder_for_a_log_that_is_exchanged_before_it_gets_its_mode(eve: Path) -> None:
    act(EVE, 'mkdir "$1/logs" && ln -s "$1/../root" "$1/link"', eve)
    for number in range(1500):
        (eve.parent / f"root/{number}").mkdir(mode=0o755)
    before = snapshot(eve.parent / "root")
    written = 0
    with exchanging(EVE, eve / "logs", eve / "link"):
        for number in range(1500):
            with suppress(UsageError):
                open_log(eve / f"logs/{number}/z.log")
                written += 1
    assert written
    assert snapshot(eve.parent / "root") == before


def mount_helper(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the mount helper as mount(8) does; return its output and exit code."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "zarrfs.command.mount_helper", "mount.zarrfs", *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.fuse
def test_a_mount_with_such_a_log_is_refused(eve: Path) -> None:
    act(EVE, 'mkdir "$1/s" && ln -s "$1/../root/victim" "$1/z.log"', eve)
    before = snapshot(eve.parent)
    with mountpoint() as path:
        for where in ["--log-file", str(eve / "z.log")], ["-f", "--log-file", str(eve / "z.log")]:
            done = zarrfs("mount", str(eve / "s"), str(path), *where)
            assert done.returncode == 2 and "choose another with --log-file" in done.stderr
        done = mount_helper(eve / "s", path, "-o", f"log_file={eve}/z.log")
        assert done.returncode == 1 and "choose another with --log-file" in done.stderr
    assert snapshot(eve.parent) == before


# --- cache folder and spill files


def test_a_cache_folder_behind_a_link_of_somebody_else(eve: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    act(EVE, 'ln -s "$1/root" "$2/cache" && ln -s "$1/root" "$2/.cache"', eve.parent, eve)
    before = snapshot(eve.parent)
    with pytest.raises(UsageError, match="belongs to another user: choose another with --cache-dir"):
        cache_directory(MountConfig(store="memory:", cache_dir=str(eve / "cache/new")))
    # The environment is Eve's, as after sudo -E.
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(eve))
    assert cache_directory(MountConfig(store="memory:")) is None
    assert snapshot(eve.parent) == before


def test_folders_for_a_cache_are_for_their_user_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the umask is: who may write to a folder on the way can exchange all that is below it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    before = os.umask(0)
    try:
        folders = [
            cache_directory(MountConfig(store="memory:")),
            cache_directory(MountConfig(store="memory:", cache_dir=str(tmp_path / "a/b"))),
        ]
    finally:
        os.umask(before)
    assert folders == [str(tmp_path / ".cache/zarrfs"), str(tmp_path / "a/b")]
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")} == {0o700}


def test_spill_files_have_no_name_that_could_be_a_link(eve: Path) -> None:
    """Even in a folder of another user, who removes, links and renames every entry."""
    act(EVE, 'mkdir "$1/cache"', eve)
    assert cache_directory(MountConfig(store="memory:", cache_dir=str(eve / "cache"))) == str(eve / "cache")
    victim = eve.parent / "root/victim"

    def replace() -> str | None:
        for name in os.listdir(eve / "cache"):
            (eve / "cache" / name).unlink()
            (eve / "cache" / name).symlink_to(victim)
            return name
        return None

    before = snapshot(eve.parent / "root")
    with repeating(EVE, replace):
        for _ in range(100):
            staged = SpillBuffer(b"secret" * 1000, limit=10, directory=str(eve / "cache"))
            assert bytes(staged.read(0, 6)) == b"secret"
            staged.close()
    assert snapshot(eve.parent / "root") == before


@pytest.mark.fuse
def test_a_mount_that_spills_into_the_folder_of_somebody_else(eve: Path) -> None:
    act(EVE, 'mkdir "$1/s" "$1/cache" && ln -s "$1/../root/victim" "$1/cache/zarrfs"', eve)
    before = snapshot(eve.parent / "root")
    with mounted(eve / "s", "-o", f"memory_limit=4M,cache_dir={eve}/cache") as mount:
        (mount.path / "raw/k").write_bytes(bytes(20_000_000))
    assert (eve / "s/k").stat().st_size == 20_000_000
    assert snapshot(eve.parent / "root") == before and os.listdir(eve / "cache") == ["zarrfs"]


# --- without a finding so far


def test_last_words_in_a_folder_that_is_a_link_or_somebody_elses(eve: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    act(EVE, 'mkdir "$1/run" && ln -s "$1/../root" "$1/run/zarrfs" && ln -s "$1/../root" "$1/link"', eve)
    before = snapshot(eve.parent)
    for session in "run", "link":
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(eve / session))
        assert next(runtime_folder.for_this_process()) == Path("/run/zarrfs")
    own = eve.parent / "root/run"
    own.mkdir(mode=0o700)
    (own / "zarrfs").symlink_to(eve)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own))
    assert next(runtime_folder.for_this_process()) == Path("/run/zarrfs")
    (own / "zarrfs").unlink()
    own.rmdir()
    assert {path for path in snapshot(eve.parent) if path not in before} == set()


@pytest.mark.fuse
def test_last_words_are_not_in_a_folder_that_another_users_mount_claims_to_be_roots(
    eve: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act(EVE, 'mkdir "$1/run"', eve)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(eve / "run"))
    with claiming_mount(eve / "run", EVE, {"zarrfs/file": b""}):
        assert next(runtime_folder.for_this_process()) == Path("/run/zarrfs")
        assert eve / "run/zarrfs" not in runtime_folder.existing()


def test_last_words_are_written_and_read_through_no_link(eve: Path) -> None:
    victim = eve.parent / "root/victim"
    words = eve / "1.last-words.json"
    before = snapshot(eve.parent / "root")
    for name in words, words.with_suffix(".new"):
        act(EVE, 'ln -sf "$1" "$2"', victim, name)
    assert exit_report.collect(str(words)) is exit_report.left(str(words)) is None
    exit_report.write(words, exit_report.SUDDEN_DEATH)
    assert not words.is_symlink() and snapshot(eve.parent / "root") == before


def test_installing_replaces_links_and_writes_through_none(eve: Path) -> None:
    """Only root may write to /sbin; should that be otherwise, nothing is written through an existing link."""
    sbin, commands = eve / "sbin", eve.parent / "root"
    act(EVE, 'mkdir "$1"', sbin)
    # A link similar to one of ours, and one under the temporary name of its successor.
    act(EVE, 'ln -s "$1" "$2"', eve.parent / "root/mount.zarrfs", sbin / "mount.zarrfs")
    act(EVE, 'ln -s "$1" "$2"', eve.parent / "root/victim", sbin / f".mount.zarrfs.{os.getpid()}")
    before = snapshot(eve.parent / "root")
    with pytest.raises(ZarrfsError, match="exists"):
        install.do(install.to_install(eve / "commands", sbin), "again")
    (sbin / f".mount.zarrfs.{os.getpid()}").unlink()
    install.do(install.to_install(commands / "elsewhere", sbin), "again")
    assert {os.readlink(sbin / name) for name in install.LINKS} == {
        f"{commands}/elsewhere/mount.zarrfs",
        f"{commands}/elsewhere/umount.zarrfs",
    }
    assert snapshot(eve.parent / "root") == before
    (sbin / "mount.zarrfs").unlink()
    act(EVE, 'ln -s "$1" "$2"', eve.parent / "root/victim", sbin / "mount.zarrfs")
    with pytest.raises(ZarrfsError, match=": link to"):
        install.to_install(commands, sbin)


@pytest.mark.fuse
def test_the_mount_helper_mounts_on_no_link(eve: Path) -> None:
    act(EVE, 'mkdir "$1/s" && ln -s "$1/../root" "$1/m"', eve)
    before = snapshot(eve.parent)
    done = mount_helper(eve / "s", eve / "m")
    assert done.returncode == 32 and "is a symlink" in done.stderr
    assert snapshot(eve.parent) == before
