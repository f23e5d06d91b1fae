"""A save over an array that takes effect after its deadline: what waits for shards of the replaced array goes with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.hierarchy.test_several_steps import npy
from tests.support.late_steps import CHANGED, NEW, OLD, OPTIONS, queue_a_chunk
from tests.support.stores import HangingStore
from tests.support.trees import load, names, opened, tree_over, walk, write
from zarrfs.errors import StoreTimeout
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory, OpenFlags


@pytest.mark.logs("")
@pytest.mark.parametrize(
    ("dialect", "step", "is_done"),
    [
        pytest.param("v3", ("*", "exchange_prefixes"), True, id="v3"),
        pytest.param("v3_2022", ("meta/root/a.array.json", "set"), True, id="v3_2022"),
        pytest.param("v3_2022", ("data/root/a/", "rename_prefix"), False, id="undone"),
    ],
)
@trio_test
async def test_what_waits_goes_with_an_array_that_is_replaced_late(
    autojump_clock: MockClock, tmp_path: Path, dialect: str, step: tuple[str, ...], is_done: bool
) -> None:
    """It was saved in `rescued/`. Of an array that stays, it is stored."""
    inner = MemoryStore()
    store = HangingStore(inner)
    options = {"new_dialect": dialect, **OPTIONS}
    async with tree_over(store, cache_dir=str(tmp_path), **options) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        await queue_a_chunk(tree)
        store.hang(*step)
        with pytest.raises(StoreTimeout):
            await write(tree, "npy/a.npy", npy(NEW))
        assert store.hanging
        store.answer()
        await trio.sleep(100)
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), NEW if is_done else CHANGED)
        left = await tree.publish_all()
        assert [path for path, _ in left] == ["npy/a.npy"], "its close has failed"
        assert not (tmp_path / "rescued").exists()
        assert tree.stats()["pending_shards"] == 0
    async with tree_over(inner, **options) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), NEW if is_done else CHANGED)


@pytest.mark.logs("")
@pytest.mark.parametrize(
    ("dialect", "step"), [("v3", ("a/", "rename_prefix")), ("v3_2022", ("data/root/a/", "rename_prefix"))], ids=["v3", "v3_2022"]
)
@trio_test
async def test_what_waits_goes_with_an_array_that_is_erased_late(
    autojump_clock: MockClock, tmp_path: Path, dialect: str, step: tuple[str, ...]
) -> None:
    store = HangingStore(MemoryStore())
    options = {"new_dialect": dialect, **OPTIONS}
    async with tree_over(store, cache_dir=str(tmp_path), **options) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        await queue_a_chunk(tree)
        store.hang(*step)
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        with pytest.raises(StoreTimeout):
            await folder.unlink("a.npy")
        assert store.hanging
        store.answer()
        await trio.sleep(100)
        assert "a.npy" not in await names(tree, "npy")
        assert await tree.publish_all() == []
        assert not (tmp_path / "rescued").exists()
        assert tree.stats()["pending_shards"] == 0


@pytest.mark.logs("")
@pytest.mark.parametrize(
    ("dialect", "step"), [("v3", ("*", "exchange_prefixes")), ("v3_2022", ("meta/root/a.array.json", "set"))], ids=["v3", "v3_2022"]
)
@trio_test
async def test_what_waits_for_the_new_array_stays_when_a_save_that_took_effect_late_is_repeated(
    autojump_clock: MockClock, tmp_path: Path, dialect: str, step: tuple[str, ...]
) -> None:
    """The repeated save took the array that it had stored for the one to be replaced, and dropped its chunks."""
    inner = MemoryStore()
    store = HangingStore(inner)
    options = {"new_dialect": dialect, **OPTIONS}
    new, wanted = np.arange(16.0), np.r_[np.arange(8.0), np.full(8, 99.0)]
    async with tree_over(store, cache_dir=str(tmp_path), **options) as tree:
        await write(tree, "npy/a.npy", npy(OLD))
        handle = await opened(tree, "npy/a.npy", OpenFlags(write=True, truncate=True))
        await handle.write(0, npy(new))
        store.hang(*step)
        with pytest.raises(StoreTimeout):
            await handle.flush()
        store.answer()
        await trio.sleep(100)
        await queue_a_chunk(tree, "<f8")
        await handle.flush()
        await handle.release()
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), wanted)
        assert await tree.publish_all() == []
    async with tree_over(inner, **options) as tree:
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), wanted)
