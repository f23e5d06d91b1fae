"""The store suite over a store shown without shards: keys beside a sharded grid, above it and in it, and without sharded arrays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from tests.stores.conformance import Opener, StoreConformance
from zarrfs.hierarchy.sharded_arrays import Folder, ShardedArrays
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.chunk_key import default
from zarrfs.model.data_type import from_name
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.observed import ObservedStore
from zarrfs.transformers.read_only import ReadOnlyStore
from zarrfs.transformers.unsharded import Arrays, UnshardedStore

METADATA = ArrayMetadata(
    shape=(8, 8),
    data_type=from_name("int8", {}),
    chunk_grid=RegularGrid((1, 1)),
    chunk_key_encoding=default("/"),
    fill_value=b"\0",
    codecs=(),
    shards=(ShardSpec((2, 2)), ShardSpec((2, 1))),
)


@dataclass(frozen=True)
class OneArray:
    """One array in nested shards at a prefix, without documents: the suite's stores begin empty."""

    prefix: Prefix

    async def folder(self, prefix: Prefix) -> Folder:
        node = ArrayNode(path=NodePath("/a"), dialect="v3", metadata=METADATA, chunk_prefix=self.prefix)
        return Folder(node if prefix.startswith(self.prefix) else None)

    def changed(self, target: Key | Prefix) -> set[Prefix]:
        return set()


class TestUnshardedStores(StoreConformance):
    """Without sharded arrays (None), and with one among the keys of the suite, or with all of these keys beside its chunks."""

    @pytest.fixture(params=["memory", "folder"])
    def inner(self, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
        return FolderStore(str(tmp_path)) if request.param == "folder" else MemoryStore()

    @pytest.fixture(params=[None, "d/e/grid/", "", "d/"])
    def opened(self, request: pytest.FixtureRequest, inner: Store) -> Opener:
        @asynccontextmanager
        async def opened(read_only: bool = False) -> AsyncIterator[Store]:
            async with trio.open_nursery() as nursery:
                below: Store = ObservedStore(inner)
                arrays: Arrays = ShardedArrays(below, ttl=60) if request.param is None else OneArray(Prefix(request.param))
                store: Store = DeadlineStore(UnshardedStore(below, arrays), 60, nursery)
                yield ReadOnlyStore(store) if read_only else store
            await store.aclose()

        return opened
