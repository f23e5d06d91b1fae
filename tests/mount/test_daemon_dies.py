"""A daemon that dies, however it dies, leaves no program waiting: a watcher process outlives it and aborts its FUSE connection.

Smaller failures do not end the daemon: an error in a handler, in a task, or in pyfuse3's own code.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.support.mounting import Mounted, connection_of, mounted, run, started
from tests.support.small_stores import array_document, write

pytestmark = pytest.mark.fuse

SECONDS = 5.0


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except OSError:
        return True


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def watcher_of(pid: int) -> int:
    """Return the process that outlives the daemon ``pid``, when it hears of the daemon's end."""
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if status_of(name)["PPid"] != str(pid):
                continue
        except OSError:
            continue
        # For a few milliseconds after its start the signal would end the shell.
        assert within(10, partial(hears, name))
        return int(name)
    raise AssertionError(f"{pid} has no child")


def hears(process: str) -> bool:
    return bool(int(status_of(process)["SigCgt"], 16) & 1 << signal.SIGUSR1 - 1)


def status_of(process: str) -> dict[str, str]:
    """Return the fields of ``/proc/PROCESS/status``. Raises OSError."""
    lines = Path("/proc", process, "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = write(tmp_path / "store", {".zgroup": b'{"zarr_format":2}', "k": b"value"})
    write(folder / "a", {".zarray": array_document((4, 4), (4, 4), "|u1"), "0.0": bytes(16)})
    return folder


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR2], ids=["killed", "crashed", "failed"])
def test_a_daemon_with_a_thread_that_waits_for_itself_ends_and_so_do_its_readers(store: Path, tmp_path: Path, how: int) -> None:
    with started("stuck_mount.py", store, "self", ends_with=None, timeout=100_000.0, cache_dir=str(tmp_path)) as (mount, process):
        pid = mount.pid
        reader = subprocess.Popen(["cat", mount.path / "raw/a/0.0"], stdout=-3, stderr=-3)
        waiting = Path(f"/sys/fs/fuse/connections/{connection_of(mount.path)}/waiting")
        assert within(10, lambda: int(waiting.read_text()) >= 2)
        watcher = watcher_of(pid)
        # Writing a core file takes as long as the disk takes.
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, resource.RLIM_INFINITY) if os.geteuid() == 0 else (0, 0))
        for _ in range(3):
            os.kill(pid, how)
            began = time.monotonic()
            # An exception in the answer to a request, or in a destructor, does not end the daemon.
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
                break
        reader.wait(20)
        assert time.monotonic() - began < SECONDS
        assert within(SECONDS, lambda: has_ended(watcher))
        with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
            os.listdir(mount.path)


def test_what_outlives_the_daemon_holds_nothing_and_ends_with_it(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        watcher = watcher_of(mount.pid)
        held = {os.readlink(f"/proc/{watcher}/fd/{name}") for name in os.listdir(f"/proc/{watcher}/fd")}
        assert {re.sub(r"\d+", "N", each) for each in held} == {
            "/dev/null",
            "pipe:[N]",
            "/sys/fs/fuse/connections/N/abort",
        }
        assert f"/{connection_of(mount.path)}/" in "".join(held)
        assert os.readlink(f"/proc/{watcher}/cwd") == "/"
        memory = Path(f"/proc/{watcher}/smaps_rollup").read_text()
        assert int(re.search(r"^Pss:\s+(\d+) kB", memory, re.MULTILINE)[1]) < 2048  # type: ignore[index]
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            os.kill(watcher, number)
        (mount.path / "raw/k").write_bytes(b"new")
        assert not has_ended(watcher)
        assert mount.umount().returncode == 0
        assert has_ended(watcher), "at once"
        assert (store / "k").read_bytes() == b"new"


def test_a_mount_that_is_killed_leaves_no_process(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        watcher = watcher_of(mount.pid)
        os.kill(mount.pid, signal.SIGKILL)
        assert within(SECONDS, lambda: has_ended(watcher) and has_ended(mount.pid))
        run("umount", "-l", mount.path) if os.geteuid() == 0 else run("fusermount3", "-uz", mount.path)


# --- no memory ------------------------------------------------------------------------------------------------------------------


def used(mount: Mounted) -> int:
    """Return the bytes of address space in use."""
    return int(Path(f"/proc/{mount.pid}/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.mark.parametrize("more", [4 << 20, 12 << 20, 32 << 20, 80 << 20, 160 << 20])
def test_a_daemon_without_memory_answers_with_an_error_and_lives(store: Path, more: int) -> None:
    """Write a new array with chunks larger than the free address space of the daemon."""
    piece = np.arange(1 << 18, dtype="<i4").tobytes()
    with mounted(store, "--memory-limit", "600M", "--new-chunks", "8000000", ends_with=None) as mount:
        resource.prlimit(mount.pid, resource.RLIMIT_AS, (used(mount) + more, resource.RLIM_INFINITY))
        header = (
            b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<i4', 'fortran_order': False, 'shape': (32000000,), }".ljust(117) + b"\n"
        )
        failed = 0
        try:
            file = os.open(mount.path / "npy/b.npy", os.O_WRONLY | os.O_CREAT)
            try:
                os.write(file, header)
                for _ in range(122):
                    os.write(file, piece)
            finally:
                os.close(file)
        except OSError as error:
            failed = error.errno or 0
        assert failed in (errno.ENOMEM, errno.EIO, errno.ENOSPC, errno.EINVAL, errno.EFBIG)
        resource.prlimit(mount.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert (mount.path / "raw/k").read_bytes() == b"value"
        (mount.path / "raw/k").write_bytes(b"new")
        assert (store / "k").read_bytes() == b"new"
        ended = mount.umount()
        assert ended.returncode in (0, 7), ended.stderr
