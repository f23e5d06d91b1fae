"""A shape reduced with ``resize_erases``, of which the chunks outside were not all erased."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.hierarchy.test_several_steps import STORES, Faulty, Killed, npy
from tests.support.trees import load, read, tree_of, tree_over, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import StoreFull

ELEMENTS = np.arange(1, 17, dtype="<i4")


async def resized(tree: MountTree, file: str, extent: int) -> None:
    document = json.loads(await read(tree, file))
    await write(tree, file, json.dumps(document | {"shape": [extent]}).encode())


@pytest.mark.logs("")
@pytest.mark.parametrize("file", ["chunks/a/.zarray", "zarr3/a/zarr.json"])
@pytest.mark.parametrize("shards", ["none", "4"])
@pytest.mark.parametrize("kills", [False, True], ids=["fails", "killed"])
def test_the_same_document_again_erases_the_chunks_that_an_attempt_has_left(
    kills: bool, shards: str, file: str, tmp_path: Path
) -> None:
    """It changed nothing, and the old elements were there again when the array grew."""

    async def attempt(at: int) -> bool:
        path, options = tmp_path / str(at), {"new_dialect": "v3", "watch": "no", "resize_erases": True}
        await trio.Path(path).mkdir()
        async with tree_of(path, new_chunks="2", new_shards=shards, **options) as tree:
            await write(tree, "npy/a.npy", npy(ELEMENTS))
        store = Faulty(path, STORES["exchange"])
        store.at, store.kills = at, kills
        with suppress(Killed, BaseExceptionGroup):
            async with tree_over(store, f"file:{path}", **options) as tree:
                with suppress(StoreFull):
                    await resized(tree, file, 4)
        store.end_process()
        await store.inner.aclose()
        async with tree_of(path, **options) as tree:
            await tree.recover()
            await resized(tree, file, 4)
            await resized(tree, file, 16)
            np.testing.assert_array_equal(await load(tree, "npy/a.npy"), [*ELEMENTS[:4], *[0] * 12])
        return store.count > at

    at = 0
    while trio.run(attempt, at):
        at += 1
    assert at > 1
