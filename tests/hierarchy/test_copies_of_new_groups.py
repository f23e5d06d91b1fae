"""Consolidated copies and groups that an edit has created before it failed, or was killed: readers of a copy find no others."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import trio

from tests.hierarchy.test_replacing_on_a_full_store import FullFrom
from tests.hierarchy.test_several_steps import STORES, Faulty, Killed, npy
from tests.support.trees import folder_at, tree_of, tree_over, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import StoreFull
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.keys import ROOT
from zarrfs.options.config import resolve
from zarrfs.reports.check import check

pytestmark = pytest.mark.logs("")
ELEMENTS = np.arange(1, 9, dtype="<i4")


async def attributes(tree: MountTree) -> None:
    """The first document of the group is that of its attributes."""
    await (await folder_at(tree, "chunks")).mkdir("h")
    await write(tree, "chunks/h/.zattrs", b'{"units": "K"}')


async def rename(tree: MountTree) -> None:
    await (await folder_at(tree, "chunks")).mkdir("h")
    await (await folder_at(tree, "chunks")).rename("a", await folder_at(tree, "chunks/h"), "a")


async def save(tree: MountTree) -> None:
    await (await folder_at(tree, "chunks")).mkdir("h")
    await write(tree, "npy/h/n.npy", npy(ELEMENTS))


@pytest.mark.parametrize("does", [attributes, rename, save], ids=lambda does: does.__name__)
@pytest.mark.parametrize(
    ("dialect", "kind"), [("v2", "killed"), ("v2", "failed"), ("v2", "full"), ("v3", "full"), ("v3_2022", "killed")]
)
def test_the_copy_has_them_or_the_end_of_the_mount_names_them(
    dialect: str, does: Callable[[MountTree], Awaitable[None]], kind: str, tmp_path: Path
) -> None:
    """They were missing: the first attributes were stored without a record, and of other edits only their own nodes were looked at."""
    options = {"new_dialect": dialect, "watch": "no"}

    async def prepare() -> None:
        async with tree_of(tmp_path / "before", **options) as tree:
            await write(tree, "npy/a.npy", npy(ELEMENTS))
            editor = NodeEditor(tree.hierarchy, tree.store, tree.intents, new_dialect=dialect)
            assert await editor.consolidate(ROOT)

    async def attempt(at: int) -> bool:
        path, failures = shutil.copytree(tmp_path / "before", tmp_path / str(at)), []
        store = (FullFrom if kind == "full" else Faulty)(path, STORES["exchange"])
        store.at, store.kills = at, kind == "killed"
        with suppress(Killed, BaseExceptionGroup):
            async with tree_over(store, f"file:{path}", **options) as tree:
                with suppress(StoreFull):
                    await does(tree)
                failures = await tree.publish_all()
        store.end_process()
        await store.inner.aclose()
        async with tree_of(path, **options) as tree:
            await tree.recover()
        assert failures or (await check(resolve(str(path)), "/")).outdated.count == 0, at
        return store.count > at

    (tmp_path / "before").mkdir()
    trio.run(prepare)
    at = 0
    while trio.run(attempt, at):
        at += 1
    assert at > 2
