"""The judge detects each fault that it has to detect."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import watcher
from tests.support.judged_mount import check, judged
from tests.support.small_stores import SMALL, write

pytestmark = pytest.mark.fuse

STOPPED_S = 0.6


def test_a_mount_that_does_nothing_is_in_order(tmp_path: Path) -> None:
    with judged(write(tmp_path / "s", SMALL)) as verdict:
        (verdict.mount.path / "npy/a.npy").read_bytes()
    check(verdict, longest_wait=STOPPED_S, peak=150 * 10**6)
    assert verdict.peak > 10**7


def test_a_daemon_that_answers_nobody_is_seen(tmp_path: Path) -> None:
    with judged(write(tmp_path / "s", SMALL)) as verdict:
        os.kill(verdict.mount.pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        os.kill(verdict.mount.pid, signal.SIGCONT)
    assert verdict.longest_wait > STOPPED_S / 2
    with pytest.raises(AssertionError, match="another user of the mount waited"):
        check(verdict, longest_wait=STOPPED_S / 2, peak=2**40)


def test_a_daemon_that_dies_is_seen(tmp_path: Path) -> None:
    with judged(write(tmp_path / "s", SMALL)) as verdict:
        process = os.pidfd_open(verdict.mount.pid)
        os.kill(verdict.mount.pid, signal.SIGKILL)
        # The process ends some time after the signal.
        select.select([process], [], [])
        os.close(process)
    with pytest.raises(AssertionError, match="the daemon is dead"):
        check(verdict, longest_wait=STOPPED_S, peak=2**40)


def test_memory_of_processes_below_counts() -> None:
    nbytes = 64 << 20
    take = f"kept = b'x' * {nbytes}; print(flush=True); input()"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {take!r}])"
    with subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        command = [sys.executable, watcher.__file__, "memory", str(process.pid)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watching:
            assert process.stdout is not None and watching.stdout is not None
            process.stdout.readline()
            assert watching.stdout.readline() == b"watching\n"
            time.sleep(10 * watcher.EVERY_SAMPLE_S)
            seen = json.loads(watching.communicate()[0])
        process.communicate(b"\n")
    assert nbytes < seen["peak"] < 3 * nbytes
    assert seen["processes"] == 2
