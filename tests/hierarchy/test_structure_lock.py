"""The lock of the hierarchy's structure: who waits while nodes are moved or erased, and for whom that waits."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, trio_test

from tests.support.arrays import Example, reading, store_of
from zarrfs import fences
from zarrfs.errors import StaleEntry, StoreTimeout
from zarrfs.keys import NodePath, Prefix

A = Example((4,), (2,))


@trio_test
async def test_who_writes_a_document_is_waited_for_before_its_node_is_moved() -> None:
    live = reading(await store_of(A, names=("g/a",))).hierarchy.live
    bound = live.bound_paths.at(NodePath("/g/a"))
    order: list[str] = []

    async def move() -> None:
        async with live.lock.changing(Prefix("g/"), Prefix("h/")):
            order.append("moves")
            live.moved(Prefix("g/"), Prefix("h/"))

    async def write() -> None:
        async with live.lock.staying(bound):
            order.append(f"writes to {bound.path}")

    async with trio.open_nursery() as nursery:
        async with live.lock.staying(bound):
            for task in (move, write):
                nursery.start_soon(task)
                await trio.testing.wait_all_tasks_blocked()
            # A task that already stays may change documents, while others wait for that.
            async with live.lock.changing(*[]):
                order.append("stays")
    assert order == ["stays", "moves", "writes to /h/a"]


@trio_test
async def test_a_document_of_a_node_that_is_erased_meanwhile_is_not_written() -> None:
    live = reading(await store_of(A, names=("g/a",))).hierarchy.live
    bound = live.bound_paths.at(NodePath("/g/a"))

    async def write() -> None:
        with pytest.raises(StaleEntry):
            async with live.lock.staying(bound):
                raise AssertionError("there is nothing to write to")

    async with trio.open_nursery() as nursery:
        async with live.lock.changing(Prefix("g/")):
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            live.removed(NodePath("/g"))


@trio_test
async def test_who_asks_for_an_array_waits_while_its_place_is_being_changed() -> None:
    found = reading(await store_of(A, A, names=("g/a", "b")))
    asked: list[str] = []

    async def ask(name: str) -> None:
        await found.array(name)
        asked.append(name)

    async with trio.open_nursery() as nursery:
        async with found.hierarchy.live.lock.changing(Prefix("g/")):
            nursery.start_soon(ask, "g/a")
            nursery.start_soon(ask, "b")
            await trio.testing.wait_all_tasks_blocked()
            assert asked == ["b"]
    assert asked == ["b", "g/a"]


@trio_test
async def test_who_was_looking_when_it_began_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a lookup would take data on its way to the path for another array than the one in use there before."""
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
        async with found.hierarchy.live.lock.changing(Prefix("a/")):
            looked.set()
            await trio.testing.wait_all_tasks_blocked()
            assert not asked and found.hierarchy.live.at(NodePath("/a")) is None
    assert asked == ["a"]


@trio_test
async def test_what_was_given_up_and_goes_on_is_waited_for_where_it_may_still_change_something(autojump_clock: MockClock) -> None:
    found = reading(await store_of(A, A, names=("g/a", "b")))
    opened, live, ended = await found.array("g/a"), found.hierarchy.live, trio.Event()
    async with live.lock.changing(Prefix("g/")):
        fences.given_up(ended)
    # Requests for other paths do not wait.
    await live.lock.wait_stable(NodePath("/b"))
    with pytest.raises(StoreTimeout, match="/g/a: move or removal still pending: the store does not answer"):
        await live.lock.wait_stable(NodePath("/g/a"))
    with pytest.raises(StoreTimeout, match="/g/a: move or removal"):
        await opened.live.wait_stable()
    ended.set()
    with trio.fail_after(1):
        await opened.live.wait_stable()
        await live.lock.wait_stable(NodePath("/g/a"))
        await live.lock.wait_stable(NodePath("/g/a"))
    assert await found.array("g/a") is opened


@trio_test
async def test_who_writes_to_a_place_that_is_moved_while_he_waits_writes_where_it_is_then() -> None:
    live = reading(await store_of(A, names=("g/a",))).hierarchy.live
    bound, paths = live.bound_paths.at(NodePath("/g/a")), list[str]()

    async def write() -> None:
        async with live.lock.staying(bound):
            paths.append(bound.path)

    async with trio.open_nursery() as nursery:
        async with live.lock.changing(Prefix("g/"), Prefix("h/")):
            nursery.start_soon(write)
            await trio.testing.wait_all_tasks_blocked()
            live.moved(Prefix("g/"), Prefix("h/"))
        assert not paths
    assert paths == ["/h/a"]
    live.removed(NodePath("/h/a"))
    with pytest.raises(StaleEntry):
        await write()


@trio_test
async def test_two_that_wait_for_an_operation_given_up_both_go_on_although_another_one_ended_meanwhile() -> None:
    lock = reading(await store_of(A, A, names=("a", "b"))).hierarchy.live.lock
    ended, other = trio.Event(), trio.Event()
    lock.fence((Prefix("a/"),), [ended])
    lock.fence((Prefix("b/"),), [other])
    went_on: list[str] = []

    async def ask(path: str) -> None:
        await lock.wait_stable(NodePath(path))
        went_on.append(path)

    async with trio.open_nursery() as nursery:
        for path in ("/a", "/a", "/b"):
            nursery.start_soon(ask, path)
        await trio.testing.wait_all_tasks_blocked()
        other.set()
        await trio.testing.wait_all_tasks_blocked()
        ended.set()
    assert went_on == ["/b", "/a", "/a"]


@trio_test
async def test_who_waits_for_an_operation_given_up_waits_for_the_next_one_too() -> None:
    lock = reading(await store_of(A)).hierarchy.live.lock
    ended, went_on = trio.Event(), list[str]()
    lock.fence((Prefix("a/"),), [ended])

    async def ask() -> None:
        await lock.wait_stable(NodePath("/a"))
        went_on.append("goes on")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        async with lock.changing(Prefix("a/")):
            ended.set()
            await trio.testing.wait_all_tasks_blocked()
            went_on.append("changed")
    assert went_on == ["changed", "goes on"]
