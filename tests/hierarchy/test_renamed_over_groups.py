"""A group renamed over an empty one: a failure or a kill at any step leaves both, or the one in the place of the other."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import trio_test

from tests.hierarchy.test_several_steps import STORES, Faulty, Killed, npy
from tests.support.trees import folder_at, load, names, read, tree_of, tree_over, write
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import DirectoryNotEmpty, HiddenKeys, ZarrfsError
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.keys import ROOT

ELEMENTS = np.arange(1, 7, dtype="<i4")
BEFORE = {"g": ({"is": "renamed"}, {"a.npy"}), "e": ({"is": "replaced"}, set[str]())}
AFTER = {"e": ({"is": "renamed"}, {"a.npy"})}


def _options(dialect: str) -> dict[str, Any]:
    return {"new_dialect": dialect, "watch": "no"}


async def _prepare(path: Path, dialect: str, *, has_copy: bool) -> None:
    os.mkdir(path)
    async with tree_of(path, **_options(dialect)) as tree:
        for name, (attributes, _) in BEFORE.items():
            await (await folder_at(tree, "npy")).mkdir(name)
            document = json.loads(await read(tree, f"zarr3/{name}/zarr.json"))
            await write(tree, f"zarr3/{name}/zarr.json", json.dumps(document | {"attributes": attributes}).encode())
        await write(tree, "npy/g/a.npy", npy(ELEMENTS))
        if has_copy:
            assert await NodeEditor(tree.hierarchy, tree.store, tree.intents, new_dialect=dialect).consolidate(ROOT)


async def _found(tree: MountTree) -> dict[str, tuple[dict[str, str], set[str]]]:
    found = {}
    for name in await names(tree, "npy"):
        members = await names(tree, f"npy/{name}")
        for each in members:
            np.testing.assert_array_equal(await load(tree, f"npy/{name}/{each}"), ELEMENTS)
        found[name] = json.loads(await read(tree, f"zarr3/{name}/zarr.json"))["attributes"], members
    return found


async def _rename(tree: MountTree) -> None:
    folder = await folder_at(tree, "npy")
    await folder.rename("g", folder, "e")


@pytest.mark.logs("")
@pytest.mark.parametrize("fault", ["fails", "fails late", "is killed"])
@pytest.mark.parametrize(("dialect", "has_copy"), [("v2", False), ("v3", True), ("v3_2022", False)])
def test_a_fault_at_any_step_leaves_the_old_or_the_new(dialect: str, has_copy: bool, fault: str, tmp_path: Path) -> None:
    """The empty group was erased first: then it was gone, with its attributes, and the other one was not in its place."""
    trio.run(lambda: _prepare(tmp_path / "before", dialect, has_copy=has_copy))

    async def attempt(at: int) -> bool:
        path = Path(shutil.copytree(tmp_path / "before", tmp_path / str(at)))
        store, is_renamed = Faulty(path, STORES["exchange"]), False
        store.kills, store.late = fault == "is killed", fault == "fails late"
        with suppress(Killed, BaseExceptionGroup):
            async with tree_over(store, f"file:{path}", **_options(dialect)) as tree:
                await names(tree, "npy")
                store.at = store.count + at
                with suppress(ZarrfsError):
                    await _rename(tree)
                    is_renamed = True
                if not store.is_dead:
                    assert await _found(tree) in ([AFTER] if is_renamed else [BEFORE, AFTER])
        happened = store.count > store.at
        store.end_process()
        await store.inner.aclose()
        async with tree_of(path, **_options(dialect)) as tree:
            await tree.recover()
            assert await _found(tree) in ([AFTER] if is_renamed else [BEFORE, AFTER])
        return happened

    at = 0
    while trio.run(attempt, at):
        at += 1
    assert at > 2


@pytest.mark.parametrize("view", ["npy", "chunks", "zarr3"])
@trio_test
async def test_a_group_that_holds_anything_is_not_replaced(view: str, tmp_path: Path) -> None:
    await _prepare(tmp_path / "store", "v3", has_copy=False)
    (tmp_path / "store/e/note.txt").write_text("of others")
    async with tree_of(tmp_path / "store", **_options("v3")) as tree:
        folder = await folder_at(tree, view)
        with pytest.raises((DirectoryNotEmpty, HiddenKeys)):
            await folder.rename("g", folder, "e")
        assert await _found(tree) == BEFORE
        await write(tree, "npy/e/b.npy", npy(ELEMENTS))
        with pytest.raises(DirectoryNotEmpty):
            await folder.rename("g", folder, "e")


@pytest.mark.parametrize("source", ["g", "g/a"])
@pytest.mark.parametrize("view", ["chunks", "zarr3"])
@trio_test
async def test_what_is_open_of_the_renamed_node_follows_and_the_replaced_folder_is_gone(
    source: str, view: str, tmp_path: Path
) -> None:
    await _prepare(tmp_path / "store", "v3", has_copy=True)
    async with tree_of(tmp_path / "store", **_options("v3")) as tree:
        await (await folder_at(tree, "npy")).mkdir("h")
        replaced, moved = await folder_at(tree, f"{view}/h"), await folder_at(tree, f"{view}/{source}")
        above, _, name = source.rpartition("/")
        await (await folder_at(tree, f"{view}/{above}")).rename(name, await folder_at(tree, view), "h")
        assert replaced.is_outdated and not moved.is_outdated
        at = "npy/h/a.npy" if source == "g" else "npy/h.npy"
        np.testing.assert_array_equal(await load(tree, at), ELEMENTS)
        assert {each async for each, *_ in moved.entries()} == await names(tree, f"{view}/h")
        copy = json.loads((tmp_path / "store/zarr.json").read_text())["consolidated_metadata"]["metadata"]
        assert copy.keys() == ({"e", "h", "h/a"} if source == "g" else {"e", "g", "h"})
