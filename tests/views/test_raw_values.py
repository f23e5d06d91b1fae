"""The files of ``raw/``: values that others replace or erase meanwhile, and stores with fewer capabilities."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing
from trio.testing import trio_test

from tests.support import zarr_python
from tests.support.small_disks import small_disk
from tests.support.stores import contents, fill
from tests.support.trees import READ_ONLY, load, read, tree_of, tree_over, walk, write
from zarrfs.buffers import Buffer
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import EntryExists, NoSuchEntry, StaleEntry, StoreAccessDenied, StoreUnsupported
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.change import Change
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import Directory, File, OpenFlags
from zarrfs.vfs.temporary import TemporaryFile
from zarrfs.views.raw import value as raw_value

TEMPORARY = f"k.{'0' * 32}.partial"
WRITE = OpenFlags(write=True)


class UnconditionalStore(ForwardingStore):
    """A store without conditional writes, so that it cannot detect a faster writer in one step."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.capabilities = replace(self.capabilities, create_only=False, match=False)

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if expect is not None:
            raise StoreUnsupported("no conditions")
        return await super().set(key, value)


class RefusingStore(ForwardingStore):
    """A store on a file system that has neither hard links nor a rename to a free name (exFAT through FUSE)."""

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if expect is not None:
            raise StoreAccessDenied("no hard links", key=key)
        return await super().set(key, value)


class RestlessStore(ForwardingStore):
    """A store in which another program replaces the value after its first ``calm`` parts were read."""

    calm = 1 << 30

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        self.calm -= 1
        if self.calm < 0:
            for key, _ in key_ranges:
                await self.inner.set(key, b"another" * 20)
        return await super().get_partial_values(key_ranges, if_generation=if_generation)


async def written(tree: MountTree) -> tuple[Directory, TemporaryFile]:
    """Return the root of ``raw/``, and a temporary file in it."""
    await write(tree, f"raw/{TEMPORARY}", b"written")
    folder, file = await walk(tree, "raw"), await walk(tree, f"raw/{TEMPORARY}")
    assert isinstance(folder, Directory) and isinstance(file, TemporaryFile)
    return folder, file


@pytest.mark.parametrize("kind", [UnconditionalStore, RefusingStore])
@trio_test
async def test_a_link_makes_a_key_where_there_is_none_whatever_the_store_can_do(kind: type[ForwardingStore]) -> None:
    store = MemoryStore()
    async with tree_over(kind(store)) as tree:
        folder, file = await written(tree)
        await folder.link(file, "k")
        assert await contents(store) == {"k": b"written"}


@pytest.mark.parametrize("kind", [ForwardingStore, UnconditionalStore], ids=["conditional", "unconditional"])
@trio_test
async def test_a_link_does_not_replace_what_another_program_has_stored_meanwhile(kind: type[ForwardingStore]) -> None:
    class Quicker(kind):  # type: ignore[misc, valid-type]
        """Another program stores a value between the lookup of the key and its creation."""

        async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
            if expect is not None:
                await self.inner.set(key, b"theirs")
            result: Generation = await super().set(key, value, expect=expect)
            return result

        @asynccontextmanager
        async def exclusive(self, key: Key) -> AsyncIterator[None]:
            if not self.capabilities.create_only:
                await self.inner.set(key, b"theirs")
            async with super().exclusive(key):
                yield

    store = MemoryStore()
    async with tree_over(Quicker(store)) as tree:
        folder, file = await written(tree)
        with pytest.raises(EntryExists, match="'k' already exists"):
            await folder.link(file, "k")
    assert await contents(store) == {"k": b"theirs"}


@trio_test
async def test_the_time_of_a_value_that_is_gone_is_nobodys() -> None:
    store = MemoryStore()
    await fill(store, {"k": b"1"})
    async with tree_over(store) as tree:
        file = await walk(tree, "raw/k")
        assert isinstance(file, File)
        await file.set_mtime(5_000_000_000)
        assert (await file.attributes()).mtime_ns == 5_000_000_000
        await store.erase(Key("k"))
        await file.set_mtime(6_000_000_000)
        with pytest.raises(NoSuchEntry, match="raw/k is gone"):
            await file.attributes()
        with pytest.raises(NoSuchEntry, match="raw/k is gone"):
            await file.open(READ_ONLY)
        # A new value of that name has its own time.
        await store.set(Key("k"), b"22")
        assert (await file.attributes()).mtime_ns not in (5_000_000_000, 6_000_000_000)


@trio_test
async def test_a_large_value_that_is_replaced_while_it_is_loaded_is_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_value, "WHOLE_NBYTES", 10)
    monkeypatch.setattr(raw_value, "_AT_ONCE_NBYTES", 10)
    monkeypatch.setattr(raw_value, "_PIECE_NBYTES", 16)
    inner = MemoryStore()
    await fill(inner, {"k": bytes(range(100)), "z": bytes(100)})
    store = RestlessStore(inner)
    async with tree_over(store) as tree:
        for name in ("k", "z"):
            file = await walk(tree, f"raw/{name}")
            assert isinstance(file, File)
            handle = await file.open(WRITE)
            await handle.write(50, b"changed")
            await handle.flush()
            await handle.release()
        whole = bytes(range(50)) + b"changed" + bytes(range(57, 100))
        assert await read(tree, "raw/k") == whole
        assert await read(tree, "raw/z") == bytes(50) + b"changed" + bytes(43)
        file = await walk(tree, "raw/k")
        assert isinstance(file, File)
        handle = await file.open(WRITE)
        store.calm = 2
        with pytest.raises(StaleEntry, match="'k' was replaced while it was being read"):
            await handle.write(50, b"again")
        await handle.release()
    assert (await contents(inner))["k"] == b"another" * 20


@trio_test
async def test_a_folder_that_is_moved_or_removed_behind_the_mount_takes_its_empty_folders_along() -> None:
    store = MemoryStore()
    await fill(store, {"a/k": b"1"})
    async with tree_over(store) as tree:
        folder = await walk(tree, "raw/a")
        assert isinstance(folder, Directory)
        await folder.mkdir("empty")
        raw = tree._views["raw"]
        assert list(raw.names_of(Prefix("a/"))) == [(("a",), True)]
        await tree.store.rename_prefix(Prefix("a/"), Prefix("b/"))
        moved = await walk(tree, "raw/b")
        assert isinstance(moved, Directory)
        assert {entry[0] async for entry in moved.entries()} == {"k", "empty"}
        (gone,) = raw.affected(Change(Prefix("a/"), "rmdir"), ())
        assert (gone.names, gone.gone) == (("a",), True)


@trio_test
async def test_a_part_of_a_value_that_another_program_replaces_while_the_write_waits_is_refused(tmp_path: Path) -> None:
    """Whether the change is reported before the write, after it, or as here between the two."""
    (tmp_path / "k").write_bytes(b"A" * 16)
    async with tree_of(tmp_path, watch="off") as tree:
        file = await walk(tree, "raw/k")
        assert isinstance(file, File)
        handle = await file.open(OpenFlags(write=True))
        staged = tree.staging.get("raw/k")
        assert staged is not None
        refused: list[StaleEntry] = []

        async def write_part() -> None:
            with pytest.raises(StaleEntry) as caught:
                await handle.write(0, b"CCCC")
            refused.append(caught.value)

        async with trio.open_nursery() as nursery:
            async with staged.lock:
                nursery.start_soon(write_part)
                await trio.testing.wait_all_tasks_blocked()
                (tmp_path / "new").write_bytes(b"B" * 6)
                os.rename(tmp_path / "new", tmp_path / "k")
                tree.observed.announce(Change(Key("k"), "set", external=True))
        await handle.release()
        assert len(refused) == 1 and (tmp_path / "k").read_bytes() == b"B" * 6


@trio_test
async def test_a_value_is_read_without_room_in_the_cache_folder(tmp_path: Path) -> None:
    """It was to be held whole for later reads, in a file, and reading it was EFBIG."""
    value = os.urandom(4 << 20)
    (tmp_path / "store").mkdir()
    (tmp_path / "store/k").write_bytes(value)
    with small_disk(tmp_path / "cache", "1m") as cache:
        async with tree_of(tmp_path / "store", memory_limit="64MiB", cache_dir=str(cache)) as tree:
            assert await read(tree, "raw/k") == value


@trio_test
async def test_values_that_are_open_stay_readable_if_there_is_no_memory_for_all_of_them(tmp_path: Path) -> None:
    """There is for each of them when its read begins, and for the last one no more when it ends."""
    values = {name: bytes([number]) * (7 << 18) for number, name in enumerate("abcd")}
    for name, value in values.items():
        (tmp_path / name).write_bytes(value)
    async with tree_of(tmp_path, memory_limit="48MiB", watch="no") as tree:
        files = {name: await walk(tree, f"raw/{name}") for name in values}
        handles = {name: await file.open(READ_ONLY) for name, file in files.items() if isinstance(file, File)}
        read_first: dict[str, bytes] = {}

        async def look(name: str) -> None:
            read_first[name] = bytes(await handles[name].read(0, 1))

        async with trio.open_nursery() as nursery:
            for name in values:
                nursery.start_soon(look, name)
        assert read_first == {name: value[:1] for name, value in values.items()}
        for name, value in values.items():
            (tmp_path / "new").write_bytes(b"other")
            (tmp_path / "new").rename(tmp_path / name)
            assert bytes(await handles[name].read(0, len(value))) == value
            await handles[name].release()


@pytest.mark.parametrize("change", ["write", "truncate"])
@trio_test
async def test_the_rest_of_a_shard_that_is_changed_has_the_chunks_that_were_queued_before(change: str) -> None:
    """It was loaded without them, and stored over them: a chunk whose close had returned 0 was lost."""

    def make(group: Any) -> None:
        group.create_array("a", shape=(8,), dtype="<i4", chunks=(2,), shards=(8,), fill_value=7)[...] = np.arange(8)

    store = MemoryStore()
    await fill(store, zarr_python.written(3, make))
    async with tree_over(store, shard_delay="600") as tree:
        shard = await walk(tree, "raw/a/c/0")
        assert isinstance(shard, File)
        handle = await shard.open(OpenFlags(write=True))
        value = await read(tree, "raw/a/c/0")
        # From here on, what others store of the file is its own change.
        await handle.write(0, value[:1])
        await handle.flush()
        await write(tree, "chunks/a/0", np.array([100, 101], "<i4").tobytes())
        if change == "write":
            await handle.write(1, value[1:2])
            await handle.flush()
        else:
            await shard.truncate(len(value))
        await handle.release()
        assert (await load(tree, "npy/a.npy")).tolist() == [100, 101, *range(2, 8)]
