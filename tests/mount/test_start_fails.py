"""Mounts whose daemon fails between its mount and its first answer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, mountpoint
from zarrfs.lifecycle import background, dead_mounts
from zarrfs.lifecycle.exit_report import Outcome
from zarrfs.lifecycle.mount_table import mount_at
from zarrfs.options.config import MountConfig

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]

_DAEMON = """
import os, sys
sys.path.insert(0, {root!r})
from zarrfs.daemon import serve
from zarrfs.lifecycle.mount_table import mount_at

def fail(notifier):
    assert mount_at({path!r})
    {body}

serve.Notifier.start = fail
from zarrfs.__main__ import main
main()
"""
_NO_THREAD = """raise RuntimeError("can't start new thread")"""
_KILLED = "os.kill(os.getpid(), 9)"


def started(body: str, tmp_path: Path) -> tuple[Outcome, str]:
    """Start a daemon that runs ``body`` once its mount exists; return the outcome and its log. Nothing may stay mounted."""
    (tmp_path / "s.zarr").mkdir()
    with mountpoint() as path:
        script, log_file = tmp_path / "daemon.py", path.with_name("log")
        script.write_text(_DAEMON.format(root=str(ROOT), path=str(path), body=body))
        config = MountConfig(store=str(tmp_path / "s.zarr"), mountpoint=str(path), log_file=str(log_file))
        outcome, process = background.start(config, [sys.executable, "-P", str(script)])
        assert process.poll() is not None
        assert dead_mounts.clear(str(path.resolve())) == 0
        assert mount_at(str(path)) is None
        return outcome, log_file.read_text()


def test_a_daemon_without_threads_leaves_no_dead_mount_and_says_what_it_lacks(tmp_path: Path) -> None:
    outcome, log = started(_NO_THREAD, tmp_path)
    assert outcome == Outcome(1, "out of memory or threads (ulimit -v, ulimit -u, limits of a service or container)")
    assert "Traceback" not in log


def test_a_daemon_that_is_killed_at_its_start_leaves_no_dead_mount(tmp_path: Path) -> None:
    outcome, _ = started(_KILLED, tmp_path)
    assert outcome.exit_code == 1
    assert "daemon was killed by SIGKILL before the mount was usable" in outcome.message
