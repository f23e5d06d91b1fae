"""The tree suite by requests, without a kernel: over a store that is not a file system, and over one that is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.support.drivers import direct
from tests.support.tree_suite import SCENARIOS, Scenario
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore

STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "folder": lambda folder: FolderStore(str(folder)),
}


@pytest.mark.logs(".")
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_tree(scenario: Scenario, kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        store = STORES[kind](tmp_path)
        async with direct(store, cache_dir=str(tmp_path)) as driver:
            await scenario(driver)
            assert driver.session.open_handles == 0, "something is still open"
            assert driver.tree.staging.open_handles == 0
            assert driver.tree.staging.dirty_nbytes == 0
            await driver.forget_all()
            assert len(driver.session.inodes) == 1, "inodes were leaked"
        await store.aclose()

    trio.run(main)
