"""A held node stays; a node moved during a read is read at its new path; missing chunks are requested twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from tests.arrays.test_sharded import node
from tests.support.stores import WaitingStore
from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.layers import ShardLayers, chunks_of
from zarrfs.arrays.live_node import LiveNode, with_memory
from zarrfs.arrays.queued_shard import QueuedShard
from zarrfs.arrays.shard_queue import ShardQueue
from zarrfs.errors import LayoutChanged, NodeMoving, ShardIndexInvalid, StaleEntry, StoreTimeout
from zarrfs.keys import WHOLE, Key, NodePath, Prefix
from zarrfs.memory.budget import MemoryBudget
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore

ARRAY = node((8,))


class Live:
    """A node, and the number of times that it was confirmed in the store."""

    def __init__(self) -> None:
        self.asked = 0
        self.as_known = True
        self.node = LiveNode(NodePath("/a"), Prefix("a/"), self._confirm)

    async def _confirm(self, live: LiveNode) -> bool:
        self.asked += 1
        await trio.lowlevel.checkpoint()
        live.check()
        as_known, self.as_known = self.as_known, True
        return as_known

    def move(self) -> None:
        self.node.move(NodePath("/b"), Prefix("b/"))

    def chunks(self, store: Store, layers: ShardLayers | None = None) -> ChunkStore:
        array = ARRAY if layers is None else replace(node((8,), ShardSpec((4,))))
        return chunks_of(store, array, layers or ShardLayers(WorkCounters()), self.node)


async def a_and_b() -> MemoryStore:
    store = MemoryStore()
    for key, value in {"a/c/0": b"old", "b/c/0": b"new"}.items():
        await store.set(Key(key), value)
    return store


@trio_test
async def test_hits_cost_nothing_and_what_is_missing_is_asked_for_once_a_batch() -> None:
    live = Live()
    chunks = live.chunks(await a_and_b())
    assert await chunks.get_several([(0,)]) == [b"old"] and live.asked == 0
    assert await chunks.get_several([(0,), (1,), (2,)]) == [b"old", None, None] and live.asked == 1
    assert await chunks.stat((3,)) is None and live.asked == 2
    # The node was read again, so the missing chunk is requested again.
    live.as_known = False
    assert await chunks.get((5,)) is None and live.asked == 4


@trio_test
async def test_a_read_ends_while_another_program_stores_documents_all_the_time() -> None:
    live = Live()
    chunks = live.chunks(await a_and_b())

    async def confirm(_: LiveNode) -> bool:
        live.asked += 1
        return False

    live.node._confirm_now = confirm
    with trio.fail_after(30):
        assert await chunks.get((1,)) is None
        live.node.is_unread = True
        assert await chunks.get((0,)) == b"old"


@trio_test
async def test_a_read_that_fails_ends_while_another_program_stores_documents_all_the_time() -> None:
    live, store = Live(), await a_and_b()
    chunks = live.chunks(store, ShardLayers(WorkCounters()))

    async def confirm(_: LiveNode) -> bool:
        live.asked += 1
        return False

    live.node._confirm_now = confirm
    with trio.fail_after(30), pytest.raises(ShardIndexInvalid):
        await chunks.get_with_stat((0,), WHOLE)


@trio_test
async def test_a_read_that_fails_ends_also_after_many_readings_out_of_place() -> None:
    live, store = Live(), MemoryStore()
    chunks = live.chunks(store, ShardLayers(WorkCounters()))

    async def confirm(_: LiveNode) -> bool:
        live.asked += 1
        if live.asked == 20:
            await store.set(Key("a/c/0"), b"no index")
        return False

    live.node._confirm_now = confirm
    live.node.is_in_place = lambda: False
    with trio.fail_after(30), pytest.raises(ShardIndexInvalid):
        await chunks.get_with_stat((0,), WHOLE)


@trio_test
async def test_one_question_for_all_that_is_published_together() -> None:
    live, store = Live(), MemoryStore()
    chunks = live.chunks(store)
    async with chunks.holding():
        for index in range(5):
            await chunks.update({(index,): b"x"})
    assert live.asked == 1
    await chunks.update({(0,): b"y"})
    assert live.asked == 2


@trio_test
async def test_what_was_moved_while_it_was_read_is_read_again_where_it_is() -> None:
    live = Live()
    store = WaitingStore(await a_and_b(), "get")
    chunks = live.chunks(store)
    found: list[object] = []

    async def read() -> None:
        found.extend(await chunks.get_several([(0,)]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        async with live.node.changing():
            live.move()
        store.let_go()
    assert found == [b"new"]


@trio_test
async def test_who_moves_it_waits_for_who_publishes_and_keeps_the_next() -> None:
    live = Live()
    store = WaitingStore(MemoryStore(), "set")
    chunks = live.chunks(store)
    done: list[str] = []

    async def publish(name: str, coords: tuple[int]) -> None:
        await chunks.update({coords: name.encode()})
        done.append(name)

    async def move() -> None:
        async with live.node.changing():
            live.move()
            done.append("moved")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(publish, "first", (0,))
        await wait_all_tasks_blocked()
        nursery.start_soon(move)
        await wait_all_tasks_blocked()
        nursery.start_soon(publish, "second", (1,))
        await wait_all_tasks_blocked()
        assert done == [] and len(store.waiting) == 1
        store.let_go()
    assert done == ["first", "moved", "second"]
    assert await store.inner.get(Key("a/c/0")) == b"first" and await store.inner.get(Key("b/c/1")) == b"second"


@trio_test
async def test_who_has_taken_memory_does_not_wait_for_who_moves_it() -> None:
    live = Live()
    chunks = live.chunks(await a_and_b())
    async with live.node.changing():
        with with_memory(), pytest.raises(NodeMoving):
            await chunks.get_several([(0,)])
    with with_memory():
        assert await chunks.get_several([(0,)]) == [b"old"]


@trio_test
async def test_a_task_that_was_begun_within_a_hold_holds_for_itself() -> None:
    live = Live()
    store = WaitingStore(MemoryStore(), "set")
    chunks = live.chunks(store)
    moved = trio.Event()

    async def move() -> None:
        async with live.node.changing():
            moved.set()

    async with trio.open_nursery() as nursery:
        async with chunks.holding():
            nursery.start_soon(chunks.update, {(0,): b"later"})
            await wait_all_tasks_blocked()
        nursery.start_soon(move)
        await wait_all_tasks_blocked()
        assert not moved.is_set()
        store.let_go()
    assert moved.is_set()


@trio_test
async def test_of_what_is_gone_nothing_is_read_and_nothing_stored() -> None:
    live, store = Live(), await a_and_b()
    chunks = live.chunks(store)
    live.node.end("was erased")
    for attempt in (chunks.get((0,)), chunks.stat((0,)), chunks.update({(0,): b"x"}), chunks.publish()):
        with pytest.raises(StaleEntry, match="/a was erased"):
            await attempt
    assert await store.get(Key("a/c/0")) == b"old"


@trio_test
async def test_what_was_laid_out_before_a_resize_is_not_stored_after_it() -> None:
    live, store = Live(), MemoryStore()
    before = live.chunks(store)
    live.node.layouts += 1
    with pytest.raises(LayoutChanged):
        await before.update({(0,): b"x"})
    await live.chunks(store).update({(0,): b"x"})


@trio_test
async def test_what_goes_on_after_its_deadline_keeps_everybody_from_the_node() -> None:
    live = Live()
    chunks = live.chunks(await a_and_b())
    ended = trio.Event()
    live.node.fences.append(ended)
    with pytest.raises(StoreTimeout, match="/a: move or removal still pending"):
        await chunks.update({(0,): b"x"})
    ended.set()
    await chunks.update({(0,): b"x"})


@trio_test
async def test_who_waited_for_a_move_given_up_does_not_write_during_the_next_one() -> None:
    live, ended, order = Live(), trio.Event(), list[str]()
    live.node.fences.append(ended)

    async def write() -> None:
        async with live.node.holding():
            order.append(f"writes to {live.node.path}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await wait_all_tasks_blocked()
        async with live.node.changing():
            ended.set()
            await wait_all_tasks_blocked()
            order.append("moves")
            live.move()
    assert order == ["moves", "writes to /b"]


@trio_test
async def test_many_wait_for_a_move_that_hangs_as_long_as_one(autojump_clock: MockClock) -> None:
    """At the end of a mount each queued shard waited for a second."""
    live = Live()
    live.node.fences.append(trio.Event())
    began = trio.current_time()
    for _ in range(100):
        with pytest.raises(StoreTimeout, match="move or removal still pending"):
            await live.node.wait_stable()
    assert trio.current_time() - began == pytest.approx(1)


@trio_test
async def test_a_queued_shard_is_stored_where_its_array_is(autojump_clock: MockClock) -> None:
    """Neither the timer, nor a writer of more chunks, nor a move of the array waits forever for another."""
    store = WaitingStore(MemoryStore(), "set")
    live = Live()
    async with trio.open_nursery() as nursery:
        queue = ShardQueue(
            delay=0.01,
            budget=MemoryBudget(1 << 20),
            directory=None,
            start_soon=nursery.start_soon,
            on_change=lambda change, prefix, coords: None,
            on_failure=lambda key, error: None,
        )
        chunks = live.chunks(store, ShardLayers(WorkCounters(), queue=queue))
        await chunks.update({(0,): b"one"})
        await trio.sleep(1)
        assert store.waiting

        async def move() -> None:
            async with live.node.changing():
                live.move()

        async with trio.open_nursery() as inner:
            inner.start_soon(chunks.update, {(1,): b"two"})
            await wait_all_tasks_blocked()
            inner.start_soon(move)
            await wait_all_tasks_blocked()
            inner.start_soon(chunks.update, {(2,): b"three", (3,): b"four"})
            await wait_all_tasks_blocked()
            store.let_go()
        await chunks.publish()
        assert await chunks.get_several([(1,), (2,), (3,)]) == [b"two", b"three", b"four"]
        nursery.cancel_scope.cancel()
    assert await store.inner.get(Key("a/c/0")) is not None and await store.inner.get(Key("b/c/0")) is not None


@pytest.mark.logs("chunks that were written to a/c/0 could not be stored and are lost")
@trio_test
async def test_a_shard_of_an_array_that_is_gone_is_dropped_and_told_unless_it_was_erased_here() -> None:
    for erased_by_mount in (True, False):
        lost: list[str] = []
        live = Live()

        async def lose(shard: QueuedShard, error: Exception, lost: list[str] = lost) -> bool:
            lost.append(shard.key)
            return False

        async with trio.open_nursery() as nursery:
            queue = ShardQueue(
                delay=600,
                budget=MemoryBudget(1 << 20),
                directory=None,
                start_soon=nursery.start_soon,
                on_change=lambda change, prefix, coords: None,
                on_failure=lambda key, error: None,
                on_loss=lose,
            )
            await live.chunks(MemoryStore(), ShardLayers(WorkCounters(), queue=queue)).update({(0,): b"one"})
            live.node.erased_by_mount = erased_by_mount
            live.node.end("was erased")
            failed = await queue.end()
            assert len(queue) == 0 and queue.nbytes == 0
            assert lost == ([] if erased_by_mount else ["a/c/0"])
            assert failed == []
            nursery.cancel_scope.cancel()
