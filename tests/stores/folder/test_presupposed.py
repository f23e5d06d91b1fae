"""Data stored as a part of something does not create that again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.support.stores import WaitingStore
from tests.support.trees import tree_over, walk
from zarrfs.errors import StaleEntry
from zarrfs.keys import Key, Prefix
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.presupposing import presupposing
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import OpenFlags

zarr = pytest.importorskip("zarr")

# Of the last release: the program got the error at close.
pytestmark = pytest.mark.logs(r"write failed, data lost", r"could not be stored and are lost")

WRITING = OpenFlags(read=True, write=True)


@trio_test
async def test_folders_below_it_are_made_and_it_is_not(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    with presupposing(Prefix("g/a/")):
        (tmp_path / "g").mkdir()
        for folder in ("g/a/c/0", "g/a"):
            with pytest.raises(StaleEntry):
                await store.set(Key(f"{folder}/1"), b"x")
            with pytest.raises(StaleEntry):
                async with store.exclusive(Key(f"{folder}/1")):
                    pass
        assert os.listdir(tmp_path / "g") == []
        await store.set(Key("b/c/1"), b"of something else")
        (tmp_path / "g/a").mkdir()
        async with store.exclusive(Key("g/a/c/0/1")):
            await store.set(Key("g/a/c/0/1"), b"x")
    assert (tmp_path / "g/a/c/0/1").read_bytes() == b"x"
    await store.aclose()


@pytest.mark.parametrize("happens", ["removed", "renamed"])
@pytest.mark.parametrize("sharded", [False, True], ids=["plain", "sharded"])
@pytest.mark.parametrize("view", ["chunks", "zarr3", "npy"])
@trio_test
async def test_a_chunk_brings_no_array_back_that_goes_between_the_look_and_the_set(
    tmp_path: Path, happens: str, sharded: bool, view: str
) -> None:
    group = zarr.create_group(str(tmp_path / "store"), zarr_format=3)
    array = group.create_array("a", shape=(8,), chunks=(2,), shards=(8,) if sharded else None, dtype="i4", compressors=None)
    array[:] = 7
    store = WaitingStore(FolderStore(str(tmp_path / "store")), "set")
    async with tree_over(store, shard_delay="0") as tree:
        file = await walk(tree, {"chunks": "chunks/a/0", "zarr3": "zarr3/a/c/0", "npy": "npy/a.npy"}[view])
        assert isinstance(file, StagedFile)
        handle = await file.open(WRITING)
        await handle.write(128 if view == "npy" else 0, np.full(2, 99, "<i4").tobytes())
        failed: list[Exception] = []

        async def close() -> None:
            try:
                await handle.flush()
            except StaleEntry as error:
                failed.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            while not store.waiting:
                await wait_all_tasks_blocked(0.01)
            if happens == "removed":
                shutil.rmtree(tmp_path / "store/a")
            else:
                os.rename(tmp_path / "store/a", tmp_path / "store/b")
            store.let_go()
        # The folder of the renamed array is held: the value is set there.
        assert bool(failed) == (happens == "removed")
        await handle.release()
    assert not (tmp_path / "store/a").exists()
    if happens == "renamed":
        assert zarr.open_array(str(tmp_path / "store/b"), mode="r")[:].tolist() == [99] * 2 + [7] * 6
    await store.aclose()


@trio_test
async def test_a_new_array_brings_no_group_back_that_goes_while_it_is_stored(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "store"), zarr_format=3).create_group("g")
    store = WaitingStore(FolderStore(str(tmp_path / "store")), "set")
    np.save(tmp_path / "new.npy", np.arange(100, dtype="<i4"))
    async with tree_over(store) as tree:
        folder = await walk(tree, "npy/g")
        _, handle = await folder.create("new.npy", WRITING)  # type: ignore[attr-defined]
        await handle.write(0, (tmp_path / "new.npy").read_bytes())

        async def close() -> None:
            with pytest.raises(StaleEntry):
                await handle.flush()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            while not store.waiting:
                await wait_all_tasks_blocked(0.01)
            shutil.rmtree(tmp_path / "store/g")
            store.let_go()
        await handle.release()
    assert not (tmp_path / "store/g").exists()
    await store.aclose()
