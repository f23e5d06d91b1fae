"""The store suite over a store with a sharded grid: keys beside the grid, above it and in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.stores.conformance import Opener, StoreConformance
from zarrfs.keys import Prefix
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.observed import ObservedStore
from zarrfs.transformers.read_only import ReadOnlyStore
from zarrfs.transformers.sharding import ShardingStore

ENCODING = ChunkKeyEncoding("c", "/", "c0")


class TestShardedStores(StoreConformance):
    """Around a grid under ``d/e/grid/``, and one whose prefix is empty, so that all keys of the suite are beside its chunks."""

    @pytest.fixture(params=["memory", "folder"])
    def inner(self, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
        return FolderStore(str(tmp_path)) if request.param == "folder" else MemoryStore()

    @pytest.fixture(params=["d/e/grid/", "", "d/"])
    def opened(self, request: pytest.FixtureRequest, inner: Store) -> Opener:
        @asynccontextmanager
        async def opened(read_only: bool = False) -> AsyncIterator[Store]:
            async with trio.open_nursery() as nursery:
                store: Store = DeadlineStore(ObservedStore(inner), 60, nursery)
                store = ShardingStore(store, Prefix(request.param), ENCODING, (8, 8), ShardSpec((2, 2)))
                store = ShardingStore(store, Prefix("other/"), ENCODING, (8,), ShardSpec((3,)))
                yield ReadOnlyStore(store) if read_only else store
            await store.aclose()

        return opened
