"""Lifetimes of the kernel's cache entries, and their invalidation when changes are no longer notified."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pyfuse3
import pytest
import trio

from tests.support.drivers import DirectDriver, RecordingNotifier, direct
from tests.support.small_stores import SMALL, write
from zarrfs.fuse import kernel_cache
from zarrfs.fuse.inodes import InodeTable
from zarrfs.fuse.kernel_cache import WATCHED_SECONDS, KernelCache
from zarrfs.stores.folder import watch
from zarrfs.stores.folder.store import FolderStore
from zarrfs.vfs.changed_entry import ChangedEntry

CONTEXT = SimpleNamespace(uid=0, gid=0, pid=0, umask=0)


def memory(timeout: float, told: bool) -> KernelCache:
    return KernelCache(InodeTable(None), None, timeout=timeout, is_watched=lambda: told)  # type: ignore[arg-type]


def test_what_is_told_may_be_kept_for_longer() -> None:
    assert memory(10, told=False).seconds(0) == (10, 10)
    assert memory(10, told=True).seconds(0) == (10, WATCHED_SECONDS)
    assert memory(3600, told=True).seconds(0) == (3600, 3600)


def test_who_wants_to_be_asked_every_time_is() -> None:
    assert memory(0, told=True).seconds(0) == (0, 0)


def test_what_may_have_changed_while_it_was_looked_up_is_not_kept_for_longer() -> None:
    kept = memory(10, told=True)
    before = kept.epoch
    kept.changed([])
    assert kept.seconds(before) == (10, 10)
    assert kept.seconds(kept.epoch) == (10, WATCHED_SECONDS)


def test_of_many_folders_whose_names_have_expired_the_oldest_are_invalidated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the kernel and the daemon hold all folders that others have removed, as none looks for them again."""
    monkeypatch.setattr(kernel_cache, "_EXPIRED_KEPT", 2)
    inodes, notifier = InodeTable(None), RecordingNotifier()  # type: ignore[arg-type]
    kept = KernelCache(inodes, notifier, timeout=10, is_watched=lambda: True)  # type: ignore[arg-type]

    def told_of(name: str) -> list[tuple[int, str]]:
        notifier.entries.clear()
        for _ in kept.changed([ChangedEntry(path=name, gone=True)], external=True):
            pass
        return notifier.entries.copy()

    for name in "abcde":
        inodes.refer(inodes.root, name, is_folder=True)
    root = inodes.root.ino
    assert told_of("a") + told_of("b") + told_of("a") == [(root, "a"), (root, "b")]
    assert told_of("c") == [(root, "c"), (root, "a")]
    inodes.refer(inodes.root, "b", is_folder=True)
    assert told_of("d") == [(root, "d")], "b was looked up again"
    inodes.forget(inodes.refer(inodes.root, "c", is_folder=True).ino, 2)
    assert told_of("e") == [(root, "e")], "c is forgotten"


async def looked_up(driver: DirectDriver, *names: bytes) -> pyfuse3.EntryAttributes:
    ino = pyfuse3.ROOT_INODE
    for name in names:
        entry = await driver.handlers.lookup(ino, pyfuse3.FileNameT(name), CONTEXT)  # type: ignore[arg-type]
        ino = entry.st_ino
    return entry


async def until_watched(driver: DirectDriver, watched: bool) -> None:
    with trio.fail_after(30):
        while driver.tree.watched is not watched:
            await trio.lowlevel.checkpoint()


@pytest.mark.logs("changes by other programs are not watched: there are more than")
def test_when_the_watch_ends_the_kernel_forgets_and_keeps_things_for_a_short_time_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        store = FolderStore(str(write(tmp_path / "store", SMALL)))
        async with direct(store, cache_dir=str(tmp_path)) as driver:
            await until_watched(driver, True)
            value, folder = await looked_up(driver, b"raw", b"a", b"0.0"), await looked_up(driver, b"raw", b"a")
            assert (value.entry_timeout, value.attr_timeout) == (WATCHED_SECONDS, WATCHED_SECONDS)
            assert (folder.entry_timeout, folder.attr_timeout) == (WATCHED_SECONDS, 10), (
                "a folder's time changes with what is in it"
            )
            monkeypatch.setattr(watch, "MAX_FOLDERS", 1)
            (tmp_path / "store/more").mkdir()
            await until_watched(driver, False)
            assert (folder.st_ino, "0.0") in driver.notifier.entries
            assert (value.st_ino, False) in driver.notifier.inodes
            assert (await looked_up(driver, b"raw", b"a", b"0.0")).entry_timeout == 10
        await store.aclose()

    trio.run(main)


def test_without_a_watch_nothing_is_kept_for_longer(tmp_path: Path) -> None:
    async def main() -> None:
        store = FolderStore(str(write(tmp_path / "store", SMALL)))
        async with direct(store, cache_dir=str(tmp_path), watch=False) as driver:
            assert (await looked_up(driver, b"raw", b"a", b"0.0")).entry_timeout == 10
        await store.aclose()

    trio.run(main)


def test_a_request_that_changes_names_in_a_folder_sends_no_notice_of_that_folder(tmp_path: Path) -> None:
    """The kernel drops the folder's attributes by itself. Of one that fails it keeps them, and nothing has changed."""

    async def main() -> None:
        store = FolderStore(str(write(tmp_path / "store", SMALL)))
        async with direct(store, cache_dir=str(tmp_path)) as driver:
            folder = (await looked_up(driver, b"raw")).st_ino
            driver.notifier.inodes.clear()
            for name in (b"one", b"two"):
                await driver.handlers.getattr(folder, CONTEXT)  # type: ignore[arg-type]
                await driver.handlers.mkdir(folder, pyfuse3.FileNameT(name), pyfuse3.ModeT(0o755), CONTEXT)  # type: ignore[arg-type]
            await driver.handlers.getattr(folder, CONTEXT)  # type: ignore[arg-type]
            await driver.handlers.rmdir(folder, pyfuse3.FileNameT(b"one"), CONTEXT)  # type: ignore[arg-type]
            assert folder not in dict(driver.notifier.inodes)
        await store.aclose()

    trio.run(main)


def test_a_folder_that_changes_again_before_the_kernel_asks_is_told_of_once(tmp_path: Path) -> None:
    """Each change of the store would be two notices and two requests more, of the views' folders and of the root."""

    async def main() -> None:
        store = FolderStore(str(write(tmp_path / "store", SMALL)))
        async with direct(store, cache_dir=str(tmp_path)) as driver:
            folder, shown = (await looked_up(driver, b"raw")).st_ino, (await looked_up(driver, b"chunks")).st_ino
            root = await driver.handlers.getattr(pyfuse3.ROOT_INODE, CONTEXT)  # type: ignore[arg-type]
            for name, told in ((b"one", 1), (b"two", 1), (b"three", 2)):
                await driver.handlers.mkdir(folder, pyfuse3.FileNameT(name), pyfuse3.ModeT(0o755), CONTEXT)  # type: ignore[arg-type]
                assert [each[1] for each in driver.notifier.entries].count("chunks") == told
                if name == b"two":
                    await looked_up(driver, b"chunks")
            assert {ino for ino, _ in driver.notifier.inodes} <= {shown}
            assert (await driver.handlers.getattr(pyfuse3.ROOT_INODE, CONTEXT)).st_mtime_ns == root.st_mtime_ns  # type: ignore[arg-type]
        await store.aclose()

    trio.run(main)
