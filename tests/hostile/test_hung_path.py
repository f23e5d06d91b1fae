"""A store, or a mountpoint, on a file system that does not answer: every command ends by the deadline, or by SIGINT at once.

A process that waits for a FUSE mount whose server has read its request cannot be killed, so a command must not be that process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.test_hung_folder import Hanging, hanging
from tests.support.mounting import ROOT, abort, connection_of

pytestmark = [pytest.mark.fuse, pytest.mark.skipif(os.geteuid() != 0, reason="mounts within a store")]

TIMEOUT = 1
MODULES = {"mount": "zarrfs", "mount -f": "zarrfs", "info": "zarrfs", "check": "zarrfs", "mount(8)": "zarrfs.command.mount_helper"}
# Requests that are answered before the rest hang: none; some of the command's own look at the path; some of the opening.
ANSWERED = (0, 20, *(pytest.param(each, marks=pytest.mark.full_length) for each in (5, 35)))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Hanging]:
    (tmp_path / "mnt").mkdir()
    with hanging(tmp_path / "hung") as folder:
        yield folder
    if (connection := connection_of(tmp_path / "mnt")) is not None:
        abort(connection)
        subprocess.run(["umount", "-l", tmp_path / "mnt"], check=False)


def begun(command: str, folder: Hanging, timeout: float) -> subprocess.Popen[str]:
    store, mountpoint, options = str(folder.path), str(folder.path.parent / "mnt"), ["-o", f"timeout={timeout}"]
    options[1] += f",log_file={folder.path.parent}/log" if command.startswith("mount") else ""
    arguments = {
        "mount": ["mount", store, mountpoint, *options],
        "mount -f": ["mount", "-f", store, mountpoint, *options],
        "info": ["info", *options, store],
        "check": ["check", *options, store],
        "mount(8)": ["mount.zarrfs", store, mountpoint, *options],
        "umount": ["umount", f"{store}/0"],
    }[command]
    # Its output is read to the end: nothing that hangs may hold it.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", MODULES.get(command, "zarrfs"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd="/",
    )


@pytest.mark.parametrize("answered", ANSWERED)
@pytest.mark.parametrize("command", ["mount", "info", "check", "mount(8)"])
def test_a_command_ends_by_the_deadline(folder: Hanging, command: str, answered: int) -> None:
    folder.tell(f"hang {answered}")
    with begun(command, folder, TIMEOUT) as process:
        printed, error = process.communicate(timeout=20)
    assert process.returncode == (32 if command == "mount(8)" else 1), error
    assert f"{folder.path}" in error and "did not answer within 1 s" in error and "Traceback" not in error, error
    assert error.count("\n") == 1 and not printed
    assert connection_of(folder.path.parent / "mnt") is None


@pytest.mark.parametrize("answered", [0, 20])
@pytest.mark.parametrize("command", ["mount", "info", "check", "mount(8)"])
def test_sigint_ends_a_command(folder: Hanging, command: str, answered: int) -> None:
    folder.tell(f"hang {answered}")
    with begun(command, folder, 60) as process:
        # Until a child, or the daemon, hangs.
        until = time.monotonic() + 20
        while "request_wait_answer" not in _waiting_in(process.pid):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert process.returncode in (-signal.SIGINT, 130, 8)
    assert time.monotonic() - began < 4
    assert connection_of(folder.path.parent / "mnt") is None


def test_mount_in_the_foreground_ends_too(folder: Hanging) -> None:
    folder.tell("hang")
    with begun("mount -f", folder, TIMEOUT) as process:
        _, error = process.communicate(timeout=20)
    assert process.returncode == 1 and "did not answer within 1 s" in error, error


def test_umount_of_a_path_that_hangs(folder: Hanging) -> None:
    folder.tell("hang")
    with begun("umount", folder, TIMEOUT) as process:
        _, error = process.communicate(timeout=20)
    assert process.returncode == 5 and f"{folder.path}/0: not unmounted" in error and error.count("\n") == 1, error


@pytest.mark.parametrize("command", ["info", "check"])
def test_a_report_is_the_same_from_a_file_system_that_may_hang(folder: Hanging, command: str) -> None:
    with begun(command, folder, 60) as process:
        printed, error = process.communicate(timeout=60)
    assert process.returncode == 0 and not error, error
    assert ("|u1" in printed or "uint8" in printed) if command == "info" else "300" in printed, printed


def _waiting_in(pid: int) -> list[str]:
    """Return the functions of the kernel in which the threads of a process, and of its descendants, wait."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found.append(Path(f"/proc/{pid}/task/{task}/wchan").read_text())
            for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
                found += _waiting_in(int(child))
    return found
