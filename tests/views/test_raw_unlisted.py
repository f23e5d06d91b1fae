"""``raw/`` of a store that cannot list: keys of nodes are found by name.

This holds in every layout with a document at its root or in the folder of each node.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio

from tests.support.trees import read, tree_over, walk, write
from zarrfs.errors import NoSuchEntry, StoreUnsupported
from zarrfs.keys import Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import DirEntry
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import Directory


class Unlisted(ForwardingStore):
    """A store in which values are found by their keys alone."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.capabilities = replace(self.capabilities, list=False, rename=False, watch=False)

    async def list_dir(self, prefix: Prefix) -> AsyncGenerator[DirEntry]:
        raise StoreUnsupported("cannot list", key=prefix)
        yield

    async def prefix_exists(self, prefix: Prefix) -> bool:
        raise StoreUnsupported("cannot list", key=prefix)


@pytest.mark.parametrize("dialect", ["v1", "v2", "v3_2019", "v3_2022", "v3_2022:text", "v3"])
@pytest.mark.parametrize("shards", [None, "4x4"])
def test_each_key_of_a_node_is_found_by_name(dialect: str, shards: str | None) -> None:
    options = {"new_dialect": dialect, "new_chunks": "2x2"}
    if shards is not None:
        if dialect not in ("v3_2022", "v3_2022:text", "v3"):
            pytest.skip("a layout without shards")
        options["new_shards"] = shards
    trio.run(_finds_each_key, options)


async def _finds_each_key(options: dict[str, Any]) -> None:
    store = MemoryStore()
    file = io.BytesIO()
    np.save(file, np.arange(1, 17).reshape(4, 4))
    async with tree_over(store, **options) as tree:
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        name = "a"
        if options["new_dialect"] != "v1":
            # Without listing, a group without documents cannot be found.
            name = "g/a"
            await folder.mkdir("g")
        await write(tree, f"npy/{name}.npy", file.getvalue())
    keys = {key: await store.get(key) async for key in store.list_prefix(Prefix(""))}
    assert len(keys) > 1
    async with tree_over(Unlisted(store)) as tree:
        for key, value in keys.items():
            assert await read(tree, f"raw/{key}") == value
            folder = await walk(tree, f"raw/{key.rpartition('/')[0]}")
            assert isinstance(folder, Directory)
            with pytest.raises(NoSuchEntry):
                await folder.lookup("nothing")
            with pytest.raises(StoreUnsupported):
                _ = [entry async for entry in folder.entries()]
