"""A file system that hangs within a store's folder: requests beside it are answered, and the mount ends.

Threat: the server of a network file system, or the owner of a FUSE mount, anywhere in another user's store. Powers: to give any answer
at any time; to mount, unmount and move folders of the store at any time.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from tests.support.mounting import ROOT, Mounted, abort, connection_of, mount_table, mounted, watchdog
from tests.support.small_stores import array_document, write
from zarrfs.keys import Key, Prefix
from zarrfs.stores.folder.store import FolderStore

pytestmark = [pytest.mark.fuse, pytest.mark.skipif(os.geteuid() != 0, reason="mounts within a store")]

TIMEOUT = 2.0
PATIENCE = 40
HUNG = {errno.ETIMEDOUT, errno.EIO}
OTHERS = ("raw/k", "raw/g/k", "raw/g/h/k", "chunks/a/0", "zarr3/a/c/0", "npy/a.npy", "raw/a/.zarray")


class Hanging:
    """A FUSE mount on ``path`` that hangs on request; it has the files ``0`` to ``299`` and the document of an array."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        files = {".zarray": array_document((300,), (1,), "|u1").decode(), **{str(number): "x" for number in range(300)}}
        command = [sys.executable, "-P", str(ROOT / "tests/support/hanging_folder.py"), str(path), json.dumps(files)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._expect(b"mounted\n")
        self._connection = connection_of(path)

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        self.process.stdin.flush()
        self._expect(b"done\n")

    def _expect(self, line: bytes) -> None:
        assert self.process.stdout is not None and self.process.stdout.readline() == line

    def end(self) -> None:
        """End the file system; programs that wait for it get an error."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                abort(self._connection)
        self.process.kill()
        self.process.communicate()
        # The mount may have been moved.
        for fields in mount_table():
            if fields[2] == f"0:{self._connection}":
                subprocess.run(["umount", "-l", fields[4]], check=False)


@contextmanager
def hanging(path: Path) -> Iterator[Hanging]:
    folder = Hanging(path)
    try:
        with watchdog(PATIENCE, folder.end):
            yield folder
    finally:
        folder.end()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    document = array_document((4,), (2,), "|u1")
    values = {
        ".zgroup": b'{"zarr_format":2}',
        "a/.zarray": document,
        "a/0": b"ab",
        "a/1": b"cd",
        "k": b"k",
        "g/k": b"k",
        "g/h/k": b"k",
    }
    return write(tmp_path / "outer" / "store", values)


def outcome(path: Path) -> int:
    """Return the errno of reading a file, or of listing a folder; 0 for success."""
    try:
        if path.is_dir():
            os.listdir(path)
        else:
            path.read_bytes()
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def others_are_answered(mount: Mounted) -> None:
    """Assert answers long before a deadline, in every view, while a part of the store hangs."""
    took = []
    for turn in range(3):
        began = time.monotonic()
        assert [outcome(mount.path / each) for each in OTHERS] == [0] * len(OTHERS)
        assert [outcome(mount.path / f"raw/g/missing{turn}")] == [errno.ENOENT]
        (mount.path / f"raw/g/new{turn}").write_bytes(b"new")
        assert (mount.store / f"g/new{turn}").read_bytes() == b"new"
        took.append(time.monotonic() - began)
    assert min(took) < TIMEOUT, took
    assert "k" in os.listdir(mount.path / "raw/g")


@contextmanager
def mounted_here(store: Path, *options: str, ends_with: int = 0) -> Iterator[Mounted]:
    with mounted(store, "--timeout", f"{TIMEOUT:g}", *options, ends_with=None) as mount:

        def free() -> None:
            os.kill(mount.pid, signal.SIGKILL)
            if (connection := connection_of(mount.path)) is not None:
                abort(connection)

        with watchdog(PATIENCE, free):
            yield mount
            ended = mount.umount()
            assert ended.returncode == ends_with, ended.stderr
            assert connection_of(mount.path) is None
            assert "Traceback" not in mount.log()


ALWAYS = ("before", "later, in a folder", "moved into it")
SELDOM = ("hanging before", "later", "a folder around it is renamed")


@pytest.mark.parametrize("watch", ["--watch", "--no-watch"])
@pytest.mark.parametrize("when", [*ALWAYS, *(pytest.param(each, marks=pytest.mark.full_length) for each in SELDOM)])
def test_what_lies_beside_a_mount_that_hangs_is_answered(store: Path, when: str, watch: str) -> None:
    within = store / ("g/h/sub" if when in ("later, in a folder", "a folder around it is renamed") else "sub")
    place = store.parent / "aside/x/sub" if when == "moved into it" else within
    with contextlib.ExitStack() as stack:
        folder = None
        if when not in ("later", "later, in a folder"):
            folder = stack.enter_context(hanging(place))
            if when == "hanging before":
                folder.tell("hang")
        mount = stack.enter_context(mounted_here(store, watch))
        if when != "hanging before":
            others_are_answered(mount)
        if folder is None:
            folder = stack.enter_context(hanging(place))
        if when == "moved into it":
            os.rename(store.parent / "aside", store / "aside")
            within = store / "aside/x/sub"
        if when == "a folder around it is renamed":
            os.rename(store / "g/h", store / "g/i")
            os.makedirs(store / "g/h")
            (store / "g/h/k").write_bytes(b"k")
            within = store / "g/i/sub"
        if when != "hanging before":
            folder.tell("hang")
        inside = mount.path / "raw" / within.relative_to(store)
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(outcome, inside / str(number)) for number in range(8)]
            others_are_answered(mount)
            assert {each.result() for each in waiting} <= HUNG
        assert outcome(inside.parent) == 0
        others_are_answered(mount)
        folder.tell("answer")


@pytest.mark.full_length
def test_it_answers_again(store: Path) -> None:
    with hanging(store / "sub") as folder, mounted_here(store) as mount:
        assert outcome(mount.path / "raw/sub/0") == 0
        folder.tell("hang")
        assert outcome(mount.path / "raw/sub/1") in HUNG
        folder.tell("answer")
        until = time.monotonic() + 2 * TIMEOUT + 2
        while outcome(mount.path / "raw/sub/1") and time.monotonic() < until:
            pass
        assert [outcome(mount.path / each) for each in ("raw/sub/1", "chunks/sub/7", "npy/sub.npy")] == [0, 0, 0]


def test_the_mount_ends_while_it_hangs(store: Path) -> None:
    with hanging(store / "sub") as folder:
        with mounted_here(store) as mount, ThreadPoolExecutor(8) as pool:
            folder.tell("hang")
            assert set(pool.map(outcome, [mount.path / f"raw/sub/{number}" for number in range(8)])) <= HUNG
            others_are_answered(mount)
        folder.tell("answer")


@pytest.mark.full_length
def test_threads_that_wait_for_it_are_not_those_of_the_rest(store: Path) -> None:
    """Each request to it is for another file, with a deadline of its own; a write beside it needs a thread."""
    with hanging(store / "sub") as folder, mounted_here(store) as mount:
        folder.tell("hang")
        with ThreadPoolExecutor(64) as pool:
            waiting = [pool.submit(outcome, mount.path / f"raw/sub/{number}") for number in range(300)]
            while not all(each.done() for each in waiting):
                others_are_answered(mount)
            assert {each.result() for each in waiting} <= HUNG
        others_are_answered(mount)
        assert len(os.listdir(f"/proc/{mount.pid}/task")) < 150
        folder.tell("answer")


def test_what_is_written_to_it_ends_by_the_deadline(store: Path) -> None:
    with hanging(store / "sub") as folder, mounted_here(store, ends_with=7) as mount:
        assert outcome(mount.path / "raw/sub/0") == 0
        folder.tell("hang")
        with pytest.raises(OSError, match=r"timed out|Input/output"), (mount.path / "raw/sub/0").open("wb", buffering=0) as file:
            file.write(b"mine")
        others_are_answered(mount)
        folder.tell("answer")


def test_what_is_meant_for_it_is_stored_beside_it(store: Path) -> None:
    """An array is built apart, with the rights of its place: a place that hangs is not looked at."""

    async def build() -> None:
        tree = FolderStore(str(store))
        for prefix in (Prefix(".zarrfs/1/"), Prefix(".zarrfs/1/new/")):
            tree.destine(prefix, Prefix("g/hung/x/"))
        with trio.fail_after(PATIENCE / 4):
            await tree.set(Key(".zarrfs/1/new/0"), b"chunk")
        await tree.aclose()

    with hanging(store / "g/hung") as folder:
        folder.tell("hang")
        trio.run(build)
