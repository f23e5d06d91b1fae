"""A file of very many chunks: what is held for them, and for the fsync that follows."""

from __future__ import annotations

from collections.abc import Iterable

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
