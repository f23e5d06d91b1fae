"""Queued chunks that cannot be stored are saved, whichever task detects that."""

from __future__ import annotations

import contextvars
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import trio
import zarr
from trio.testing import trio_test

from tests.support.stores import InterruptedStore
from tests.support.trees import folder_at, tree_of, tree_over, write
from zarrfs.errors import OutOfMemory, StaleEntry
from zarrfs.keys import NodePath
from zarrfs.stores.opening import open_store

CHUNK = np.full(4, 99, "<i4").tobytes()


def make(path: Path, dtype: str) -> None:
    zarr.create_array(str(path), shape=(8,), chunks=(4,), shards=(8,), dtype=dtype)[...] = 7


class ReplacedStore(InterruptedStore):
    """The folder ``root``, in which another program replaces the array ``a`` at the moment when a shard of it is set.

    ``looked_at`` then runs in a task of its own.
    """

    root: Path
    looked_at: Callable[[], Awaitable[object]]

    async def interrupt(self, operation: str, target: str) -> None:
        if (operation, target) == ("set", "a/c/0"):
            shutil.rmtree(self.root / "a")
            os.rename(self.root / "b", self.root / "a")
            is_seen = trio.Event()

            async def look() -> None:
                await self.looked_at()
                is_seen.set()

            trio.lowlevel.spawn_system_task(look, context=contextvars.Context())
            await is_seen.wait()


@pytest.mark.logs("the folder 'a/' is gone", "its folder was erased")
@trio_test
async def test_a_writer_who_finds_that_the_array_was_replaced_has_the_other_chunks_of_its_shard_saved(
    tmp_path: Path,
) -> None:
    make(tmp_path / "store/a", "i4")
    make(tmp_path / "store/b", "f4")
    inner = await open_store(str(tmp_path / "store"))
    store = ReplacedStore(inner)
    store.root = tmp_path / "store"
    async with tree_over(store, str(store.root), cache_dir=str(tmp_path / "cache"), shard_delay="600") as tree:
        store.looked_at = lambda: tree.hierarchy.reread(NodePath("/a"))
        await write(tree, "chunks/a/0", CHUNK)
        with pytest.raises(StaleEntry):
            await write(tree, "chunks/a/1", CHUNK)
        reasons = [reason for _, reason in tree.losses.failures]
    await inner.aclose()
    (folder,) = (tmp_path / "cache/rescued").iterdir()
    assert any(str(folder) in reason for reason in reasons), reasons
    assert zarr.open_array(str(folder / "store/a"), mode="r")[...].tolist() == [99] * 4 + [0] * 4
    assert zarr.open_array(str(store.root / "a"), mode="r")[...].tolist() == [7] * 8


class ExchangedStore(InterruptedStore):
    """The folder ``root``, in which another program exchanges the arrays ``b`` and ``c`` when documents of ``b`` are read."""

    root: Path
    is_exchanged = False

    async def interrupt(self, operation: str, target: str) -> None:
        if target.startswith("b/") and not self.is_exchanged:
            self.is_exchanged = True
            os.rename(self.root / "b", self.root / "aside")
            os.rename(self.root / "c", self.root / "b")
            os.rename(self.root / "aside", self.root / "c")


@trio_test
async def test_chunks_that_follow_their_array_are_not_stored_in_an_equal_one_at_its_new_name(tmp_path: Path) -> None:
    make(tmp_path / "store/a", "i4")
    make(tmp_path / "store/c", "i4")
    inner = await open_store(str(tmp_path / "store"))
    store = ExchangedStore(inner)
    store.root = tmp_path / "store"
    async with tree_over(store, str(store.root), cache_dir=str(tmp_path / "cache"), shard_delay="600") as tree:
        await write(tree, "chunks/a/0", CHUNK)
        os.rename(store.root / "a", store.root / "b")
        assert await tree.queue.end() == []
    await inner.aclose()
    assert store.is_exchanged
    assert zarr.open_array(str(store.root / "b"), mode="r")[...].tolist() == [7] * 8
    assert zarr.open_array(str(store.root / "c"), mode="r")[...].tolist() == [99] * 4 + [7] * 4


@pytest.mark.logs("chunks saved in")
@trio_test
async def test_chunks_of_an_array_that_another_mount_has_set_aside_for_a_moment_are_saved(tmp_path: Path) -> None:
    root = tmp_path / "store"
    make(root / "a", "i4")
    async with tree_of(root, cache_dir=str(tmp_path / "cache"), shard_delay="600") as tree:
        await write(tree, "chunks/a/0", CHUNK)
        # As during a rename over it, which is undone if it fails.
        (root / ".zarrfs/0").mkdir(parents=True)
        os.rename(root / "a", root / ".zarrfs/0/old")
        await tree.queue.end()
        assert [key for key, _ in tree.losses.failures] == ["a/c/0"]
    (folder,) = (tmp_path / "cache/rescued").iterdir()
    assert zarr.open_array(str(folder / "store/a"), mode="r")[...].tolist() == [99] * 4 + [0] * 4


class ShortOfMemory(InterruptedStore):
    """A store that has no memory for any value."""

    async def interrupt(self, operation: str, target: str) -> None:
        if operation == "set":
            raise OutOfMemory(f"writing {target!r}: Cannot allocate memory", key=target)


@pytest.mark.logs("write failed, data lost")
@trio_test
async def test_a_chunk_for_which_the_store_had_no_memory_is_lost_and_not_refused(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "store/a"), shape=(4,), chunks=(4,), dtype="i4")[...] = 7
    inner = await open_store(str(tmp_path / "store"))
    async with tree_over(ShortOfMemory(inner), str(tmp_path / "store")) as tree:
        with pytest.raises(OutOfMemory):
            await write(tree, "chunks/a/0", CHUNK)
        assert tree.losses.refused == []
        assert [name for name, _ in tree.losses.failures] == ["chunks/a/0"]
    await inner.aclose()


@pytest.mark.logs("write failed, data lost")
@trio_test
async def test_a_file_that_fails_again_and_again_is_one_loss(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "store/a"), shape=(4,), chunks=(4,), dtype="i4")[...] = 7
    inner = await open_store(str(tmp_path / "store"))
    async with tree_over(ShortOfMemory(inner), str(tmp_path / "store")) as tree:
        for _ in range(3):
            with pytest.raises(OutOfMemory):
                await write(tree, "chunks/a/0", CHUNK)
        assert [name for name, _ in tree.losses.failures] == ["chunks/a/0"]
        tree.losses.removed_below("chunks/a/")
        assert tree.losses.failures == []
    await inner.aclose()


@pytest.mark.logs("rescue failed")
@pytest.mark.parametrize("is_saved", [True, False])
@trio_test
async def test_chunks_without_an_array_that_cannot_be_saved_are_lost(is_saved: bool, tmp_path: Path) -> None:
    """They were named in a note only, and the exit code was 0, though their programs had closed them with success."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (tmp_path / "store").mkdir()
    async with tree_of(tmp_path / "store", cache_dir=str(cache)) as tree:
        await (await folder_at(tree, "chunks")).mkdir("n")
        await write(tree, "chunks/n/0", CHUNK)
        if not is_saved:
            cache.rmdir()
            cache.touch()
        failures = [name for name, _ in await tree.publish_all()]
        assert (failures, [name for name, _ in tree.losses.waited]) == (([], ["chunks/n/0"]) if is_saved else (["chunks/n/0"], []))
