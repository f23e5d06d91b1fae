"""The end of a mount: no written data is lost, and waiting commands report remaining and unstorable data."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from tests.support.mounting import ROOT, Mounted, killed_at_last, mounted, mountpoint, run, watchdog, zarrfs
from tests.support.small_disks import small_disk
from zarrfs.lifecycle import unmounting
from zarrfs.lifecycle.mount_table import mount_at
from zarrfs.options.config import MountConfig

pytestmark = [pytest.mark.fuse, pytest.mark.real_exec]

OLD, NEW = b"old" * 1000, b"new" * 1000
EVERY = 0.05


@dataclass(frozen=True)
class Foreground:
    """A daemon in the foreground, child of this process."""

    path: Path
    process: subprocess.Popen[bytes]

    def line(self) -> str:
        """Return the next line of its stderr; empty when it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.readline().decode()

    def end(self) -> tuple[int, str]:
        """Wait for it to end; return its exit code and its remaining output."""
        assert self.process.stderr is not None
        said = self.process.stderr.read().decode()
        return self.process.wait(), said

    def signal(self, number: int) -> None:
        self.process.send_signal(number)


@contextmanager
def foreground(
    store: Path, *, gated: bool = False, answering: bool = True, ignoring: str = "", timeout: float = 60
) -> Iterator[Foreground]:
    """Mount ``store`` with ``zarrfs mount --foreground``; ``gated``: by ``gated_mount.py``. The body unmounts, within a minute.

    Without ``answering`` the body begins as soon as the mount is in the mount table. The daemon is started with the signal ``ignoring``
    ignored, as nohup(1) and shells do, and no other.
    """
    with mountpoint() as path:
        config = MountConfig(store=str(store), mountpoint=str(path), log_file=str(path.with_name("log")), timeout=timeout)
        command = (
            [str(ROOT / "tests/support/gated_mount.py"), config.to_json(), str(EVERY)]
            if gated
            else ["-m", "zarrfs", "mount", "--foreground", "--log-file", str(path.with_name("log")), str(store), str(path)]
        )
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        signals = ["--default-signal=INT,HUP", *([f"--ignore-signal={ignoring}"] if ignoring else [])]
        with subprocess.Popen(
            ["env", *signals, sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
        ) as process:
            with killed_at_last(process.pid, path), watchdog(60, process.kill):
                if gated:
                    assert process.stdout is not None and process.stdout.readline() == b"mounted\n", process.communicate()
                else:
                    while mount_at(str(path)) is None:
                        assert process.poll() is None, process.communicate()
                assert not answering or os.listdir(path)
                yield Foreground(path, process)
                process.wait()
                assert mount_at(str(path)) is None, "it is still mounted"


@contextmanager
def program(script: str, *arguments: Path | str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Run a Python program that uses the mount; it has printed ``ready``, and continues when its stdin is closed."""
    command = [sys.executable, "-c", f"import mmap, os, sys\n{script}", *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process, process.stdin
        process.stdin.close()


WAIT = "print('ready', flush=True); sys.stdin.read()\n"
HOLDS_DIRTY = f"file = open(sys.argv[1], 'wb', buffering=0); file.write({NEW!r}); {WAIT}"
MAPS_DIRTY = f"""
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
mapped[:] = {NEW!r}
{WAIT}"""


libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


@contextmanager
def changed_mapping(path: Path) -> Iterator[None]:
    """Write to a shared mapping of ``path`` without a descriptor (the module mmap keeps one).

    It ends after the last close(2), so that no system call waits until the written bytes are stored.
    """
    with open(path, "r+b") as file:
        address = libc.mmap(None, len(NEW), mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file.fileno(), 0)
    ctypes.memmove(address, NEW, len(NEW))
    yield
    assert libc.munmap(address, len(NEW)) == 0


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "k").write_bytes(OLD)
    return folder


# --- in use --------------------------------------------------------------------------------------------------------------------


ROOT_HELD = f"folder = os.open(os.path.dirname(sys.argv[1]) + '/..', os.O_RDONLY); {WAIT}"


@pytest.mark.parametrize(
    ("script", "place"),
    [
        pytest.param(HOLDS_DIRTY, "raw/k", id="open", marks=pytest.mark.full_length),
        pytest.param(MAPS_DIRTY, "raw/k", id="mapped"),
        pytest.param(f"os.chdir(os.path.dirname(sys.argv[1])); {WAIT}", "raw", id="inside"),
        pytest.param(ROOT_HELD, ".", id="root", marks=pytest.mark.full_length),
    ],
)
def test_a_mount_in_use_stays_and_its_users_are_named(store: Path, script: str, place: str) -> None:
    with mounted(store, ends_with=None) as mount:
        with program(script, mount.path / "raw/k") as (process, _):
            refused = mount.umount()
            assert refused.returncode == 1
            assert f"({process.pid}: {place})" in refused.stderr and "--lazy" in refused.stderr
            assert (mount.path / "raw").is_dir()
        process.wait()
        ended = mount.umount()
        # On a busy machine it also prints the reason for waiting.
        assert ended.returncode == 0, ended.stderr
    assert (store / "k").read_bytes() == (NEW if place == "raw/k" else OLD)


@pytest.mark.full_length
def test_a_mapping_alone_is_a_use(store: Path) -> None:
    with mounted(store) as mount:
        with changed_mapping(mount.path / "raw/k"):
            refused = mount.umount()
        assert refused.returncode == 1
        assert f"({os.getpid()}: raw/k)" in refused.stderr
    assert (store / "k").read_bytes() == NEW


# --- signals -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: signal.Signals(number).name)
@pytest.mark.parametrize("script", [HOLDS_DIRTY, MAPS_DIRTY], ids=["open", "mapped"])
def test_a_signal_publishes_what_is_open_and_unmounts(store: Path, script: str, number: int) -> None:
    with foreground(store) as mount:
        with program(script, mount.path / "raw/k"):
            mount.signal(number)
            assert mount.end() == (0, "")
            assert (store / "k").read_bytes() == NEW
            assert mount_at(str(mount.path)) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: signal.Signals(number).name)
@pytest.mark.parametrize("answering", [True, False], ids=["idle", "just born"])
def test_a_signal_ends_a_mount_that_nobody_uses(store: Path, answering: bool, number: int) -> None:
    with foreground(store, answering=answering) as mount:
        mount.signal(number)
        assert mount.end() == (0, "")


def test_a_store_that_does_not_answer_is_given_up(store: Path) -> None:
    with foreground(store, gated=True, timeout=0.3) as mount:
        with program(HOLDS_DIRTY, mount.path / "raw/k"):
            mount.signal(signal.SIGTERM)
            code, said = mount.end()
            assert code != 0 and "not stored: raw/k: " in said
            assert (store / "k").read_bytes() == OLD


@pytest.mark.full_length
def test_a_signal_that_the_shell_has_it_ignore_ends_nothing(store: Path) -> None:
    with foreground(store, ignoring="HUP") as mount:
        mount.signal(signal.SIGHUP)
        (mount.path / "raw/k").write_bytes(NEW)
        assert zarrfs("umount", str(mount.path)).returncode == 0
        assert mount.end() == (0, "")
    assert (store / "k").read_bytes() == NEW


def test_a_foreground_daemon_tells_what_is_left_and_hears_a_second_signal(store: Path) -> None:
    with foreground(store, gated=True) as mount:
        with program(HOLDS_DIRTY, mount.path / "raw/k"):
            mount.signal(signal.SIGTERM)
            assert mount.line() == f"{mount.path}: 1 file, 2.9 KiB left\n"
            mount.signal(signal.SIGTERM)
            while (line := mount.line()) == f"{mount.path}: 1 file, 2.9 KiB left\n":
                pass
            assert "SIGTERM again" in line and "1 file, 2.9 KiB left" in line
            assert (store / "k").read_bytes() == OLD
            mount.signal(signal.SIGUSR2)
            assert mount.end()[0] == 0
            assert (store / "k").read_bytes() == NEW


HALF_AN_ARRAY = f"""
header = b"\\x93NUMPY\\1\\0\\x76\\0" + b"{{'descr': '|u1', 'fortran_order': False, 'shape': (64, 4096)}}".ljust(117) + b"\\n"
file = open(sys.argv[1], "wb", buffering=0)
file.write(header + bytes([1]) * 4096 * 32)
{WAIT}"""


def test_an_array_that_never_became_whole_leaves_no_chunks_behind(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without memory for staging, whole chunks are stored while the file is being written.
    monkeypatch.setenv("ZARRFS_MEMORY_LIMIT", "0")
    monkeypatch.setenv("ZARRFS_NEW_CHUNKS", "8x4096")
    before = sorted(store.rglob("*"))
    with foreground(store) as mount:
        with program(HALF_AN_ARRAY, mount.path / "npy/half.npy"):
            assert [path for path in (store / ".zarrfs").rglob("*") if path.is_file()]
            assert not (store / "half").exists()
            mount.signal(signal.SIGTERM)
            code, said = mount.end()
            assert code == 7 and "npy/half.npy" in said, said
        assert sorted(store.rglob("*")) == before


HEADER = b"\x93NUMPY\1\0\x76\0" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (64, 4096)}".ljust(117) + b"\n"


@pytest.mark.parametrize("before", ["nothing", "another shape", "the same"])
def test_a_signal_makes_no_array_of_zeros_of_a_file_that_is_only_begun(store: Path, before: str) -> None:
    with foreground(store) as mount:
        place = mount.path / "npy/a.npy"
        if before != "nothing":
            np.save(place, np.ones((64, 4096) if before == "the same" else (5,), "u1"))
        stored = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
        with program(f"file = open(sys.argv[1], 'wb', buffering=0); file.write({HEADER!r}); {WAIT}", place):
            mount.signal(signal.SIGTERM)
            code, said = mount.end()
        assert code == 7 and "npy/a.npy is a header without elements, and still open for writing" in said, said
        assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == stored


def test_a_signal_leaves_a_value_whose_file_is_only_emptied(store: Path) -> None:
    with foreground(store) as mount:
        script = f"""
files = [open(path, "wb") for path in sys.argv[1:]]
files[1].write({NEW!r}); files[1].flush(); files[1].truncate(0)
{WAIT}"""
        (mount.path / "raw/other").write_bytes(OLD)
        with program(script, *(mount.path / "raw" / name for name in ("k", "other", "new"))):
            mount.signal(signal.SIGTERM)
            code, said = mount.end()
        assert code == 7 and "raw/k is emptied, and still open for writing" in said and "raw/new" not in said, said
    assert {path.name: path.read_bytes() for path in store.iterdir()} == {"k": OLD, "other": OLD, "new": b""}


# --- slow stores ---------------------------------------------------------------------------------------------------------------


def test_umount_tells_what_is_left_while_it_waits(store: Path) -> None:
    with foreground(store, gated=True) as mount:
        with changed_mapping(mount.path / "raw/k"):
            pass
        lines, opened = [], []

        def say(line: str) -> None:
            lines.append(line)
            # The daemon learns of its end at the same time: the first line may come before the report of remaining data.
            if "left" in line and "file" in line and not opened:
                assert (store / "k").read_bytes() == OLD
                mount.signal(signal.SIGUSR2)
                opened.append(True)

        assert unmounting.unmount(str(mount.path), print_line=say, every=EVERY) == (0, "")
        assert f"{mount.path}: 1 file, 2.9 KiB left" in lines
        unlike = [line for line in lines if not re.fullmatch(r".*: (1 file, 2\.9 KiB left|waiting for its daemon.*)", line)]
        assert not unlike
    assert (store / "k").read_bytes() == NEW


@pytest.mark.full_length
def test_the_command_tells_what_is_left(store: Path) -> None:
    with foreground(store, gated=True) as mount:
        with changed_mapping(mount.path / "raw/k"):
            pass
        command = [sys.executable, "-m", "zarrfs", "umount", str(mount.path)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT) as umount:
            assert umount.stderr is not None
            assert umount.stderr.readline() == f"zarrfs: {mount.path}: 1 file, 2.9 KiB left\n"
            mount.signal(signal.SIGUSR2)
            umount.stderr.read()
        assert umount.returncode == 0
    assert (store / "k").read_bytes() == NEW


def test_a_daemon_that_is_killed_at_its_end_leaves_the_names_of_what_is_lost(store: Path) -> None:
    with foreground(store, gated=True) as mount:
        with changed_mapping(mount.path / "raw/k"):
            pass

        def say(line: str) -> None:
            if "file" in line:
                mount.process.kill()

        outcome = unmounting.unmount(str(mount.path), print_line=say, every=EVERY)
        assert outcome.exit_code == 7
        assert "daemon died" in outcome.message and "1 file, 2.9 KiB left (raw/k)" in outcome.message
    assert (store / "k").read_bytes() == OLD


@pytest.mark.full_length
def test_a_daemon_that_makes_no_progress_is_waited_for_for_some_time(store: Path) -> None:
    with foreground(store, gated=True, timeout=1) as mount:
        with changed_mapping(mount.path / "raw/k"):
            pass

        def say(line: str) -> None:
            if "file" in line:
                mount.signal(signal.SIGSTOP)

        pid = mount.process.pid
        outcome = unmounting.unmount(str(mount.path), print_line=say, every=EVERY, spare=0.5)
        mount.signal(signal.SIGCONT)
        assert outcome.exit_code == 1
        assert outcome.message.startswith(
            f"{mount.path}: unmounted, but its daemon (pid {pid}) has made no progress for 1.5 s: 1 file, 2.9 KiB left; "
        )
        assert f"`tail --pid={pid} -f /dev/null` waits for its end, `kill -9 {pid}` drops its unstored data" in outcome.message


# --- failures to store ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A store on a disk with 100 KiB left."""
    with small_disk(tmp_path / "disk", "1m") as disk:
        (disk / "ballast").write_bytes(bytes(900 << 10))
        (disk / "store").mkdir()
        (disk / "store/small").write_bytes(b"old")
        yield disk / "store"


TOO_LARGE = f"""
large = open(sys.argv[1] + "/large", "wb", buffering=0)
large.write(bytes(500_000))
small = open(sys.argv[1] + "/small", "wb", buffering=0)
small.write(b"new")
{WAIT}
small.close()
try:
    large.close()
except OSError:
    pass
"""


def test_umount_names_what_could_not_be_stored(full_disk: Path) -> None:
    with mounted(full_disk, ends_with=None) as mount:
        with program(TOO_LARGE, mount.path / "raw"):
            pass
        ended = mount.umount()
        assert ended.returncode == 7
        assert "not stored: raw/large: " in ended.stderr and "o space left" in ended.stderr
        assert ended.stderr.count("raw/large") == 1
        assert "small" not in ended.stderr and ended.stderr.count("\n") == 1
    assert (full_disk / "small").read_bytes() == b"new"
    assert not (full_disk / "large").exists()


def test_umount_names_it_after_the_end_of_the_session_of_the_mount(
    full_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run-time folder of a user is removed when they log out, and created again when they log in."""
    session = tmp_path / "run"
    session.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(session))
    with mounted(full_disk, ends_with=None) as mount:
        shutil.rmtree(session)
        session.mkdir(0o700)
        # The daemon looks after its report every two seconds.
        with watchdog(60):
            while not list(session.glob("zarrfs/*.json")):
                pass
        with program(TOO_LARGE, mount.path / "raw"):
            pass
        ended = mount.umount()
        assert ended.returncode == 7 and "not stored: raw/large: " in ended.stderr
        assert not list(session.glob("zarrfs/*"))


@pytest.mark.full_length
def test_a_foreground_daemon_names_what_could_not_be_stored(full_disk: Path) -> None:
    with foreground(full_disk) as mount:
        with program(TOO_LARGE, mount.path / "raw"):
            mount.signal(signal.SIGTERM)
            code, said = mount.end()
            assert code == 7
            assert said.startswith("zarrfs: not stored: raw/large: ") and said.count("raw/large: ") == 1
            assert "o space left" in said and "small" not in said
            assert (full_disk / "small").read_bytes() == b"new"


def test_what_is_stored_at_the_second_attempt_was_stored(full_disk: Path) -> None:
    """A failed close is not final while the file is open elsewhere: the end of the mount tries again."""
    with foreground(full_disk) as mount:
        with program(TOO_LARGE, mount.path / "raw"):
            with pytest.raises(OSError, match="o space left"), open(mount.path / "raw/large", "r+b") as file:
                os.fsync(file.fileno())
            (full_disk.parent / "ballast").unlink()
            mount.signal(signal.SIGTERM)
            assert mount.end() == (0, "")
            assert (full_disk / "large").read_bytes() == bytes(500_000)


# --- lazily --------------------------------------------------------------------------------------------------------------------


def detach(mount: Foreground | Mounted, how: str) -> str:
    done = zarrfs("umount", "--lazy", str(mount.path)) if how == "zarrfs" else zarrfs_free_umount(mount.path)
    assert done.returncode == 0, done.stderr
    assert mount_at(str(mount.path)) is None
    return done.stderr


def zarrfs_free_umount(path: Path) -> subprocess.CompletedProcess[str]:
    # -i: do not call /sbin/umount.fuse.zarrfs, where that is installed.
    command = ["umount", "-i", "-l", path] if os.geteuid() == 0 else ["fusermount3", "-uz", path]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", ["zarrfs", "umount"])
@pytest.mark.parametrize("script", [HOLDS_DIRTY, MAPS_DIRTY], ids=["open", "mapped"])
def test_a_lazy_umount_loses_nothing_and_the_daemon_lives_until_the_last_release(store: Path, how: str, script: str) -> None:
    with foreground(store) as mount:
        with program(script, mount.path / "raw/k") as (process, stdin):
            said = detach(mount, how)
            if how == "zarrfs":
                assert f"daemon (pid {mount.process.pid})" in said and f"({process.pid}: raw/k)" in said
            assert mount.process.poll() is None
            stdin.close()
            assert mount.end() == (0, "")
        assert process.returncode == 0
        assert (store / "k").read_bytes() == NEW


@pytest.mark.full_length
def test_a_lazy_umount_of_what_nobody_uses_says_nothing(store: Path) -> None:
    with foreground(store) as mount:
        assert detach(mount, "zarrfs") == ""
        assert mount.end() == (0, "")


@pytest.mark.full_length
def test_writing_goes_on_after_a_lazy_umount(store: Path) -> None:
    script = f"{HOLDS_DIRTY}file.write(b'more'); os.fsync(file.fileno()); file.write(b' and more')"
    with foreground(store) as mount:
        with program(script, mount.path / "raw/k"):
            detach(mount, "umount")
        assert mount.end() == (0, "")
    assert (store / "k").read_bytes() == NEW + b"more and more"


@pytest.mark.parametrize("script", [HOLDS_DIRTY, MAPS_DIRTY], ids=["open", "mapped"])
def test_a_signal_after_a_lazy_umount_publishes(store: Path, script: str) -> None:
    with foreground(store) as mount:
        with program(script, mount.path / "raw/k"):
            detach(mount, "umount")
            mount.signal(signal.SIGTERM)
            assert mount.end() == (0, "")
            assert (store / "k").read_bytes() == NEW


def test_a_signal_publishes_what_is_mapped_below_a_renamed_folder(store: Path, tmp_path: Path) -> None:
    with foreground(store) as mount:
        folder = mount.path.parent
        with program(MAPS_DIRTY, mount.path / "raw/k"):
            folder.rename(tmp_path / "elsewhere")
            try:
                mount.signal(signal.SIGTERM)
                assert mount.process.wait() == 0
                assert (store / "k").read_bytes() == NEW
            finally:
                (tmp_path / "elsewhere").rename(folder)


def test_what_could_not_be_stored_is_named_although_another_mount_covers_this_one(full_disk: Path) -> None:
    with foreground(full_disk) as mount:
        with program(TOO_LARGE, mount.path / "raw"):
            run("mount", "-t", "tmpfs", "none", mount.path)
            try:
                mount.signal(signal.SIGTERM)
                code, said = mount.end()
                assert code == 7 and "not stored: raw/large: " in said
                assert f"{mount.path}: unmount failed: another mount covers it" in mount.path.with_name("log").read_text()
            finally:
                run("umount", mount.path)
                run("umount", "-l", mount.path)


@pytest.mark.full_length
def test_a_signal_after_a_lazy_umount_leaves_the_next_mount_alone(store: Path, tmp_path: Path) -> None:
    with foreground(store) as mount:
        with program(HOLDS_DIRTY, mount.path / "raw/k"):
            detach(mount, "umount")
            run("mount", "-t", "tmpfs", "none", mount.path)
            try:
                mount.signal(signal.SIGTERM)
                assert mount.end() == (0, "")
                there = mount_at(str(mount.path))
                assert there is not None and there.fstype == "tmpfs"
            finally:
                run("umount", mount.path)


@pytest.mark.full_length
def test_what_could_not_be_stored_after_a_lazy_umount_is_told_by_the_daemon(full_disk: Path) -> None:
    with foreground(full_disk) as mount:
        with program(TOO_LARGE, mount.path / "raw"):
            detach(mount, "zarrfs")
        code, said = mount.end()
        assert code == 7 and "not stored: raw/large: " in said


def test_what_could_not_be_stored_after_a_lazy_umount_is_in_the_log(full_disk: Path) -> None:
    with mounted(full_disk, ends_with=None) as mount:
        pidfd = os.pidfd_open(mount.pid)
        with program(TOO_LARGE, mount.path / "raw"):
            detach(mount, "zarrfs")
        with watchdog(30, lambda: os.kill(mount.pid, signal.SIGKILL)):
            select.select([pidfd], [], [])
        os.close(pidfd)
        assert "CRITICAL zarrfs: not stored: raw/large: " in mount.log()


@pytest.mark.parametrize(
    ("options", "code", "what"), [([], 1, "unmounted, but its"), (["--lazy"], 0, "detached; its")], ids=["umount", "lazy"]
)
def test_a_bind_mount_keeps_the_daemon_which_umount_says_without_waiting(
    store: Path, tmp_path: Path, options: list[str], code: int, what: str
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with mounted(store, ends_with=None) as mount:
        if subprocess.run(["mount", "--bind", mount.path / "raw", copy], check=False, capture_output=True).returncode:
            pytest.skip("a bind mount needs root")
        done = zarrfs("umount", *options, str(mount.path))
        assert (done.returncode, done.stderr) == (
            code,
            f"zarrfs: {mount.path}: {what} daemon continues: also mounted (bind mount) on {copy}\n",
        )
        (copy / "later").write_bytes(NEW)
        done = zarrfs("umount", str(copy))
        assert "its daemon gives no information on when everything is stored" in done.stderr
        assert done.returncode == 1
    assert (store / "later").read_bytes() == NEW


@pytest.mark.parametrize(("options", "code", "what"), [([], 1, "unmounted"), (["--lazy"], 0, "detached")], ids=["umount", "lazy"])
def test_a_copy_in_another_mount_namespace_is_unmounted_alone_which_is_said_without_waiting(
    store: Path, options: list[str], code: int, what: str
) -> None:
    """It waited for the daemon until its patience ended, and then advised to kill it."""
    with mounted(store) as mount:
        inside = [sys.executable, "-P", "-m", "zarrfs", "umount", *options, str(mount.path)]
        command = ["unshare", "--mount", "--propagation", "private", *inside]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
        if "unshare failed" in done.stderr:
            pytest.skip("a mount namespace needs root")
        assert (done.returncode, done.stderr) == (
            code,
            f"zarrfs: {mount.path}: {what} in this mount namespace only; its daemon (pid {mount.pid}) continues: "
            "still mounted in the daemon's own\n",
        )
        (mount.path / "raw/later").write_bytes(NEW)
    assert (store / "later").read_bytes() == NEW


def test_of_a_read_only_mount_nothing_is_to_be_stored(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with mounted(store, "--read-only", ends_with=None) as mount:
        if subprocess.run(["mount", "--bind", mount.path / "raw", copy], check=False, capture_output=True).returncode:
            pytest.skip("a bind mount needs root")
        assert mount.umount().returncode == 1
        assert zarrfs("umount", str(copy)).returncode == 0


def test_a_mount_over_itself_is_not_waited_for_either(store: Path) -> None:
    with mounted(store, ends_with=None) as mount:
        if subprocess.run(["mount", "--bind", mount.path, mount.path], check=False, capture_output=True).returncode:
            pytest.skip("a bind mount needs root")
        done = mount.umount()
        assert (done.returncode, done.stderr) == (
            1,
            f"zarrfs: {mount.path}: unmounted, but its daemon continues: also mounted (bind mount) on {mount.path}\n",
        )
        (mount.path / "raw/later").write_bytes(NEW)
        assert mount.umount().returncode == 0
    assert (store / "later").read_bytes() == NEW


@pytest.mark.skipif(os.geteuid() != 0, reason="umount --force needs root")
def test_a_mount_that_is_detached_by_force_ends_with_a_good_daemon(store: Path) -> None:
    with foreground(store) as mount:
        descriptor = os.open(mount.path / "raw" / "new", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, NEW)
        run("umount", "--force", "--lazy", mount.path)
        code, said = mount.end()
        assert (code, "unmount failed" in said) == (0, False), said
        with pytest.raises(OSError, match="not connected"):
            os.close(descriptor)
    assert (store / "new").read_bytes() == NEW
