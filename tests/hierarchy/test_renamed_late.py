"""A rename over an array, or a save, that fails or takes effect after its deadline: what waits for shards of the array that is replaced
goes with it, and stays if it stays."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.hierarchy.test_several_steps import npy
from tests.support.late_steps import CHANGED, NEW, OLD, OPTIONS, queue_a_chunk
from tests.support.stores import HangingStore
from tests.support.trees import load, names, opened, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import StaleEntry, StoreError, StoreTimeout, StoreUnsupported
from zarrfs.keys import Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, OpenFlags


async def rename(tree: MountTree) -> None:
    folder = await walk(tree, "npy")
    assert isinstance(folder, Directory)
    await folder.rename("b.npy", folder, "a.npy")


@pytest.mark.logs("")
@pytest.mark.parametrize(
    ("dialect", "step", "is_done"),
    [
        ("v3", ("a/", "rename_prefix"), False),
        ("v3", ("b/", "rename_prefix"), True),
        ("v3", (".zarrfs/*/old/", "rename_prefix"), True),
        ("v3_2022", ("data/root/a/", "rename_prefix"), False),
        ("v3_2022", ("data/root/b/", "rename_prefix"), False),
        ("v3_2022", ("meta/root/a*", "rename"), False),
        ("v3_2022", ("meta/root/b*", "rename"), False),
        ("v3_2022", (".zarrfs/*/old/*", "rename_prefix", "rename"), True),
        ("v3_2022", ("*/intent.json", "erase"), True),
    ],
)
@pytest.mark.parametrize("wait", [0.0, 700.0], ids=["soon", "after the delay of the shard"])
@trio_test
async def test_what_waits_goes_with_an_array_that_is_renamed_over_late(
    autojump_clock: MockClock, tmp_path: Path, dialect: str, step: tuple[str, ...], is_done: bool, wait: float
) -> None:
    """It was saved in `rescued/`, or lost although the array stayed. Writers of the array that is renamed continue."""
    inner = MemoryStore()
    store = HangingStore(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect=dialect, **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        await write(tree, "npy/b.npy", npy(NEW))
        await queue_a_chunk(tree)
        writer = await opened(tree, "npy/b.npy", OpenFlags(write=True))
        await writer.write(128, np.float64(99).tobytes())
        store.hang(*step)
        with pytest.raises(StoreTimeout):
            await rename(tree)
        assert store.hanging
        await trio.sleep(wait)
        store.answer()
        await trio.sleep(100)
        await writer.flush()
        await writer.release()
        new = np.r_[99.0, NEW[1:]]
        assert await names(tree, "npy") == ({"a.npy"} if is_done else {"a.npy", "b.npy"})
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), new if is_done else CHANGED)
        assert await tree.publish_all() == []
        assert not (tmp_path / "rescued").exists()
        assert tree.stats()["pending_shards"] == 0
    async with tree_over(inner, new_dialect=dialect, **OPTIONS) as tree:
        assert await names(tree, "npy") == ({"a.npy"} if is_done else {"a.npy", "b.npy"})
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), new if is_done else CHANGED)
        if not is_done:
            np.testing.assert_array_equal(await load(tree, "npy/b.npy"), new)


class Refusing(HangingStore):
    """Exchanges nothing, and does not rename prefixes that match ``refused``."""

    refused = ""

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        if fnmatchcase(old, self.refused):
            raise StoreError("not now")
        return await super().rename_prefix(old, new)

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        raise StoreUnsupported("no exchange")


@pytest.mark.logs("")
@pytest.mark.parametrize(("way", "refused"), [("rename", "b/"), ("save", ".zarrfs/*/new/")])
@trio_test
async def test_what_waits_for_an_array_stays_if_it_is_not_replaced(tmp_path: Path, way: str, refused: str) -> None:
    """The array was moved aside, and put back without the chunks queued for it. An open file gave ESTALE."""
    inner = MemoryStore()
    store = Refusing(inner)
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3", **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        await write(tree, "npy/b.npy", npy(NEW))
        await queue_a_chunk(tree)
        writer = await opened(tree, "chunks/a/0", OpenFlags(write=True))
        await writer.write(0, np.int32(5).tobytes())
        store.refused = refused
        with pytest.raises(StoreError, match="not now"):
            await (rename(tree) if way == "rename" else write(tree, "npy/a.npy", npy(NEW)))
        store.refused = ""
        await writer.flush()
        await writer.release()
        for path, expected in ("npy/a.npy", np.r_[np.int32(5), CHANGED[1:]]), ("npy/b.npy", NEW):
            np.testing.assert_array_equal(await load(tree, path), expected)
        left = await tree.publish_all()
        assert [path for path, _ in left] == ([] if way == "rename" else ["npy/a.npy"]), "its close has failed"
        assert not (tmp_path / "rescued").exists()
    async with tree_over(inner, new_dialect="v3", **OPTIONS) as tree:
        for path, expected in ("npy/a.npy", np.r_[np.int32(5), CHANGED[1:]]), ("npy/b.npy", NEW):
            np.testing.assert_array_equal(await load(tree, path), expected)


class Unanswered(HangingStore):
    """Has a deadline of its own, which the next rename of the prefix ``missing`` takes effect after."""

    missing = ""

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        is_renamed = await super().rename_prefix(old, new)
        if old == self.missing:
            self.missing = ""
            raise StoreTimeout("not answered")
        return is_renamed


@pytest.mark.logs("")
@pytest.mark.parametrize("is_in_use", [True, False])
@trio_test
async def test_nothing_of_an_array_that_was_renamed_over_is_stored_in_the_other_one(tmp_path: Path, is_in_use: bool) -> None:
    """A lookup before the outcome was known took the array for the replaced one, resized: it got the chunks that waited for that one."""
    inner = MemoryStore()
    store = Unanswered(inner)
    new = np.arange(64, dtype="<i4")
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3", **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        await write(tree, "npy/b.npy", npy(new))
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3", **OPTIONS) as tree:
        await queue_a_chunk(tree)
        writer = await opened(tree, "chunks/a/0", OpenFlags(write=True))
        await writer.write(0, np.full(8, 55, "<i4").tobytes())
        reader = await opened(tree, "npy/b.npy") if is_in_use else None
        store.missing = "b/"
        with pytest.raises(StoreTimeout):
            await rename(tree)
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), new)
        with pytest.raises(StaleEntry):
            await writer.flush()
        for each in [writer] if reader is None else [writer, reader]:
            await each.release()
        await tree.publish_all()
        assert not (tmp_path / "rescued").exists()
    async with tree_over(inner, new_dialect="v3", **OPTIONS) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), new)


@pytest.mark.logs("")
@trio_test
async def test_an_array_is_not_removed_while_its_rename_may_still_take_effect_and_it_is_being_saved(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Only the open file was removed, as no array was found, and the array returned when the rename was undone."""
    store = HangingStore(MemoryStore())
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3_2022", **OPTIONS) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        writer = await opened(tree, "npy/a.npy", OpenFlags(write=True, truncate=True))
        await writer.write(0, npy(NEW)[:100])
        arrays, folder = await walk(tree, "npy"), await walk(tree, "chunks")
        assert isinstance(arrays, Directory)
        assert isinstance(folder, Directory)
        store.hang("data/root/a/", "rename_prefix")
        with pytest.raises(StoreTimeout):
            await folder.rename("a", folder, "b")
        with pytest.raises(StoreTimeout):
            await arrays.unlink("a.npy")
        store.answer()
        await trio.sleep(100)
        assert "a" in await names(tree, "chunks")
        await arrays.unlink("a.npy")
        await writer.release()
        assert await names(tree, "npy") == set()
        assert "a" not in await names(tree, "chunks")
        assert await tree.publish_all() == []
