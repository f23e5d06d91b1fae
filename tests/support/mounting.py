"""Real mounts for tests: the real command in the background, always unmounted at exit.

with mounted(store) as mount:
    (mount.path / "raw" / "k").read_bytes()
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import forge
from zarrfs.options.config import MountConfig

ROOT = Path(__file__).parents[2]
Process = subprocess.Popen[bytes] | forge.Process
_PATIENCE = 60


@dataclass(frozen=True)
class Mounted:
    """A usable mount. ``store`` is the folder of its store."""

    path: Path
    store: Path
    log_file: Path
    pid: int

    def stats(self) -> dict[str, Any]:
        """Return the counters of the mount."""
        return dict(json.loads((self.path / ".zarrfs" / "stats.json").read_bytes()))

    def operations(self) -> dict[str, int]:
        """Return the counters of store operations."""
        return dict(self.stats()["store_operations"])

    @contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        """Yield the store operations of the body; the dict is filled at exit."""
        before, cost = self.operations(), dict[str, int]()
        yield cost
        cost.update((name, count - before[name]) for name, count in self.operations().items() if count != before[name])

    def errors(self) -> list[dict[str, Any]]:
        """Return the lines of ``.zarrfs/errors.jsonl``."""
        return [json.loads(line) for line in (self.path / ".zarrfs" / "errors.jsonl").read_text().splitlines()]

    def log(self) -> str:
        """Return the daemon's log."""
        return self.log_file.read_text()

    def umount(self) -> subprocess.CompletedProcess[str]:
        """Run ``zarrfs umount``; return its output and exit code."""
        return zarrfs("umount", str(self.path))

    def drop_caches(self) -> None:
        """Make the kernel forget every name that it can drop (root only)."""
        Path("/proc/sys/vm/drop_caches").write_text("2")


def zarrfs(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    if forge.in_use:
        done = forge.run(arguments, cwd="/", env=env, timeout=_PATIENCE)
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
    return subprocess.run(
        [sys.executable, "-P", "-m", "zarrfs", *arguments],
        cwd="/",
        env=env,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        check=False,
    )


@contextmanager
def mounted(store: Path | str, *options: str, ends_with: int | None = 0) -> Iterator[Mounted]:
    """Mount ``store`` with ``zarrfs mount`` and ``options``; unmount it with ``zarrfs umount``.

    Its exit code has to be ``ends_with`` (None: the body unmounts).
    """
    with mountpoint() as path:
        log_file = path.with_name("log")
        done = zarrfs("mount", str(store), str(path), "--log-file", str(log_file), *options)
        assert done.returncode == 0, done.stderr
        pid = int(json.loads((path / ".zarrfs" / "config.json").read_bytes())["pid"])
        with killed_at_last(pid, path):
            mount = Mounted(path, Path(store), log_file, pid)
            yield mount
            if ends_with is not None:
                ended = mount.umount()
                assert ended.returncode == ends_with, f"umount gave {ended.returncode}: {ended.stderr}\n{mount.log()}"


@contextmanager
def mountpoint() -> Iterator[Path]:
    """Yield an empty folder to mount on, with space beside it for a log."""
    with tempfile.TemporaryDirectory(prefix="zarrfs-test-") as folder:
        path = Path(folder, "mnt")
        path.mkdir()
        yield path


@contextmanager
def killed_at_last(pid: int, path: Path) -> Iterator[None]:
    """Ensure after the body that no process ``pid`` is alive and nothing is mounted on ``path``."""
    pidfd = os.pidfd_open(pid)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        if (connection := connection_of(path)) is not None:
            with contextlib.suppress(OSError):
                # Programs that still wait for the dead daemon get an error.
                abort(connection)
            command = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
            subprocess.run([*command, str(path)], check=False, capture_output=True)


def connection_of(path: Path) -> str | None:
    """Return the number of the FUSE connection of the mount on ``path``, without a request to that file system."""
    return next((fields[2].partition(":")[2] for fields in mount_table() if fields[4] == str(path)), None)


def mount_table() -> list[list[str]]:
    """Return the fields of each line of the mount table; names may not be valid text."""
    text = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    return [[_unescaped(field) for field in line.split(" ")] for line in text.split("\n")[:-1]]


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def abort(connection: str) -> None:
    """Abort a FUSE connection in the kernel: all its requests fail, whatever the daemon does. Raises OSError without permission."""
    connections = Path("/sys/fs/fuse/connections")
    if not any(connections.iterdir()):
        subprocess.run(["mount", "-t", "fusectl", "none", str(connections)], check=False, capture_output=True)
    (connections / connection / "abort").write_text("1")


@contextmanager
def watchdog(seconds: float, *on_expiry: Callable[[], None]) -> Iterator[None]:
    """Fail if the body takes longer, after calling ``on_expiry`` to end it."""
    expired = threading.Event()

    def bark() -> None:
        expired.set()
        for each in on_expiry:
            each()

    timer = threading.Timer(seconds, bark)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        assert not expired.is_set(), f"still waiting after {seconds:g} s"


def run(*command: str | Path, stdin: bytes | None = None, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run a program as a user would; with ``check``, it has to succeed."""
    done = subprocess.run([str(word) for word in command], input=stdin, capture_output=True, timeout=_PATIENCE, check=False)
    assert not check or done.returncode == 0, f"{command}: {done.stderr.decode()}"
    return done


def shell(script: str, *arguments: Path | str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run a shell script with ``$1``, ``$2``, ..."""
    words: Sequence[Path | str] = ("bash", "-c", script, "bash", *arguments)
    return run(*words, check=check)


@contextmanager
def started(
    script: str, store: Path, *arguments: str, ends_with: int | None = 0, pipes: bool = False, **options: Any
) -> Iterator[tuple[Mounted, Process]]:
    """Mount with the process of ``script`` in this folder as the daemon.

    The script gets its MountConfig (with ``options``) as JSON, then ``arguments``, and prints ``mounted``. The mount ends after the body,
    with this exit code of ``umount``; None: the body unmounts. With ``pipes``, stdin and stderr are pipes too.
    """
    with mountpoint() as path:
        log_file = path.with_name("log")
        config = MountConfig(store=str(store), mountpoint=str(path), log_file=str(log_file), **options)
        with _running(ROOT / "tests/support" / script, [config.to_json(), *arguments], pipes) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"mounted\n", log_file.read_text()
                with killed_at_last(process.pid, path):
                    mount = Mounted(path, store, log_file, process.pid)
                    yield mount, process
                    if ends_with is not None:
                        ended = mount.umount()
                        assert ended.returncode == ends_with, f"umount gave {ended.returncode}: {ended.stderr}\n{mount.log()}"
            finally:
                process.kill()


def _running(script: Path, arguments: list[str], pipes: bool) -> AbstractContextManager[Process]:
    if forge.in_use:
        given = {} if pipes else {"stdin": sys.__stdin__.buffer, "stderr": sys.__stderr__.buffer}  # type: ignore[union-attr]
        return forge.Process(arguments, script=script, **given)
    more = subprocess.PIPE if pipes else None
    command = [sys.executable, "-P", str(script), *arguments]
    return subprocess.Popen(command, stdin=more, stdout=subprocess.PIPE, stderr=more, start_new_session=True)


@contextmanager
def mounted_slowly(store: Path, seconds: float, **options: Any) -> Iterator[Mounted]:
    """Mount like `mounted`, over a store with ``seconds`` for each get and set (see ``slow_mount.py``)."""
    with started("slow_mount.py", store, str(seconds), **options) as (mount, _):
        yield mount


@dataclass(frozen=True)
class HangingMount(Mounted):
    """A mount over a store that hangs on request."""

    process: Process

    def hang(self, pattern: str = "*", *operations: str) -> None:
        """Make the store hang; see ``hung_mount.py``."""
        self._tell(f"hang {pattern} {' '.join(operations)}")

    def answer(self) -> None:
        """Make the store answer again."""
        self._tell("answer")

    def _tell(self, line: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()
        assert self.process.stdout.readline() == b"done\n"


@contextmanager
def mounted_hanging(store: Path, timeout: float, *, ends_with: int | None = 0, **options: Any) -> Iterator[HangingMount]:
    """Mount like `mounted`, over a store that hangs on request; it has to answer at the end, unless ``ends_with`` is set."""
    with started("hung_mount.py", store, ends_with=ends_with, pipes=True, timeout=timeout, **options) as (mount, process):
        yield HangingMount(mount.path, mount.store, mount.log_file, mount.pid, process)
