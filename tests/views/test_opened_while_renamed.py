"""A file that is opened while another one is being renamed over it: the one or the other, never the value of one as that of the other.

While it is removed: none.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.support.trees import READ_ONLY, tree_over, walk
from zarrfs.buffers import Buffer
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NoSuchEntry
from zarrfs.keys import ByteRange, Key
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Directory, Handle, OpenFlags

OLD, NEW = b"old" * 10, b"the new value" * 10
TEMPORARY = "f.0123456789abcdef0123456789abcdef.partial"


class SlowToReturn(ForwardingStore):
    """While ``slow``, changes have taken effect, but wait for ``returns``; an erase waits before that.

    Reads wait for ``read_only_after``."""

    slow = False
    read_only_after: trio.Event | None = None

    def __init__(self, inner: MemoryStore | FolderStore) -> None:
        super().__init__(inner)
        self.changed = trio.Event()
        self.returns = trio.Event()

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        if self.read_only_after is not None:
            await self.read_only_after.wait()
        return await super().get_with_stat(key, byte_range)

    async def rename(self, old: Key, new: Key) -> bool:
        result = await super().rename(old, new)
        await self._wait()
        return result

    async def copy(self, source: Key, target: Key) -> bool:
        result = await super().copy(source, target)
        await self._wait()
        return result

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        result = await super().set(key, value, expect=expect)
        await self._wait()
        return result

    async def erase(self, key: Key) -> None:
        if self.slow:
            self.changed.set()
            await self.returns.wait()
        await super().erase(key)

    async def _wait(self) -> None:
        if self.slow:
            self.changed.set()
            await self.returns.wait()


async def content(handle: Handle) -> bytes:
    return bytes(await handle.read(0, 1000))


async def found(tree: MountTree) -> tuple[Directory, StagedFile]:
    """Return ``raw/``, and the file ``f`` in it."""
    folder = await walk(tree, "raw")
    file = await walk(tree, "raw/f")
    assert isinstance(folder, Directory) and isinstance(file, StagedFile)
    return folder, file


@pytest.mark.parametrize("source", ["g", TEMPORARY])
@pytest.mark.parametrize("has_reader", [True, False])
@pytest.mark.parametrize("kind", ["memory", "folder"])
@trio_test
async def test_an_open_waits_for_the_rename(kind: str, has_reader: bool, source: str, tmp_path: Path) -> None:
    store = SlowToReturn(MemoryStore() if kind == "memory" else FolderStore(str(tmp_path)))
    async with tree_over(store, watch="off") as tree:
        folder = await walk(tree, "raw")
        assert isinstance(folder, Directory)
        for name, value in (("f", OLD), (source, NEW)):
            _, handle = await folder.create(name, OpenFlags(read=False, write=True))
            await handle.write(0, value)
            await handle.flush()
            await handle.release()
        folder, file = await found(tree)
        reader = await file.open(READ_ONLY) if has_reader else None
        opened: list[Handle] = []

        async def open_again() -> None:
            opened.append(await file.open(READ_ONLY))

        store.slow = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(folder.rename, source, folder, "f")
            await store.changed.wait()
            nursery.start_soon(open_again)
            await wait_all_tasks_blocked()
            assert not opened
            store.returns.set()
        assert await content(opened[0]) == NEW
        if reader is not None:
            assert opened[0].of is not reader.of and await content(reader) == OLD
            await reader.release()
        await opened[0].release()
    await store.aclose()


@trio_test
async def test_an_open_that_reads_after_the_rename_began_is_repeated() -> None:
    store = SlowToReturn(MemoryStore())
    await store.set(Key("f"), OLD)
    await store.set(Key("g"), NEW)
    async with tree_over(store, watch="off") as tree:
        folder, file = await found(tree)
        opened: list[Handle] = []

        async def open_it() -> None:
            opened.append(await file.open(READ_ONLY))

        store.slow = True
        store.read_only_after = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_it)
            await wait_all_tasks_blocked()
            nursery.start_soon(folder.rename, "g", folder, "f")
            await store.changed.wait()
            store.read_only_after.set()
            await wait_all_tasks_blocked()
            assert not opened
            store.returns.set()
        assert await content(opened[0]) == NEW and opened[0].of is file.of
        await opened[0].release()
        assert not tree.staging.open_handles
    await store.aclose()


@trio_test
async def test_a_file_that_is_opened_while_it_is_removed_does_not_come_back() -> None:
    store = SlowToReturn(MemoryStore())
    await store.set(Key("f"), OLD)
    async with tree_over(store, watch="off") as tree:
        folder, file = await found(tree)

        async def change_it() -> None:
            with contextlib.suppress(NoSuchEntry):
                handle = await file.open(OpenFlags(read=False, write=True))
                await handle.write(0, NEW)
                await handle.release()

        store.slow = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(folder.unlink, "f")
            await store.changed.wait()
            nursery.start_soon(change_it)
            await wait_all_tasks_blocked()
            store.returns.set()
        assert await store.get(Key("f")) is None
    await store.aclose()
