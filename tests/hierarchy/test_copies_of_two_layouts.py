"""Nodes with documents of v2 and of final v3 in one folder, as ``zarr migrate v3`` leaves them, in a consolidated copy of each layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from trio.testing import trio_test

from tests.hierarchy.test_edits import ARRAY, GROUP, V3_GROUP, editing
from tests.support.stores import contents, fill
from tests.support.trees import folder_at, tree_over
from tests.support.v3_array import ARRAY as V3_ARRAY
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreError, StoreFull
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.forwarding import ForwardingStore

V3 = json.dumps(V3_ARRAY).encode()
MEMBERS = {f"g/{name}": json.loads(value) for name, value in ((".zgroup", GROUP), ("a/.zarray", ARRAY))}
COPY = {"zarr_consolidated_format": 1, "metadata": {".zgroup": json.loads(GROUP), **MEMBERS}}
STORE = {
    ".zgroup": GROUP,
    ".zmetadata": json.dumps(COPY).encode(),
    "zarr.json": V3_GROUP,
    "g/.zgroup": GROUP,
    "g/zarr.json": V3_GROUP,
    "g/a/.zarray": ARRAY,
    "g/a/zarr.json": V3,
}


def _members(values: Mapping[str, bytes]) -> set[str]:
    copied: dict[str, Any] = json.loads(values[".zmetadata"])["metadata"]
    return set(copied)


@pytest.mark.parametrize(("old", "new"), [("g/a", "g/b"), ("g", "h"), ("g/a", "b")])
@trio_test
async def test_a_renamed_node_is_in_the_copy_of_the_other_layout_too(old: str, new: str) -> None:
    async with editing(STORE) as e:
        await e.editor.rename(NodePath(f"/{old}"), NodePath(f"/{new}"))
        values = await contents(e.store)
        assert _members(values) == {key for key in values if key.endswith((".zarray", ".zgroup"))}


class _Stuck(ForwardingStore):
    """A store that renames nothing. ``is_full``: it has no room for the copy with the node either."""

    is_full = False

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if self.is_full and key == ".zmetadata" and b"g/a" in bytes(value):
            raise StoreFull("no room")
        return await super().set(key, value, expect=expect)

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        raise StoreError("out of order")


@pytest.mark.parametrize("operation", ["rename", "erase"])
@trio_test
async def test_a_node_that_could_not_be_renamed_or_removed_stays_in_the_copy_of_the_other_layout(operation: str) -> None:
    async with editing(STORE, inner=_Stuck(MemoryStore())) as e:
        with pytest.raises(StoreError, match="out of order"):
            await (e.editor.rename(NodePath("/g"), NodePath("/h")) if operation == "rename" else e.editor.erase(NodePath("/g")))
        assert _members(await contents(e.store)) == _members(STORE)


@pytest.mark.logs("not updated", "not ended", "interrupted operation")
@trio_test
async def test_the_next_mount_puts_a_node_back_into_the_copy_of_the_other_layout() -> None:
    store = _Stuck(MemoryStore())
    await fill(store.inner, STORE)
    store.is_full = True
    async with tree_over(store) as tree:
        folder = await folder_at(tree, "npy")
        with pytest.raises(StoreError):
            await folder.rename("g", folder, "h")
        assert "g/a/.zarray" not in _members(await contents(store))
    store.is_full = False
    async with tree_over(store) as tree:
        await tree.recover()
        assert _members(await contents(store)) == _members(STORE)
