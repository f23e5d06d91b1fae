"""A document that equals what the store holds is accepted without a request: not while an earlier edit may still change that."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.hierarchy.test_several_steps import npy
from tests.support.stores import HangingStore, contents
from tests.support.trees import load, opened, read, tree_over, walk, write
from zarrfs.buffers import Buffer
from zarrfs.daemon.mount_tree import MountTree
from zarrfs.errors import NoSuchEntry, StoreError, StoreTimeout
from zarrfs.keys import APART, Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.vfs.node import Directory, OpenFlags

EMPTIED = OpenFlags(read=False, write=True, truncate=True)
EDITS = {"shape": "chunks/a/.zarray", "attributes": "chunks/a/.zattrs", "of a group": "chunks/g/.zattrs"}


class Unanswered(HangingStore):
    """A store whose sets take effect before they hang; the next ones of a key fail with its ``errors``, where these are not None."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.errors: dict[str, list[Exception | None]] = {}

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if (errors := self.errors.get(key)) and (error := errors.pop(0)) is not None:
            raise error
        generation = await self.inner.set(key, value, expect=expect)
        await self.interrupt("set", key)
        return generation


@asynccontextmanager
async def tree_with_copy(store: HangingStore) -> AsyncIterator[MountTree]:
    """Yield a tree whose edits are of two documents: they can be undone."""
    async with tree_over(store, new_dialect="v3", new_chunks="4", timeout="10") as tree:
        await make_nodes(tree)
        await write(tree, "chunks/.zmetadata", b'{"metadata": {}, "zarr_consolidated_format": 1}')
        yield tree


async def make_nodes(tree: MountTree) -> None:
    await write(tree, "npy/a.npy", npy(np.arange(8)))
    folder = await walk(tree, "npy")
    assert isinstance(folder, Directory)
    await folder.mkdir("g")


def zarr3_document(edit: str) -> str:
    return f"zarr3/{EDITS[edit].split('/')[1]}/zarr.json"


async def documents(tree: MountTree, edit: str) -> tuple[bytes, bytes]:
    """Return what is written to the file of the edit, and the same in `zarr3/`."""
    member = {"shape": [12]} if edit == "shape" else {"attributes": {"n": 1}}
    again = json.dumps(json.loads(await read(tree, zarr3_document(edit))) | member).encode()
    if edit != "shape":
        return b'{"n": 1}', again
    return json.dumps(json.loads(await read(tree, EDITS[edit])) | member).encode(), again


async def shown(tree: MountTree, edit: str) -> object:
    if edit == "shape":
        return len(await load(tree, "npy/a.npy"))
    with suppress(NoSuchEntry):
        return json.loads(await read(tree, EDITS[edit]))
    return {}


@pytest.mark.logs("")
@pytest.mark.parametrize("edit", EDITS)
@trio_test
async def test_an_edit_is_not_accepted_without_effect_while_the_same_one_may_be_undone(
    autojump_clock: MockClock, edit: str
) -> None:
    """The document was found as the program wrote it, so that nothing was to be done; then the first attempt was undone."""
    store = Unanswered()
    async with tree_with_copy(store) as tree:
        folder = EDITS[edit].split("/")[1]
        first, again = await documents(tree, edit)
        before = await shown(tree, edit)
        handle = await opened(tree, zarr3_document(edit), EMPTIED)
        await handle.write(0, again)
        store.hang(f"{folder}/zarr.json", "set")
        with pytest.raises(StoreTimeout):
            await write(tree, EDITS[edit], first)
        with pytest.raises(StoreTimeout):
            await handle.flush()
        store.errors = {"zarr.json": [StoreError("cannot be completed")]}
        store.answer()
        await trio.sleep(100)
        assert await shown(tree, edit) == before
        await handle.flush()
        await handle.release()
        after = await shown(tree, edit)
        assert after != before
        await trio.sleep(100)
        assert await shown(tree, edit) == after
    async with tree_over(store.inner) as tree:
        assert await shown(tree, edit) == after


@pytest.mark.logs("")
@pytest.mark.parametrize("edit", EDITS)
@trio_test
async def test_an_edit_is_not_accepted_without_effect_while_the_same_one_is_to_be_undone(
    autojump_clock: MockClock, edit: str
) -> None:
    """The attempt to undo it had failed as well."""
    store = Unanswered()
    async with tree_with_copy(store) as tree:
        folder = EDITS[edit].split("/")[1]
        first, again = await documents(tree, edit)
        before = await shown(tree, edit)
        handle = await opened(tree, zarr3_document(edit), EMPTIED)
        await handle.write(0, again)
        undone = [StoreError("not undone")] * 3
        store.errors = {"zarr.json": [StoreError("no copy")] * 4, f"{folder}/zarr.json": [None, *undone]}
        with pytest.raises(StoreError, match="no copy"):
            await write(tree, EDITS[edit], first)
        with pytest.raises(StoreError, match="not undone"):
            await handle.flush()
        await trio.sleep(100)
        assert await shown(tree, edit) == before
        await handle.flush()
        await handle.release()
        assert await shown(tree, edit) != before


@pytest.mark.logs("")
@pytest.mark.parametrize("dialect", ["v2", "v3"])
@pytest.mark.parametrize("edit", EDITS)
@trio_test
async def test_the_present_document_is_not_accepted_while_an_earlier_edit_may_still_arrive(
    autojump_clock: MockClock, edit: str, dialect: str
) -> None:
    """Nothing was to be done for it; then the earlier edit took effect, which had been reported as failed."""
    store = HangingStore(MemoryStore())
    async with tree_over(store, new_dialect=dialect, new_chunks="4", timeout="10") as tree:
        await make_nodes(tree)
        before = await shown(tree, edit)
        first, _ = await documents(tree, edit)
        path = zarr3_document(edit)
        present = await read(tree, path)
        handle = await opened(tree, path, EMPTIED)
        await handle.write(0, present)
        store.hang(f"{EDITS[edit].split('/')[1]}/*", "set")
        with pytest.raises(StoreTimeout):
            await write(tree, EDITS[edit], first)
        if edit != "shape":
            # The elements of an array whose shape may change are ETIMEDOUT.
            assert await shown(tree, edit) == before
        with pytest.raises(StoreTimeout, match="an earlier change still pending"):
            await handle.flush()
        store.answer()
        await trio.sleep(100)
        assert await shown(tree, edit) != before
        await handle.flush()
        await handle.release()
        assert await shown(tree, edit) == before


@pytest.mark.logs("")
@trio_test
async def test_an_edit_that_took_effect_late_is_completed(autojump_clock: MockClock) -> None:
    """It was undone a second later: a chunk that a program had stored in the new shape meanwhile was no part of the array any more."""
    store = Unanswered()
    async with tree_with_copy(store) as tree:
        _, document = await documents(tree, "shape")
        store.hang("a/zarr.json", "set")
        with pytest.raises(StoreTimeout):
            await write(tree, "zarr3/a/zarr.json", document)
        store.answer()
        await write(tree, "chunks/a/2", np.full(4, 5, "<i8").tobytes())
        await trio.sleep(100)
        np.testing.assert_array_equal(await load(tree, "npy/a.npy"), [*range(8), 5, 5, 5, 5])
        assert not await store.inner.prefix_exists(APART)
        copied = json.loads((await contents(store.inner))["zarr.json"])["consolidated_metadata"]["metadata"]["a"]
        assert copied["shape"] == [12]
