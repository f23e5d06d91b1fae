"""The end of a mount, and the cost of external changes, under a hostile store, its owner, or other users of the machine.

Threats: a hierarchy of many nodes, an owner who renames and touches it faster than changes can be processed, killed readers, a mount
kept alive in another mount namespace, components that never return. Promised: the daemon ends and logs the reason for any wait; no
step of its event loop takes longer than 50 ms, whatever the number of nodes; the work grows linearly with the number of nodes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import trio

from tests.support.drivers import direct
from tests.support.length import share
from tests.support.loop_steps import stepped
from tests.support.mounting import ROOT, Mounted, abort, connection_of, killed_at_last, mounted, mountpoint, run, watchdog
from tests.support.small_stores import array_document, write
from zarrfs.keys import Prefix
from zarrfs.lifecycle.mount_table import mount_at
from zarrfs.options.config import MountConfig
from zarrfs.stores.change import Change
from zarrfs.stores.memory import MemoryStore

pytestmark = pytest.mark.fuse

LONGEST_STEP = 0.05
ROUNDS = int(os.environ.get("ZARRFS_ENDINGS", share(24)))
# One process imports zarrfs, once, and forks the daemons: starting Python three hundred times would take minutes.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["zarrfs.daemon.serve", "zarrfs.stores.folder.store", "zarrfs.views.chunks", "zarrfs.views.whole_array.view"]
)
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def groups(folder: Path, count: int) -> Path:
    """Write a hierarchy of that many groups, all in the root; return its folder."""
    write(folder, {".zgroup": b'{"zarr_format":2}'})
    for number in range(count):
        (folder / f"g{number:05}").mkdir()
        (folder / f"g{number:05}/.zgroup").write_bytes(b'{"zarr_format":2}')
    return folder


def damaged(folder: Path) -> Path:
    """Write arrays in which every other chunk cannot be decoded; return their folder."""
    write(folder, {".zgroup": b'{"zarr_format":2}'})
    document = json.loads(array_document((64,), (8,), "<i4"))
    document["compressor"] = {"id": "zlib", "level": 1}
    import zlib

    good, bad = zlib.compress(bytes(32)), b"not zlib"
    for number in range(20):
        chunks = {str(index): (good, bad)[index % 2] for index in range(8)}
        write(folder / f"a{number}", {".zarray": json.dumps(document).encode(), **chunks})
    return folder


# --- the cost of many nodes -------------------------------------------------------------------------------------------------------


@pytest.mark.full_length
@pytest.mark.timeout(300)
def test_many_nodes_keep_the_event_loop_neither_while_others_change_them_nor_at_the_end(tmp_path: Path) -> None:
    count = share(2000)
    store = groups(tmp_path / "store", count)
    with stepped(store, cache_dir=str(tmp_path)) as (mount, steps):
        run("ls", "-R", mount.path / "chunks")
        assert mount.stats()["nodes_parsed"] > count
        # Measure without the listing.
        steps.report()
        for number in range(2 * count):
            name = store / f"g{number % count:05}"
            name.rename(store / "away")
            (store / "away").rename(name)
        (store / "last").write_bytes(b"seen")
        while not (mount.path / "raw/last").exists():
            pass
        assert steps.longest() < LONGEST_STEP, steps.last
        for number in range(10 * count):
            os.utime(store / f"g{number % count:05}/.zgroup")
        (store / "later").write_bytes(b"seen")
        while not (mount.path / "raw/later").exists():
            pass
        run("ls", "-R", mount.path / "chunks")
        steps.report()
    assert max(steps.last["longest"].values()) < LONGEST_STEP, steps.last


def calls(function: Callable[[], None]) -> int:
    """Return the number of calls that ``function`` makes, including C functions."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    "kind",
    [
        "everything",
        "a rename among others",
        *(pytest.param(each, marks=pytest.mark.full_length) for each in ("a folder", "an own folder")),
    ],
)
def test_the_work_grows_as_what_is_concerned(kind: str) -> None:
    async def work(count: int) -> int:
        store = MemoryStore()
        async with direct(store) as driver:
            driver.prefix = ""
            await driver.put(".zgroup", b'{"zarr_format":2}')
            await driver.put("alone/.zgroup", b'{"zarr_format":2}')
            for number in range(count):
                await driver.put(f"g/g{number}/.zgroup", b'{"zarr_format":2}')
            await driver.put("g/.zgroup", b'{"zarr_format":2}')
            for view in ("chunks", "raw"):
                for number in range(count):
                    await driver.stat(f"{view}/g/g{number}/.zgroup")
                await driver.stat(f"{view}/alone/.zgroup")
            place = {"everything": "", "a rename among others": "alone/"}.get(kind, "g/")
            change = Change(Prefix(place), "erase", external=kind != "an own folder")
            told = driver.notifier.entries
            told.clear()
            found = calls(lambda: driver.tree.observed.announce(change))
            sliced = calls_of_tasks()
            with sliced:
                await driver.tree.changes.slices.done()
            assert told, "the kernel is told"
            return found + sliced.count

    small, large = trio.run(work, 200), trio.run(work, 800)
    if kind == "a rename among others":
        assert large <= small * 1.2, "nothing else is looked at"
    else:
        assert large <= small * 6


class calls_of_tasks:
    """Counts the calls of all tasks of this thread inside the block."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        sys.setprofile(self._profile)

    def __exit__(self, *exc: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: object, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")


def test_a_shard_of_very_many_chunks_is_not_told_chunk_by_chunk() -> None:
    from zarrfs.arrays.layers import ChunkBox
    from zarrfs.hierarchy.node_changes import NodeChanges
    from zarrfs.keys import NodePath

    small = NodeChanges(chunks=((NodePath("/a"), ChunkBox((range(2, 4), range(5, 8)))),))
    assert [node.coords for node in small] == [(i, j) for i in (2, 3) for j in (5, 6, 7)] and not small.whole
    large = NodeChanges(chunks=((NodePath("/a"), ChunkBox((range(2**40), range(2**40)))),))
    assert list(large) == [] and large.whole == ["/a"]


# --- waits at the end of a mount --------------------------------------------------------------------------------------------------


@pytest.mark.full_length
@only_root
def test_a_copy_in_another_mount_namespace_keeps_no_daemon(tmp_path: Path) -> None:
    """A container, a service or an `unshare` started during the mount keeps its own copy, which the umount does not reach."""
    store = write(tmp_path / "store", {"k": b"value"})
    with mounted(store, "--cache-dir", str(tmp_path), ends_with=None) as mount:
        script = "echo ready; exec sleep 600"
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as elsewhere:
            assert elsewhere.stdout is not None and elsewhere.stdout.readline() == b"ready\n"
            try:
                ended = mount.umount()
            finally:
                elsewhere.kill()
        assert ended.returncode == 0, ended.stderr
        assert f"mount namespace of sleep ({elsewhere.pid})" in mount.log()


@contextmanager
def stuck(store: Path, where: str, **options: object) -> Iterator[tuple[Mounted, subprocess.Popen[bytes]]]:
    with mountpoint() as path:
        log_file = path.with_name("log")
        config = MountConfig(store=str(store), mountpoint=str(path), log_file=str(log_file), **options)  # type: ignore[arg-type]
        command = [sys.executable, "-P", str(ROOT / "tests/support/stuck_mount.py"), config.to_json(), where]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
            with killed_at_last(process.pid, path), watchdog(60, process.kill):
                assert process.stdout is not None and process.stdout.readline() == b"mounted\n", log_file.read_text()
                yield Mounted(path, store, log_file, process.pid), process
                process.wait()


@pytest.mark.parametrize(
    ("where", "what"),
    [
        pytest.param("close", "the close of the store", marks=pytest.mark.full_length),
        pytest.param("thread", "background tasks", marks=pytest.mark.full_length),
        ("lock", "the store"),
    ],
)
def test_what_never_comes_back_is_told_and_the_daemon_ends(tmp_path: Path, where: str, what: str) -> None:
    store = write(tmp_path / "store", {"k": b"value"})
    with stuck(store, where, timeout=1.0, cache_dir=str(tmp_path)) as (mount, process):
        ended = mount.umount()
        assert process.wait() == 0 and ended.returncode == 0, "nothing is lost"
        assert f"ended while waiting for {what}" in mount.log()
        assert "waiting: thread MainThread in " in mount.log()


ENDINGS: dict[str, Callable[[Path, int], object]] = {
    "umount -l": lambda path, pid: run("umount", "-i", "-l", path),
    "umount -f": lambda path, pid: run("umount", "-i", "-f", "-l", path),
    "abort": lambda path, pid: abort(str(connection_of(path))),
    "SIGTERM": lambda path, pid: os.kill(pid, signal.SIGTERM),
}


@only_root
@pytest.mark.parametrize(
    "how", ["umount -l", "SIGTERM", *(pytest.param(each, marks=pytest.mark.full_length) for each in ("umount -f", "abort"))]
)
def test_readers_whom_nobody_waits_for_keep_no_daemon(tmp_path: Path, how: str) -> None:
    """The store never answers and there is no deadline in practice: 120 readers wait, more than there are workers."""
    store = write(tmp_path / "store", {".zgroup": b'{"zarr_format":2}'})
    write(store / "a", {".zarray": array_document((4, 4), (4, 4), "|u1"), "0.0": bytes(16)})
    with stuck(store, "read", timeout=100_000.0, cache_dir=str(tmp_path)) as (mount, process):
        readers = [subprocess.Popen(["cat", mount.path / "raw/a/0.0"], stdout=-3, stderr=-3) for _ in range(120)]
        while not mount.stats()["open_handles"]:
            pass
        for reader in readers[::2]:
            reader.kill()
        connection = str(connection_of(mount.path))
        ENDINGS[how](mount.path, process.pid)
        if how == "umount -l":
            # The kernel keeps open files: their readers wait until the connection is aborted.
            abort(connection)
        process.wait()
        for reader in readers:
            reader.wait()
        if how == "abort":
            # Root's daemon may have removed the mount already.
            run("umount", "-i", "-l", mount.path, check=False)


@pytest.mark.full_length
def test_a_request_that_is_taken_back_stops_nothing(tmp_path: Path) -> None:
    """Its reader is killed after the daemon was woken for it and before the daemon has read it. Then no request remains."""
    store = write(tmp_path / "store", {"k": b"value"})
    with mountpoint() as path:
        log_file = path.with_name("log")
        config = MountConfig(store=str(store), mountpoint=str(path), log_file=str(log_file), cache_dir=str(tmp_path))
        command = [sys.executable, "-P", str(ROOT / "tests/support/hogged_mount.py"), config.to_json()]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            with killed_at_last(process.pid, path), watchdog(100, process.kill):
                assert process.stdout.readline() == "mounted\n", log_file.read_text()
                # The order in which the loop takes the two is random.
                for number in range(16):
                    process.send_signal(signal.SIGSTOP)
                    process.stdin.write("\n")
                    process.stdin.flush()
                    with subprocess.Popen(["stat", path / f"raw/no{number}"], stdout=-3, stderr=-3) as reader:
                        while "wait_answer" not in Path(f"/proc/{reader.pid}/wchan").read_text():
                            assert reader.poll() is None
                        process.send_signal(signal.SIGCONT)
                        assert process.stdout.readline() == "hogging\n"
                        reader.kill()
                    assert process.stdout.readline() == "free\n", "the daemon waits for the next request"
                run("umount", "-i", path) if os.geteuid() == 0 else run("fusermount3", "-u", path)
                assert process.wait() == 0


# --- repeated endings -------------------------------------------------------------------------------------------------------------


def daemon(config: str, ready: Connection) -> None:
    """Run the daemon as the command does in its background process."""
    from zarrfs.daemon.serve import serve
    from zarrfs.options import log_file as logs

    parsed = MountConfig.from_json(config)
    os.setsid()
    logs.configure(parsed.log_level, parsed.log_file)
    trio.run(serve, parsed, lambda: ready.send(True))


@contextmanager
def running(config: MountConfig) -> Iterator[BaseProcess]:
    ready, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=daemon, args=(config.to_json(), theirs))
    process.start()
    assert process.pid is not None
    with killed_at_last(process.pid, Path(config.mountpoint)):
        assert ready.recv()
        yield process


READER = """
import os, random, sys
chance = random.Random(int(sys.argv[2]))
while True:
    name = f"a{chance.randrange(20)}"
    path = chance.choice([f"chunks/{name}/{chance.randrange(8)}", f"npy/{name}.npy", f"zarr3/{name}/c/{chance.randrange(8)}"])
    try:
        with open(f"{sys.argv[1]}/{path}", "rb") as file:
            file.read()
        os.listdir(f"{sys.argv[1]}/chunks/{name}")
    except OSError as error:
        if error.errno in (103, 107):
            break
"""


def detached(path: Path, *command: str) -> None:
    """Unmount until it succeeds: the last RELEASE may be under way and keep the mount busy."""
    while subprocess.run([*command, str(path)], capture_output=True, check=False).returncode and mount_at(str(path)) is not None:
        pass


HOW: dict[str, Callable[[Path, int], object]] = {
    "umount": lambda path, pid: detached(path, "umount", "-i"),
    "umount -l": lambda path, pid: detached(path, "umount", "-i", "-l"),
    "umount -f": lambda path, pid: detached(path, "umount", "-i", "-f", "-l"),
    "fusermount3 -u": lambda path, pid: detached(path, "fusermount3", "-u"),
    "SIGTERM": lambda path, pid: os.kill(pid, signal.SIGTERM),
    "abort": lambda path, pid: abort(str(connection_of(path))),
}


@pytest.mark.full_length
@only_root
@pytest.mark.timeout(60 + 20 * ROUNDS)
def test_a_mount_ends_however_it_is_ended_and_whatever_goes_on(tmp_path: Path) -> None:
    """Each round has a store with bad chunks, readers of which some are killed, and another way of ending. More: ZARRFS_ENDINGS=300."""
    store = damaged(tmp_path / "store")
    for round_ in range(ROUNDS):
        chance = random.Random(round_)
        how = list(HOW)[round_ % len(HOW)]
        with mountpoint() as path:
            log_file = path.with_name("log")
            config = MountConfig(
                store=str(store),
                mountpoint=str(path),
                cache_dir=str(tmp_path),
                read_only=chance.random() < 0.7,
                watch=chance.random() < 0.7,
                log_file=str(log_file),
            )
            with running(config) as process:
                pid = process.pid
                assert pid is not None
                command = [sys.executable, "-S", "-c", READER, str(path)]
                readers = [subprocess.Popen([*command, str(number)], stderr=subprocess.DEVNULL) for number in range(6)]
                for _ in range(chance.randrange(40)):
                    with suppress(OSError):
                        (path / "npy" / f"a{chance.randrange(20)}.npy").read_bytes()
                leaving = readers if how in ("umount", "fusermount3 -u") else readers[:: chance.choice([1, 2, 3])]
                for reader in leaving:
                    reader.kill()
                killers = [threading.Timer(chance.random() / 2, reader.kill) for reader in readers if reader not in leaving]
                for killer in killers:
                    killer.start()
                HOW[how](path, pid)
                process.join(45)
                ended = process.exitcode
                for killer in killers:
                    killer.join()
                for reader in readers:
                    reader.wait()
                assert ended == 0, f"round {round_}, {how}: {ended}\n{log_file.read_text()[-3000:]}"
                if how == "abort":
                    detached(path, "umount", "-i", "-l")
