"""Signals: two end a mount, one reopens the log, one requests a report of activity, and all others are ignored."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, Mounted, killed_at_last, mounted, mountpoint, watchdog, zarrfs
from tests.support.small_stores import write
from zarrfs.lifecycle.mount_table import mount_at
from zarrfs.options.config import MountConfig

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]

# Besides those with an effect: SIGKILL and SIGSTOP, which cannot be ignored; those of a fault; those that stop a process.
_OTHERS = "KILL STOP TERM INT HUP USR1 TSTP TTIN TTOU ILL TRAP ABRT BUS FPE SEGV SYS"
IGNORED = sorted(signal.valid_signals() - {getattr(signal, f"SIG{name}") for name in _OTHERS.split()})


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write(tmp_path / "store", {"k": b"old"})


@contextmanager
def foreground(store: Path, *before: str) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Yield a usable mount in the foreground, started through ``env`` with ``before``."""
    with mountpoint() as path:
        command = ["env", *before, sys.executable, "-P", "-m", "zarrfs", "mount", "-f", "--", str(store), str(path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as daemon:
            with killed_at_last(daemon.pid, path), watchdog(60, daemon.kill):
                while mount_at(str(path)) is None:
                    assert daemon.poll() is None
                assert (path / "raw/k").read_bytes() == b"old"
                yield path, daemon


def wait_for(path: Path, pattern: str) -> re.Match[str]:
    """Return the first match in a log, as soon as it appears."""
    with watchdog(30, expired := _Expired()):
        while not expired:
            if path.exists() and (found := re.search(pattern, path.read_text())):
                return found
    raise AssertionError(path.read_text())


class _Expired:
    def __init__(self) -> None:
        self._is = False

    def __call__(self) -> None:
        self._is = True

    def __bool__(self) -> bool:
        return self._is


def ended(pid: int, how: Callable[[], None]) -> None:
    """Call ``how``, and wait until the process has ended."""
    pidfd = os.pidfd_open(pid)
    how()
    with watchdog(30, lambda: os.kill(pid, signal.SIGKILL)):
        select.select([pidfd], [], [])
    os.close(pidfd)


def lives(mount: Mounted) -> None:
    (mount.path / "raw/k").write_bytes(b"new")
    assert (mount.store / "k").read_bytes() == b"new"


def test_in_the_background_signals_end_nothing(store: Path) -> None:
    with mounted(store) as mount:
        for number in (*IGNORED, signal.SIGHUP, signal.SIGUSR1):
            os.kill(mount.pid, number)
        wait_for(mount.log_file, "SIGUSR1: in progress")
        lives(mount)


def test_in_the_foreground_signals_end_nothing_but_those_of_the_terminal(store: Path) -> None:
    with foreground(store) as (path, daemon):
        for number in (*IGNORED, signal.SIGUSR1):
            daemon.send_signal(number)
        (path / "raw/k").write_bytes(b"new")
        assert daemon.poll() is None
        daemon.send_signal(signal.SIGHUP)
        assert daemon.wait() == 0
    assert (store / "k").read_bytes() == b"new"


SECOND_SIGNAL = """
import os, signal, sys
from zarrfs.__main__ import main
from zarrfs.command import serving
from zarrfs.stores.folder.store import FolderStore
until_ready = serving._until_ready
serving._until_ready = lambda ready: until_ready(lambda: print("ready", flush=True))
close = FolderStore.aclose
async def close_late(store):
    os.kill(os.getpid(), signal.SIGTERM)
    await close(store)
FolderStore.aclose = close_late
sys.argv = ["zarrfs", "mount", "--foreground", *sys.argv[1:]]
main()
"""


def test_a_second_signal_leaves_the_exit_code_to_what_was_stored(store: Path) -> None:
    with mountpoint() as path:
        command = [sys.executable, "-P", "-c", SECOND_SIGNAL, "--log-file", str(path.with_name("log")), str(store), str(path)]
        with subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE) as daemon:
            with killed_at_last(daemon.pid, path), watchdog(60, daemon.kill):
                assert daemon.stdout is not None and daemon.stdout.readline() == b"ready\n"
                daemon.send_signal(signal.SIGTERM)
                assert daemon.wait() == 0


@pytest.mark.full_length
def test_nohup_keeps_a_mount_in_the_foreground(store: Path) -> None:
    with foreground(store, "--ignore-signal=HUP") as (path, daemon):
        daemon.send_signal(signal.SIGHUP)
        (path / "raw/k").write_bytes(b"new")
        assert zarrfs("umount", str(path)).returncode == 0
        assert daemon.wait() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a process as the first one of a namespace")
def test_the_first_process_of_a_container_ends_by_a_signal_too() -> None:
    script = "from zarrfs.lifecycle import interrupts; interrupts.end_by(15); print('lives')"
    command = ["unshare", "--pid", "--fork", sys.executable, "-P", "-c", script]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "")


def inherited(set_up: Callable[[], object], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a module of zarrfs from a process whose signals are as ``set_up`` leaves them."""
    run = [sys.executable, "-P", "-m", *command]
    return subprocess.run(run, preexec_fn=set_up, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)


def test_who_ignores_the_end_of_children_is_told_that_a_mount_in_use_stays(store: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    with mounted(store) as mount, open(mount.path / "raw/k", "rb"):
        for module, *arguments in (["zarrfs", "umount"], ["zarrfs.command.mount_helper", "umount.zarrfs"]):
            done = inherited(ignore, module, *arguments, str(mount.path))
            assert "in use by" in done.stderr
            assert done.returncode == (1 if module == "zarrfs" else 32)
        assert mount_at(str(mount.path)) is not None


def test_a_mount_by_a_program_that_blocks_signals_ends_by_them(store: Path) -> None:
    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    with mountpoint() as path:
        log = str(path.with_name("log"))
        assert inherited(block, "zarrfs", "mount", "--log-file", log, str(store), str(path)).returncode == 0
        pid = int(json.loads((path / ".zarrfs/config.json").read_bytes())["pid"])
        with killed_at_last(pid, path):
            ended(pid, lambda: os.kill(pid, signal.SIGTERM))
            assert mount_at(str(path)) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: signal.Signals(number).name)
def test_in_the_background_two_unmount(store: Path, number: int) -> None:
    with mounted(store, ends_with=None) as mount:
        file = os.open(mount.path / "raw/k", os.O_WRONLY | os.O_TRUNC)
        os.write(file, b"new")
        ended(mount.pid, lambda: os.kill(mount.pid, number))
        assert (store / "k").read_bytes() == b"new"
        with pytest.raises(OSError, match="not connected"):
            os.close(file)
        assert mount_at(str(mount.path)) is None


def test_hup_has_the_log_opened_again_what_libraries_print_too(store: Path) -> None:
    with mounted(store) as mount:
        rotated = mount.log_file.with_name("log.1")
        mount.log_file.rename(rotated)
        os.kill(mount.pid, signal.SIGHUP)
        wait_for(mount.log_file, "SIGHUP: log reopened")
        assert mount.log_file.stat().st_mode & 0o007 == 0
        places = {os.readlink(f"/proc/{mount.pid}/fd/{number}") for number in os.listdir(f"/proc/{mount.pid}/fd")}
        assert str(mount.log_file) in places and str(rotated) not in places
        lives(mount)


@pytest.mark.full_length
def test_hup_in_the_background_started_by_nohup(store: Path) -> None:
    with mountpoint() as path:
        log = path.with_name("log")
        command = [sys.executable, "-P", "-m", "zarrfs", "mount", "--log-file", str(log), str(store), str(path)]
        subprocess.run(["env", "--ignore-signal=HUP", *command], check=True, cwd=ROOT)
        pid = int(re.findall(r'"pid": (\d+)', (path / ".zarrfs/config.json").read_text())[0])
        with killed_at_last(pid, path):
            os.kill(pid, signal.SIGHUP)
            wait_for(log, "SIGHUP: log reopened")
            assert zarrfs("umount", str(path)).returncode == 0


def test_usr1_writes_what_is_waited_for_to_the_log(store: Path) -> None:
    with mountpoint() as path:
        log = path.with_name("log")
        config = MountConfig(store=str(store), mountpoint=str(path), log_file=str(log), log_level="critical", timeout=50)
        command = [sys.executable, "-P", str(ROOT / "tests/support/gated_mount.py"), config.to_json(), "0.1"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as daemon:
            with killed_at_last(daemon.pid, path):
                assert daemon.stdout is not None and daemon.stdout.readline() == b"mounted\n"
                hostile = "\x1b]0;x\x07" + "n" * 150
                writes = "import sys; open(sys.argv[1], 'wb').write(b'canary')"
                with subprocess.Popen([sys.executable, "-c", writes, str(path / "raw" / hostile)]) as writer:
                    # The store does not finish the set: close(2) waits.
                    while not re.search(r"store operation, .*: set", log.read_text() if log.exists() else ""):
                        daemon.send_signal(signal.SIGUSR1)
                        assert writer.poll() is None
                    daemon.send_signal(signal.SIGUSR2)
                said = log.read_text()
                assert re.search(r"SIGUSR1: in progress: \d+ requests?, 1 store operation, \d+ tasks", said)
                assert re.search(r"SIGUSR1: request, \d+\.\d s: flush 'raw/\\x1b\]0;x\\x07n+", said)
                assert re.search(r"SIGUSR1: store operation, \d+\.\d s: set\('\\x1b\]0;x\\x07n+\.\.\., 6 bytes\)", said)
                assert re.search(
                    r"SIGUSR1: task: zarrfs\.daemon\.shutdown\.Shutdown\.watch at zarrfs\.daemon\.shutdown:\d+ \(watch\)", said
                )
                assert "canary" not in said
                assert all(line.isprintable() and len(line) < 300 for line in said.splitlines())
                assert zarrfs("umount", str(path)).returncode == 0


def test_usr1_tells_of_thousands_in_some_lines() -> None:
    import trio

    from zarrfs.daemon import waiting_for
    from zarrfs.in_flight import InFlight

    operations = InFlight()
    for number in range(5000):
        operations.begin("get_partial_values", [(f"{number}", "x" * 10_000)] * 1000)

    async def asked() -> list[str]:
        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(trio.sleep_forever)
            await trio.lowlevel.checkpoint()
            lines = waiting_for.report(((0.5, "read " + "y" * 1000) for _ in range(5000)), operations)
            nursery.cancel_scope.cancel()
        return lines

    lines = trio.run(asked)
    assert len(lines) < 100 and max(map(len, lines)) <= 200
    assert lines[0].startswith("in progress: 5000 requests, 5000 store operations, 1")
    assert lines.count("and 4970 more") == 2
    assert any(line.startswith("task: trio.sleep_forever") and "(1000 of them)" in line for line in lines)
