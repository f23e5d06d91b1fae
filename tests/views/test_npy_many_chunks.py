"""A file of very many chunks: what is held for them, and for the fsync that follows."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
from trio.testing import trio_test

from tests.support.stores import contents
from tests.support.trees import tree_over
from tests.views.test_npy_write import created, npy
from zarrfs.keys import Contents, IfUnsynced, Key, Prefix
from zarrfs.stores.memory import MemoryStore

COUNT = 1000


class Synced(MemoryStore):
    """Records what it has to make durable."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: set[Key | Prefix] = set()

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        self.synced.update(each for each in targets if not isinstance(each, IfUnsynced))


@pytest.mark.parametrize("dialect", ["v2", "v3", "v3_2019"])
@trio_test
async def test_fsync_of_many_chunks_names_few_targets_that_cover_all(dialect: str) -> None:
    store = Synced()
    async with tree_over(store, new_dialect=dialect, new_chunks="1", new_codecs="none") as tree:
        async with created(tree, "a.npy") as handle:
            await handle.write(0, npy(np.arange(1, COUNT + 1, dtype="<i2")))
            await handle.fsync()
    keys = [key for key in await contents(store) if key.startswith(("a/", "data/root/a", "data/a/", "meta/a", "meta/root/a"))]
    assert len(keys) > COUNT, await contents(store)
    named = [each for each in store.synced if not isinstance(each, Contents) or each]
    below = tuple(each for each in named if isinstance(each, Contents))
    assert len(named) < COUNT // 2
    assert [key for key in keys if key not in named and not key.startswith(below)] == []


class InPlace(MemoryStore):
    """A new array's chunks are stored where it will be."""

    capabilities = replace(MemoryStore.capabilities, rename=False, exchange=False)


@pytest.mark.timeout(60)
@trio_test
async def test_a_leftover_shard_is_erased_without_a_look_at_each_of_its_chunks() -> None:
    """They would be 67 million, and no request is answered meanwhile."""
    store = InPlace()
    async with tree_over(store, new_dialect="v3", new_chunks="1x1", new_shards="8192x8192", new_codecs="none") as tree:
        async with created(tree, "a.npy") as handle:
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (16384, 8192)})
            await handle.write(0, header.getvalue())
            await store.set(Key("a/c/1/0"), b"left")
        assert set(await contents(store)) == {"zarr.json", "a/zarr.json"}
