"""A service manager gets the state of a mount at the right time: ready when it answers, stopping when it ends."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, killed_at_last, mountpoint, watchdog, zarrfs
from tests.support.notifications import Notified, notified
from tests.support.small_disks import small_disk
from tests.support.small_stores import write
from zarrfs.lifecycle.mount_table import mount_at
from zarrfs.options.config import MountConfig

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]

EVERY = 0.05


@pytest.fixture(params=[pytest.param("path", marks=pytest.mark.full_length), "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Notified]:
    with notified(tmp_path, abstract=request.param == "abstract") as listening:
        yield listening


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return write(tmp_path / "store", {"k": b"old"})


@contextmanager
def daemon(store: Path | str, path: Path, socket: str, *, gated: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """Start a daemon in the foreground with a notify socket; ``gated``: by ``gated_mount.py``. The body ends it."""
    log_file = path.with_name("log")
    if gated:
        config = MountConfig(store=str(store), mountpoint=str(path), log_file=str(log_file))
        command = [str(ROOT / "tests/support/gated_mount.py"), config.to_json(), str(EVERY)]
    else:
        command = ["-P", "-m", "zarrfs", "mount", "--foreground", "--log-file", str(log_file), str(store), str(path)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": socket}
    with subprocess.Popen(
        [sys.executable, *command], env=environment, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        with killed_at_last(process.pid, path), watchdog(60, process.kill):
            yield process


def test_ready_when_it_answers_and_stopping_on_a_signal(store: Path, manager: Notified) -> None:
    with mountpoint() as path, daemon(store, path, manager.name) as process:
        assert manager.next() == ["READY=1", f"STATUS={store} is mounted on {path}"]
        assert (path / "raw/k").read_bytes() == b"old"
        (path / "raw/k").write_bytes(b"new")
        process.send_signal(signal.SIGTERM)
        ready, status, extended = manager.next()
        assert (ready, status) == ("STOPPING=1", f"STATUS=Unmounting {path}: 0 files, 0 B left")
        assert int(extended.removeprefix("EXTEND_TIMEOUT_USEC=")) > 60_000_000
        assert process.wait() == 0
        *_, (last, _) = manager.rest()
        assert last == f"STATUS={path}: everything is stored"
    assert (store / "k").read_bytes() == b"new"


def test_stopping_when_somebody_unmounts(store: Path, manager: Notified) -> None:
    with mountpoint() as path, daemon(store, path, manager.name) as process:
        assert manager.next()[0] == "READY=1"
        assert zarrfs("umount", str(path)).returncode == 0
        assert process.wait() == 0
        assert [message[0].partition("=")[0] for message in manager.rest()] == ["STOPPING", "STATUS"]


def test_who_waits_is_told_what_is_left_and_to_wait_while_it_gets_less(store: Path, manager: Notified) -> None:
    with mountpoint() as path, daemon(store, path, manager.name, gated=True) as process:
        assert manager.next()[0] == "READY=1"
        held = [os.open(path / "raw" / name, os.O_WRONLY | os.O_CREAT) for name in ("a", "b")]
        for each in held:
            os.write(each, bytes(1 << 20))
        assert manager.rest() == []
        process.send_signal(signal.SIGTERM)
        assert manager.next()[:2] == ["STOPPING=1", f"STATUS=Unmounting {path}: 2 files, 2.0 MiB left"]
        status, extended = manager.next()
        assert status == f"STATUS=Unmounting {path}: 2 files, 2.0 MiB left" and extended.startswith("EXTEND_TIMEOUT_USEC=")
        # Without progress, no more time is requested, however long it takes.
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(5)]
        assert all(b"2 files, 2.0 MiB left" in line for line in lines), lines
        assert manager.rest() == []
        process.send_signal(signal.SIGUSR2)
        for each in held:
            # The mount ends now, perhaps before or while it gets the close.
            try:
                os.close(each)
            except OSError as error:
                if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED):
                    raise
        process.stderr.read()
        assert process.wait() == 0
        # A machine that stalls lets the daemon say what it waits for.
        messages = [message for message in manager.rest() if ": ending, waiting for " not in message[0]]
        assert messages and all(message[1].startswith("EXTEND_TIMEOUT_USEC=") for message in messages)
        assert messages[-1][0] == f"STATUS={path}: everything is stored"
    assert (store / "b").read_bytes() == bytes(1 << 20)


@pytest.mark.full_length
def test_nothing_is_ready_when_it_was_not_mounted(store: Path, manager: Notified, tmp_path: Path) -> None:
    with mountpoint() as path:
        for bad, code in ((tmp_path / "none.zarr", 3), (store / "k", 3)):
            with daemon(bad, path, manager.name) as process:
                assert process.wait() == code
        (path / "occupied").touch()
        with daemon(store, path, manager.name) as process:
            assert process.wait() == 5
    assert manager.rest() == []


def test_what_could_not_be_stored_is_the_last_status(manager: Notified, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "64k") as small, mountpoint() as path, daemon(small, path, manager.name) as process:
        assert manager.next()[0] == "READY=1"
        held = os.open(path / "raw/a", os.O_WRONLY | os.O_CREAT)
        os.write(held, bytes(1 << 20))
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 7
        status = manager.rest()[-1][0]
        assert status.startswith(f"STATUS={path}: not stored: raw/a: ") and "space" in status
        with contextlib.suppress(OSError):
            os.close(held)


WITH_SECRETS = """
import sys, trio
from zarrfs.daemon import serve, systemd
from zarrfs.options.config import MountConfig
from zarrfs.stores.opening import open_store

async def opened(url, read_only=False):
    return await open_store("memory:")

serve.open_store = opened
config = MountConfig(store="s3://key:canary@bucket/x?token=canary", mountpoint=sys.argv[1])
trio.run(serve.serve, config, lambda: None, print, 2.0, systemd.service_manager())
"""


@pytest.mark.full_length
def test_a_status_holds_no_secret(manager: Notified) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NOTIFY_SOCKET": manager.name}
    with mountpoint() as path, subprocess.Popen([sys.executable, "-c", WITH_SECRETS, str(path)], env=environment) as process:
        with killed_at_last(process.pid, path), watchdog(60, process.kill):
            assert manager.next() == ["READY=1", f"STATUS=s3://***@bucket/x?token=*** is mounted on {path}"]
            assert zarrfs("umount", str(path)).returncode == 0
            assert process.wait() == 0
            assert "canary" not in str(manager.rest())


def test_in_the_background_nothing_is_said(store: Path, manager: Notified, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that starts `zarrfs mount` in a service reports its own state."""
    monkeypatch.setenv("NOTIFY_SOCKET", manager.name)
    with mountpoint() as path:
        assert zarrfs("mount", str(store), str(path), "--log-file", str(path.with_name("log"))).returncode == 0
        pid = int(json.loads((path / ".zarrfs/config.json").read_bytes())["pid"])
        with killed_at_last(pid, path):
            (path / "raw/k").write_bytes(b"new")
            done = zarrfs("umount", str(path))
        assert done.returncode == 0, done.stderr
        assert "service manager" not in path.with_name("log").read_text()
    assert manager.rest() == []


@pytest.mark.full_length
@pytest.mark.parametrize("socket", ["/nowhere/notify", "@nobody-listens-here", "nonsense"])
def test_a_bad_socket_breaks_nothing(store: Path, socket: str) -> None:
    with mountpoint() as path, daemon(store, path, socket) as process:
        while mount_at(str(path)) is None:
            assert process.poll() is None, process.communicate()
        (path / "raw/k").write_bytes(b"new")
        assert zarrfs("umount", str(path)).returncode == 0
        assert process.wait() == 0
        assert path.with_name("log").read_text().count("NOTIFY_SOCKET) not notified") == 1
    assert (store / "k").read_bytes() == b"new"


@pytest.mark.full_length
def test_a_service_manager_that_is_gone_breaks_nothing(store: Path, manager: Notified) -> None:
    with mountpoint() as path, daemon(store, path, manager.name) as process:
        assert manager.next()[0] == "READY=1"
        manager.socket.close()
        (path / "raw/k").write_bytes(b"new")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
    assert (store / "k").read_bytes() == b"new"
