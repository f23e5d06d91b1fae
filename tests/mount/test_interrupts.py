"""A command that a signal ends before it is done: nothing is mounted, no process remains, and at most one line is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, mountpoint, watchdog
from tests.support.small_stores import SMALL, write
from zarrfs.lifecycle.mount_table import mount_at

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# In every process of the command, including the daemon: import of a given module, or opening a store, is reported and waits forever.
_GATE = """
import os, sys, time
stops = os.environ.get("ZARRFS_TEST_STOPS")
def stop(what):
    with open(os.environ["ZARRFS_TEST_SAYS"], "w") as pipe:
        print(os.getpid(), what, file=pipe, flush=True)
    while True:
        time.sleep(60)
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == stops:
            stop(name)
sys.meta_path.insert(0, Finder())
if stops == "opening":
    # Root walks to the store name by name.
    store = os.environ["ZARRFS_TEST_STORE"]
    def hook(event, arguments):
        if event == "open" and arguments and str(arguments[0]) in (store, os.path.basename(store)):
            # The command finds out on which file system it is, which opens nothing.
            if str(arguments[0]) != store or not arguments[2] & os.O_PATH:
                stop("opening")
    sys.addaudithook(hook)
"""


@contextmanager
def stopped(tmp_path: Path, stops: str, *command: str, store: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a command and the number of its process that has stopped at ``stops``; the command leads a process group."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(_GATE)
    says = tmp_path / "says"
    os.mkfifo(says)
    more = {"ZARRFS_TEST_STOPS": stops, "ZARRFS_TEST_SAYS": str(says), "ZARRFS_TEST_STORE": str(store)}
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "zarrfs", *command],
        cwd="/",
        env=os.environ | more | {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        with watchdog(60, process.kill), open(says) as pipe:
            pid = int(pipe.readline().split()[0])
            try:
                yield process, pid
            finally:
                process.kill()
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def ends_by(process: subprocess.Popen[str], number: int) -> None:
    """Assert the end by a signal as a shell sees it, with at most one line of output."""
    out, err = process.communicate()
    assert process.returncode in (-number, 128 + number), (process.returncode, err)
    assert out == "" and len(err.splitlines()) <= 1, err
    assert "Traceback" not in err


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write(tmp_path / "store", SMALL)


every_signal = pytest.mark.parametrize(
    "number",
    [pytest.param(each, id=each.name, marks=[] if each == signal.SIGTERM else pytest.mark.full_length) for each in SIGNALS],
)


@every_signal
@pytest.mark.parametrize("whom", ["the command", "the group"])
@pytest.mark.parametrize("stops", ["opening", "zarrfs.daemon.serve", "pyfuse3"])
def test_a_mount_in_the_background_is_called_off(tmp_path: Path, store: Path, stops: str, whom: str, number: int) -> None:
    with mountpoint() as path:
        command = ("mount", str(store), str(path), "--log-file", str(tmp_path / "log"))
        with stopped(tmp_path, stops, *command, store=store) as (process, daemon):
            assert daemon != process.pid
            (os.killpg if whom == "the group" else os.kill)(process.pid, number)
            ends_by(process, number)
            assert not alive(daemon)
            assert mount_at(str(path)) is None
            assert "Traceback" not in (tmp_path / "log").read_text()


@every_signal
@pytest.mark.parametrize(
    "stops", ["opening", "zarrfs.command.main", "click", "trio", "zarrfs.daemon.serve", "pyfuse3", "zarrfs.views.raw.view"]
)
def test_a_mount_in_the_foreground_is_called_off(tmp_path: Path, store: Path, stops: str, number: int) -> None:
    with mountpoint() as path:
        with stopped(tmp_path, stops, "mount", "-f", str(store), str(path), store=store) as (process, pid):
            assert pid == process.pid
            process.send_signal(number)
            ends_by(process, number)
            assert mount_at(str(path)) is None


@pytest.mark.parametrize("number", SIGNALS[:2], ids=lambda number: signal.Signals(number).name)
def test_a_mount_is_called_off_while_nothing_has_been_imported(tmp_path: Path, store: Path, number: int) -> None:
    with mountpoint() as path:
        with stopped(tmp_path, "zarrfs.command.main", "mount", str(store), str(path)) as (process, _):
            process.send_signal(number)
            ends_by(process, number)
            assert mount_at(str(path)) is None


@pytest.mark.parametrize("command", ["info", "check"])
@pytest.mark.parametrize(
    "stops", ["opening", "zarrfs.command.main", "click", "trio", "numpy", "rich.console", "zarrfs.dialects.v2.dialect"]
)
def test_ctrl_c_ends_what_looks_at_a_store(tmp_path: Path, store: Path, command: str, stops: str) -> None:
    with stopped(tmp_path, stops, command, str(store), store=store) as (process, _):
        process.send_signal(signal.SIGINT)
        ends_by(process, signal.SIGINT)


@pytest.mark.parametrize("stops", ["zarrfs.command.main", "click", "zarrfs.lifecycle.unmounting", "subprocess"])
def test_ctrl_c_ends_an_unmount(tmp_path: Path, stops: str) -> None:
    with stopped(tmp_path, stops, "umount", str(tmp_path)) as (process, _):
        process.send_signal(signal.SIGINT)
        ends_by(process, signal.SIGINT)
