"""The log file: its path, the permitted kinds of files, and lines that cannot be written to it."""

from __future__ import annotations

import logging
import os
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.users import run_as_users
from zarrfs.errors import UsageError
from zarrfs.options import log_file
from zarrfs.options.log_file import configure, default_file, open_to_append, open_to_read, reopen


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """The logger of zarrfs, as at the start of a program; its handlers are closed afterwards."""
    found = logging.getLogger("zarrfs")
    before, last = found.handlers[:], logging.lastResort
    formatter = last.formatter if last is not None else None
    yield found
    for handler in found.handlers:
        if handler not in before:
            handler.close()
    if last is not None:
        last.setFormatter(formatter)


def test_lines_go_to_the_file_that_has_the_name_after_it_was_moved_away(logger: logging.Logger, tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    configure("info", str(path))
    logger.info("before")
    path.rename(tmp_path / "x.log.1")
    reopen()
    logger.info("after")
    assert "before" in (tmp_path / "x.log.1").read_text() and "after" not in (tmp_path / "x.log.1").read_text()
    assert "after" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) & 0o007 == 0


def log_that_cannot_be_created_again(tmp_path: Path) -> Path:
    path = tmp_path / "logs/x.log"
    path.parent.mkdir()
    configure("info", str(path))
    path.parent.rename(tmp_path / "moved")
    path.parent.touch()
    return path


@pytest.mark.logs("x.log: reopen failed")
def test_that_a_file_cannot_be_opened_again_is_told_on_stderr(
    logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = log_that_cannot_be_created_again(tmp_path)
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    reopen()
    assert f"log file {path}: reopen failed: " in capfd.readouterr().err


def test_a_line_that_the_file_cannot_take_goes_to_stderr(
    logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """If a log was moved away and cannot be created again, log calls do not fail."""
    log_that_cannot_be_created_again(tmp_path)
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    logger.info("nowhere to go")
    assert "nowhere to go" in capfd.readouterr().err


def test_a_line_for_which_there_is_no_space_goes_to_stderr(
    logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    configure("info", "/dev/full")
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)
    logger.info("read %s", "\x1b[31m")
    assert capfd.readouterr().err.endswith("read \\x1b[31m\n")
    # Its buffer still has the line, which can be written at the end.
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), logger.handlers[-1].stream.fileno())  # type: ignore[attr-defined]


def test_what_is_no_file_of_this_users_alone_is_refused(tmp_path: Path, logger: logging.Logger) -> None:
    (tmp_path / "one").touch()
    (tmp_path / "one").chmod(0o600)
    os.link(tmp_path / "one", tmp_path / "two")
    with pytest.raises(UsageError, match="two: has more than one link: choose another with --log-file"):
        configure("info", str(tmp_path / "two"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"folder: Is a directory"):
        open_to_append(str(tmp_path / "folder"))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        with pytest.raises(UsageError, match=r"log file .*socket: "):
            configure("info", str(tmp_path / "socket"))
    assert not [handler for handler in logger.handlers if isinstance(handler, log_file._Handler)]


def test_a_file_of_another_user_is_not_roots_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.log"
    path.touch()
    if os.geteuid() == 0:
        os.chown(path, 4321, -1)
    monkeypatch.setattr(log_file.os, "geteuid", lambda: 0)
    with pytest.raises(UsageError, match=r"x\.log: .*(belongs to another user|not a regular file of this user)"):
        open_to_append(str(path))


def test_what_is_neither_file_nor_device_is_refused_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it was replaced by a folder while it was opened."""
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(log_file.own_files, "open_file", lambda path, *_: os.open(tmp_path, os.O_RDONLY))
    monkeypatch.setattr(log_file, "_let_readers_in", lambda descriptor, mode: None)
    with pytest.raises(UsageError, match=r"not a regular file or device: choose another"):
        open_to_append(str(tmp_path / "x.log"))
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_pipe_and_the_terminal_are_logs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with open_to_read(str(tmp_path / "pipe")) as reader, open_to_append(str(tmp_path / "pipe")) as writer:
        writer.write(b"line\n")
        assert reader.read(100) == b"line\n"
    with open_to_append("/dev/null") as writer:
        writer.write(b"line\n")


def test_two_mountpoints_never_share_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file.os, "geteuid", lambda: 4321)
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_file("/mnt/a-b") == r"/state/zarrfs/mnt-a\x2db.log" != default_file("/mnt/a/b") == "/state/zarrfs/mnt-a-b.log"
    assert default_file("/mnt/a-b") != default_file(r"/mnt/a\x2db")
    assert default_file("/mnt/a/" + "b" * 300) != default_file("/mnt/c/" + "b" * 300)
    monkeypatch.setattr(log_file.os, "geteuid", lambda: 0)
    monkeypatch.setattr(log_file.os, "access", lambda path, mode: True)
    assert default_file("/mnt/z") == "/var/log/zarrfs/mnt-z.log"


@pytest.mark.parametrize("name", ["漢" * 80, "é" * 125, "\udcff" * 250, "-" * 100], ids=["CJK", "accents", "no text", "escaped"])
def test_every_mountpoint_has_a_log_that_can_be_created(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_file, "_ROOTS", tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    # With the name that rotation gives it.
    with open_to_append(f"{default_file(f'/mnt/{name}/{name}')}.2026-11-30.gz") as file:
        file.write(b"line\n")


@pytest.mark.fuse
def test_root_of_a_user_namespace_logs_where_its_user_does() -> None:
    run_as_users(
        """
        mkdir "$W/65534/s.zarr" && chown 65534 "$W/65534/s.zarr"
        as 65534 unshare --user --map-root-user --mount bash -c '
            "$1/zarrfs" mount "$2/s.zarr" "$2/m" && ls "$2/m" && "$1/zarrfs" umount "$2/m"
        ' bash "$SCRIPTS" "$W/65534"
        ls "$W/65534/.local/state/zarrfs"
        """
    )


def test_a_folder_that_is_missing_is_made_for_this_user_alone(tmp_path: Path) -> None:
    with open_to_append(str(tmp_path / "state/zarrfs/x.log")) as file:
        file.write(b"line\n")
    assert stat.S_IMODE((tmp_path / "state/zarrfs").stat().st_mode) & 0o027 == 0


def test_what_libraries_print_follows_the_log(logger: logging.Logger, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.log"
    configure("info", str(path))
    kept = os.dup(2)
    try:
        with path.open("ab") as stderr:
            os.dup2(stderr.fileno(), 2)
        path.rename(tmp_path / "x.log.1")
        reopen()
        os.write(2, b"printed by a library\n")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    assert path.read_text() == "printed by a library\n"
    assert not capfd.readouterr().err


def test_an_error_while_the_place_is_looked_at_is_one_of_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(log_file.own_files, "open_file", full)
    with pytest.raises(UsageError, match=r"x\.log: No space left on device: choose another with --log-file"):
        open_to_append(str(tmp_path / "x.log"))
