"""A chunk that is stored after its save was given up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.hierarchy.test_several_steps import npy
from tests.support.stores import HangingStore, contents
from tests.support.trees import names, tree_over, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import StoreFull
from zarrfs.stores.memory import MemoryStore


class NoRoomForTheFirst(HangingStore):
    """A store without room for the first chunk of a new array."""

    async def interrupt(self, operation: str, target: str) -> None:
        if operation == "set" and target.endswith("/c/0"):
            # The second chunk is being stored by then.
            await trio.sleep(1)
            raise StoreFull("no room")
        await super().interrupt(operation, target)


class NothingRenamed(NoRoomForTheFirst):
    """Without renames, the chunks of a new array are stored in their place, before its document."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.capabilities = replace(self.capabilities, rename=False)


@pytest.mark.logs("")
@pytest.mark.parametrize("kind", [NoRoomForTheFirst, NothingRenamed])
@trio_test
async def test_a_chunk_that_is_stored_after_its_save_has_failed_is_deleted(
    autojump_clock: MockClock, tmp_path: Path, kind: type[HangingStore]
) -> None:
    """It stayed in `.zarrfs/` until the next mount, in stores without locks between processes for ever.

    Where nothing is renamed it stayed in its place, whose folder was shown as a group while it was being stored.
    """
    inner = MemoryStore()
    store = kind(inner)
    store.hang("*/c/1", "set")
    async with tree_over(store, cache_dir=str(tmp_path), new_dialect="v3", new_chunks="4") as tree:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, tree)
            await trio.sleep(5)
            assert store.hanging
            store.answer()
        assert await names(tree, "npy") == set()
        assert await contents(inner) == {}
        await tree.publish_all()


async def _refused(tree: MountTree) -> None:
    with pytest.raises(StoreFull):
        await write(tree, "npy/a.npy", npy(np.arange(8)))
