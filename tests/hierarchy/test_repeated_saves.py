"""A save over an array that takes effect after its deadline, while its file stays open: what is written and read until it is repeated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.hierarchy.test_several_steps import npy
from tests.support.late_steps import OLD, OPTIONS, write_chunk
from tests.support.stores import HangingStore
from tests.support.trees import load, names, opened, read, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NodeInDoubt, StaleEntry, StoreError, StoreTimeout, StoreUnsupported
from zarrfs.keys import APART, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import KeyStat
from zarrfs.vfs.node import Directory, Handle, OpenFlags


class WithoutExchange(HangingStore):
    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        raise StoreUnsupported("no exchange")


class WithoutRename(HangingStore):
    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.capabilities = replace(inner.capabilities, rename=False)


LATE = [
    pytest.param("v3", HangingStore, ("*", "exchange_prefixes"), id="v3"),
    pytest.param("v3", WithoutExchange, (".zarrfs/*/new/", "rename_prefix"), id="v3, no exchange"),
    pytest.param("v3_2022", HangingStore, ("meta/root/a.array.json", "set"), id="v3_2022"),
    pytest.param("v3", WithoutRename, ("a/zarr.json", "set"), id="v3, no rename"),
    pytest.param("v3_2022", WithoutRename, ("meta/root/a.array.json", "set"), id="v3_2022, no rename"),
]


async def folder_of_arrays(tree: MountTree) -> Directory:
    folder = await walk(tree, "npy")
    assert isinstance(folder, Directory)
    return folder


async def save_late(tree: MountTree, store: HangingStore, step: tuple[str, ...], data: np.ndarray) -> Handle:
    """Save over ``a``; the step takes effect after its deadline. Return the open file."""
    handle = await opened(tree, "npy/a.npy", OpenFlags(write=True, truncate=True))
    await handle.write(0, npy(data))
    store.hang(*step)
    with pytest.raises(StoreTimeout):
        await handle.flush()
    store.answer()
    await trio.sleep(100)
    return handle


@pytest.mark.logs("")
@pytest.mark.parametrize("data_type", ["<i4", "<f8"])
@pytest.mark.parametrize("is_repeated", [True, False], ids=["repeated", "closed"])
@pytest.mark.parametrize(("dialect", "kind", "step"), LATE)
@trio_test
async def test_what_waits_is_of_the_array_that_it_was_written_to(
    autojump_clock: MockClock,
    tmp_path: Path,
    dialect: str,
    kind: type[HangingStore],
    step: tuple[str, ...],
    is_repeated: bool,
    data_type: str,
) -> None:
    """An array of another shape alone counted as the old one, resized: it got chunks of the old one, and lost its own."""
    inner = MemoryStore()
    store = kind(inner)
    new = np.arange(16, dtype=data_type)
    wanted = np.r_[new[:8], np.full(8, 99, data_type)]
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        await write_chunk(tree, "chunks/a/0", np.full(8, 55, OLD.dtype))
        handle = await save_late(tree, store, step, new)
        await write_chunk(tree, "chunks/a/1", wanted[8:])
        if is_repeated:
            await handle.flush()
        await handle.release()
        await trio.sleep(100)
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), wanted)
        assert await tree.publish_all() == []
        assert not (tmp_path / "rescued").exists()
        assert tree.stats()["pending_shards"] == 0
    async with tree_over(inner, new_dialect=dialect, **OPTIONS) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), wanted)


@pytest.mark.logs("")
@pytest.mark.parametrize(("dialect", "kind", "step"), LATE)
@trio_test
async def test_the_file_of_a_save_that_has_taken_effect_late_is_read_and_written_in_place(
    autojump_clock: MockClock, tmp_path: Path, dialect: str, kind: type[HangingStore], step: tuple[str, ...]
) -> None:
    """It read the old chunks, which were in the place of the new ones, and what was written there was deleted with them."""
    inner = MemoryStore()
    store = kind(inner)
    new = np.arange(16, dtype="<i4")
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        handle = await save_late(tree, store, step, new)
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), new)
        await handle.write(len(npy(new)) - 4, np.int32(77).tobytes())
        await handle.flush()
        await handle.release()
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), np.r_[new[:-1], np.int32(77)])
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect=dialect, **OPTIONS) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), np.r_[new[:-1], np.int32(77)])


@pytest.mark.logs("")
@pytest.mark.parametrize("edit", ["attributes", "rename", "remove"])
@pytest.mark.parametrize(("dialect", "kind", "step"), LATE[:3])
@trio_test
async def test_the_outcome_of_a_save_is_determined_before_its_array_is_edited(
    autojump_clock: MockClock, tmp_path: Path, dialect: str, kind: type[HangingStore], step: tuple[str, ...], edit: str
) -> None:
    """The repeated save took an array with other attributes for the old one, and put the old chunks in its place; after a removal, the
    old array was put back."""
    inner = MemoryStore()
    store = kind(inner)
    new = np.arange(16, dtype="<i4")
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        handle = await save_late(tree, store, step, new)
        folder = await folder_of_arrays(tree)
        if edit == "attributes":
            await write(tree, "chunks/a/.zattrs", b'{"units": "m"}')
        elif edit == "rename":
            await folder.rename("a.npy", folder, "c.npy")
        else:
            await folder.unlink("a.npy")
        await handle.flush()
        await handle.release()
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect=dialect, **OPTIONS) as tree:
        path = {"attributes": "a.npy", "rename": "c.npy"}.get(edit)
        assert await names(tree, "npy") == ({path} if path is not None else set())
        if path is not None:
            np.testing.assert_array_equal(await load(tree, f"npy/{path}"), new)
        if edit == "attributes":
            assert b"units" in await read(tree, "chunks/a/.zattrs")


@pytest.mark.logs("")
@pytest.mark.parametrize("dialect", ["v3", "v3_2022"])
@trio_test
async def test_an_array_that_was_removed_after_it_was_copied_late_is_not_copied_again(
    autojump_clock: MockClock, tmp_path: Path, dialect: str
) -> None:
    inner = MemoryStore()
    store = WithoutRename(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        step = "a/zarr.json" if dialect == "v3" else "meta/root/a.array.json"
        handle = await save_late(tree, store, (step, "set"), np.arange(16, dtype="<i4"))
        await (await folder_of_arrays(tree)).unlink("a.npy")
        await handle.release()
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect=dialect, **OPTIONS) as tree:
        assert await names(tree, "npy") == set()


class Unreported(HangingStore):
    """Exchanges prefixes once ``is_failing``, and reports a failure, and so does the next stat."""

    is_failing = False
    _is_unreadable = False

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        await super().exchange_prefixes(one, other)
        if self.is_failing:
            self.is_failing, self._is_unreadable = False, True
            raise StoreError("not answered")

    async def stat(self, key: Key) -> KeyStat | None:
        if self._is_unreadable:
            self._is_unreadable = False
            raise StoreError("not answered")
        return await super().stat(key)


@pytest.mark.logs("")
@pytest.mark.parametrize("other_program", [False, True], ids=["", "by another program"])
@pytest.mark.parametrize("is_late", [True, False], ids=["late", "failed"])
@trio_test
async def test_old_chunks_are_not_put_in_the_place_of_a_new_array_with_other_attributes(
    autojump_clock: MockClock, tmp_path: Path, is_late: bool, other_program: bool
) -> None:
    """The place apart, whose content the repeated save put in place, was that of the old array."""
    inner = MemoryStore()
    store = Unreported(inner)
    new = np.arange(16, dtype="<i4")
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3", **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        if is_late:
            handle = await save_late(tree, store, ("*", "exchange_prefixes"), new)
        else:
            handle = await opened(tree, "npy/a.npy", OpenFlags(write=True, truncate=True))
            await handle.write(0, npy(new))
            store.is_failing = True
            with pytest.raises(StoreError, match="not answered"):
                await handle.flush()
        if other_program:
            document = json.loads(bytes((await inner.get(Key("a/zarr.json"))) or b""))
            await inner.set(Key("a/zarr.json"), json.dumps(document | {"attributes": {"units": "m"}}).encode())
            with pytest.raises(StaleEntry, match="by another program since"):
                await handle.flush()
        else:
            await write(tree, "chunks/a/.zattrs", b'{"units": "m"}')
            with pytest.raises(NodeInDoubt):
                await load(tree, "npy/a.npy")
            with pytest.raises(NodeInDoubt):
                await handle.write(len(npy(new)) - 4, np.int32(77).tobytes())
            await handle.flush()
            np.testing.assert_array_equal(await load(tree, "npy/a.npy"), new)
        await handle.release()
        await tree.publish_all()
    async with tree_over(inner, new_dialect="v3", **OPTIONS) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), new)
        assert b"units" in await read(tree, "chunks/a/.zattrs")


class Refusing(HangingStore):
    """Renames nothing that is apart while ``is_refusing``."""

    is_refusing = False

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        if not self.is_refusing or not old.startswith(APART):
            return await super().rename_prefix(old, new)
        await self.interrupt("rename_prefix", old)
        raise StoreError("refused")


@pytest.mark.logs("")
@pytest.mark.parametrize("takes_effect", [True, False], ids=["late", "never"])
@pytest.mark.parametrize("dialect", ["v3", "v3_2022"])
@trio_test
async def test_a_new_array_is_stored_by_the_next_attempt_if_the_step_that_timed_out_had_no_effect(
    autojump_clock: MockClock, tmp_path: Path, dialect: str, takes_effect: bool
) -> None:
    """It counted as stored: close(2) returned 0, and the array was deleted with what was apart."""
    inner = MemoryStore()
    store = Refusing(inner)
    new = np.arange(64, dtype="<i4")
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        _, handle = await (await folder_of_arrays(tree)).create("b.npy", OpenFlags(write=True))
        await handle.write(0, npy(new))
        store.hang(".zarrfs/*/new/", "rename_prefix")
        store.is_refusing = not takes_effect
        with pytest.raises(StoreTimeout):
            await handle.flush()
        store.answer()
        await trio.sleep(100)
        store.is_refusing = False
        await handle.flush()
        await handle.release()
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect=dialect, **OPTIONS) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/b.npy"), new)
