"""Processes that still have a file open, according to /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.attackers import EVE, become, needs_root
from zarrfs.lifecycle.openers import is_abandoned

HOLD = "import sys; file = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()"


def holder(path: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "open\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate()


def test_a_file_counts_as_abandoned_when_its_opener_is_gone_and_nobody_has_it(tmp_path: Path) -> None:
    path = tmp_path / "npy" / "a.npy"
    path.parent.mkdir()
    path.write_bytes(b"x")
    # Another process of the machine may have some npy/a.npy open.
    name = f"{tmp_path.name}/npy/a.npy"
    first = holder(path)
    assert not is_abandoned(first.pid, name)
    second = holder(path)
    end(first)
    assert not is_abandoned(first.pid, name), "another process has it: it may have got it from the one that is gone"
    assert is_abandoned(first.pid, f"{tmp_path.name}/npy/b.npy")
    end(second)
    assert is_abandoned(first.pid, name)


def test_who_is_not_known_is_not_given_up() -> None:
    assert not is_abandoned(0, "npy/a.npy")
    assert not is_abandoned(os.getpid(), "npy/a.npy")


def test_a_process_that_was_killed_and_is_no_longer_waited_for_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x")
    process = holder(path)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_abandoned(process.pid, f"{tmp_path.name}/a")
    end(process)


@needs_root
def test_an_ordinary_user_takes_no_ended_process_for_one_that_has_the_file() -> None:
    """Only root may list the descriptors of a process that has ended: there are none."""
    child = os.fork()
    if child == 0:
        try:
            become(EVE)
            if (ended := os.fork()) == 0:
                os._exit(0)
            os.waitid(os.P_PID, ended, os.WEXITED | os.WNOWAIT)
            os._exit(0 if is_abandoned(ended, "nobody/has/this.npy") else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
