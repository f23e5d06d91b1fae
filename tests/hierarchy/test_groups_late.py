"""Renames and removals of groups, and edits of documents, that fail or take effect late: open files follow, and nothing is left over."""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.hierarchy.test_several_steps import npy
from tests.support.stores import HangingStore, contents
from tests.support.trees import folder_at, load, names, opened, read, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NoSuchEntry, StoreError, StoreTimeout
from zarrfs.keys import APART, Key, Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import OpenFlags

OLD, CHANGED = np.full(16, 7, "<i4"), np.r_[np.full(8, 7, "<i4"), np.full(8, 99, "<i4")]
OPTIONS = {"new_chunks": "8", "timeout": "10"}


async def make_group(tree: MountTree) -> None:
    """Create the array ``g/a``."""
    await (await folder_at(tree, "npy")).mkdir("g")
    await write(tree, "npy/g/a.npy", npy(OLD))


@pytest.mark.logs("")
@pytest.mark.parametrize("view", ["npy", "chunks", "zarr3"])
@pytest.mark.parametrize("dialect", ["v3_2019", "v3_2022"])
@trio_test
async def test_what_is_open_in_a_group_follows_a_rename_whose_outcome_is_not_known_yet(
    autojump_clock: MockClock, dialect: str, view: str
) -> None:
    """A lookup between the steps took the group for removed: the files were ESTALE, and what waited there was saved in `rescued/`."""
    inner = MemoryStore()
    store = HangingStore(inner)
    async with tree_over(store, new_dialect=dialect, **OPTIONS) as tree:
        await make_group(tree)
        chunk = await opened(tree, "chunks/g/a/1", OpenFlags(write=True))
        await chunk.write(0, CHANGED[8:].tobytes())
        whole = await opened(tree, "npy/g/a.npy", OpenFlags(write=True))
        await whole.write(128, np.int32(5).tobytes())
        _, temporary = await (await folder_at(tree, "chunks/g")).create(".notes", OpenFlags(write=True))
        await temporary.write(0, b"notes")
        root = await folder_at(tree, view)
        store.hang(".zarrfs/*/old/*", "rename_prefix", "rename")
        with pytest.raises(StoreTimeout):
            await root.rename("g", root, "h")
        assert store.hanging
        for path in "npy", "chunks", "zarr3":
            with pytest.raises(NoSuchEntry):
                await walk(tree, f"{path}/g")
        store.answer()
        await trio.sleep(100)
        assert await names(tree, "npy") == {"h"}
        await chunk.flush()
        await whole.flush()
        for each in chunk, whole, temporary:
            await each.release()
        assert await read(tree, "chunks/h/.notes") == b"notes"
        await (await folder_at(tree, "chunks/h")).unlink(".notes")
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect=dialect, **OPTIONS) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/h/a.npy"), np.r_[np.int32(5), CHANGED[1:]])


class FailingLate(HangingStore):
    """Reports a failure of operations on targets that begin with ``failing``, which take effect."""

    failing = "-"

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        is_renamed = await super().rename_prefix(old, new)
        if old.startswith(self.failing):
            raise StoreError("not answered")
        return is_renamed

    async def erase_values(self, keys: Iterable[Key]) -> None:
        erased = list(keys)
        await super().erase_values(erased)
        if any(key.startswith(self.failing) for key in erased):
            raise StoreError("not answered")


@pytest.mark.logs("")
@pytest.mark.parametrize("is_late", [True, False], ids=["after the deadline", "in time"])
@pytest.mark.parametrize("view", ["npy", "chunks", "zarr3", "raw"])
@trio_test
async def test_what_is_open_in_a_group_follows_a_rename_that_fails_and_takes_effect(
    autojump_clock: MockClock, view: str, is_late: bool
) -> None:
    """The files were ESTALE, as after a rename by another program, and the data was lost."""
    inner = MemoryStore()
    store = FailingLate(inner)
    async with tree_over(store, new_dialect="v3", **OPTIONS) as tree:
        await make_group(tree)
        chunk = await opened(tree, "chunks/g/a/1", OpenFlags(write=True))
        await chunk.write(0, CHANGED[8:].tobytes())
        whole = await opened(tree, "npy/g/a.npy", OpenFlags(write=True))
        await whole.write(128, np.int32(5).tobytes())
        store.failing = "g/"
        if is_late:
            store.hang("g/", "rename_prefix")
        root = await folder_at(tree, view)
        with pytest.raises(StoreError):
            await root.rename("g", root, "h")
        store.answer()
        await trio.sleep(100)
        for each in chunk, whole:
            await each.flush()
            await each.release()
        assert await names(tree, "npy") == {"h"}
        assert await tree.publish_all() == []
    async with tree_over(inner, new_dialect="v3", **OPTIONS) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/h/a.npy"), np.r_[np.int32(5), CHANGED[1:]])


@pytest.mark.logs("")
@pytest.mark.parametrize("fails", [False, True], ids=["late", "failed"])
@pytest.mark.parametrize(
    ("dialect", "step"),
    [
        ("v3", ("g/a/", "rename_prefix")),
        ("v3_2019", ("meta/root/g/a.array", "erase_values")),
        ("v3_2022", ("meta/root/g/a.array.json", "erase_values")),
        ("v3_2022", ("data/root/g/a/", "rename_prefix")),
    ],
)
@trio_test
async def test_nothing_is_left_of_an_array_that_is_removed_late(
    autojump_clock: MockClock, dialect: str, step: tuple[str, ...], fails: bool
) -> None:
    """Its chunks stayed in the store for ever, and a reader of it got EIO."""
    inner = MemoryStore()
    store = FailingLate(inner)
    async with tree_over(store, new_dialect=dialect, **OPTIONS) as tree:
        await make_group(tree)
        await (await folder_at(tree, "npy")).sync()
        if fails:
            store.failing = step[0]
            await (await folder_at(tree, "npy/g")).unlink("a.npy")
        else:
            store.hang(*step)
            with pytest.raises(StoreTimeout):
                await (await folder_at(tree, "npy/g")).unlink("a.npy")
            assert store.hanging
            root = await folder_at(tree, "npy")
            with pytest.raises(StoreTimeout):
                await root.rename("g", root, "h")
            store.answer()
            await trio.sleep(100)
        assert await names(tree, "npy/g") == set()
        assert await tree.publish_all() == []
        left = {key for key in await contents(inner) if "/a" in key or key.startswith(".zarrfs")}
        assert left == set()


@pytest.mark.logs("")
@pytest.mark.parametrize("dialect", ["v2", "v3"])
@trio_test
async def test_the_copy_has_attributes_that_are_stored_late(autojump_clock: MockClock, dialect: str) -> None:
    """It kept the old ones for good: the record of the change was erased before its first step had ended."""
    inner = MemoryStore()
    store = HangingStore(inner)
    async with tree_over(store, new_dialect=dialect, **OPTIONS) as tree:
        await make_group(tree)
        await write(tree, "chunks/.zmetadata", b'{"zarr_consolidated_format": 1, "metadata": {}}')
        await write(tree, "chunks/g/.zattrs", b'{"n": 1}')
        key = "g/.zattrs" if dialect == "v2" else "g/zarr.json"
        store.hang(key, "set")
        with pytest.raises(StoreTimeout):
            await write(tree, "chunks/g/.zattrs", b'{"n": 2}')
        root = await folder_at(tree, "npy")
        with pytest.raises(StoreTimeout):
            await root.rename("g", root, "h")
        await write(tree, "chunks/.zattrs", b'{"n": 4}')
        store.answer()
        await trio.sleep(100)
        stored = await contents(inner)
        attributes, copied = json.loads(stored[key]), json.loads(stored[".zmetadata" if dialect == "v2" else "zarr.json"])
        if dialect == "v2":
            assert copied["metadata"][key] == attributes
        else:
            assert copied["consolidated_metadata"]["metadata"]["g"]["attributes"] == attributes["attributes"]
        assert not await inner.prefix_exists(APART)
        await write(tree, "chunks/g/.zattrs", b'{"n": 3}')
        await root.rename("g", root, "h")
        assert json.loads(await read(tree, "chunks/h/.zattrs")) == {"n": 3}


@pytest.mark.logs("")
@pytest.mark.parametrize("step", ["meta/root/g/a.array.json", "data/root/g/a/", ".zarrfs/*/old/0/", ".zarrfs/*/old/1"])
@trio_test
async def test_the_copy_is_renewed_after_the_rename_of_an_array_that_ends_late(autojump_clock: MockClock, step: str) -> None:
    """The document that had been moved apart was stored again from the copy, and the rename was never undone."""
    inner = MemoryStore()
    store = HangingStore(inner)
    async with tree_over(store, new_dialect="v3_2022", **OPTIONS) as tree:
        await make_group(tree)
        await write(tree, "chunks/.zmetadata", b'{"zarr_consolidated_format": 1, "metadata": {}}')
        there = await folder_at(tree, "npy/g")
        store.hang(step, "rename", "rename_prefix")
        with pytest.raises(StoreTimeout):
            await there.rename("a.npy", there, "b.npy")
        assert store.hanging
        store.answer()
        await trio.sleep(100)
        found = await names(tree, "npy/g")
        assert found == ({"b.npy"} if step.startswith(".") else {"a.npy"})
        stored = await contents(inner)
        assert not [key for key in stored if key.startswith(APART)]
        copied = json.loads(stored["meta/root/consolidated/.zmetadata"])["metadata"]
        assert [key for key in copied if key.endswith(".array.json")] == [f"meta/root/g/{found.pop()[0]}.array.json"]
        np.testing.assert_array_equal(await load(tree, f"npy/g/{'b' if step.startswith('.') else 'a'}.npy"), OLD)
        assert await tree.publish_all() == []
