"""Nodes that cannot be created, parsed, or found any more: each is refused with its path, and hides no other."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from tests.hierarchy.test_roots import MIXED, V2_ARRAY, V2_GROUP, V3_GROUP, draft_2019, element, over
from tests.support.arrays import Example, reading, store_of
from tests.support.small_shards import UnlistableStore
from tests.support.stores import InterruptedStore, WaitingStore, contents, fill
from zarrfs.dialects.v3_2019 import dialect as v3_2019
from zarrfs.errors import EntryExists, HiddenKeys, MetadataError, MetadataUnsupported, StoreTimeout
from zarrfs.hierarchy import nodes
from zarrfs.hierarchy.edits import NodeEditor
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.new_arrays import NewArrays
from zarrfs.hierarchy.unforeseen import reason_of, unusable
from zarrfs.keys import ROOT, ByteRange, Key, NodePath, Prefix
from zarrfs.model.data_type import from_name
from zarrfs.model.metadata import UnsupportedNode
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Answer, Got
from zarrfs.transformers.forwarding import ForwardingStore

A = Example((4,), (2,))


async def editor_of(store: Store, *, new: str = "v3") -> NodeEditor:
    return NodeEditor(reading(store).hierarchy, store, Intents(store), new_dialect=new)


# --- creating ------------------------------------------------------------------------------------------------------------------


@trio_test
async def test_a_dialect_of_which_no_node_can_be_begun_is_named() -> None:
    editor = await editor_of(MemoryStore(), new="v9")
    with pytest.raises(MetadataError, match="/a: no node of v9 can be created in this store"):
        await editor.layout_for(NodePath("/a"))


@trio_test
async def test_an_array_does_not_take_the_place_of_one_whose_documents_are_away_for_a_moment() -> None:
    async with over({".zgroup": V2_GROUP, "a/.zarray": V2_ARRAY, "a/0": element(5)}) as store:
        opened = await store.reading.array("a")
        await store.inner.erase(Key("a/.zarray"))
        with pytest.raises(EntryExists, match="/a: in use, its documents may reappear"):
            await store.array("/a")
        await store.inner.set(Key("a/.zarray"), V2_ARRAY)
        assert await store.first("/a") == 5 and opened.live.why_gone is None


@trio_test
async def test_an_array_is_not_made_over_nodes_that_lie_below() -> None:
    async with over({".zgroup": V2_GROUP, "g/a/.zarray": V2_ARRAY}) as store:
        before = await store.keys()
        with pytest.raises(EntryExists, match="/g: contains other nodes"):
            await store.array("/g")
        assert await store.keys() == before


@trio_test
async def test_chunks_that_were_left_behind_are_not_those_of_an_array_that_is_made_there() -> None:
    async with over({".zgroup": V2_GROUP, "a/0": element(5), "a/1": element(6), "b/0": element(7)}) as store:
        await store.array("/a")
        assert await store.keys() == {".zgroup", "a/.zarray", "b/0"} and await store.first("/a") == 0


@trio_test
async def test_where_nothing_can_be_listed_an_array_is_made_all_the_same() -> None:
    inner = MemoryStore()
    await fill(inner, {".zgroup": V2_GROUP})
    editor = await editor_of(UnlistableStore(inner))
    layout = await editor.layout_for(NodePath("/a"))
    await editor.create(NewArrays(codecs="none").node(NodePath("/a"), layout, shape=(4,), data_type=from_name("int16")))
    assert set(await contents(inner)) == {".zgroup", "a/.zarray"}


def test_an_order_that_there_is_not_is_refused() -> None:
    layout = v3_2019.PLUGIN.create(Prefix(""))
    with pytest.raises(ValueError, match="order is 'C' or 'F', not 'A'"):
        NewArrays().node(NodePath("/a"), layout, shape=(4,), data_type=from_name("int16"), order="A")


@trio_test
async def test_a_group_is_empty_whatever_empty_folders_lie_in_it_and_not_where_a_file_does(tmp_path: Path) -> None:
    store = FolderStore(str(tmp_path))
    await fill(store, {"zarr.json": V3_GROUP, "g/zarr.json": V3_GROUP})
    (tmp_path / "g/empty/deeper").mkdir(parents=True)
    editor = await editor_of(store)
    await editor.require_nothing_hidden(NodePath("/g"))
    (tmp_path / "g/empty/deeper/notes.txt").write_text("mine")
    with pytest.raises(HiddenKeys, match="/g: not empty: the store holds 'empty' there") as caught:
        await editor.require_nothing_hidden(NodePath("/g"))
    assert caught.value.key == "/g"
    await store.aclose()


# --- parsing --------------------------------------------------------------------------------------------------------------------


@pytest.mark.logs("unforeseen error: ZeroDivisionError: odd")
def test_an_error_that_nobody_foresaw_is_told_once_with_where_it_was(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "zarrfs"):
        node = unusable(NodePath("/a"), "v2", ZeroDivisionError("odd"))
    assert (node.path, node.bad) == ("/a", True) and "ZeroDivisionError: odd" in node.reason
    (record,) = caplog.records
    assert (record.key, record.kind) == ("/a", "ZeroDivisionError")  # type: ignore[attr-defined]
    # Our own errors contain the reason, and are not logged.
    assert not unusable(NodePath("/a"), "v2", MetadataUnsupported("codec x")).bad
    assert reason_of("/a", MetadataError("wrong")) == "wrong" and len(caplog.records) == 1


@pytest.mark.parametrize("method", ["open", "further_keys"])
@pytest.mark.logs("unforeseen error: ZeroDivisionError: odd")
@trio_test
async def test_a_dialect_that_fails_over_an_entry_point_hides_no_node_of_another(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(type(v3_2019.PLUGIN), method, broken)
    async with over(MIXED) as store:
        found = {path: await store.kind(path) for path in ("/a", "/c/d/z", "/e/w")}
        assert found == {"/a": "v2", "/c/d/z": "v2", "/e/w": "v3_2022"}


class Slow(InterruptedStore):
    """A store in which the documents of these arrays time out."""

    def __init__(self, inner: Store, names: str) -> None:
        super().__init__(inner)
        self._names = names

    async def interrupt(self, operation: str, target: str) -> None:
        if operation.startswith("get") and target[:1] in self._names and "/" in target:
            raise StoreTimeout(f"no answer for {target}", key=target)


@trio_test
async def test_one_node_that_is_slow_is_told_so_and_several_are_a_store_that_does_not_answer() -> None:
    inner = await store_of(A, A, A)
    found = {name: node async for name, node in reading(Slow(inner, "b")).hierarchy.children(ROOT)}
    assert sorted(found) == ["a", "b", "c"]
    assert isinstance(found["b"], UnsupportedNode) and found["b"].bad and "no answer for b/" in found["b"].reason
    with pytest.raises(StoreTimeout, match="no answer"):
        [name async for name, _ in reading(Slow(inner, "bc")).hierarchy.children(ROOT)]


# --- changes by another program --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("few", [0, 100])
@trio_test
async def test_what_came_behind_the_mount_is_seen_in_every_open_array_however_many_there_are(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_FEW_ARRAYS", few)
    async with over(draft_2019("", "x", "y", "z")) as store:
        opened = [await store.reading.array(name) for name in "xyz"]
        assert [await store.first(f"/{name}") for name in "xyz"] == [19, 20, 21]
        for name in "xyz":
            await store.inner.inner.set(Key(f"data/{name}/0"), element(99))
        # A change under a name that no node can have notifies nothing, and evicts nothing.
        store.reading.hierarchy.changed("./", is_prefix=True)
        store.reading.hierarchy.changed("data/", is_prefix=True)
        assert [await store.first(f"/{name}") for name in "xyz"] == [99, 99, 99]
        assert all([await store.reading.hierarchy.is_current(each) for each in opened])


@trio_test
async def test_a_hierarchy_below_whose_entry_point_went_behind_the_mount_is_one_no_longer() -> None:
    async with over(MIXED) as store:
        assert await store.kind("/b/x") == "v3_2019"
        await store.inner.inner.erase(Key("b/zarr.json"))
        # Entry points are read again when any of them changes.
        await store.set(**{".zgroup": V2_GROUP, "zarr.json": V3_GROUP})
        assert await store.kind("/b/deep/er/y") == "NoneType" and await store.kind("/e/w") == "v3_2022"


@trio_test
async def test_the_entry_points_of_a_store_are_read_once_however_many_ask() -> None:
    inner = MemoryStore()
    await fill(inner, draft_2019("", "x", "y"))
    store = WaitingStore(inner, "get_partial_values", "get")
    found = reading(store)
    async with trio.open_nursery() as nursery:
        for name in "xy":
            nursery.start_soon(found.hierarchy.node, NodePath(f"/{name}"))
        await wait_all_tasks_blocked()
        asked = list(store.waiting)
        store.let_go()
    assert len(asked) == len(set(asked)) and "zarr.json" in asked


class Replaced(ForwardingStore):
    """A store in which another program stores each array's document again just after it was read."""

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        answers = await self.inner.get_many(key_ranges)
        for (key, _), answer in zip(key_ranges, answers, strict=True):
            if isinstance(answer, Got) and key.endswith((".zarray", ".array")):
                await self.inner.set(key, answer.value)
        return answers


@pytest.mark.parametrize("values", [{".zgroup": V2_GROUP, "x/.zarray": V2_ARRAY}, draft_2019("", "x")], ids=["v2", "v3_2019"])
@trio_test
async def test_an_array_is_known_by_the_generation_of_the_document_that_was_read(values: dict[str, bytes]) -> None:
    inner = MemoryStore()
    await fill(inner, values)
    key = Key(next(key for key in values if key.endswith((".zarray", ".array"))))
    before = await inner.stat(key)
    opened = await reading(Replaced(inner)).array("x")
    assert before is not None and (opened.live.document, opened.live.generation) == (key, before.generation)
