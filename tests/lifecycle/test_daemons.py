"""The process behind a mount: claims of a mount are believed as far as the kernel confirms them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zarrfs.lifecycle import as_owner, daemons, exit_report
from zarrfs.lifecycle.daemons import About, Daemon, ForeignDaemon
from zarrfs.lifecycle.exit_report import Left, Outcome
from zarrfs.lifecycle.mount_table import FSTYPE, Mount, Owner


@pytest.fixture
def mounted(mountpoint: Path) -> Mount:
    """A folder that looks like a mount of this user."""
    (mountpoint / ".zarrfs").mkdir()
    return Mount(str(mountpoint), FSTYPE, "0:987654", Owner(os.geteuid(), os.getegid()))


def tell(mounted: Mount, **said: Any) -> None:
    Path(mounted.mountpoint, ".zarrfs/config.json").write_text(json.dumps(said))


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    path = exit_report.begin()
    yield path
    exit_report.end(path)


def test_a_mount_that_tells_of_no_process_has_none_behind_it(mounted: Mount) -> None:
    assert daemons.find(mounted) is None
    for said in ({}, {"pid": "1"}, {"pid": 1}, {"pid": 2**22}, {"pid": 4_000_000}):
        tell(mounted, **said)
        assert daemons.find(mounted) is None


def test_who_asks_is_not_behind_the_mount_whatever_that_tells(mounted: Mount) -> None:
    before = len(os.listdir("/proc/self/fd"))
    tell(mounted, pid=os.getpid())
    assert daemons.find(mounted) is None
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_mount_that_does_not_answer_is_not_waited_for(mounted: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(f"{mounted.mountpoint}/.zarrfs/config.json")
    monkeypatch.setattr(daemons, "PATIENCE", 0.02)
    with pytest.raises(TimeoutError, match="head: no answer within"):
        daemons.find(mounted)


def test_a_process_that_vanishes_while_it_is_looked_at_is_none(mounted: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> bool:
        raise ProcessLookupError

    before = len(os.listdir("/proc/self/fd"))
    tell(mounted, pid=os.getpid())
    monkeypatch.setattr(daemons, "_serves", gone)
    assert daemons.find(mounted) is None
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_process_without_the_connection_counts_by_its_command_line_where_nothing_else_is_known(
    mounted: Mount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for root in a container: descriptors of other processes cannot be read."""

    def refused(place: str) -> Any:
        raise PermissionError(13, "Permission denied", place)

    named = [sys.executable, "-c", "input()", mounted.mountpoint]
    other = [sys.executable, "-c", "input()", "/somewhere/else"]
    with subprocess.Popen(named, stdin=subprocess.PIPE) as ours, subprocess.Popen(other, stdin=subprocess.PIPE) as theirs:
        for process, is_behind in ((ours, True), (theirs, False)):
            tell(mounted, pid=process.pid, timeout=3.5)
            # The process has no connection at all.
            assert daemons.find(mounted) is None
            with monkeypatch.context() as patched:
                patched.setattr(daemons.os, "scandir", refused)
                daemon = daemons.find(mounted)
            assert (daemon is not None) is is_behind
            if daemon is not None:
                with daemon:
                    assert (daemon.pid, daemon.timeout, daemon.left(), daemon.outcome()) == (ours.pid, 3.5, None, None)
                    assert not daemon.ended_within(0)
                    process.communicate()
                    assert daemon.ended_within(60)


def test_a_process_that_is_no_more_is_no_zombie() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert not daemons._runs_no_more(process.pid)


def test_the_last_words_of_a_daemon_are_read_in_its_owners_name_and_removed(mounted: Mount, words: Path) -> None:
    daemon = ForeignDaemon(About(os.getpid(), str(words), 0), os.pidfd_open(os.getpid()), mounted)
    with daemon:
        assert daemon.left() is None
        exit_report.update(words, Left(3, 4096, ("raw/a",)))
        assert daemon.left() == Left(3, 4096)
        exit_report.write(words, Outcome(7, "raw/a: no space"))
        assert daemon.outcome() == Outcome(7, "raw/a: no space")
        assert not words.exists()
        assert daemon.outcome() is daemon.left() is None


def test_a_folder_of_one_process_goes_with_its_words(mounted: Mount, tmp_path: Path) -> None:
    folder = tmp_path / f"zarrfs-{os.geteuid()}-abcdef"
    folder.mkdir()
    words = folder / "1234.last-words.json"
    words.write_text(json.dumps({"exit_code": 0, "message": ""}))
    with ForeignDaemon(About(os.getpid(), str(words), 0), os.pidfd_open(os.getpid()), mounted) as daemon:
        assert daemon.outcome() == Outcome(0)
    assert not folder.exists()


@pytest.mark.parametrize("text", ["", "[]", '{"exit_code": "x"}'])
def test_words_that_are_none_are_left_alone(mounted: Mount, tmp_path: Path, text: str) -> None:
    words = tmp_path / "other.json"
    words.write_text(text)
    with ForeignDaemon(About(os.getpid(), str(words), 0), os.pidfd_open(os.getpid()), mounted) as daemon:
        assert daemon.outcome() is None
    assert words.read_text() == text


def test_a_daemon_that_leaves_no_words_has_none(mounted: Mount) -> None:
    for kind, more in ((Daemon, ()), (ForeignDaemon, (mounted,))):
        with kind(About(os.getpid(), None, 0), os.pidfd_open(os.getpid()), *more) as daemon:
            assert daemon.left() is daemon.outcome() is None
            assert not daemon.ended_within(0)


def test_a_daemon_whose_words_are_missing_before_its_end_has_none(mounted: Mount, words: Path) -> None:
    """Else the lack of words at the end would mean that everything is stored."""
    for kind, more in ((Daemon, ()), (ForeignDaemon, (mounted,))):
        for path, read_only, tells in ((words, False, True), (words.with_name("gone"), False, False), (words, True, True)):
            with kind(About(os.getpid(), str(path), 0, read_only), os.pidfd_open(os.getpid()), *more) as daemon:
                assert daemon.reports is tells


def test_a_program_that_is_not_there_or_cannot_be_asked_is_an_error(mounted: Mount) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        as_owner.run(mounted, "no-such-program", patience=1)
    with pytest.raises(OSError, match=r"head: .*null"):
        as_owner.read(mounted, "a\0b", patience=1)
