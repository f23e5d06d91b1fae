"""A transformed store is a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tests.stores.conformance import Opener, StoreConformance
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.noted import NotedStore
from zarrfs.transformers.observed import ObservedStore
from zarrfs.transformers.read_only import ReadOnlyStore


class TestTransformedStores(StoreConformance):
    @pytest.fixture(params=["memory", "folder"])
    def opened(self, request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
        @asynccontextmanager
        async def opened(read_only: bool = False) -> AsyncIterator[Store]:
            inner = FolderStore(str(tmp_path)) if request.param == "folder" else MemoryStore()
            async with trio.open_nursery() as nursery:
                store: Store = DeadlineStore(NotedStore(ObservedStore(inner)), 60, nursery)
                yield ReadOnlyStore(store) if read_only else store
            await store.aclose()

        return opened
