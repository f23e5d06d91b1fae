"""Arrays in use are found wherever they are, whatever else is known; what this mount does moves and ends them."""

from __future__ import annotations

import gc
import json

import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.support.arrays import Example, reading, store_of
from tests.support.small_stores import array_document
from zarrfs.errors import NodeInDoubt, StaleEntry
from zarrfs.hierarchy import known_nodes
from zarrfs.keys import Key, NodePath, Prefix

A = Example((4,), (2,))


@pytest.fixture
def autojump_clock() -> MockClock:
    return MockClock(autojump_threshold=0)


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
    # Where nothing else is left there is no doubt.
    await found.store.erase_prefix(Prefix("a/"))
    with pytest.raises(StaleEntry):
        await found.hierarchy.live.confirm(opened.live)


@trio_test
async def test_who_asks_for_an_array_waits_while_its_place_is_being_changed() -> None:
    found = reading(await store_of(A, A, names=("g/a", "b")))
    asked: list[str] = []

    async def ask(name: str) -> None:
        await found.array(name)
        asked.append(name)

    async with trio.open_nursery() as nursery:
        async with found.hierarchy.live.changing(Prefix("g/")):
            nursery.start_soon(ask, "g/a")
            nursery.start_soon(ask, "b")
            await trio.testing.wait_all_tasks_blocked()
            assert asked == ["b"]
    assert asked == ["b", "g/a"]


@trio_test
async def test_who_was_looking_when_it_began_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """He would take what is on its way there for another array than the one that is in use where it was."""
    found = reading(await store_of(A))
    look, looked, asked = found.hierarchy._lookup, trio.Event(), list[str]()

    async def slowly(path: NodePath) -> object:
        known = await look(path)
        await looked.wait()
        return known

    async def ask() -> None:
        await found.array("a")
        asked.append("a")

    monkeypatch.setattr(found.hierarchy, "_lookup", slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        async with found.hierarchy.live.changing(Prefix("a/")):
            looked.set()
            await trio.testing.wait_all_tasks_blocked()
            assert not asked and found.hierarchy.live.at(NodePath("/a")) is None
    assert asked == ["a"]
