"""``raw/`` of a store that cannot list: keys of nodes are found by name.

This holds in every layout with a document at its root or in the folder of each node.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import trio

from tests.support.trees import load, read, tree_over, walk, write
from zarrfs.errors import NoSuchEntry, StoreUnsupported
from zarrfs.keys import Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import DirEntry
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.vfs.node import Directory, OpenFlags


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
    async with tree_over(store, **options) as tree:
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        name = "a"
        if options["new_dialect"] != "v1":
            # Without listing, a group without documents cannot be found.
            name = "g/a"
            await folder.mkdir("g")
        await write(tree, f"npy/{name}.npy", _npy(np.arange(1, 17).reshape(4, 4)))
    keys = {key: await store.get(key) async for key in store.list_prefix(Prefix(""))}
    assert len(keys) > 1
    async with tree_over(Unlisted(store)) as tree:
        if not any(key.startswith("g/") for key in keys):
            with pytest.raises(NoSuchEntry):
                await walk(tree, "raw/g")
        for key, value in keys.items():
            assert await read(tree, f"raw/{key}") == value
            folder = await walk(tree, f"raw/{key.rpartition('/')[0]}")
            assert isinstance(folder, Directory)
            with pytest.raises(NoSuchEntry):
                await folder.lookup("nothing")
            with pytest.raises(StoreUnsupported):
                _ = [entry async for entry in folder.entries()]


@pytest.mark.parametrize("dialect", ["v2", "v3_2019", "v3_2022", "v3"])
def test_a_missing_chunk_is_no_folder(dialect: str) -> None:
    trio.run(_stores_a_missing_chunk, {"new_dialect": dialect, "new_chunks": "2x2", "new_separator": "/"})


async def _stores_a_missing_chunk(options: dict[str, Any]) -> None:
    store = MemoryStore()
    async with tree_over(store, **options) as tree:
        await write(tree, "npy/a.npy", _npy(np.arange(1, 17).reshape(4, 4)))
        (key,) = [key async for key in store.list_prefix(Prefix("")) if key.endswith("1/1")]
    value = await store.get(key)
    assert value is not None
    await store.erase(key)
    async with tree_over(Unlisted(store), **options) as tree:
        folder = await walk(tree, f"raw/{key.rpartition('/')[0]}")
        assert isinstance(folder, Directory)
        with pytest.raises(NoSuchEntry):
            await folder.lookup(key.name)
        _, handle = await folder.create(key.name, OpenFlags(read=False, write=True))
        await handle.write(0, value)
        await handle.flush()
        await handle.release()
    assert await store.get(key) == value


@pytest.mark.parametrize("dialect", ["v2", "v3_2019", "v3_2022", "v3"])
def test_a_stored_group_that_may_hold_nodes_stays_a_group(dialect: str) -> None:
    trio.run(_stays_a_group, {"new_dialect": dialect})


async def _stays_a_group(options: dict[str, Any]) -> None:
    store = MemoryStore()
    array = {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i2", "fill_value": 0, "order": "C"}
    document = json.dumps(array | {"compressor": None, "filters": None}).encode()
    async with tree_over(store, **options) as tree:
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        await folder.mkdir("g")
        await write(tree, "npy/g/a.npy", _npy(np.arange(4)))
    async with tree_over(Unlisted(store), **options) as tree:
        group = await walk(tree, "chunks/g")
        assert isinstance(group, Directory)
        with pytest.raises(StoreUnsupported, match="may hold nodes"):
            await group.create(".zarray", OpenFlags(read=False, write=True))
        # A group that this mount has created is empty.
        folder = await walk(tree, "chunks")
        assert isinstance(folder, Directory)
        await folder.mkdir("new")
        new = await walk(tree, "chunks/new")
        assert isinstance(new, Directory)
        _, handle = await new.create(".zarray", OpenFlags(read=False, write=True))
        await handle.write(0, document)
        await handle.flush()
        await handle.release()
        assert (await load(tree, "npy/g/a.npy")).tolist() == [0, 1, 2, 3]
        assert (await load(tree, "npy/new.npy")).shape == (4,)


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("dialect", ["v1", "v2", "v3_2019", "v3_2022", "v3"])
@pytest.mark.parametrize("shape", [(4,), ()])
def test_an_array_is_removed(dialect: str, shape: tuple[int, ...]) -> None:
    """Whether it is still there was looked up in a listing: ENOTSUP."""
    trio.run(_is_removed, {"new_dialect": dialect}, shape)


async def _is_removed(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    store = MemoryStore()
    async with tree_over(store, **options) as tree:
        await write(tree, "npy/a.npy", _npy(np.ones(shape)))
    async with tree_over(Unlisted(store), **options) as tree:
        folder = await walk(tree, "npy")
        assert isinstance(folder, Directory)
        await folder.lookup("a.npy")
        await folder.unlink("a.npy")
        with pytest.raises(NoSuchEntry):
            await folder.unlink("a.npy")
    assert [key async for key in store.list_prefix(Prefix("")) if key.startswith(("a/", "data/", "meta/root/"))] == []
