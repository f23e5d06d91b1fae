"""Mounts by a process that was started with standard input, output or error closed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, mountpoint, zarrfs

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]


@pytest.mark.parametrize("closed", [(0, 1, 2), (2,), (0, 1)])
def test_no_file_of_the_daemon_takes_their_place(closed: tuple[int, ...], tmp_path: Path) -> None:
    (tmp_path / "s.zarr").mkdir()
    with mountpoint() as path:
        closing = " ".join(f"{number}>&-" for number in closed)
        command = [sys.executable, "-P", "-m", "zarrfs", "mount", "-f", str(tmp_path / "s.zarr"), str(path)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": ""}
        script = f'exec "$@" {closing}'
        with subprocess.Popen(["bash", "-c", script, "bash", *command], env=environment, stdin=subprocess.DEVNULL) as daemon:
            try:
                while not os.path.ismount(path):
                    assert daemon.poll() is None
                (path / "raw" / "x").write_bytes(b"value")
                found = {number: os.readlink(f"/proc/{daemon.pid}/fd/{number}") for number in closed}
                assert zarrfs("umount", str(path)).returncode == 0
                assert daemon.wait() == 0
            finally:
                daemon.kill()
    assert found == dict.fromkeys(closed, os.devnull)
    assert (tmp_path / "s.zarr" / "x").read_bytes() == b"value"


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0>&- 1>&- 2>&-"])
@pytest.mark.parametrize("command", ["info", "check"])
def test_a_command_without_them_does_its_work(command: str, closed: str, tmp_path: Path) -> None:
    (tmp_path / "s.zarr").mkdir()
    (tmp_path / "s.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    words = [sys.executable, "-P", "-m", "zarrfs", command, str(tmp_path / "s.zarr")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", f'exec "$@" {closed}', "bash", *words], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
