"""Notifications of a folder store about changes by others in its folder, and none about its own changes."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreAccessDenied
from zarrfs.keys import Key, Prefix
from zarrfs.stores.change import Change, announcing
from zarrfs.stores.folder import changes, tree, watch
from zarrfs.stores.folder.names import Parts
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.folder.tree import FolderTree
from zarrfs.stores.folder.watch import FolderWatch, events
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import ABSENT, Expected, Generation
from zarrfs.transformers.observed import ObservedStore

ROOT = Path(__file__).parents[3]
EVERYTHING = ("", "unknown")
# Each file causes three events at least.
MORE_THAN_THE_QUEUE_HOLDS = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text()) // 3 + 100
_END = "the end"


class Told:
    """The notifications since the last request, as (target, kind)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changes: list[Change] = []
        self._news = trio.Event()
        self.complete = trio.Event()
        self._ends = 0

    def __call__(self, changes: Sequence[Change]) -> None:
        self.complete.set()
        assert all(change.external for change in changes)
        self._changes.extend(changes)
        self._news.set()

    async def until(self, wanted: Callable[[list[tuple[str, str]]], bool]) -> list[tuple[str, str]]:
        """Wait until ``wanted`` is true of all notifications; return and clear them."""
        with trio.fail_after(30):
            while not wanted(told := [(str(change.target), change.kind) for change in self._changes]):
                self._news = trio.Event()
                await self._news.wait()
        self._changes.clear()
        return told

    async def now(self) -> dict[str, str]:
        """Return all notifications of changes so far. Events come in order: after the last one, all are there."""
        self._ends += 1
        end = f"{_END} {self._ends}"
        (self._path / end).touch()
        told = await self.until(lambda told: any(place == end for place, _ in told))
        return {place: kind for place, kind in told if not place.startswith(_END)}


@asynccontextmanager
async def watched(path: Path) -> AsyncIterator[tuple[FolderStore, Told]]:
    store, told = FolderStore(str(path)), Told(path)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.watch, told)
            with trio.fail_after(30):
                await told.complete.wait()
            yield store, told
            nursery.cancel_scope.cancel()
    finally:
        await store.aclose()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    (path / "a/b").mkdir(parents=True)
    (path / "a/b/k").write_bytes(b"old")
    return path


@trio_test
async def test_a_change_that_is_not_told_yet_is_waiting(path: Path) -> None:
    async with watched(path) as (store, told):
        await told.now()
        with trio.fail_after(30):
            while store.has_changes_now():
                await trio.lowlevel.checkpoint()
        seen = ObservedStore(store)
        (path / "a/b/k").write_bytes(b"new")
        assert store.has_changes_now() and seen.has_changes_now()
        await told.until(lambda changes: bool(changes))
        with trio.fail_after(30):
            while store.has_changes_now():
                await trio.lowlevel.checkpoint()
    assert not store.has_changes_now() and not MemoryStore().has_changes_now()


@trio_test
async def test_what_others_do_to_values_is_told(path: Path) -> None:
    async with watched(path) as (_, told):
        (path / "a/b/k").write_bytes(b"new")
        assert await told.now() == {"a/b/k": "set"}
        with _written_in_place(path / "a/b/k"):
            assert await told.now() == {"a/b/k": "set"}, "while it is still open"
        await told.now()
        os.utime(path / "a/b/k", (1, 1))
        assert await told.now() == {"a/b/k": "times"}
        (path / "a/b/k").rename(path / "a/l")
        assert await told.now() == {"a/b/k": "erase", "a/l": "set"}
        os.link(path / "a/l", path / "m")
        assert (await told.now())["m"] == "set"
        (path / "a/l").unlink()
        assert await told.now() == {"a/l": "erase"}
        (path / "m").unlink()
        (path / "m").write_bytes(b"again")
        assert await told.now() == {"m": "set"}


@trio_test
async def test_what_others_do_to_folders_is_told(path: Path) -> None:
    async with watched(path) as (_, told):
        (path / "c").mkdir()
        assert await told.now() == {"c/": "mkdir"}
        (path / "c").rmdir()
        assert await told.now() == {"c/": "rmdir"}
        (path / "a").rename(path / "c")
        assert await told.now() == {"a/": "erase", "c/": "set"}
        (path / "c/b/k").write_bytes(b"watched at its new place")
        assert await told.now() == {"c/b/k": "set"}
        shutil.rmtree(path / "c")
        assert await told.now() == {"c/b/k": "erase", "c/b/": "rmdir", "c/": "rmdir"}


@trio_test
async def test_folders_that_come_and_go(path: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    async with watched(path) as (_, told):
        (path / "a").rename(outside)
        assert await told.now() == {"a/": "erase"}
        (outside / "b/k").write_bytes(b"nobody's business")
        assert await told.now() == {}
        outside.rename(path / "n")
        assert await told.now() == {"n/": "set"}
        (path / "n/b/k").write_bytes(b"ours again")
        assert await told.now() == {"n/b/k": "set"}


@trio_test
async def test_nothing_is_missed_in_folders_made_quickly(path: Path) -> None:
    """Entries created in a new folder before it can be watched are found by listing it."""
    async with watched(path) as (_, told):
        for number in range(50):
            _make_quickly(path / f"d{number}")
            found = await told.now()
            assert {f"d{number}/x/y/z/k", f"d{number}/x/l"} <= {place for place, kind in found.items() if kind == "set"}
            (path / f"d{number}/x/y/z/k").unlink()
            assert await told.now() == {f"d{number}/x/y/z/k": "erase"}


@pytest.mark.parametrize(
    ("entries", "in_thread"), [([], False), (["k"], False), ([str(number) for number in range(1000)], True), (["x/y"], True)]
)
@trio_test
async def test_only_a_large_new_folder_needs_a_thread(
    entries: list[str], in_thread: bool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(path) as (_, told):
        await told.now()
        began: list[object] = []

        async def noted(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            began.append(function)
            return await io(function, *arguments, **options)

        io = threads.io
        monkeypatch.setattr(threads, "io", noted)
        (path / "n").mkdir()
        for each in entries:
            (path / "n" / each).parent.mkdir(exist_ok=True)
            (path / "n" / each).write_bytes(b"value")
        found = await told.now()
        assert {f"n/{each}" for each in entries} <= found.keys() and found["n/"] == "mkdir"
        assert bool(began) == in_thread


@trio_test
async def test_what_the_store_itself_does_is_not_told(path: Path) -> None:
    async with watched(path) as (store, told):
        await store.set(Key("a/b/k"), b"new")
        await store.set(Key("a/b/created"), b"new", expect=ABSENT)
        await store.set_times(Key("a/b/k"), 1_000_000_007)
        assert await told.now() == {}
        await store.rename(Key("a/b/created"), Key("a/b/renamed"))
        await store.erase(Key("a/b/renamed"))
        await store.rename_prefix(Prefix("a/"), Prefix("z/"))
        assert await told.now() == {}
        await store.set(Key("z/b/l"), b"in a renamed folder")
        await store.erase_prefix(Prefix("z/b/"))
        await store.make_prefix(Prefix("m/"))
        await store.remove_prefix(Prefix("z/"))
        assert await told.now() == {}
        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(store.set, Key(f"new/{number % 7}/{number}"), b"many at once, in new folders")
        assert set((await told.now()).values()) <= {"mkdir"}


class Gated(FolderWatch):
    """Watches that exist before the store gets them, or while it removes them, until `go_on` is set."""

    begins, ends = True, False
    reached, go_on = threading.Event(), threading.Event()

    def __init__(self, tree: FolderTree) -> None:
        super().__init__(tree)
        if type(self).begins:
            self._wait()

    def close(self) -> None:
        super().close()
        if type(self).ends:
            self._wait()

    def _wait(self) -> None:
        self.reached.set()
        assert self.go_on.wait(30)


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> type[Gated]:
    class Once(Gated):
        reached, go_on = threading.Event(), threading.Event()

    monkeypatch.setattr(changes, "FolderWatch", Once)
    return Once


@trio_test
async def test_nothing_waits_to_be_told_after_what_the_store_itself_does_to_values(path: Path) -> None:
    async with watched(path) as (store, told):
        await told.now()
        with trio.fail_after(30):
            while store.has_changes_now():
                await trio.lowlevel.checkpoint()
        await store.set(Key("a/b/k"), b"new")
        assert not store.has_changes_now()
        await store.rename(Key("a/b/k"), Key("a/b/m"))
        assert not store.has_changes_now()
        await store.erase(Key("a/b/m"))
        assert not store.has_changes_now()
        # What others do is told all the same, in order.
        (path / "a/b/k").write_bytes(b"of others")
        await store.set(Key("a/b/m"), b"of the store")
        assert await told.now() == {"a/b/k": "set"}


@trio_test
async def test_what_the_store_itself_does_while_the_watches_are_added_is_not_told(
    path: Path, gated: type[Gated], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, told = FolderStore(str(path)), Told(path)
    replace, may_end = store._tree.replace, threading.Event()

    def replaced(parts: Parts, value: Buffer, expect: Expected) -> Generation:
        try:
            return replace(parts, value, expect)
        finally:
            assert parts[-1] != "long" or may_end.wait(30)

    monkeypatch.setattr(store._tree, "replace", replaced)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.set, Key("long"), b"new")
            nursery.start_soon(store.watch, told)
            await threads.io(gated.reached.wait)
            await store.set(Key("a/b/k"), b"new")
            await store.set(Key("a/b/k"), b"newer")
            await store.rename(Key("a/b/k"), Key("a/b/l"))
            await store.rename_prefix(Prefix("a/"), Prefix("moved/"))
            (path / "theirs").write_bytes(b"x")
            gated.go_on.set()
            await told.complete.wait()
            may_end.set()
            assert await told.now() == {"theirs": "set"}
            nursery.cancel_scope.cancel()
    await store.aclose()


@trio_test
async def test_a_value_is_set_while_the_watches_are_removed_after_an_overflow(path: Path, gated: type[Gated]) -> None:
    gated.begins, gated.ends = False, True
    async with watched(path) as (store, told):
        for number in range(MORE_THAN_THE_QUEUE_HOLDS):
            (path / "a/b" / str(number)).write_bytes(b"x")
        with trio.fail_after(30):
            await threads.io(gated.reached.wait)
        await store.set(Key("a/b/k"), b"new")
        assert not store.has_changes_now()
        gated.go_on.set()
        await told.until(lambda all_told: all_told.count(EVERYTHING) == 2)
        assert await told.now() == {}


@trio_test
async def test_a_new_folder_that_another_program_replaces_at_once_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(path) as (store, told):
        make_folder = store._tree.make_folder

        def made_and_replaced(parts: Parts) -> None:
            make_folder(parts)
            (path / "m").rmdir()
            (path / "m").mkdir()
            (path / "m/k").write_bytes(b"theirs")

        monkeypatch.setattr(store._tree, "make_folder", made_and_replaced)
        await store.make_prefix(Prefix("m/"))
        found = await told.now()
        assert "m/" in found and found["m/k"] == "set"


@trio_test
async def test_a_rename_that_another_program_was_quicker_with_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(path) as (store, told):
        rename = store._tree.rename_folder

        def renamed_before(old: Parts, new: Parts) -> bool:
            (path / "a").rename(path / "z")
            return rename(old, new)

        monkeypatch.setattr(store._tree, "rename_folder", renamed_before)
        assert not await store.rename_prefix(Prefix("a/"), Prefix("z/"))
        assert await told.now() == {"a/": "erase", "z/": "set"}


@trio_test
async def test_what_others_change_just_before_a_rename_is_told_of_the_new_name(path: Path) -> None:
    async with watched(path) as (store, told):
        (path / "a/k").write_bytes(b"of others")
        await store.rename(Key("a/k"), Key("a/m"))
        # In this order: a receiver that gives the value its new name in between learns of the change by one of them.
        assert list((await told.now()).items()) == [("a/k", "erase"), ("a/m", "set")]
        os.utime(path / "a/m", (1, 1))
        (path / "a/b/k").unlink()
        await store.rename_prefix(Prefix("a/"), Prefix("z/"))
        assert await told.now() == {"z/m": "times", "z/b/k": "erase"}
        await store.set(Key("z/m"), b"of the store")
        await store.rename(Key("z/m"), Key("z/k"))
        await store.rename_prefix(Prefix("z/"), Prefix("a/"))
        assert await told.now() == {}


@trio_test
async def test_a_value_that_another_program_moved_during_its_rename_is_absent(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(path) as (store, told):
        move = tree.move
        await store.set(Key("a/k"), b"value")

        def moved_before(*arguments: Any, **options: Any) -> Any:
            (path / "a/k").rename(path / "a/z")
            return move(*arguments, **options)

        monkeypatch.setattr(tree, "move", moved_before)
        assert not await store.rename(Key("a/k"), Key("a/m"))
        assert await told.now() == {"a/k": "erase", "a/z": "set"}


@trio_test
async def test_what_others_do_during_an_operation_that_fails_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with watched(path) as (store, told):

        def failed(old: Parts, new: Parts) -> bool:
            (path / "a").rename(path / "z")
            raise PermissionError(errno.EACCES, "no", "a")

        monkeypatch.setattr(store._tree, "rename_folder", failed)
        with pytest.raises(StoreAccessDenied):
            await store.rename_prefix(Prefix("a/"), Prefix("z/"))
        assert await told.now() == {"a/": "erase", "z/": "set"}


@trio_test
async def test_the_folders_of_a_renamed_folder_are_still_watched(path: Path) -> None:
    async with watched(path) as (store, told):
        await store.rename_prefix(Prefix("a/"), Prefix("z/"))
        (path / "z/b/k").write_bytes(b"changed")
        assert await told.now() == {"z/b/k": "set"}


@trio_test
async def test_folders_that_the_store_exchanges_are_still_watched(path: Path) -> None:
    async with watched(path) as (store, told):
        await store.set(Key("x/y/c/k"), b"x")
        for _ in range(3):
            await told.now()
            await store.exchange_prefixes(Prefix("a/"), Prefix("x/y/"))
            assert await told.now() == {}
            (path / "x/y/b/k").write_bytes(b"changed")
            (path / "a/c/k").write_bytes(b"changed")
            assert await told.now() == {"x/y/b/k": "set", "a/c/k": "set"}
            await store.exchange_prefixes(Prefix("x/y/"), Prefix("a/"))
            await store.erase_prefix(Prefix("x/y/"))
            (path / "a/b/k").write_bytes(b"changed")
            assert await told.now() == {"a/b/k": "set"}
            await store.set(Key("x/y/c/k"), b"x")


@trio_test
async def test_folders_that_others_exchange_are_told(path: Path) -> None:
    async with watched(path) as (store, told):
        await store.set(Key("x/y/c/k"), b"x")
        await told.now()
        other = FolderStore(str(path))
        await other.exchange_prefixes(Prefix("a/"), Prefix("x/y/"))
        assert set(await told.now()) >= {"a/", "x/y/"}
        (path / "a/c/k").write_bytes(b"changed")
        assert await told.now() == {"a/c/k": "set"}
        await other.aclose()


@trio_test
async def test_a_value_that_others_replace_after_the_store_did_is_told(path: Path) -> None:
    async with watched(path) as (store, told):
        for number in range(20):
            await store.set(Key("a/b/k"), b"ours")
            (path / "new").write_bytes(b"theirs")
            (path / "new").rename(path / "a/b/k")
            assert (await told.now()).get("a/b/k") == "set", f"attempt {number}"
            await store.erase(Key("a/b/k"))
            (path / "a/b/k").write_bytes(b"theirs")
            assert (await told.now()).get("a/b/k") == "set", f"attempt {number}"


@trio_test
async def test_what_others_set_before_an_announcement_that_does_not_cover_it_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stored value may have parts of theirs."""
    async with watched(path) as (store, told):
        replace, set_mtime = store._tree.replace, store._tree.set_mtime

        def set_by_others() -> None:
            (path / "new").write_bytes(b"theirs")
            (path / "new").rename(path / "a/b/k")

        def replaced(*arguments: Any) -> Generation:
            set_by_others()
            return replace(*arguments)

        def set_time(*arguments: Any) -> Generation | None:
            set_by_others()
            return set_mtime(*arguments)

        monkeypatch.setattr(store._tree, "replace", replaced)
        monkeypatch.setattr(store._tree, "set_mtime", set_time)
        await store.set(Key("a/b/k"), b"ours")
        assert "a/b/k" not in await told.now(), "the whole value is announced"
        with announcing(Key("a/b/k")):
            await store.set(Key("a/b/k"), b"ours")
        assert (await told.now())["a/b/k"] == "set"
        await store.set_times(Key("a/b/k"), 1_000_000_007)
        assert (await told.now())["a/b/k"] == "set"


@trio_test
async def test_what_the_store_itself_sets_in_part_is_not_told(path: Path) -> None:
    async with watched(path) as (store, told):
        for key in ("a/b/k", "a/b/l", "new/k"):
            with announcing(Key(key)):
                await store.set(Key(key), b"ours")
                await store.set(Key(key), b"longer")
                await store.erase(Key(key))
                await store.set(Key(key), b"created", expect=ABSENT)
                stat = await store.stat(Key(key))
                assert stat is not None
                await store.set(Key(key), b"over it", expect=stat.generation)
                await store.erase(Key(key))
        assert set((await told.now()).values()) <= {"mkdir"}


@trio_test
async def test_another_zarrfs_is_somebody_else(path: Path) -> None:
    async with watched(path) as (_, told):
        other = FolderStore(str(path))
        await other.set(Key("a/b/k"), b"new")
        await other.aclose()
        assert await told.now() == {"a/b/k": "set"}, "and its temporary files are nobody's keys"


@trio_test
async def test_links_lead_nowhere(path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "d").mkdir(parents=True)
    (path / "link").symlink_to(elsewhere)
    async with watched(path) as (_, told):
        (path / "later").symlink_to(elsewhere / "d")
        await told.now()
        (elsewhere / "k").write_bytes(b"x")
        (elsewhere / "d/k").write_bytes(b"x")
        assert await told.now() == {}


@trio_test
async def test_a_burst_that_overflows_the_kernels_queue(path: Path) -> None:
    async with watched(path) as (_, told):
        # While this loop runs, the queue is not read.
        for number in range(MORE_THAN_THE_QUEUE_HOLDS):
            (path / "a/b" / str(number)).write_bytes(b"x")
        # Once at once, and once more with the new watches.
        await told.until(lambda all_told: all_told.count(EVERYTHING) == 2)
        (path / "a/b/7").write_bytes(b"later")
        assert await told.now() == {"a/b/7": "set"}


@trio_test
async def test_folders_made_during_an_overflow_are_watched_afterwards(path: Path) -> None:
    async with watched(path) as (_, told):
        for number in range(MORE_THAN_THE_QUEUE_HOLDS):
            (path / "a/b" / str(number)).write_bytes(b"x")
        (path / "n/e/w").mkdir(parents=True)
        shutil.move(path / "a", path / "moved")
        await told.until(lambda all_told: all_told.count(EVERYTHING) == 2)
        (path / "n/e/w/k").write_bytes(b"x")
        (path / "moved/b/k").write_bytes(b"x")
        assert await told.now() == {"n/e/w/k": "set", "moved/b/k": "set"}


@trio_test
async def test_the_removal_of_the_stores_own_folder(path: Path) -> None:
    async with watched(path) as (_, told):
        shutil.rmtree(path)
        found = await told.until(lambda all_told: ("a/", "rmdir") in all_told)
        assert ("a/b/k", "erase") in found


@trio_test
async def test_where_there_are_too_many_folders_the_watch_says_so_and_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch, expect_logs: Callable[[str], None]
) -> None:
    expect_logs("changes by other programs are not watched: there are more than 3 folders")
    monkeypatch.setattr(watch, "MAX_FOLDERS", 3)
    store, told = FolderStore(str(path)), Told(path)
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.watch, told)
            await told.complete.wait()
            (path / "one/more").mkdir(parents=True)
    await store.aclose()


_IN_A_NAMESPACE = """
echo 2 > /proc/sys/user/max_inotify_watches || exit 77
exec "$1" -P -c '
import logging, sys, trio
from zarrfs.stores.folder.store import FolderStore
logging.basicConfig()
trio.run(FolderStore(sys.argv[1]).watch, lambda changes: print("told", changes))
' "$2"
"""


def test_where_the_user_has_no_watches_left_there_is_no_watch(path: Path) -> None:
    command = ["unshare", "--user", "--map-root-user", "bash", "-c", _IN_A_NAMESPACE, "bash", sys.executable, path]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no user namespaces here: {done.stderr}")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "the user has no inotify watches left (sysctl fs.inotify.max_user_watches)" in done.stderr


@pytest.mark.logs("inotify_simple is not installed")
@trio_test
async def test_without_the_library_there_is_no_watch(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "inotify_simple", None)
    store, told = FolderStore(str(path)), Told(path)
    await store.watch(told)
    await store.aclose()
    assert not told.complete.is_set()


@trio_test
async def test_a_store_that_others_reach_over_a_network_is_not_watched(path: Path) -> None:
    store, told = FolderStore(str(path)), Told(path)
    store._tree.local = False
    await store.watch(told)
    await store.aclose()
    assert not told.complete.is_set()


@trio_test
async def test_a_backend_that_does_not_tell_returns_at_once(path: Path) -> None:
    told = Told(path)
    await MemoryStore().watch(told)
    assert not told.complete.is_set()


@trio_test
async def test_changes_behind_are_in_the_stream_of_changes(path: Path) -> None:
    store = ObservedStore(FolderStore(str(path)))
    changes, watching = trio.open_memory_channel[Change](100), []
    store.subscribe(changes[0].send_nowait)
    async with trio.open_nursery() as nursery:
        began = trio.Event()

        def told(complete: bool) -> None:
            watching.append(complete)
            began.set()

        nursery.start_soon(store.follow, told)
        with trio.fail_after(30):
            await began.wait()
            (path / "a/b/k").write_bytes(b"theirs")
            assert await changes[1].receive() == Change(Key("a/b/k"), "set", external=True)
            await store.set(Key("ours"), b"")
            while (change := await changes[1].receive()).target != "ours":
                assert change.target == "a/b/k"
            assert not change.external
        nursery.cancel_scope.cancel()
    assert watching == [True, False]
    await store.aclose()


def seen(watch: FolderWatch) -> list[tuple[str, str]]:
    """Return what the events since the last call mean."""
    told = [
        ("/".join(each.parts), each.kind)
        for portion in watch.read()
        for event in events(portion)
        for each in watch.understand(event)
    ]
    watch.drop_leaving()
    return told


@pytest.fixture
def folder_watch(path: Path) -> Iterator[FolderWatch]:
    tree = FolderTree(str(path))
    watch = FolderWatch(tree)
    yield watch
    watch.close()
    tree.close()


def test_a_folder_made_in_one_that_is_moved_before_it_is_looked_at_is_watched(path: Path, folder_watch: FolderWatch) -> None:
    (path / "a/new/below").mkdir(parents=True)
    (path / "a").rename(path / "z")
    # Where it was, another one has a folder of that name.
    (path / "a/new").mkdir(parents=True)
    assert ("z", "moved") in seen(folder_watch)
    (path / "z/new/k").write_bytes(b"")
    (path / "z/new/below/k").write_bytes(b"")
    (path / "a/new/k").write_bytes(b"")
    assert {place for place, _ in seen(folder_watch)} == {"z/new/k", "z/new/below/k", "a/new/k"}


def test_a_folder_that_replaces_a_removed_one_is_watched_all_the_time(path: Path, folder_watch: FolderWatch) -> None:
    """The first event is about the folder that was removed, and finds the other one."""
    (path / "n").mkdir()
    (first,) = [event for portion in folder_watch.read() for event in events(portion)]
    removed = os.open(path / "n", os.O_RDONLY)
    (path / "n").rmdir()
    (path / "n").mkdir()
    # Until here the other one could not have its inode number.
    os.close(removed)
    (path / "n/k").write_bytes(b"")
    told = [("/".join(each.parts), each.kind) for each in folder_watch.understand(first)]
    assert ("n/k", "set") in told
    (path / "n/k").unlink()
    assert ("n/k", "erase") in seen(folder_watch)


@trio_test
async def test_a_value_of_the_store_that_is_removed_with_its_new_folder_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(path) as (store, told):
        replace = store._tree.replace

        def replaced_and_removed(*arguments: Any) -> Any:
            def both() -> Any:
                generation = replace(*arguments)
                shutil.rmtree(path / "n")
                return generation

            # In the event loop, which looks at nothing meanwhile: nothing in the new folder is watched.
            return trio.from_thread.run_sync(both)

        monkeypatch.setattr(store._tree, "replace", replaced_and_removed)
        await store.set(Key("n/m/k"), b"ours")
        assert await told.now() == {"n/": "unknown", "n/m/k": "erase"}


@trio_test
async def test_what_others_do_to_a_folder_while_the_store_removes_a_value_of_its_name_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(path) as (store, told):
        remove = store._tree.remove

        def removed(parts: Parts, expect: Expected = None) -> None:
            (path / "a").rename(path / "z")
            remove(parts, expect)

        monkeypatch.setattr(store._tree, "remove", removed)
        await store.erase(Key("a"))
        assert await told.now() == {"a/": "erase", "z/": "set"}


@pytest.mark.parametrize("seed", range(5))
@trio_test
async def test_whoever_follows_what_is_told_knows_the_folder(path: Path, seed: int) -> None:
    """A copy updated only where notifications arrive becomes equal to the folder, after any changes."""
    chance = random.Random(seed)
    copy: dict[str, bytes] = {}

    def look(place: str) -> None:
        for key in [key for key in copy if key == place or not place or (place.endswith("/") and key.startswith(place))]:
            del copy[key]
        for found in [path / place] if not place.endswith("/") and place else (path / place).rglob("*"):
            if found.is_file() and not found.name.startswith(_END):
                copy[found.relative_to(path).as_posix()] = found.read_bytes()

    async with watched(path) as (_, told):
        look("")
        for _ in range(20):
            for _ in range(chance.randrange(20)):
                _do_something(path, chance)
            for place, kind in (await told.now()).items():
                if kind not in ("mkdir", "rmdir"):
                    look(place)
            assert copy == _values_in(path)


@contextmanager
def _written_in_place(path: Path) -> Iterator[None]:
    with open(path, "r+b") as file:
        file.write(b"N")
        file.flush()
        yield


def _make_quickly(path: Path) -> None:
    script = "mkdir -p $1/x/y/z && echo 1 > $1/x/y/z/k && echo 2 > $1/x/l"
    subprocess.run(["bash", "-c", script, "bash", path], check=True)


def _values_in(path: Path) -> dict[str, bytes]:
    return {
        found.relative_to(path).as_posix(): found.read_bytes()
        for found in path.rglob("*")
        if found.is_file() and not found.name.startswith(_END)
    }


def _do_something(path: Path, chance: random.Random) -> None:
    def place() -> Path:
        return path.joinpath(*(chance.choice("abc") for _ in range(chance.randrange(1, 5))))

    try:
        match chance.randrange(6):
            case 0 | 1:
                here = place()
                here.parent.mkdir(parents=True, exist_ok=True)
                here.write_bytes(chance.randbytes(3))
            case 2:
                place().rename(place())
            case 3:
                shutil.rmtree(place())
            case 4:
                place().unlink()
            case 5:
                place().mkdir(parents=True)
    except (OSError, shutil.Error):
        pass  # Not everything is possible everywhere.
