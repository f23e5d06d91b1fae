"""Operations that could not be ended at once are ended by the same mount, and what was changed since stays."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from tests.hierarchy.test_roots import V2_ARRAY, V2_GROUP, element
from tests.support.arrays import reading
from tests.support.stores import HangingStore, InterruptedStore, contents, fill
from tests.support.trees import tree_over, walk
from zarrfs.buffers import Buffer
from zarrfs.dialects.base import Edit
from zarrfs.errors import EntryExists, StoreError, StoreFull, StoreTimeout
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.hierarchy.recovery import Recovered, recover
from zarrfs.hierarchy.unfinished import UnfinishedOperations
from zarrfs.keys import APART, ROOT, Key, NodePath
from zarrfs.model.data_type import from_name
from zarrfs.model.metadata import GroupNode
from zarrfs.stores.base import Expected, Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Generation
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.observed import ObservedStore
from zarrfs.vfs.node import Directory

X, Y = NodePath("/x"), NodePath("/y")
BEFORE = {
    ".zgroup": V2_GROUP,
    "x/.zarray": V2_ARRAY,
    "x/0": element(19),
    "y/.zarray": V2_ARRAY,
    "y/0": element(20),
}


class Unerasable(InterruptedStore):
    """A store without renames, in which no record can be erased until it is ``mended``."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.capabilities = replace(inner.capabilities, rename=False)
        self.mended = False

    async def interrupt(self, operation: str, target: str) -> None:
        if operation == "erase" and target.endswith("intent.json") and not self.mended:
            raise StoreError("not now")

    copy = Store.copy


@asynccontextmanager
async def editing(faulty: Store) -> AsyncIterator[NodeEditor]:
    """Yield the editor of a mount."""
    async with trio.open_nursery() as nursery:
        observed = ObservedStore(faulty)
        store = DeadlineStore(observed, 10, nursery)
        made = reading(store)
        observed.subscribe(lambda change: made.hierarchy.changed(change.target, is_prefix=change.is_prefix) and None)
        intents = Intents(store)
        editor = NodeEditor(made.hierarchy, store, intents, new_dialect="v2")
        UnfinishedOperations(made.hierarchy, store, editor, intents, start_soon=nursery.start_soon)
        yield editor
        nursery.cancel_scope.cancel()


async def next_mount(store: Store) -> list[Recovered]:
    return await recover(Intents(store), reading(store).hierarchy, store)


@asynccontextmanager
async def hanging() -> AsyncIterator[tuple[MemoryStore, HangingStore, NodeEditor]]:
    """Yield a store with two arrays, one in front of it whose operations can hang, and the editor of a mount of that.

    Afterwards there has to be nothing for the next mount to end."""
    inner = MemoryStore()
    await fill(inner, BEFORE)
    store = HangingStore(inner)
    async with editing(store) as editor:
        yield inner, store, editor
    assert await next_mount(inner) == []


@pytest.mark.logs("left for later: not now")
@pytest.mark.parametrize("way", ["edit", "in time"])
@trio_test
async def test_what_was_written_after_a_replacement_stays(autojump_clock: MockClock, way: str) -> None:
    """The record that remained had the next mount replace the array again."""
    inner = MemoryStore()
    await fill(inner, BEFORE)
    store = Unerasable(inner)
    async with editing(store) as editor:
        layout = await editor.layout_for(X)
        node = NewArrays(codecs="none", chunks="2").node(X, layout, shape=(4,), data_type=from_name("int16"))
        opened = await editor._hierarchy.array(X)
        placing = await editor.place_apart(node, over=True)
        assert opened is not None and placing is not None
        await store.set(Key(f"{placing.chunk_prefix}0"), element(7))
        await editor.put(node, placing, over=opened.live)
        await placing.end()
        assert (await contents(inner))["x/0"] == element(7)
        await store.set(Key("x/0"), element(8))
        store.mended = True
        if way == "edit":
            await editor.amend(X, Edit(attributes={"units": "m"}))
        else:
            await trio.sleep(60)
        assert not await inner.prefix_exists(APART)
    assert await next_mount(inner) == []
    assert (await contents(inner))["x/0"] == element(8)


@pytest.mark.logs("left for later", "given up by its caller, ended: done", "timed out was undone")
@trio_test
async def test_a_rename_over_an_array_that_takes_effect_late_is_undone(autojump_clock: MockClock) -> None:
    async with hanging() as (inner, store, editor):
        store.hang("x/", "rename_prefix")
        with pytest.raises(StoreTimeout):
            await editor.rename(Y, X, over=True)
        assert await contents(inner) != BEFORE
        store.answer()
        await wait_all_tasks_blocked()
        await trio.sleep(1)
        assert await contents(inner) == BEFORE
        await editor.erase(X)
    assert not [key for key in await contents(inner) if key.startswith("x/")]


@pytest.mark.logs("left for later", "given up by its caller, ended: done")
@trio_test
async def test_a_record_that_is_stored_late_is_erased(autojump_clock: MockClock) -> None:
    """The next mount would carry out an operation that had failed, over what was changed since."""
    async with hanging() as (inner, store, editor):
        store.hang("*intent.json", "set")
        with pytest.raises(StoreTimeout):
            await editor.rename(Y, X, over=True)
        store.answer()
        await trio.sleep(120)
        assert await contents(inner) == BEFORE


@pytest.mark.logs("left for later", "given up by its caller, ended: done")
@pytest.mark.parametrize("operation", ["set", "erase"])
@trio_test
async def test_no_edit_waits_for_a_record_that_hangs(autojump_clock: MockClock, operation: str) -> None:
    """Each waited in vain until the deadline."""
    async with hanging() as (inner, store, editor):
        store.hang("*intent.json", operation)
        with pytest.raises(StoreTimeout) if operation == "set" else nullcontext():
            await editor.rename(Y, X, over=True)
        with trio.fail_after(5):
            await editor.amend(X, Edit(attributes={"units": "m"}))
        await trio.sleep(600)
        with trio.fail_after(5):
            await editor.amend(X, Edit(attributes={"units": "km"}))
        store.answer()
        await trio.sleep(120)
        assert not await inner.prefix_exists(APART)


class Limbo(HangingStore):
    """A store in which nothing is moved back until it is ``mended``."""

    def __init__(self, inner: Store, error: type[StoreError]) -> None:
        super().__init__(inner)
        self.error = error
        self.mended = False

    async def interrupt(self, operation: str, target: str) -> None:
        await super().interrupt(operation, target)
        if operation == "rename_prefix" and target.startswith(APART) and not self.mended:
            raise self.error("not now")


@pytest.mark.logs("left for later", "given up by its caller, ended: done", "timed out was undone", "not ended yet: not now")
@pytest.mark.parametrize("error", [StoreError, StoreTimeout])
@trio_test
async def test_until_the_outcome_is_known_nothing_is_done_there(autojump_clock: MockClock, error: type[StoreError]) -> None:
    """The old array would be put back over what is stored there meanwhile."""
    inner = MemoryStore()
    await fill(inner, BEFORE)
    store = Limbo(inner, error)
    async with editing(store) as editor:
        store.hang("x/", "rename_prefix")
        with pytest.raises(StoreTimeout):
            await editor.rename(Y, X, over=True)
        store.answer()
        await trio.sleep(60)
        with pytest.raises(StoreTimeout, match="outcome of an earlier operation is unknown"):
            await editor.rename(Y, X)
        store.mended = True
        await trio.sleep(120)
        assert await contents(inner) == BEFORE
        await editor.rename(Y, X, over=True)
        assert (await contents(inner))["x/0"] == BEFORE["y/0"]
    assert await next_mount(inner) == []
    assert (await contents(inner))["x/0"] == BEFORE["y/0"]


class Full(ForwardingStore):
    """A store that ``is_full`` for the consolidated copy, and with ``for_records`` for records of operations too."""

    is_full = False

    def __init__(self, inner: Store, *, for_records: bool) -> None:
        super().__init__(inner)
        self._refused = (".zmetadata", "intent.json") if for_records else (".zmetadata",)

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if self.is_full and key.endswith(self._refused):
            raise StoreFull("no room")
        return await super().set(key, value, expect=expect)


@pytest.mark.logs("copies not updated, left for later: no room", "not ended yet: no room")
@pytest.mark.parametrize("for_records", [False, True])
@pytest.mark.parametrize("way", ["edit", "in time"])
@trio_test
async def test_a_new_node_is_in_the_copy_as_soon_as_there_is_room(autojump_clock: MockClock, way: str, for_records: bool) -> None:
    """Saving it again succeeded, and nobody who reads the copy saw it before the next mount."""
    inner = MemoryStore()
    await fill(inner, BEFORE)
    store = Full(inner, for_records=for_records)
    new = GroupNode(path=NodePath("/g"), dialect="v2")

    async def copied() -> set[str]:
        return set(json.loads((await contents(inner))[".zmetadata"])["metadata"])

    async with editing(store) as editor:
        assert await editor.consolidate(ROOT)
        store.is_full = True
        with pytest.raises(StoreFull):
            await editor.create(new)
        # Each attempt leaves the same.
        for _ in range(3):
            with pytest.raises(EntryExists):
                await editor.create(new)
        assert "g/.zgroup" not in await copied()
        assert len([key for key in await contents(inner) if key.startswith(APART)]) == (0 if for_records else 1)
        store.is_full = False
        if way == "edit":
            await editor.amend(X, Edit(attributes={"units": "m"}))
        else:
            await trio.sleep(60)
        assert "g/.zgroup" in await copied()
        assert not await inner.prefix_exists(APART)
    assert await next_mount(inner) == []


@pytest.mark.logs("copies not updated, left for later: no room", "not ended yet: no room", "interrupted operation")
@pytest.mark.parametrize("for_records", [False, True])
@trio_test
async def test_a_copy_that_lacks_a_node_at_the_end_is_told_unless_the_next_mount_updates_it(for_records: bool) -> None:
    inner = MemoryStore()
    copied = {".zgroup": json.loads(V2_GROUP)}
    await fill(inner, BEFORE | {".zmetadata": json.dumps({"zarr_consolidated_format": 1, "metadata": copied}).encode()})
    store = Full(inner, for_records=for_records)
    async with tree_over(store) as tree:
        store.is_full = True
        root = await walk(tree, "chunks")
        assert isinstance(root, Directory)
        folder = await root.mkdir("g")
        with pytest.raises(StoreFull):
            await folder.sync()
        left = await tree.publish_all()
        assert "g/.zgroup" in await contents(inner)
        assert [path for path, why in left if "consolidated copy" in why and "no room" in why] == (["/g"] if for_records else [])
    store.is_full = False
    assert len(await next_mount(inner)) == (0 if for_records else 1)
    assert ("g/.zgroup" in json.loads((await contents(inner))[".zmetadata"])["metadata"]) != for_records
