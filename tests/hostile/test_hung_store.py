"""A store that does not answer: nobody waits for longer than one deadline and a second, whoever else waits, and it comes back by itself.

Threat: the server of a store hangs, or one of its objects. Powers of who does it: all over the store, none over the machine.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mounting import HangingMount, abort, connection_of, mounted, mounted_hanging, watchdog
from tests.support.small_stores import array_document, write

pytestmark = pytest.mark.fuse

TIMEOUT = 2.0
BOUND = TIMEOUT + 1
ROUNDS = 3
READERS = 32
PAGE = 4096
# Long enough that the kernel reads ahead, and several chunks are read together.
CHUNK = 16 * PAGE

# A process of its own for each reader: one that waits for a dead mount would keep pytest. Prints the seconds that it took, and the errno.
_READER = """
import os, sys, time
_, doing, path = sys.argv
def read():
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 16):
            pass
does = {"read": read, "list": lambda: os.listdir(path), "stat": lambda: os.stat(path)}[doing]
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
    """Arrays ``0/r0`` to ``2/r31``, one a reader in each round, of four chunks; ``wide`` has a chunk a reader and round."""
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
def readers(mount: HangingMount, work: Sequence[tuple[str, Path]]) -> Iterator[Callable[[], list[tuple[float, int]]]]:
    """Processes that are about to do each a piece of ``work``; what is yielded has them begin, and gives seconds and errno of each."""
    running = [
        subprocess.Popen([sys.executable, "-c", _READER, doing, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for doing, path in work
    ]

    def free() -> None:
        mount.process.kill()
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
    """What so many readers do in one round."""
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


@pytest.mark.parametrize("pattern", ["*", "*/[0-9]*"], ids=["all", "the chunks"])
@pytest.mark.parametrize("kind", KINDS)
def test_readers_of_a_store_that_hangs_end_together(store: Path, kind: str, pattern: str) -> None:
    slowest: list[float] = []
    with mounted_hanging(store, TIMEOUT, metadata_ttl=0.1, watch=False) as mount:
        for number in range(ROUNDS):
            work = work_of(kind, mount.path, number, READERS)[:: 1 if number % 2 else 4]
            with readers(mount, work) as begin:
                mount.hang(pattern)
                results = begin()
                mount.answer()
            slowest.append(max(seconds for seconds, _ in results))
            assert pattern != "*" or {failed for _, failed in results} <= {errno.ETIMEDOUT, errno.EIO}, results
            until = time.monotonic() + 2
            while any(outcome(*each) for each in work) and time.monotonic() < until:
                pass
            assert not any(outcome(*each) for each in work), f"{kind}: not back after two seconds"
        assert "Traceback" not in mount.log()
    assert min(slowest) < BOUND, slowest


def outcome(doing: str, path: Path) -> int:
    """The errno of doing it here and now."""
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
