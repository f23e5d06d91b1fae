"""The parent of a background mount, and the daemon that it starts: a script stands in for the daemon."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from pathlib import Path

import pytest

from zarrfs.errors import UsageError
from zarrfs.lifecycle import background
from zarrfs.lifecycle.exit_report import Outcome
from zarrfs.options.config import MountConfig

REPOSITORY = Path(__file__).parents[2]


def child(tmp_path: Path, body: str) -> list[str]:
    script = tmp_path / "daemon.py"
    head = f"import os, sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n"
    imports = "from zarrfs.lifecycle.exit_report import Outcome\nfrom zarrfs.lifecycle.parent import Parent\n"
    script.write_text(f"{head}{imports}config, parent = Parent.adopt()\n{body}")
    return [sys.executable, str(script)]


def test_success_is_told_while_the_daemon_lives_on(config: MountConfig, tmp_path: Path) -> None:
    body = (
        "parent.ready()\nassert not parent.failed(Outcome(1, 'late'))\nprint(os.getcwd(), os.getsid(0), config.store, flush=True)\n"
    )
    body += "import signal; signal.pause()\n"
    outcome, process = background.start(config, child(tmp_path, body))
    try:
        assert outcome == Outcome(0, "")
        assert process.poll() is None
    finally:
        process.terminate()
        process.wait()


def test_the_daemon_inherits_nothing_of_ours(config: MountConfig, tmp_path: Path) -> None:
    body = """
told = [config.store, os.getcwd(), os.readlink("/proc/self/fd/0"), os.get_inheritable(parent._fd)]
told += [name for name in os.environ if "READY" in name]
parent.failed(Outcome(9, repr(told)))
"""
    outcome, process = background.start(config, child(tmp_path, body))
    assert outcome == Outcome(9, repr(["/data/x.zarr", "/", "/dev/null", False]))
    assert process.returncode == 0


def test_the_daemon_has_a_session_of_its_own_once_it_is_ready_and_our_group_before(config: MountConfig, tmp_path: Path) -> None:
    """An automounter blocks all processes outside of the process group that mounts for it."""
    body = f"assert os.getpgid(0) == {os.getpgid(0)}\nparent.ready()\nassert os.getsid(0) == os.getpid()\n"
    outcome, process = background.start(config, child(tmp_path, body))
    assert outcome == Outcome(0, "")
    assert process.wait() == 0


def test_a_daemon_that_dies_without_a_word(config: MountConfig, tmp_path: Path) -> None:
    assert config.log_file is not None
    Path(config.log_file).parent.mkdir()
    Path(config.log_file).write_text("of yesterday\n")
    outcome, _ = background.start(config, child(tmp_path, "print('libfuse: so sad', file=sys.stderr)\nsys.exit(3)"))
    assert outcome.exit_code == 1
    assert "exited with code 3" in outcome.message and "libfuse: so sad" in outcome.message
    assert config.log_file in outcome.message and "yesterday" not in outcome.message


def test_a_daemon_that_is_killed(config: MountConfig, tmp_path: Path) -> None:
    outcome, process = background.start(config, child(tmp_path, "os.kill(os.getpid(), 9)"))
    assert outcome.exit_code == 1 and "SIGKILL" in outcome.message
    assert process.returncode == -signal.SIGKILL


def test_the_end_of_a_daemon_of_which_little_is_known() -> None:
    """A thread of it hangs in the kernel; a signal without a name."""
    assert background._explain(b"", None, "", "/log").message == "daemon ended before the mount was usable; end of /log: empty"
    assert "daemon was killed by signal 40 before" in background._explain(b"", -40, "", "/log").message


def test_a_pipe_as_the_log(config: MountConfig, tmp_path: Path) -> None:
    """``--log-file /dev/stderr`` with stderr in a pipe, too."""
    log = str(tmp_path / "pipe")
    os.mkfifo(log, 0o600)
    with open(os.open(log, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as reader:
        body = "print('line', flush=True)\nparent.ready()\n"
        outcome, process = background.start(dataclasses.replace(config, log_file=log), child(tmp_path, body))
        assert process.wait() == 0
        assert outcome == Outcome(0) and reader.read(100) == b"line\n"


def test_what_libfuse_printed_explains_a_failed_mount(config: MountConfig, tmp_path: Path) -> None:
    body = "print('fusermount3: no', file=sys.stderr, flush=True)\nparent.failed(Outcome(6, 'mounting failed'))"
    assert background.start(config, child(tmp_path, body))[0] == Outcome(6, "mounting failed\nfusermount3: no")


def test_a_log_that_cannot_be_written(config: MountConfig) -> None:
    bad = MountConfig(store=config.store, mountpoint=config.mountpoint, log_file="/dev/null/x.log")
    with pytest.raises(UsageError, match="--log-file"):
        background.start(bad, ["/bin/true"])


def test_arguments_of_the_daemon_hold_no_secret() -> None:
    command = background.daemon_command(MountConfig(store="s3://key:canary@bucket/x", mountpoint="/m"))
    assert "canary" not in " ".join(command)
    assert command[-3:] == ["--", "s3://***@bucket/x", "/m"]
