"""Behaviour specific to folders: links, names, files of others, failures, durability and locks between processes."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from tests.support.stores import contents, fill, names
from zarrfs.errors import (
    GenerationMismatch,
    KeyConflict,
    KeyTooLong,
    KeyUnusable,
    LockHeld,
    StoreAccessDenied,
    StoreError,
    StoreFull,
    StoreNotFound,
    ValueTooLong,
)
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.stores import os_errors
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.folder import calls, lock
from zarrfs.stores.folder import store as folder
from zarrfs.stores.folder.plugin import PLUGIN
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.locks import waiting_at_most
from zarrfs.stores.opening import open_store
from zarrfs.stores.values import ABSENT
from zarrfs.transformers.deadline import DeadlineStore

ROOT = Path(__file__).parents[3]
LEFT_BEHIND = ".zarrfs-0123456789abcdef0123456789abcdef.partial"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


@asynccontextmanager
async def opened(path: Path, read_only: bool = False) -> AsyncIterator[FolderStore]:
    store = FolderStore(str(path), read_only=read_only)
    try:
        yield store
    finally:
        await store.aclose()


def files(path: Path) -> list[str]:
    return sorted(str(found.relative_to(path)) for found in path.rglob("*"))


# --- links out of the folder --------------------------------------------------------------------------------------------------------


@pytest.fixture
def linked(path: Path) -> Path:
    """A store with links to a file and a folder outside, to itself, and to nothing."""
    outside = path.parent / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "secret").write_bytes(b"secret")
    (path / "ok").mkdir()
    (path / "ok" / "0").write_bytes(b"0")
    (path / "ok" / "1").symlink_to("../../outside/secret")
    (path / "out").symlink_to("../outside")
    (path / "loop").symlink_to(".")
    (path / "nothing").symlink_to("nowhere")
    (path / "inside").symlink_to("ok/0")
    return path


@pytest.mark.logs("symbolic links and special files")
@trio_test
async def test_links_are_not_listed_and_not_followed(linked: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(linked) as store:
        assert await contents(store) == {"ok/0": b"0"}
        assert await names(store) == {("ok", True): 0}
        for key in ("ok/1", "out/secret", "loop/ok/0", "nothing", "inside", "out", "out/sub"):
            # Not None: a missing chunk reads as fill value, which would be data that no program wrote.
            with pytest.raises(StoreAccessDenied):
                await store.get(Key(key))
            with pytest.raises(StoreAccessDenied):
                await store.get_partial_values([(Key(key), WHOLE)])
            with pytest.raises(StoreAccessDenied):
                await store.stat(Key(key))
            with pytest.raises(StoreAccessDenied):
                await store.rename(Key(key), Key("moved"))
            assert not await store.set_times(Key(key), 0)
        assert await names(store, "out/") == {}
        assert await names(store, "loop/") == {}
        assert await store.prefix_mtime_ns(Prefix("out/")) is None
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1 and "symbolic links" in warnings[0].getMessage()


@pytest.mark.logs("symbolic links and special files")
@trio_test
async def test_nothing_is_changed_through_a_link(linked: Path) -> None:
    before, outside = files(linked), files(linked.parent / "outside")
    async with opened(linked) as store:
        for key in ("ok/1", "out/new", "out/secret", "loop/new", "nothing", "out/sub/deep/new"):
            with pytest.raises(StoreAccessDenied):
                await store.set(Key(key), b"mine")
            with pytest.raises(StoreAccessDenied):
                await store.set(Key(key), b"mine", expect=ABSENT)
            with pytest.raises(StoreAccessDenied):
                await store.rename(Key("ok/0"), Key(key))
            with pytest.raises(StoreAccessDenied):
                await store.erase(Key(key))
            with pytest.raises(StoreAccessDenied):
                await store.erase_values([Key(key)])
            await store.sync([Key(key)])
        with pytest.raises(StoreAccessDenied):
            await store.make_prefix(Prefix("out/made/"))
        await store.remove_prefix(Prefix("out/sub/"))
        with pytest.raises(StoreAccessDenied):
            await store.rename_prefix(Prefix("out/"), Prefix("moved/"))
        with pytest.raises(StoreAccessDenied):
            await store.erase_prefix(Prefix("out/"))
        assert files(linked) == before and files(linked.parent / "outside") == outside
        assert (linked.parent / "outside" / "secret").read_bytes() == b"secret"
        await store.erase_prefix(Prefix(""))
    assert files(linked) == [] and files(linked.parent / "outside") == outside


@pytest.mark.logs("symbolic links and special files")
@trio_test
async def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(linked: Path) -> None:
    async with opened(linked) as store:
        stop = threading.Event()

        def exchange() -> None:
            while not stop.is_set():
                os.rename(linked / "ok", linked / "aside")
                os.symlink("../outside", linked / "ok")
                os.unlink(linked / "ok")
                os.rename(linked / "aside", linked / "ok")

        thread = threading.Thread(target=exchange)
        thread.start()
        try:
            for turn in range(300):
                with suppress(StoreAccessDenied):
                    assert await store.get(Key("ok/secret")) is None
                assert {name for name, _ in await names(store, "ok/")} <= {"0", "1"} | {f"n{n}" for n in range(turn)}
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize(
    "key", ["..", "../outside/secret", "ok/../../outside/secret", "./a", "a/.", "/etc/passwd", "a//b", "a\0b", "\ud800"]
)
@pytest.mark.logs("symbolic links and special files")
@trio_test
async def test_keys_that_are_no_paths(linked: Path, key: str) -> None:
    before = files(linked.parent)
    async with opened(linked) as store:
        assert await store.get(Key(key)) is None
        assert await store.stat(Key(key)) is None
        assert await names(store, key + "/") == {}
        assert [entry async for entry in store.list_prefix(Prefix(key + "/"))] == []
        for change in (store.set(Key(key), b"x"), store.erase(Key(key)), store.make_prefix(Prefix(key + "/"))):
            with pytest.raises(KeyUnusable):
                await change
        for change in (store.rename(Key("ok/0"), Key(key)), store.rename(Key(key), Key("ok/2")), store.sync([Key(key)])):
            with pytest.raises(KeyUnusable):
                await change
        with pytest.raises(KeyUnusable):
            async with store.exclusive(Key(key)):
                pass
    assert files(linked.parent) == before


@trio_test
async def test_names_of_255_bytes_and_more(path: Path) -> None:
    longest = Key("d/" + "x" * 251 + "日é"[:1] + "y")
    assert len(os.fsencode(longest.name)) == 255
    async with opened(path) as store:
        await store.set(longest, b"1")
        assert await contents(store) == {longest: b"1"}
        with pytest.raises(KeyTooLong):
            await store.set(Key(longest + "y"), b"1")
        with pytest.raises(KeyTooLong):
            await store.set(Key("é" * 128 + "/new/k"), b"1")
        assert await store.get(Key(longest + "y")) is None
    assert files(path) == ["d", longest]


@trio_test
async def test_a_value_larger_than_a_file_can_be_is_told_as_that(path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    async with opened(path) as store:
        await store.set(Key("k"), b"old")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        try:
            with pytest.raises(ValueTooLong, match="'k': File too large"):
                await store.set(Key("k"), bytes(1 << 17))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, before)
        assert await contents(store) == {Key("k"): b"old"}
    assert files(path) == ["k"]


@trio_test
async def test_names_that_are_no_utf8(path: Path) -> None:
    (path / "caf\udce9").write_bytes(b"latin")
    async with opened(path) as store:
        [(name, _)] = await names(store)
        assert await store.get(Key(name)) == b"latin"
        await store.set(Key("d\udcff/" + name), b"new")
        assert os.listdir(os.fsencode(path) + b"/d\xff") == [b"caf\xe9"]


@pytest.mark.logs("symbolic links and special files")
@trio_test
async def test_special_files_are_not_listed_and_not_opened(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    os.mkfifo(path / "fifo")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(path / "socket"))
    async with opened(path) as store:
        assert await names(store) == {}
        for key in (Key("fifo"), Key("socket")):
            with trio.fail_after(30), pytest.raises(StoreAccessDenied):
                await store.get(key)
            with pytest.raises(StoreAccessDenied):
                await store.set(key, b"x")
            with pytest.raises(StoreAccessDenied):
                await store.erase(key)
    assert files(path) == ["fifo", "socket"]
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1


# --- files of others ----------------------------------------------------------------------------------------------------------------


@trio_test
async def test_a_key_where_a_folder_is_and_the_reverse(path: Path) -> None:
    (path / "folder").mkdir()
    (path / "file").write_bytes(b"1")
    async with opened(path) as store:
        assert await store.get(Key("folder")) is None
        assert await names(store, "file/") == {}
        with pytest.raises(KeyConflict):
            await store.set(Key("folder"), b"x")
        with pytest.raises(KeyConflict):
            await store.set(Key("file/below/deep"), b"x")
        with pytest.raises(KeyConflict):
            await store.make_prefix(Prefix("file/"))
        with pytest.raises(KeyConflict):
            await store.rename(Key("file"), Key("folder"))
        with pytest.raises(KeyConflict):
            await store.rename_prefix(Prefix("folder/"), Prefix("file/"))
        await store.erase(Key("folder"))
        await store.erase_prefix(Prefix("file/"))
    assert files(path) == ["file", "folder"]


@trio_test
async def test_the_folders_of_what_is_erased_stay(path: Path) -> None:
    async with opened(path) as store:
        await store.set(Key("a/b/c"), b"")
        await store.erase(Key("a/b/c"))
        assert files(path) == ["a", "a/b"]
        assert await contents(store) == {}
        await store.erase_prefix(Prefix("a/"))
        assert files(path) == []


@trio_test
async def test_modes(path: Path) -> None:
    before = os.umask(0o027)
    try:
        async with opened(path) as store:
            await store.set(Key("d/new"), b"1")
            (path / "old").write_bytes(b"1")
            (path / "old").chmod(0o604)
            await store.set(Key("old"), b"2")
    finally:
        os.umask(before)
    assert [oct((path / name).stat().st_mode & 0o7777) for name in ("d", "d/new", "old")] == ["0o750", "0o640", "0o604"]


@trio_test
async def test_an_open_file_keeps_its_old_value(path: Path) -> None:
    async with opened(path) as store:
        await store.set(Key("k"), b"old value")
        with (path / "k").open("rb") as reader:
            await store.set(Key("k"), b"new")
            assert reader.read() == b"old value"
        hard = path / "hard"
        hard.hardlink_to(path / "k")
        assert await store.rename(Key("k"), Key("hard"))
        assert files(path) == ["hard"]


@trio_test
async def test_times_are_kept_by_renames(path: Path) -> None:
    async with opened(path) as store:
        await store.set(Key("d/k"), b"1")
        await store.set_times(Key("d/k"), 10**18 + 1)
        assert await store.rename(Key("d/k"), Key("e/k"))
        assert await store.rename_prefix(Prefix("e/"), Prefix("f/g/"))
        assert (path / "f/g/k").stat().st_mtime_ns == 10**18 + 1
        assert await store.prefix_mtime_ns(Prefix("f/g/")) == (path / "f/g").stat().st_mtime_ns
        total, free = await store.free_space()
        assert 0 <= free <= total


@trio_test
async def test_a_deep_tree_is_listed_and_removed(path: Path) -> None:
    """Its path is longer than paths may be."""
    here = os.open(path, os.O_RDONLY)
    name = "deep" * 5
    for _ in range(300):
        os.mkdir(name, dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("k", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    async with opened(path) as store:
        [key] = await contents(store)
        assert key == f"{name}/" * 300 + "k"
        await store.erase_prefix(Prefix(f"{name}/"))
    assert os.listdir(path) == []


@trio_test
async def test_a_folder_of_ten_thousand(path: Path) -> None:
    for number in range(10_000):
        os.close(os.open(path / str(number), os.O_CREAT | os.O_WRONLY))
    async with opened(path) as store:
        listed = await names(store)
        assert listed == {(str(number), False): 0 for number in range(10_000)}
        await store.erase_prefix(Prefix(""))
        assert await names(store) == {}


# --- ways of reading ----------------------------------------------------------------------------------------------------------------


@trio_test
async def test_small_cached_values_are_read_without_a_thread(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path) as store:
        await store.set(Key("d/small"), b"x" * 4096)
        await store.set(Key("d/large"), bytes(folder.INLINE_NBYTES + 1))
        hops: list[str] = []
        hop = folder.threads.io

        async def counted(function, *args, **options):  # type: ignore[no-untyped-def]
            hops.append(function.__name__)
            return await hop(function, *args, **options)

        monkeypatch.setattr(folder.threads, "io", counted)
        try:
            os.close(os.open(path / "probe", os.O_CREAT | os.O_WRONLY))
            with (path / "d/small").open("rb") as file:
                os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("this file system does not say what is cached")
        assert await store.get(Key("d/small")) == b"x" * 4096
        assert await store.get_partial_values([(Key("d/large"), ByteRange(5, 7))]) == [bytes(7)]
        assert await store.stat(Key("d/large"))
        assert await store.get(Key("d/missing")) is None
        assert len(await names(store, "d/")) == 2
        assert hops == []
        hops.clear()
        await store.get(Key("d/large"))
        assert len(hops) == 1


@pytest.mark.parametrize("why", ["uncached", "remote"])
@trio_test
async def test_what_would_wait_is_read_in_a_thread(path: Path, why: str) -> None:
    async with opened(path) as store:
        await fill(store, {"d/k": b"0123456789", "d/e": b""})
        if why == "remote":
            store._tree.local = False
        else:
            store._tree._reads_nowait = False
        assert await contents(store) == {"d/k": b"0123456789", "d/e": b""}
        assert await store.get_partial_values([(Key("d/k"), ByteRange(5)), (Key("d/n"), WHOLE)]) == [b"56789", None]
        async with store.exclusive(Key("d/k")):
            await store.erase(Key("d/k"))
        assert await names(store, "d/") == {("e", False): 0}
        assert await names(store, "never/") == {}


def test_a_file_that_shrinks_while_it_is_read(path: Path) -> None:
    (path / "k").write_bytes(b"123")
    with (path / "k").open("rb") as file, pytest.raises(StoreError, match="cut short"):
        calls.pread(file.fileno(), 0, 5, ("k",))


# --- failures -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "zarrfs-test", path], capture_output=True, check=False
    )
    if not mounted or mounted.returncode:
        pytest.skip("may not mount")
    yield path
    subprocess.run(["umount", path], check=True)


@trio_test
async def test_a_full_file_system_keeps_the_old_value(small: Path) -> None:
    async with opened(small) as store:
        await store.set(Key("d/k"), b"old" * 1000)
        for generation in (None, (await store.stat(Key("d/k"))).generation):  # type: ignore[union-attr]
            with pytest.raises(StoreFull) as raised:
                await store.set(Key("d/k"), bytes(2 << 20), expect=generation)
            assert raised.value.key == "d/k" and "d/k" in str(raised.value)
        with pytest.raises(StoreFull):
            await store.set(Key("d/new"), bytes(2 << 20), expect=ABSENT)
        assert files(small) == ["d", "d/k"]
        assert await contents(store) == {"d/k": b"old" * 1000}
        await store.set(Key("d/k"), b"new")
        assert await contents(store) == {"d/k": b"new"}


@trio_test
async def test_what_a_failed_set_leaves(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **options: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with opened(path) as store:
        await store.set(Key("k"), b"old")
        for call in ("write", "rename"):
            with monkeypatch.context() as patched:
                patched.setattr(os, call, fail)
                with pytest.raises(StoreError, match="Input/output error"):
                    await store.set(Key("k"), b"new")
            assert files(path) == ["k"] and (path / "k").read_bytes() == b"old"
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fail)
            for _ in range(2):
                with pytest.raises(StoreError):
                    await store.sync([Key("k")])


@trio_test
async def test_after_a_failed_fsync_a_value_has_to_be_written_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux reports lost pages once, and the next fsync(2) succeeds."""

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with opened(path) as store:
        await store.set(Key("d/k"), b"lost")
        await store.set(Key("d/l"), b"other")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", fail)
            with pytest.raises(StoreError, match="Input/output error"):
                await store.sync([Key("d/k")])
        with pytest.raises(StoreError, match="earlier fsync"):
            await store.sync([Key("d/k")])
        await store.sync([Key("d/l")])
        assert await store.rename(Key("d/k"), Key("d/m")) is not None
        assert await store.rename_prefix(Prefix("d/"), Prefix("e/"))
        with pytest.raises(StoreError, match="earlier fsync"):
            await store.sync([Key("e/m")])
        # So many changed folders are made durable by one sync of the file system.
        for number in range(300):
            await store.set(Key(f"many/{number}/k"), b"")
        with pytest.raises(StoreError, match="earlier fsync"):
            await store.sync([Key("e/m"), Prefix("many/")])
        await store.set(Key("e/m"), b"written again")
        await store.sync([Key("e/m")])


@trio_test
async def test_what_a_dead_writer_left_behind_is_hidden_and_removed(path: Path) -> None:
    (path / "d").mkdir()
    (path / "e").mkdir()
    for place in ("d", "e"):
        (path / place / LEFT_BEHIND).write_bytes(b"half")
    key = Key("d/" + LEFT_BEHIND)
    async with opened(path, read_only=True) as store:
        assert await names(store, "d/") == {}
        assert await store.get(key) is None
        assert files(path / "d") == [LEFT_BEHIND]
    async with opened(path) as store:
        with pytest.raises(KeyUnusable):
            await store.set(key, b"")
        with (path / "d" / LEFT_BEHIND).open("rb") as writer:
            fcntl.flock(writer, fcntl.LOCK_EX)
            assert await names(store, "d/") == {}
            assert files(path / "d") == [LEFT_BEHIND]
        assert await names(store, "d/") == {}
        assert files(path / "d") == []
        await store.remove_prefix(Prefix("e/"))
        assert files(path) == ["d"]


@trio_test
async def test_a_folder_removed_under_a_writer_is_made_again(path: Path) -> None:
    async with opened(path) as store:
        for _ in range(50):
            # One removal per write: collisions are random, but a writer must never lose for good.
            remover = threading.Thread(target=shutil.rmtree, args=(path / "d",), kwargs={"ignore_errors": True})
            remover.start()
            await store.set(Key("d/e/k"), b"x")
            remover.join()
        await store.set(Key("d/e/k"), b"x")
        assert await contents(store) == {"d/e/k": b"x"}


@trio_test
async def test_the_store_itself_is_removed(path: Path) -> None:
    async with opened(path) as store:
        await store.set(Key("d/k"), b"x")
        shutil.rmtree(path)
        assert await store.get(Key("d/k")) is None
        assert await names(store) == {}
        for key in ("k", "d/k"):
            with pytest.raises(StoreNotFound):
                await store.set(Key(key), b"x")


_AS_AN_ORDINARY_USER = """
import os, sys, trio
from zarrfs.errors import StoreAccessDenied, StoreReadOnly
from zarrfs.keys import Key, Prefix
from zarrfs.registry import plugins
from zarrfs.stores.opening import open_store

async def refused(error, operation, *args):
    try:
        await operation(*args)
    except error as raised:
        assert "Permission denied" in str(raised) or "read" in str(raised)
    else:
        raise AssertionError(f"{operation} did not raise {error}")

async def listed(store, prefix):
    async for _ in store.list_dir(prefix):
        pass

async def main(path):
    store = await open_store(path)
    await store.set(Key("d/k"), b"")
    await store.set(Key("e/k"), b"")
    os.chmod(path + "/d", 0)
    os.chmod(path + "/e", 0o500)
    await refused(StoreAccessDenied, store.get, Key("d/k"))
    await refused(StoreAccessDenied, store.stat, Key("d/k"))
    await refused(StoreAccessDenied, listed, store, Prefix("d/"))
    await refused(StoreAccessDenied, store.set, Key("e/k"), b"")
    await refused(StoreAccessDenied, store.erase, Key("e/k"))
    await refused(StoreAccessDenied, store.erase_prefix, Prefix("e/"))
    assert await store.get(Key("e/k")) == b""
    # fsync of a folder, with one in it that has changed and cannot be read; and of a value in one that can be changed only.
    await store.sync([Prefix("")])
    os.chmod(path + "/d", 0o300)
    await store.set(Key("d/l"), b"")
    await store.sync([Key("d/l"), Prefix("d/")])
    os.chmod(path + "/d", 0o700)
    os.chmod(path + "/e", 0o700)
    os.chmod(path, 0o500)
    store = await open_store(path)
    assert not store.capabilities.write
    await refused(StoreReadOnly, store.set, Key("k"), b"")
    os.chmod(path, 0)
    await refused(StoreAccessDenied, open_store, path)
    await refused(StoreAccessDenied, open_store, path + "/d")
    os.chmod(path, 0o700)

os.chdir(sys.argv[1])
plugins("zarrfs.stores")  # The program itself may lie where others cannot read it.
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
trio.run(main, "store")
"""


def test_what_may_not_be_touched(path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        os.chown(path.parent, 65534, 65534)
    # The working folder is entered before rights are dropped: only root can enter pytest's folders.
    ran = subprocess.run(
        [sys.executable, "-c", _AS_AN_ORDINARY_USER, path.parent], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    assert ran.returncode == 0


@pytest.mark.parametrize("number", sorted(os_errors._KINDS))
def test_every_error_names_the_key_and_the_reason(number: int) -> None:
    with pytest.raises(os_errors._KINDS[number], match=f"'a/b'.*{re.escape(os.strerror(number))}") as raised:
        with os_errors.translated("writing", "a/b"):
            raise OSError(number, os.strerror(number))
    assert raised.value.key == "a/b"


# --- durability ---------------------------------------------------------------------------------------------------------------------

_TRACED = """
import sys, trio
from zarrfs.keys import Key, Prefix
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.folder.store import FolderStore

async def main():
    store = FolderStore(sys.argv[1])
    await store.set(Key("a/b/k"), b"1")
    await store.set(Key("a/b/l"), b"1")
    open(sys.argv[1] + "/--sync--").close()
    await store.sync([Key("a/b/k"), Key("a/b/l")])
    open(sys.argv[1] + "/--again--").close()
    await store.sync([Key("a/b/k")])
    await store.erase(Key("a/b/k"))
    await store.erase_prefix(Prefix("a/"))
    open(sys.argv[1] + "/--erased--").close()
    await store.sync([Key("a/b/k")])

open(sys.argv[1] + "/--begin--", "w").close()
trio.run(main)
"""
_CALLS = "openat,fsync,fdatasync,sync_file_range,rename,renameat,renameat2"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_only_sync_syncs_and_it_syncs_all_that_is_needed(path: Path, tmp_path: Path) -> None:
    for name in ("begin", "sync", "again", "erased"):
        (path / f"--{name}--").touch()
    trace = tmp_path / "trace"
    ran = subprocess.run(
        ["strace", "-f", "-y", "-e", f"trace={_CALLS}", "-o", trace, sys.executable, "-c", _TRACED, path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "PTRACE" in ran.stderr:
        pytest.skip("may not trace")
    assert ran.returncode == 0, ran.stderr
    lines = trace.read_text().splitlines()
    marks = [next(n for n, line in enumerate(lines) if f"/--{name}--" in line) for name in ("begin", "sync", "again", "erased")]

    def synced(start: int, stop: int | None) -> list[str]:
        found = (re.search(r"(?:fsync|fdatasync|sync_file_range)\(\d+<(.*?)>", line) for line in lines[start:stop])
        return [os.path.relpath(match[1], path) for match in found if match]

    begin, sync, again, erased = marks
    assert any("rename" in line for line in lines[begin:sync])
    assert synced(begin, sync) == []
    first = synced(sync, again)
    assert first[:2] == ["a/b/k", "a/b/l"] and sorted(first[2:]) == [".", "a", "a/b"]
    assert synced(again, erased) == ["a/b/k", "a/b"]
    assert synced(erased, None) == ["."]


# --- locks between processes --------------------------------------------------------------------------------------------------------

_INCREMENTS = """
import sys, trio
from zarrfs.keys import Key
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.folder.store import FolderStore

async def main():
    store = FolderStore(sys.argv[1])
    async def increment(key):
        async with store.exclusive(key):
            value = int(await store.get(key) or b"0")
            await trio.lowlevel.checkpoint()
            await store.set(key, b"%d" % (value + 1))
    async with trio.open_nursery() as nursery:
        for turn in range(30):
            nursery.start_soon(increment, Key("d/k"))
            nursery.start_soon(increment, Key("d/l"))

trio.run(main)
"""


def test_two_processes_lose_no_update(path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", _INCREMENTS, path], cwd=ROOT) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert [(path / "d" / name).read_bytes() for name in ("k", "l")] == [b"60", b"60"]


@trio_test
async def test_a_folder_that_another_holds(path: Path) -> None:
    (path / "d").mkdir()
    other = os.open(path / "d", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    async with opened(path) as store:
        held = trio.Event()

        async def hold(key: str) -> None:
            async with store.exclusive(Key(key)):
                held.set()

        async with store.exclusive(Key("elsewhere/k")):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(hold, "d/k")
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    assert not held.is_set()
                    scope.cancel()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, "d/k")
            nursery.start_soon(hold, "d/l")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not held.is_set()
            fcntl.flock(other, fcntl.LOCK_UN)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with waiting_at_most(0.01), pytest.raises(LockHeld):
            await hold("d/k")
        os.close(other)
        with waiting_at_most(0.01):
            await hold("d/k")
            async with store.exclusive(Key("d/l")):
                with pytest.raises(LockHeld):
                    await hold("d/l")


@trio_test
async def test_keys_in_turn_do_not_keep_another_process_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path / "d").mkdir()
    monkeypatch.setattr(lock, "_SHARE_SECONDS", -1.0)
    other = os.open(path / "d", os.O_RDONLY)
    async with opened(path) as store:
        got = False

        async def hold(key: Key) -> None:
            async with store.exclusive(key):
                await trio.lowlevel.checkpoint()

        async def poll() -> None:
            nonlocal got
            while not got:
                try:
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    got = True
                except BlockingIOError:
                    await trio.lowlevel.checkpoint()

        async with store.exclusive(Key("d/first")):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hold, Key("d/second"))
                await trio.testing.wait_all_tasks_blocked(0.01)
                nursery.cancel_scope.cancel()
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(hold, Key(f"d/{number}"))
            with trio.fail_after(60):
                await poll()
            os.close(other)


@trio_test
async def test_a_lock_that_comes_after_its_caller_has_gone_is_let_go(path: Path) -> None:
    async with opened(path) as store:
        attempt = lock._Attempt()
        attempt.abandon()
        attempt.run(store._tree, ("d",))
        assert attempt.fd is None
        async with store.exclusive(Key("d/k")):
            pass


@pytest.mark.parametrize("fails", [False, True], ids=["locked", "failed"])
@trio_test
async def test_a_folder_that_is_created_for_a_lock_after_its_caller_has_gone_is_removed(
    fails: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_lock(fd: int, operation: int) -> None:
        raise OSError(errno.EIO, "no answer")

    (path / "d").mkdir()
    async with opened(path) as store:
        for folder in (("d",), ("d", "new", "newer"), ("other",)):
            attempt = lock._Attempt()
            attempt.abandon()
            with monkeypatch.context() as patch, suppress(OSError):
                if fails:
                    patch.setattr(lock.fcntl, "flock", no_lock)
                attempt.run(store._tree, folder)
            assert attempt.fd is None
    assert os.listdir(path) == ["d"]
    assert os.listdir(path / "d") == []


@trio_test
async def test_a_folder_that_another_process_has_locked_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others: list[int] = []
    real = fcntl.flock

    def after_another(fd: int, operation: int) -> None:
        if not others:
            others.append(os.open(path / "d", os.O_RDONLY))
            real(others[0], fcntl.LOCK_EX)
        real(fd, operation)

    monkeypatch.setattr(lock.fcntl, "flock", after_another)
    async with opened(path) as store:
        attempt = lock._Attempt()
        attempt.abandon()
        attempt.run(store._tree, ("d",))
    assert (path / "d").is_dir()
    os.close(others[0])


# --- opening ------------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_a_folder_reached_through_a_link_is_that_folder(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    (path / "plain.txt").write_bytes(b"any file")
    store = await open_store(str(tmp_path / "link"))
    assert await contents(store) == {"plain.txt": b"any file"}
    await store.aclose()


@pytest.mark.logs("symbolic links and special files")
@trio_test
async def test_no_descriptor_stays_open(linked: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for read_only in (False, True):
        async with opened(linked, read_only) as store:
            await contents(store)
            for key in ("ok/0", "ok/1", "ok", "out/secret", "ok/0/below", "missing/k", "..", "new/folder/k"):
                for operation in (
                    store.get(Key(key)),
                    store.stat(Key(key)),
                    store.set(Key(key), b"x"),
                    store.rename(Key(key), Key("ok/0/k")),
                    store.sync([Key(key)]),
                    store.erase_prefix(Prefix(key + "/")),
                ):
                    with suppress(StoreError):
                        await operation
                with suppress(StoreError):
                    async with store.exclusive(Key(key)):
                        pass
                async for _ in store.list_dir(Prefix(key + "/")):
                    pass
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_path_that_cannot_be_opened(path: Path) -> None:
    for missing in ("missing", "file/below"):
        (path / "file").touch()
        with pytest.raises(StoreNotFound, match=missing):
            trio.run(PLUGIN.open, str(path / missing), False)


@trio_test
async def test_what_was_moved_is_synced_where_it_is_now(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def watched(fd: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), path))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watched)
    async with opened(path) as store:
        await store.set(Key("a/b/k"), b"1")
        assert await store.rename_prefix(Prefix("a/"), Prefix("x/y/"))
        await store.sync([Key("x/y/b/k")])
        assert synced[0] == "x/y/b/k" and sorted(synced[1:]) == [".", "x", "x/y", "x/y/b"]


@pytest.mark.logs("symbolic links and special files")
@trio_test
async def test_the_hostile_case_of_links(tmp_path: Path) -> None:
    case = shutil.copytree(ROOT / "tests/cases/hostile/dir_symlinks", tmp_path / "case", symlinks=True)
    for name, target in (("loop", "."), ("outdir", "../secret")):
        # A source distribution has no links to folders.
        if not (case / "store" / name).is_symlink():
            (case / "store" / name).symlink_to(target)
    async with opened(case / "store", read_only=True) as store:
        assert set(await contents(store)) == {".zgroup", "ok/.zarray", "ok/0", "ok/1", "out/.zarray"}
        for key in ("out/0", "outdir/secret.bin", "loop/ok/0", "loop/loop/.zgroup"):
            with pytest.raises(StoreAccessDenied):
                await store.get(Key(key))
        assert await store.get(Key("../secret/secret.bin")) is None


@trio_test
async def test_fsync_of_a_folder_makes_its_names_durable(tmp_path: Path) -> None:
    """Careful programs replace a file by a rename and then fsync of the folder."""
    store = FolderStore(str(tmp_path))
    await store.set(Key("a/b"), b"1")
    synced: list[str] = []
    real = os.fsync
    os.fsync = lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")) or real(fd)  # type: ignore[func-returns-value]
    try:
        await store.sync([Prefix("a/")])
    finally:
        os.fsync = real
    assert synced[0] == str(tmp_path / "a")
    await store.aclose()


@trio_test
async def test_what_is_at_hand_is_answered_at_once_and_the_rest_is_not_begun(path: Path) -> None:
    async with opened(path) as store:
        await store.set(Key("small"), b"abc")
        await store.set(Key("large"), bytes(folder.INLINE_NBYTES + 1))
        stat = store.stat_now(Key("small"))
        assert stat is not None
        assert stat.size == 3
        assert store.stat_now(Key("missing")) is None
        with suppress(WouldWait):  # where the file system does not report cached pages
            ranges = [(Key("small"), ByteRange(1, 1)), (Key("missing"), WHOLE)]
            assert store.get_partial_values_now(ranges) == [b"b", None]
        with pytest.raises(WouldWait):
            store.get_partial_values_now([(Key("large"), WHOLE)])
        with pytest.raises(GenerationMismatch):
            store.get_partial_values_now([(Key("missing"), WHOLE)], if_generation="1")


@trio_test
async def test_folders_that_were_made_for_a_value_that_finds_no_room_go_again(path: Path) -> None:
    store = FolderStore(str(path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    (path / "there").mkdir()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        for key in ("a/b/c", "there/d/e"):
            with pytest.raises(StoreError):
                await store.set(Key(key), bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert [names for _, names, _ in os.walk(path)] == [["there"], []]
    await store.set(Key("a/b/c"), b"x")
    assert (path / "a/b/c").read_bytes() == b"x"
    await store.aclose()


def test_locks_that_are_held_until_the_end_of_the_process_leave_no_error(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An operation whose outcome is unknown keeps its lock; each one logged a traceback at the end of the mount."""
    held = []

    async def hold() -> None:
        async with trio.open_nursery() as nursery:
            store = DeadlineStore(FolderStore(str(path)), 60, nursery)
            for number in range(10):
                held.append(store.exclusive(Key(f"{number}/k")))
                await held[-1].__aenter__()

    # The order in which trio ends them varies.
    for _ in range(10):
        trio.run(hold)
    assert not caplog.records


@pytest.mark.parametrize("kind", ["link", "file being written"])
@trio_test
async def test_a_peek_returns_as_many_entries_as_there_are_whatever_other_names_come_first(
    tmp_path: Path, kind: str, expect_logs: Callable[[str], None]
) -> None:
    """Whoever gets fewer than requested takes them for all: documents and nodes that were not among them would be absent."""
    place = tmp_path / "d"
    place.mkdir()
    for number in range(300):
        (place / f"k{number}").write_bytes(b"")
    with ExitStack() as writers:
        for number in range(300):
            if kind == "link":
                (place / f"l{number}").symlink_to(tmp_path)
            else:
                writer = writers.enter_context((place / f".zarrfs-{number:032x}.partial").open("wb"))
                fcntl.flock(writer, fcntl.LOCK_EX)
        expect_logs("symbolic links")
        async with aclosing(FolderStore(str(tmp_path))) as store:
            for most in (1, 100, 256, 257, 299, 300):
                assert len(await store.peek(Prefix("d/"), most) or ()) == most
            found = await store.peek(Prefix("d/"), 301)
            assert found is not None and {name for name, *_ in found} == {f"k{number}" for number in range(300)}
