"""A folder is renamed while the store is asked about a file in it: the kernel's number then stands for the file at its new path."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test

from tests.support.callers import CALLER
from tests.support.drivers import direct
from zarrfs.keys import Key
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.values import KeyStat
from zarrfs.transformers.forwarding import ForwardingStore


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
        await driver.put("g/k", b"old")
        folder, file = await driver._ino(f"{driver.raw}/g"), await driver._ino(f"{driver.raw}/g/k")
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
