"""Arrays in use are found at any path, whatever else is cached; operations of this mount move and end them."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.hierarchy.test_roots import draft_2019
from tests.support.arrays import Example, Reading, reading, store_of
from tests.support.small_shards import UnlistableStore
from tests.support.small_stores import array_document
from tests.support.stores import fill
from zarrfs.errors import NodeInDoubt, StaleEntry
from zarrfs.hierarchy import known_nodes
from zarrfs.hierarchy.known_nodes import KnownNode
from zarrfs.hierarchy.live_array import LiveArray, OpenArray
from zarrfs.hierarchy.new_nodes import is_in_use
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.metadata import GroupNode
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.forwarding import ForwardingStore

A = Example((4,), (2,))


@trio_test
async def test_it_lives_as_long_as_anybody_holds_it_however_much_else_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_nodes, "MAX_NODES", 2)
    found = reading(await store_of(A, A, A, A, A))
    opened = await found.array("a")
    for name in "bcde":
        await found.array(name)
    assert await found.array("a") is opened and await found.hierarchy.is_current(opened)
    live = found.hierarchy.live
    assert live.at(NodePath("/a")) is opened.live
    del opened
    for name in "bcde":
        await found.array(name)
    gc.collect()
    assert live.at(NodePath("/a")) is None and live.with_chunk_prefix(Prefix("a/")) is None


@trio_test
async def test_an_array_that_was_erased_is_kept_by_those_who_hold_it_alone() -> None:
    found = reading(await store_of(A, A))
    held, other = await found.array("a"), weakref.ref(await found.array("b"))
    for name in "ab":
        await found.store.erase_prefix(Prefix(f"{name}/"))
        found.hierarchy.live.erased(Prefix(f"{name}/"))
        found.hierarchy.changed(f"{name}/", is_prefix=True)
    gc.collect()
    # It would hold its folder, and decoded chunks. Nobody looks at its path again.
    assert other() is None
    with pytest.raises(StaleEntry, match="/a was erased"):
        await found.hierarchy.is_current(held)


@trio_test
async def test_a_prefix_that_is_renamed_takes_the_arrays_below_it_along_and_no_others() -> None:
    found = reading(await store_of(A, A, names=("g/a", "ga")))
    inside, beside = await found.array("g/a"), await found.array("ga")
    await found.store.rename_prefix(Prefix("g/"), Prefix("h/"))
    found.hierarchy.live.moved(Prefix("g/"), Prefix("h/"))
    found.hierarchy.changed("g/", is_prefix=True)
    found.hierarchy.changed("h/", is_prefix=True)
    assert (inside.array.path, inside.live.chunk_prefix, inside.live.document) == ("/h/a", "h/a/", "h/a/.zarray")
    assert beside.array.path == "/ga"
    assert await found.array("h/a") is inside and await found.hierarchy.is_current(inside)
    assert await inside.array.read_chunk((0,)) is not None
    assert await found.hierarchy.array(NodePath("/g/a")) is None


@trio_test
async def test_an_array_of_the_same_form_in_its_place_is_another() -> None:
    found = reading(await store_of(A, A))
    old = await found.array("a")
    for place in (Key("a/.zarray"), Prefix("a/")):
        found.hierarchy.live.erased(place)
    found.hierarchy.changed("a/", is_prefix=True)
    new = await found.array("a")
    assert new is not old
    with pytest.raises(StaleEntry, match="/a was erased"):
        await old.array.read_chunk((0,))
    assert await new.array.read_chunk((0,)) is not None


@trio_test
async def test_another_shape_is_another_layout_and_another_type_another_array() -> None:
    found = reading(await store_of(A))
    opened = await found.array("a")
    for shape, dtype, same in (((6,), "<i2", True), ((6,), "<i4", False)):
        await found.store.set(Key("a/.zarray"), array_document(shape, (2,), dtype, fill_value=7))
        found.hierarchy.changed("a/.zarray", is_prefix=False)
        now = await found.array("a")
        assert opened.superseded and now is not opened
        assert (now.live is opened.live) == same and (opened.live.why_gone is None) == same
        opened = now


@trio_test
async def test_what_an_array_was_last_is_known_of_one_that_nobody_but_writers_hold() -> None:
    found = reading(await store_of(A))
    writer = (await found.array("a")).live
    for shape, dtype, same in (((6,), "<i2", True), ((8,), "<i2", True), ((8,), "<i4", False)):
        await found.store.set(Key("a/.zarray"), array_document(shape, (2,), dtype, fill_value=7))
        found.hierarchy.changed("a/.zarray", is_prefix=False)
        gc.collect()
        assert await found.hierarchy.node(NodePath("/a")) is not None
        assert (writer.why_gone is None) == same


@trio_test
async def test_documents_that_are_away_for_a_moment_are_waited_for(autojump_clock: MockClock) -> None:
    found = reading(await store_of(A))
    opened = await found.array("a")
    document = await found.store.get(Key("a/.zarray"))
    assert document is not None
    for text in (b"", document[:20]):
        await found.store.set(Key("a/.zarray"), text)

        async def mend() -> None:
            await trio.sleep(0.5)
            await found.store.set(Key("a/.zarray"), json.dumps(json.loads(document)).encode())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(mend)
            assert not await found.hierarchy.live.confirm(opened.live)
        assert opened.live.why_gone is None
    await found.store.erase(Key("a/.zarray"))
    with pytest.raises(NodeInDoubt):
        await found.hierarchy.live.confirm(opened.live)
    # Where nothing remains, the array is certainly gone.
    await found.store.erase_prefix(Prefix("a/"))
    with pytest.raises(StaleEntry):
        await found.hierarchy.live.confirm(opened.live)


async def array_and_making(place: str) -> tuple[Reading, OpenArray, LiveArray]:
    """Return the array ``/g/a`` in use, and another that is being created beside it, after the group was renamed to ``place``."""
    found = reading(await store_of(A, names=("g/a",)))
    opened = await found.array("g/a")
    making = found.hierarchy.live.make(NodePath("/g/new"))
    found.hierarchy.live.moved(Prefix("g/"), Prefix(place))
    return found, opened, making


@pytest.mark.parametrize("place", ["./", "x/../", "a//"])
@trio_test
async def test_what_is_renamed_to_where_no_node_can_be_ends(place: str) -> None:
    found, opened, making = await array_and_making(place)
    with pytest.raises(StaleEntry, match="/g/a was renamed"):
        opened.live.check()
    with pytest.raises(StaleEntry, match="/g/new lost its folder during creation"):
        making.check()
    assert opened.superseded and not found.hierarchy.live.unfinished
    # Later changes of that path reach neither array.
    found.hierarchy.live.moved(Prefix(place), Prefix("h/"))
    found.hierarchy.live.erased(Prefix(place))
    assert await found.array("g/a") is not opened


@trio_test
async def test_what_is_being_made_goes_with_its_folder_and_a_renamed_document_alone_takes_nothing_along() -> None:
    found, opened, making = await array_and_making("h/")
    assert (opened.array.path, making.path, making.chunk_prefix) == ("/h/a", "/h/new", "h/new/")
    assert found.hierarchy.live.unfinished == {"h/new/"}
    changes = found.hierarchy.live.changes
    found.hierarchy.live.moved(Key("h/a/.zarray"), Key("h/b/.zarray"))
    assert (opened.array.path, found.hierarchy.live.changes) == ("/h/a", changes)
    found.hierarchy.live.erased(Prefix("h/"))
    for live in (opened.live, making):
        with pytest.raises(StaleEntry):
            live.check()


COPY = {
    ".zgroup": b'{"zarr_format":2}',
    ".zmetadata": json.dumps(
        {
            "zarr_consolidated_format": 1,
            "metadata": {".zgroup": {"zarr_format": 2}, "a/.zarray": json.loads(array_document((4,), (2,), "<i2"))},
        }
    ).encode(),
    "a/0": bytes(4),
}


@trio_test
async def test_an_array_that_a_copy_alone_tells_of_is_looked_for_there_each_time_and_moves_with_its_folder(
    autojump_clock: MockClock,
) -> None:
    inner = MemoryStore()
    await fill(inner, COPY)
    found = reading(UnlistableStore(inner))
    opened = await found.array("a")
    live = found.hierarchy.live
    assert opened.live.document is None and await live.confirm(opened.live)
    live.moved(Prefix("a/"), Prefix("b/"))
    assert (opened.array.path, live.at(NodePath("/b")), live.at(NodePath("/a"))) == ("/b", opened.live, None)
    live.erased(Prefix("b/"))
    with pytest.raises(StaleEntry, match="/b was erased"):
        await live.confirm(opened.live)


@trio_test
async def test_an_array_that_a_group_took_the_place_of_is_no_more() -> None:
    found = reading(await store_of(A))
    opened = await found.array("a")
    await found.store.erase(Key("a/.zarray"))
    await found.store.set(Key("a/.zgroup"), b'{"zarr_format":2}')
    for name in (".zarray", ".zgroup"):
        found.hierarchy.changed(f"a/{name}", is_prefix=False)
    assert isinstance(await found.hierarchy.node(NodePath("/a")), GroupNode)
    with pytest.raises(StaleEntry, match="/a was replaced by a group"):
        await opened.array.read_chunk((0,))


@trio_test
async def test_what_is_forgotten_of_an_array_takes_nothing_from_another_in_its_place() -> None:
    """As if both were there for a moment."""
    live = reading(await store_of(A)).hierarchy.live
    path, document = NodePath("/a"), Key("a/.zarray")
    old = live.add(path, Prefix("a/"))
    live.set_document(old, (document, "1"))
    new = live.add(path, Prefix("a/"))
    live.set_document(new, (document, "2"))
    live._end(old, "was replaced by another array")
    assert live.at(path) is new and live.with_chunk_prefix(Prefix("a/")) is new
    live.document_changed(document, is_own=False)
    assert new.is_unread and new.why_gone is None
    del old
    gc.collect()
    assert live.at(path) is new and list(live.at_and_below(path)) == [new]
    # It moves, whether or not it is being read.
    live.moved(Prefix("a/"), Prefix("b/"))
    assert (new.path, live.at(NodePath("/b"))) == ("/b", new)


@trio_test
async def test_an_array_whose_documents_alone_are_renamed_is_no_more() -> None:
    store = MemoryStore()
    await fill(store, draft_2019("", "x", "y"))
    found = reading(store)
    one, other = await found.array("x"), await found.array("y")
    found.hierarchy.live.moved(Prefix("elsewhere/"), Prefix("there/"))
    one.live.check()
    found.hierarchy.live.moved(Prefix("meta/root/"), Prefix("meta/old/"))
    for opened in (one, other):
        with pytest.raises(StaleEntry, match="was renamed without its chunks"):
            opened.live.check()


@pytest.mark.parametrize("by", ["moved", "renamed"])
@trio_test
async def test_an_array_that_is_gone_ends_where_another_is_moved_to_its_path(by: str) -> None:
    """Another program removes it, and before the next request for it this mount gives its path to another array."""
    found = reading(await store_of(A, Example((4,), (4,)), names=("a", "b")))
    gone, comes = await found.array("a"), await found.array("b")
    await found.store.erase_prefix(Prefix("a/"))
    await found.store.rename_prefix(Prefix("b/"), Prefix("a/"))
    live = found.hierarchy.live
    if by == "moved":
        live.moved(Prefix("b/"), Prefix("a/"))
    else:
        live.renamed(NodePath("/b"), NodePath("/a"), [(Prefix("b/"), Prefix("a/"))])
    for prefix in ("a/", "b/"):
        found.hierarchy.changed(prefix, is_prefix=True)
    assert live.at(NodePath("/a")) is comes.live
    await found.store.erase_values([Key("a/0"), Key("a/1")])
    with trio.fail_after(30), pytest.raises(StaleEntry, match="/a was replaced by another array"):
        await gone.array.read_chunk((0,))
    await comes.array.read_chunk((0,))


@trio_test
async def test_an_array_that_is_moved_during_a_look_for_its_chunks_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = reading(await store_of(A, names=("g/a",)))
    opened = await found.array("g/a")

    class Moving(ForwardingStore):
        async def prefix_exists(self, prefix: Prefix) -> bool:
            if await self.inner.rename_prefix(Prefix("g/"), Prefix("h/")):
                found.hierarchy.live.moved(Prefix("g/"), Prefix("h/"))
            return await self.inner.prefix_exists(prefix)

    # As another program does that is about to write it again.
    document = await found.store.get(Key("g/a/.zarray"))
    assert document is not None
    await found.store.erase(Key("g/a/.zarray"))
    found.hierarchy.changed("g/a/.zarray", is_prefix=False)
    monkeypatch.setattr(found.hierarchy.live, "_store", Moving(found.store))
    await found.hierarchy.node(NodePath("/g/a"))
    await found.store.set(Key("h/a/.zarray"), document)
    assert opened.live.why_gone is None and opened.live.path == "/h/a"
    assert (await found.array("h/a")).live is opened.live


@trio_test
async def test_a_group_that_is_moved_to_the_place_of_one_that_is_looked_for_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await store_of(A, names=("g/a",))
    await store.set(Key("h/.zgroup"), b'{"zarr_format":2}')
    found = reading(store)
    live = found.hierarchy.live
    group, before = live.bound_paths.at(NodePath("/g")), await found.hierarchy.node(NodePath("/h"))

    class Moving(ForwardingStore):
        async def prefix_exists(self, prefix: Prefix) -> bool:
            was_there = await self.inner.prefix_exists(prefix)
            if await self.inner.rename_prefix(Prefix("g/"), Prefix("h/")):
                live.moved(Prefix("g/"), Prefix("h/"))
            return was_there

    assert isinstance(before, GroupNode)
    await store.erase(Key("h/.zgroup"))
    monkeypatch.setattr(live, "_store", Moving(store))
    await live.learnt(NodePath("/h"), None, (None, None), KnownNode(before, b"", 0))
    group.check()
    assert group.path == "/h"


@trio_test
async def test_a_folder_made_where_the_mount_erased_a_group_stays(tmp_path: Path) -> None:
    store, path = FolderStore(str(tmp_path)), NodePath("/g/c")
    for key in ("g/.zgroup", "g/c/.zgroup"):
        await store.set(Key(key), b'{"zarr_format":2}')
    hierarchy = reading(store).hierarchy
    assert isinstance(await hierarchy.node(path), GroupNode)
    await store.erase_prefix(Prefix("g/"))
    hierarchy.changed("g/", is_prefix=True)
    hierarchy.live.erased(Prefix("g/"))
    hierarchy.live.removed(NodePath("/g"))
    made = hierarchy.live.bound_paths.at(path)
    assert await hierarchy.node(path) is None
    made.check()


@trio_test
async def test_an_array_whose_folder_another_program_removed_after_its_document_is_not_in_use() -> None:
    found = reading(await store_of(A))
    path, opened = NodePath("/a"), await found.array("a")
    await found.store.erase(Key("a/.zarray"))
    found.hierarchy.changed("a/.zarray", is_prefix=False)
    assert await found.hierarchy.node(path) is None
    assert await is_in_use(found.hierarchy, path), "its document may reappear"
    # Not reported yet.
    await found.store.erase_prefix(Prefix("a/"))
    assert found.hierarchy.live.at(path) is opened.live
    assert not await is_in_use(found.hierarchy, path) and opened.live.why_gone is not None
