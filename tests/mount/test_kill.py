"""kill -9 of the daemon at random moments, while programs write.

No value is torn, no acknowledged write is lost, and no temporary name is left in the store. The control, which writes in place, tears.
"""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import trio

from tests.support.length import share
from tests.support.mounting import killed_at_last, mountpoint
from zarrfs.options.config import MountConfig

pytestmark = pytest.mark.fuse

KILLS = share(50)
# One process imports zarrfs, once, and forks the daemons: starting Python each time would take a minute.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["zarrfs.daemon.serve", "zarrfs.stores.folder.store", "zarrfs.views.chunks", "zarrfs.views.whole_array.view"]
)


def value_of(version: int) -> bytes:
    """Return a value of 16 to 256 KiB that differs everywhere from that of any other version."""
    return b"%016d" % version * (1024 * (1 + version * 7 % 16))


def version_of(value: bytes) -> int | None:
    """Return the version of a value; None for a torn one."""
    version = int(value[:16] or 0)
    return version if value == value_of(version) else None


def daemon(config: str, ready: Connection) -> None:
    """Run the daemon as the command does in its background process."""
    from zarrfs.daemon.serve import serve

    os.setsid()
    trio.run(serve, MountConfig.from_json(config), lambda: ready.send(True))


@contextmanager
def running(store: Path, path: Path) -> Iterator[int]:
    """Yield the process of a mount, and kill it in any case."""
    ready, theirs = PROCESSES.Pipe(duplex=False)
    config = MountConfig(store=str(store), mountpoint=str(path), log_level="error")
    process = PROCESSES.Process(target=daemon, args=(config.to_json(), theirs))
    process.start()
    theirs.close()
    assert process.pid is not None
    with killed_at_last(process.pid, path):
        assert ready.recv()
        yield process.pid
    process.join()


def sweep(store: Path, path: Path) -> bool:
    """Let a listing remove the abandoned temporary files of a killed daemon; return True if there were any."""

    def temporary() -> list[str]:
        return [name for name in os.listdir(store) if name.endswith((".partial", ".__lock"))]

    before = bool(temporary())
    os.listdir(path / "raw")
    assert not temporary()
    return before


class Writers:
    """Programs that write until the mount is gone, each in its own way; ``acknowledged`` holds the last acknowledged version by key."""

    def __init__(self, raw: Path, versions: Iterator[int]) -> None:
        self.raw = raw
        self.versions = versions
        self.acknowledged: dict[str, int] = {}
        self.first = threading.Event()
        """Set by the first acknowledged write."""
        self.created: list[str] = []
        self.unexpected: list[BaseException] = []
        ways: list[Callable[[], None]] = [self.in_place, self.by_rename, self.by_link]
        self._threads = [threading.Thread(target=self._until_killed, args=(way,)) for way in ways]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive(), "who writes into a mount that was killed waits for ever"

    def in_place(self) -> None:
        """Write as ``cp`` does: open with O_TRUNC, write, fsync."""
        version = next(self.versions)
        self._write("in_place", version)
        self.acknowledged["in_place"] = version

    def by_rename(self) -> None:
        """Write as zarr-python and tensorstore set a key."""
        version = next(self.versions)
        partial = f"by_rename.{version:032x}.partial"
        self._write(partial, version)
        os.rename(self.raw / partial, self.raw / "by_rename")
        self.acknowledged["by_rename"] = version

    def by_link(self) -> None:
        """Write as zarr-python creates a key."""
        version = next(self.versions)
        partial, key = f"new.{version:032x}.partial", f"new{version}"
        self._write(partial, version)
        os.link(self.raw / partial, self.raw / key)
        self.acknowledged[key] = version
        os.unlink(self.raw / partial)

    def _write(self, name: str, version: int) -> None:
        fd = os.open(self.raw / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            left = memoryview(value_of(version))
            while left:
                left = left[os.write(fd, left) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def _until_killed(self, write: Callable[[], None]) -> None:
        try:
            while True:
                write()
                self.first.set()
        except OSError as error:
            if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO):
                self.unexpected.append(error)
        except BaseException as error:  # noqa: BLE001 (a thread's exception is nobody's)
            self.unexpected.append(error)


def test_kill_9_tears_nothing_and_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    moments = random.Random(3)
    versions = itertools.count(1)
    expected: dict[str, int] = {}
    store = tmp_path / "store"
    store.mkdir()
    acknowledged = left_behind = 0
    for number in range(KILLS):
        with mountpoint() as path, running(store, path) as pid:
            left_behind += sweep(store, path)
            writers = Writers(path / "raw", versions)
            writers.start()
            # A busy machine acknowledges nothing within these milliseconds: in every second round they start after a first write.
            if number % 2:
                assert writers.first.wait(30)
            killer = threading.Timer(moments.uniform(0.002, 0.060), os.kill, (pid, signal.SIGKILL))
            killer.start()
            writers.join()
        assert not writers.unexpected
        acknowledged += len(writers.acknowledged)
        expected.update(writers.acknowledged)
        for key, version in expected.items():
            found = version_of((store / key).read_bytes())
            assert found is not None, f"{key} is torn"
            assert found >= version, f"{key} has lost what was acknowledged"
    with mountpoint() as path, running(store, path):
        left_behind += sweep(store, path)
    for key in os.listdir(store):
        assert version_of((store / key).read_bytes()) is not None, f"{key} is torn"
    print(f"{KILLS} kills: {acknowledged} acknowledged, {left_behind} left a temporary file behind for a while")
    # Else the kills prove nothing.
    assert acknowledged >= KILLS // 2


def write_in_place(path: str, ready: Connection) -> None:
    """Change the file of a key in place: the control, for a daemon that does not write atomically."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    for version in itertools.count(1):
        value = value_of(version)
        for start in range(0, len(value), 4096):
            os.pwrite(fd, value[start : start + 4096], start)
        os.ftruncate(fd, len(value))
        if version == 1:
            ready.send(True)


@pytest.mark.full_length
def test_the_control_tears(tmp_path: Path) -> None:
    moments = random.Random(3)
    torn = 0
    for number in range(KILLS // 2):
        ready, theirs = PROCESSES.Pipe(duplex=False)
        process = PROCESSES.Process(target=write_in_place, args=(str(tmp_path / str(number)), theirs))
        process.start()
        assert process.pid is not None
        assert ready.recv()
        killer = threading.Timer(moments.uniform(0.002, 0.060), os.kill, (process.pid, signal.SIGKILL))
        killer.start()
        process.join()
        killer.join()
        torn += version_of((tmp_path / str(number)).read_bytes()) is None
    print(f"the control, writing in place: {torn} of {KILLS // 2} torn")
    assert torn
