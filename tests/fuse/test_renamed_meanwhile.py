"""A folder is renamed while the store is asked about a file in it: the kernel's number then stands for the file at its new path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.support.callers import CALLER
from tests.support.drivers import DirectDriver, direct
from zarrfs.buffers import Buffer
from zarrfs.keys import Key, Prefix
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.values import Expected, Generation, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore


async def folder_and_file(driver: DirectDriver) -> tuple[int, int]:
    """Store a value; return the inode numbers of its folder and its file in raw/."""
    await driver.put("g/k", b"old")
    return await driver._ino(f"{driver.raw}/g"), await driver._ino(f"{driver.raw}/g/k")


class SlowToTell(ForwardingStore):
    """The answer about the key ``slow`` waits for ``goes_on``."""

    def __init__(self, inner: FolderStore) -> None:
        super().__init__(inner)
        self.slow: str | None = None
        self.is_asked, self.goes_on = trio.Event(), trio.Event()

    async def stat(self, key: Key) -> KeyStat | None:
        found = await super().stat(key)
        if key == self.slow:
            self.is_asked.set()
            await self.goes_on.wait()
        return found

    def stat_now(self, key: Key) -> KeyStat | None:
        if key == self.slow:
            raise WouldWait
        return super().stat_now(key)


@pytest.mark.parametrize("by", ["lookup", "getattr"])
@trio_test
async def test_it_is_written_at_its_new_path(by: str, tmp_path: Path) -> None:
    store = SlowToTell(FolderStore(str(tmp_path)))
    async with direct(store, cache_dir=str(tmp_path), watch="off") as driver:
        handlers, inodes = driver.handlers, driver.session.inodes
        folder, file = await folder_and_file(driver)
        found: list[int] = []

        async def ask() -> None:
            if by == "lookup":
                entry = await handlers.lookup(folder, b"k", CALLER)
                driver._refer(entry)
            else:
                entry = await handlers.getattr(file, CALLER)
            found.append(entry.st_ino)

        # As after many other files.
        inodes[file].node = None
        inodes[file].stamp = 0
        store.slow = f"{driver.prefix}g/k"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await store.is_asked.wait()
            await driver.rename(f"{driver.raw}/g", f"{driver.raw}/h")
            await driver.put("g/k", b"another")
            store.goes_on.set()
        assert inodes[found[0]].path == f"{driver.raw}/h/k"
        info = await handlers.open(found[0], os.O_WRONLY | os.O_TRUNC, CALLER)
        await handlers.write(info.fh, 0, b"mine")
        await handlers.flush(info.fh)
        await handlers.release(info.fh)
        assert (await driver.stored("g/k"), await driver.stored("h/k")) == (b"another", b"mine")
    await store.aclose()


class SlowToReturn(ForwardingStore):
    """A rename of a prefix has taken effect, but returns after ``goes_on`` only."""

    def __init__(self, inner: FolderStore) -> None:
        super().__init__(inner)
        self.is_renamed, self.goes_on = trio.Event(), trio.Event()

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        renamed = await super().rename_prefix(old, new)
        self.is_renamed.set()
        await self.goes_on.wait()
        return renamed


@pytest.mark.parametrize("step", ["getattr of the folder", "getattr", "lookup", "open", "open again", "create", "flush"])
@trio_test
async def test_a_request_during_the_rename_is_about_what_is_renamed(step: str, tmp_path: Path) -> None:
    store = SlowToReturn(FolderStore(str(tmp_path)))
    async with direct(store, cache_dir=str(tmp_path), watch="off") as driver:
        handlers, inodes = driver.handlers, driver.session.inodes
        folder, file = await folder_and_file(driver)
        if step in ("getattr of the folder", "open again"):
            # As after an earlier rename.
            inodes[folder].node = inodes[file].node = None
            inodes[file].stamp = 0
        opened = await handlers.open(file, os.O_RDWR, CALLER)
        if step == "flush":
            await handlers.write(opened.fh, 0, b"new")

        async def ask() -> None:
            match step:
                case "getattr of the folder":
                    await handlers.getattr(folder, CALLER)
                case "getattr":
                    await handlers.getattr(file, CALLER)
                case "lookup":
                    entry = await handlers.lookup(folder, b"k", CALLER)
                    driver._refer(entry)
                    assert entry.st_ino == file
                case "open" | "open again":
                    info = await handlers.open(file, os.O_WRONLY | os.O_TRUNC, CALLER)
                    await handlers.write(info.fh, 0, b"new")
                    await handlers.flush(info.fh)
                    await handlers.release(info.fh)
                case "create":
                    info, entry = await handlers.create(folder, b"new", 0o644, os.O_WRONLY | os.O_CREAT, CALLER)
                    driver._refer(entry)
                    await handlers.write(info.fh, 0, b"new")
                    await handlers.flush(info.fh)
                    await handlers.release(info.fh)
                case "flush":
                    await handlers.flush(opened.fh)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.rename, f"{driver.raw}/g", f"{driver.raw}/h")
            await store.is_renamed.wait()
            try:
                nursery.start_soon(ask)
                await wait_all_tasks_blocked()
            finally:
                store.goes_on.set()
        await handlers.release(opened.fh)
        found = {"h/k": b"new" if "open" in step or step == "flush" else b"old"} | ({"h/new": b"new"} if step == "create" else {})
        assert {key: await driver.stored(key) for key in ("g/k", "g/new", "h/k", "h/new")} == dict.fromkeys(
            ("g/k", "g/new", "h/k", "h/new")
        ) | found
    await store.aclose()


class SlowToSet(ForwardingStore):
    """Values are set after ``goes_on`` only."""

    def __init__(self, inner: FolderStore) -> None:
        super().__init__(inner)
        self.goes_on = trio.Event()
        self.goes_on.set()

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        await self.goes_on.wait()
        return await super().set(key, value, expect=expect)


@pytest.mark.parametrize("new", ["l", "l.__lock"])
@pytest.mark.parametrize("old", ["k", "k.__lock"])
@trio_test
async def test_a_mapping_written_back_during_the_rename_is_stored_under_the_new_name(old: str, new: str, tmp_path: Path) -> None:
    store = SlowToSet(FolderStore(str(tmp_path)))
    async with direct(store, cache_dir=str(tmp_path), watch="off") as driver:
        handlers = driver.handlers
        await driver.write(f"{driver.raw}/{old}", b"old")
        opened = await handlers.open(await driver._ino(f"{driver.raw}/{old}"), os.O_RDWR, CALLER)
        await handlers.write(opened.fh, 0, b"new")
        store.goes_on = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.rename, f"{driver.raw}/{old}", f"{driver.raw}/{new}")
            # It publishes what is staged. For write(2) the kernel waits for its end, but not for pages.
            await trio.lowlevel.checkpoint()
            nursery.start_soon(handlers.write, opened.fh, 3, b" and more")
            await wait_all_tasks_blocked()
            store.goes_on.set()
        await handlers.flush(opened.fh)
        await handlers.release(opened.fh)
        assert await driver.read(f"{driver.raw}/{new}") == b"new and more"
        assert {old, new} & set(await driver.listdir(driver.raw)) == {new}
    await store.aclose()
