"""A killed daemon leaves a dead mount: the next mount replaces it, and nothing else ever does."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounting import ROOT, Mounted, mount_table, mounted, mountpoint, zarrfs
from tests.support.namespace import run_in_namespace
from zarrfs.errors import MountpointUnusable
from zarrfs.lifecycle import dead_mounts
from zarrfs.lifecycle import mountpoint as before
from zarrfs.lifecycle.dead_mounts import Life
from zarrfs.lifecycle.mount_table import mount_at

pytestmark = pytest.mark.fuse

NOT_CONNECTED = os.strerror(errno.ENOTCONN)
SMALL_MOUNT = ROOT / "tests/support/small_mount.py"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "demo/example.zarr", tmp_path / "s.zarr"))


def kill(pid: int) -> None:
    """Kill a process; return when it has closed everything, and its mount is dead."""
    pidfd = os.pidfd_open(pid)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    assert poll.poll(30_000)
    os.close(pidfd)


def number_of_mounts(path: Path) -> int:
    return sum(fields[4] == str(path) for fields in mount_table())


@contextmanager
def small_mount(path: Path, subtype: str) -> Iterator[int]:
    """Mount another FUSE program; yield its process."""
    command = [sys.executable, str(SMALL_MOUNT), str(path), "well", subtype]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"mounted\n"
            yield process.pid
        finally:
            process.kill()


@contextmanager
def unmounted_at_last(path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        while number_of_mounts(path):
            subprocess.run(["umount", "-l", str(path)] if os.geteuid() == 0 else ["fusermount3", "-uz", str(path)], check=True)


def again(mount: Mounted, *options: str) -> subprocess.CompletedProcess[str]:
    return zarrfs("mount", str(mount.store), str(mount.path), "--log-file", str(mount.log_file), *options)


def test_the_next_mount_takes_the_place_of_a_dead_one_though_somebody_stands_in_it(store: Path) -> None:
    with mounted(store, ends_with=None) as mount, unmounted_at_last(mount.path):
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, cwd=mount.path / "raw") as stands_in_it:
            # The kernel keeps answering from its cache.
            os.stat(mount.path)
            kill(mount.pid)
            done = again(mount)
            assert done.returncode == 0, done.stderr
            assert done.stderr.count("\n") == 1
            assert f"zarrfs: {mount.path}: removed a zarrfs mount whose daemon died" in done.stderr
            assert "removed 1 zarrfs mount(s) whose daemon had died" in mount.log()
            assert (mount.path / "raw/zarr.json").read_bytes() == (store / "zarr.json").read_bytes()
            with pytest.raises(OSError, match=NOT_CONNECTED):
                os.stat(f"/proc/{stands_in_it.pid}/cwd/zarr.json")
        assert number_of_mounts(mount.path) == 1
        assert mount.umount().returncode == 0


def test_a_store_in_a_dead_mount_is_named(store: Path) -> None:
    with mounted(store, ends_with=None) as mount, unmounted_at_last(mount.path):
        # The kernel keeps answering from its cache, that it is a folder.
        os.stat(mount.path / "raw")
        kill(mount.pid)
        for command in ("info", "check"):
            done = zarrfs(command, str(mount.path / "raw"))
            assert done.returncode == 1
            assert f"{mount.path}/raw" in done.stderr and done.stderr.endswith(f"{NOT_CONNECTED}\n"), done.stderr


@pytest.mark.full_length
def test_a_stack_of_dead_mounts_is_cleared(store: Path) -> None:
    with mounted(store, ends_with=None) as mount, unmounted_at_last(mount.path):
        with small_mount(mount.path, "zarrfs") as other:
            kill(mount.pid)
            kill(other)
        assert number_of_mounts(mount.path) == 2
        assert again(mount).returncode == 0
        assert "removed 2 zarrfs mount(s)" in mount.log()
        assert number_of_mounts(mount.path) == 1
        assert mount.umount().returncode == 0


@pytest.mark.full_length
def test_in_the_foreground_too_as_a_service_that_is_started_again(store: Path) -> None:
    with mounted(store, ends_with=None) as mount, unmounted_at_last(mount.path):
        kill(mount.pid)
        command = [sys.executable, "-P", "-m", "zarrfs", "mount", "-f", "--", str(store), str(mount.path)]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as daemon:
            assert daemon.stderr is not None
            assert "removed a zarrfs mount whose daemon died" in daemon.stderr.readline()
            # Its log is on stderr, too: after the next line it is running, and it ends well on request.
            assert "removed 1 zarrfs mount(s)" in daemon.stderr.readline()
            daemon.terminate()
            assert daemon.wait(60) == 0
        assert number_of_mounts(mount.path) == 0


@pytest.mark.full_length
def test_a_dead_mount_stays_until_there_is_something_in_its_place(store: Path, tmp_path: Path) -> None:
    """Otherwise programs that got errors would begin to write into the folder below."""
    with mounted(store, ends_with=None) as mount, unmounted_at_last(mount.path):
        kill(mount.pid)
        for options in ([], ["--foreground"]):
            done = zarrfs("mount", str(tmp_path / "none"), str(mount.path), *options)
            assert done.returncode == 3, done.stderr
            assert "there is no store" in done.stderr and "daemon died" not in done.stderr
            with pytest.raises(OSError, match=NOT_CONNECTED):
                os.listdir(mount.path)


@pytest.mark.parametrize("command", ["info", "check"])
def test_a_store_in_a_dead_mount_is_not_said_to_be_missing(store: Path, command: str) -> None:
    """A script that creates a missing store would act on exit code 3."""
    with mounted(store, ends_with=None) as mount, unmounted_at_last(mount.path):
        kill(mount.pid)
        done = zarrfs(command, str(mount.path))
        assert done.returncode == 1 and "no store" not in done.stderr and NOT_CONNECTED in done.stderr, done


@pytest.mark.full_length
def test_a_living_mount_is_never_replaced_nor_one_that_hangs(store: Path) -> None:
    with mounted(store) as mount:
        done = again(mount)
        assert done.returncode == 5
        assert "already mounted by zarrfs: `zarrfs umount" in done.stderr
        os.kill(mount.pid, signal.SIGSTOP)
        try:
            done = again(mount)
        finally:
            os.kill(mount.pid, signal.SIGCONT)
        assert done.returncode == 5
        assert "already mounted by zarrfs, daemon does not answer" in done.stderr
        assert number_of_mounts(mount.path) == 1
        assert (mount.path / "raw/zarr.json").read_bytes() == (store / "zarr.json").read_bytes()


@pytest.mark.full_length
def test_a_living_mount_under_a_dead_one_stays(store: Path) -> None:
    with mounted(store, ends_with=None) as mount, unmounted_at_last(mount.path):
        with small_mount(mount.path, "zarrfs") as other:
            kill(other)
        done = again(mount)
        assert done.returncode == 5
        assert "already mounted by zarrfs" in done.stderr
        assert (mount.path / "raw/zarr.json").read_bytes() == (store / "zarr.json").read_bytes()
        assert mount.umount().returncode == 0


def test_a_dead_mount_of_another_program_is_not_touched(store: Path) -> None:
    with mountpoint() as path, unmounted_at_last(path):
        with small_mount(path, "sshfs") as other:
            kill(other)
        done = zarrfs("mount", str(store), str(path))
        assert done.returncode == 5
        assert "is a mount of type fuse.sshfs whose daemon died" in done.stderr
        assert f"`fusermount3 -u {path}` (`umount {path}` as root)" in done.stderr
        assert "replaced" not in done.stderr
        assert dead_mounts.clear(str(path)) == 0
        assert number_of_mounts(path) == 1
        with pytest.raises(MountpointUnusable, match=f"lies in {path}, a mount of type fuse.sshfs whose daemon died"):
            before.check_mountpoint(str(path / "inner"))
        done = zarrfs("umount", str(path))
        assert done.returncode == 5 and "type fuse.sshfs" in done.stderr
        assert number_of_mounts(path) == 1


def test_umount_of_a_dead_mount_whose_attributes_the_kernel_remembers(store: Path) -> None:
    with mounted(store, ends_with=None) as mount, unmounted_at_last(mount.path):
        os.stat(mount.path)
        kill(mount.pid)
        done = mount.umount()
        assert (done.returncode, number_of_mounts(mount.path)) == (0, 0)
        assert "had died before: its unstored data is lost" in done.stderr


@pytest.mark.full_length
def test_what_does_not_answer_can_be_detached(store: Path) -> None:
    with mounted(store, ends_with=None) as mount, unmounted_at_last(mount.path):
        os.kill(mount.pid, signal.SIGSTOP)
        done = zarrfs("umount", "--lazy", str(mount.path))
        assert (done.returncode, number_of_mounts(mount.path)) == (0, 0)
        assert "did not answer" in done.stderr


@pytest.mark.full_length
def test_what_does_not_answer_is_unmounted_with_an_error(store: Path) -> None:
    with mounted(store, ends_with=None) as mount, unmounted_at_last(mount.path):
        os.kill(mount.pid, signal.SIGSTOP)
        done = zarrfs("umount", str(mount.path))
        assert (done.returncode, number_of_mounts(mount.path)) == (1, 0)
        assert "did not answer" in done.stderr


def test_life_is_told_without_waiting_for_a_daemon_that_hangs(store: Path) -> None:
    with mounted(store) as mount:
        there = mount_at(str(mount.path))
        assert there is not None
        assert dead_mounts.life_of(there) is Life.ALIVE
        os.kill(mount.pid, signal.SIGSTOP)
        try:
            assert dead_mounts.life_of(there, patience=0.2) is Life.SILENT
        finally:
            os.kill(mount.pid, signal.SIGCONT)


@pytest.mark.full_length
def test_what_is_hidden_under_another_mount_is_not_there() -> None:
    """The mount table still lists it under its name."""
    script = """
    mkdir "$NAMESPACE/w" && mount -t tmpfs w "$NAMESPACE/w" && cd "$NAMESPACE/w" && mkdir -p s up/m
    "$SCRIPTS/zarrfs" mount s up/m
    pid=$(sed -n 's/.*"pid": \\([0-9]*\\).*/\\1/p' up/m/.zarrfs/config.json)
    kill -9 "$pid" && tail --pid="$pid" -f /dev/null
    mount -t tmpfs over up && mkdir up/m
    "$SCRIPTS/zarrfs" umount up/m || echo "code $?"
    "$SCRIPTS/zarrfs" mount s up/m && echo x > up/m/raw/x && "$SCRIPTS/zarrfs" umount up/m
    cat s/x
    umount up && "$SCRIPTS/zarrfs" umount up/m && cd / && umount "$NAMESPACE/w"
    """
    done = run_in_namespace(script, env={"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout) == (0, "code 5\nx\n"), done.stderr
    first, *others = done.stderr.splitlines()
    assert "not mounted" in first
    assert len(others) == 1 and "had died before" in others[0]
