"""A store that does not answer: no request waits longer than one deadline and a second, however many others wait, and service resumes.

Threat: the server of a store hangs, or one of its objects does. Powers of the attacker: all over the store, none over the machine.
"""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.mounting import Mounted, abort, connection_of, mounted, mounted_hanging, watchdog
from tests.support.small_stores import array_document, write

pytestmark = pytest.mark.fuse

TIMEOUT = 1.0
BOUND = TIMEOUT + 1
ROUNDS = 3
READERS = 32
PAGE = 4096
# Long enough that the kernel reads ahead, and several chunks are read together.
CHUNK = 16 * PAGE

# Each reader is a process: a thread that waits for a dead mount would block pytest. Prints the seconds taken, and the errno.
_READER = """
import os, sys, time
_, doing, path = sys.argv
def read():
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 16):
            pass
def write():
    with open(path, "wb", buffering=0) as file:
        file.write(bytes([7]) * (1 << 16))
does = {"read": read, "write": write, "list": lambda: os.listdir(path), "stat": lambda: os.stat(path)}[doing]
print("ready", flush=True)
sys.stdin.readline()
began, number = time.monotonic(), 0
try:
    does()
except OSError as error:
    number = error.errno
print(time.monotonic() - began, number, flush=True)
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays ``0/r0`` to ``2/r31``, one per reader in each round, of four chunks; ``wide`` has a chunk per reader and round."""
    folder = write(tmp_path_factory.mktemp("hung") / "store", {".zgroup": b'{"zarr_format":2}'})
    for number in range(ROUNDS):
        write(folder / str(number), {".zgroup": b'{"zarr_format":2}'})
        for reader in range(READERS):
            array = folder / str(number) / f"r{reader}"
            write(array, {".zarray": array_document((4 * CHUNK,), (CHUNK,), "|u1")})
            write(array, {str(index): bytes([reader + 1]) * CHUNK for index in range(4)})
        wide = folder / str(number) / "wide"
        write(wide, {".zarray": array_document((READERS * CHUNK,), (CHUNK,), "|u1")})
        write(wide, {str(index): bytes([index + 1]) * CHUNK for index in range(READERS)})
    return folder


@contextmanager
def readers(mount: Mounted, work: Sequence[tuple[str, Path]]) -> Iterator[Callable[[], list[tuple[float, int]]]]:
    """Yield a function that starts ``work``, one process for each, and returns the seconds and errno of each process."""
    running = [
        subprocess.Popen([sys.executable, "-c", _READER, doing, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for doing, path in work
    ]

    def free() -> None:
        os.kill(mount.pid, signal.SIGKILL)
        if (connection := connection_of(mount.path)) is not None:
            abort(connection)

    def result() -> list[tuple[float, int]]:
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        said = [process.communicate()[0].split() for process in running]
        return [(float(seconds), int(number)) for seconds, number in said]

    with watchdog(90, free):
        for process in running:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield result


def work_of(kind: str, top: Path, number: int, count: int) -> list[tuple[str, Path]]:
    """Return the operations of ``count`` readers in one round."""
    here = Path(str(number))
    match kind:
        case "chunks, the same":
            return [("read", top / "chunks" / here / "wide/0")] * count
        case "chunks of one array":
            return [("read", top / "chunks" / here / "wide" / str(reader)) for reader in range(count)]
        case "npy, the same":
            return [("read", top / "npy" / here / "wide.npy")] * count
        case "npy, different ones":
            return [("read", top / "npy" / here / f"r{reader}.npy") for reader in range(count)]
        case "raw":
            return [("read", top / "raw" / here / f"r{reader}" / "0") for reader in range(count)]
        case "zarr3":
            return [("read", top / "zarr3" / here / f"r{reader}" / "c/0") for reader in range(count)]
        case "ls":
            return [("list", top / ("chunks", "npy", "raw", "zarr3")[reader % 4] / here) for reader in range(count)]
        case "stat":
            return [("stat", top / ("chunks", "zarr3")[reader % 2] / here / f"r{reader}") for reader in range(count)]
    raise AssertionError(kind)


KINDS = ("chunks, the same", "chunks of one array", "npy, the same", "npy, different ones", "raw", "zarr3", "ls", "stat")
SELDOM = ("chunks, the same", "npy, the same", "zarr3", "ls")


def _kinds() -> list[Any]:
    of_chunks = [(kind, "*/[0-9]*", 8) for kind in KINDS if kind not in ("ls", "stat")]
    cases = [*((kind, "*", READERS) for kind in KINDS), *of_chunks]
    return [pytest.param(*case, marks=pytest.mark.full_length if case[0] in SELDOM else ()) for case in cases]


@pytest.mark.parametrize(("kind", "pattern", "count"), _kinds())
def test_readers_of_a_store_that_hangs_end_together(store: Path, kind: str, pattern: str, count: int) -> None:
    slowest: list[float] = []
    with mounted_hanging(store, TIMEOUT, watch=False) as mount:
        while len(slowest) < ROUNDS and min(slowest, default=BOUND) >= BOUND:
            work = work_of(kind, mount.path, len(slowest), count)
            with readers(mount, work) as begin:
                mount.hang(pattern)
                results = begin()
                mount.answer()
            slowest.append(max(seconds for seconds, _ in results))
            assert pattern != "*" or {failed for _, failed in results} <= {errno.ETIMEDOUT, errno.EIO}, results
            answers_within(2, work)
        assert "Traceback" not in mount.log()
    assert min(slowest) < BOUND, slowest


def test_one_slow_object_fails_nobody_else(store: Path) -> None:
    with mounted_hanging(store, TIMEOUT, watch=False) as mount:
        top = mount.path
        others = [
            *work_of("chunks of one array", top, 0, READERS)[1:],
            *work_of("npy, different ones", top, 0, 4),
            *work_of("raw", top, 0, 4),
            *work_of("ls", top, 0, 4),
        ]
        slow = [("read", top / view / "0/wide/0") for view in ("chunks", "raw")]
        with readers(mount, slow) as begin:
            mount.hang("0/wide/0")
            results = begin()
            assert [number for _, number in results] == [errno.ETIMEDOUT] * len(slow)
        assert [(doing, path) for doing, path in others if outcome(doing, path)] == []
        with readers(mount, [*slow, *others]) as begin:
            numbers = [number for _, number in begin()]
        assert numbers == [errno.ETIMEDOUT] * len(slow) + [0] * len(others)
        (top / "raw/new").write_bytes(b"new")
        assert (store / "new").read_bytes() == b"new"
        mount.answer()
        answers_within(2, slow)


def test_a_reader_of_the_chunks_beside_a_slow_one_gets_them(store: Path) -> None:
    """The kernel reads ahead into the slow chunk: its error must not reach a reader that asked for less."""
    with mounted_hanging(store, TIMEOUT, watch=False) as mount:
        mount.hang("0/wide/9")
        with open(mount.path / "npy/0/wide.npy", "rb", buffering=0) as file:
            data = b""
            while len(data) < 8 * CHUNK - 128:
                data += file.read(8 * CHUNK - 128 - len(data))
        assert data[128:] == b"".join(bytes([number + 1]) * CHUNK for number in range(8))[: 8 * CHUNK - 256]
        mount.answer()


def test_what_is_cached_goes_on_being_served(store: Path) -> None:
    with mounted_hanging(store, TIMEOUT, watch=False) as mount:
        with open(mount.path / "npy/0/r3.npy", "rb", buffering=0) as file:
            before = os.pread(file.fileno(), CHUNK, PAGE)
            mount.hang()
            assert outcome("read", mount.path / "raw/0/r4/0") == errno.ETIMEDOUT
            # Drop the kernel's pages; zarrfs keeps its cache.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file.fileno(), CHUNK, PAGE) == before == bytes([4]) * CHUNK
        mount.answer()


_WRITER = """
import sys, os
files = [open(f"{sys.argv[1]}/w{number}", "wb", buffering=0) for number in range(int(sys.argv[2]))]
for file in files:
    file.write(b"written")
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""


@pytest.mark.parametrize(
    "operations", [pytest.param([], id="all"), pytest.param(["set"], id="writes alone", marks=pytest.mark.full_length)]
)
def test_the_end_of_a_mount_with_dirty_files_does_not_wait_for_each(tmp_path: Path, operations: list[str]) -> None:
    store = write(tmp_path / "store", {".zgroup": b'{"zarr_format":2}'})
    files = 200
    with mounted_hanging(store, TIMEOUT, ends_with=None, watch=False) as mount:
        command = [sys.executable, "-c", _WRITER, str(mount.path / "raw"), str(files)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
            mount.hang("*", *operations)
            began = time.monotonic()
            mount.process.terminate()
            assert mount.process.wait(timeout=60) == 7
            took = time.monotonic() - began
        # One deadline per file, or more, would exceed this.
        assert took < files * TIMEOUT / 10, took
        assert mount.process.stderr is not None
        said = mount.process.stderr.read().decode()
        assert "raw/w0" in said and re.search(r"and 18\d more", said), said
        assert "Traceback" not in mount.log()
    assert not [each for each in os.listdir(store) if each.startswith("w")]


def test_writers_of_one_shard_end_together(tmp_path: Path) -> None:
    """They wait for one lock, and then for one key."""
    store = tmp_path / "store"
    codecs = [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [CHUNK],
                "codecs": [{"name": "bytes"}],
                "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
            },
        }
    ]
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [8 * CHUNK],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8 * CHUNK]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": codecs,
    }
    write(store, {"zarr.json": b'{"zarr_format": 3, "node_type": "group"}', "a/zarr.json": json.dumps(document).encode()})
    slowest: list[float] = []
    with mounted_hanging(store, TIMEOUT, ends_with=None, shard_delay=0.0, watch=False) as mount:
        while len(slowest) < ROUNDS and min(slowest, default=BOUND) >= BOUND:
            folder = mount.path / "chunks/a"
            (folder / "0").write_bytes(bytes([1]) * CHUNK)
            with readers(mount, [("write", folder / str(number)) for number in range(8)]) as begin:
                mount.hang("*", "set")
                results = begin()
                mount.answer()
            assert {number for _, number in results} == {errno.ETIMEDOUT}
            slowest.append(max(seconds for seconds, _ in results))
        mount.umount()
    assert min(slowest) < BOUND, slowest


@pytest.mark.full_length
def test_a_folder_on_a_file_system_that_hangs(store: Path) -> None:
    """Threads hang there, and cannot be ended."""
    with mounted(store) as below, mounted(below.path / "raw", "--timeout", f"{TIMEOUT:g}", "--no-watch") as mount:
        assert outcome("read", mount.path / "raw/0/r0/0") == 0
        slowest: list[float] = []
        while len(slowest) < ROUNDS and min(slowest, default=BOUND) >= BOUND:
            work = [
                *work_of("raw", mount.path, len(slowest), READERS),
                *work_of("npy, different ones", mount.path, len(slowest), 8),
            ]
            with readers(mount, work) as begin, stopped(below.pid):
                results = begin()
                # An answer that needs no store.
                assert (mount.path / ".zarrfs/version").read_bytes()
                threads = len(os.listdir(f"/proc/{mount.pid}/task"))
            assert threads < 200
            assert {failed for _, failed in results} <= {errno.ETIMEDOUT, errno.EIO}, results
            slowest.append(max(seconds for seconds, _ in results))
            answers_within(2, work)
    assert min(slowest) < BOUND, slowest


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a daemon during the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def answers_within(seconds: float, work: Sequence[tuple[str, Path]]) -> None:
    """Assert that all of the work succeeds again within this time."""
    until = time.monotonic() + seconds
    left = list(work)
    while left and time.monotonic() < until:
        left = [each for each in left if outcome(*each)]
    assert not left, f"not back after {seconds:g} s"


def outcome(doing: str, path: Path) -> int:
    """Return the errno of an operation in this process; 0 for success."""
    try:
        match doing:
            case "read":
                path.read_bytes()
            case "list":
                os.listdir(path)
            case _:
                path.stat()
    except OSError as error:
        return error.errno or errno.EIO
    return 0
