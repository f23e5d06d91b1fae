"""An edit that takes effect after its deadline, in a store with a consolidated copy: the copy follows in this mount."""

from __future__ import annotations

import json

import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.hierarchy.test_several_steps import npy
from tests.support.late_steps import NEW, OLD
from tests.support.stores import HangingStore, contents
from tests.support.trees import names, tree_over, walk, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import StoreTimeout
from zarrfs.keys import APART
from zarrfs.stores.memory import MemoryStore
from zarrfs.vfs.node import Directory


async def change(tree: MountTree, edit: str) -> None:
    folder = await walk(tree, "npy")
    assert isinstance(folder, Directory)
    match edit:
        case "rename":
            await folder.rename("a.npy", folder, "c.npy")
        case "erase":
            await folder.unlink("a.npy")
        case "create":
            await write(tree, "npy/c.npy", npy(NEW))


@pytest.mark.logs("")
@pytest.mark.parametrize(
    ("edit", "step", "expected"),
    [
        ("rename", ("a/", "rename_prefix"), {"b", "c"}),
        ("rename", ("*/intent.json", "set"), {"a", "b"}),
        ("erase", ("a/", "rename_prefix"), {"b"}),
        ("create", (".zarrfs/*/new/", "rename_prefix"), {"a", "b", "c"}),
        ("create", (".zmetadata", "set"), {"a", "b", "c"}),
    ],
)
@pytest.mark.parametrize("wait", [0.0, 300.0])
@trio_test
async def test_the_copy_follows_an_edit_that_takes_effect_late(
    autojump_clock: MockClock, edit: str, step: tuple[str, ...], expected: set[str], wait: float
) -> None:
    """It was left for the next mount: until then readers of the copy did not find the array, or one that was gone."""
    inner = MemoryStore()
    store = HangingStore(inner)
    async with tree_over(store, new_dialect="v2", timeout="10") as tree:
        for name in "ab":
            await write(tree, f"npy/{name}.npy", npy(OLD))
        await write(tree, "chunks/.zmetadata", b'{"zarr_consolidated_format": 1, "metadata": {}}')
        store.hang(*step)
        with pytest.raises(StoreTimeout):
            await change(tree, edit)
        assert store.hanging
        await trio.sleep(wait)
        store.answer()
        await trio.sleep(100)
        assert await names(tree, "npy") == {f"{name}.npy" for name in expected}
        stored = await contents(inner)
        copied = json.loads(stored[".zmetadata"])["metadata"]
        assert {key.split("/")[0] for key in copied if key.endswith("/.zarray")} == expected
        assert not await inner.prefix_exists(APART)
