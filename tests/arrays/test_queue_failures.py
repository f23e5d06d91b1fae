"""Queued chunks after failures: no acknowledged chunk is lost, and no other is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from tests.arrays.test_delayed import ARRAY, mounted, stored
from tests.arrays.test_merging import Example
from tests.arrays.test_shard_changes import Late
from tests.arrays.test_sharded import node, opened, sets
from tests.support.small_disks import unusable_cache
from tests.support.stores import FailingStore, InterruptedStore, WaitingStore
from zarrfs.arrays.array import Array
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.delayed import DelayedChunks
from zarrfs.arrays.layers import ShardLayers, chunks_of
from zarrfs.arrays.live_node import LiveNode
from zarrfs.arrays.merging import ElementMerge, LastingMerge, store_merged
from zarrfs.arrays.queued_shard import QueuedShard
from zarrfs.errors import ChunkDecodeError, ChunkError, StaleEntry, StoreError, StoreFull
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.memory.budget import UNLIMITED, MemoryBudget
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.observed import ObservedStore

WHOLE = {(number,): b"new" for number in range(4)}


@trio_test
async def test_a_change_that_changes_nothing_waits_for_nothing_and_is_not_stored() -> None:
    store = ObservedStore(MemoryStore())
    await opened(store, ARRAY)[0].update({(0,): b"old"})
    async with mounted(store) as m:
        await m.chunks.modify({(0,): Late(b""), (1,): Late(b"")})
        assert not m.queue and not m.told
        await m.chunks.modify({(0,): Late(b"+"), (1,): Late(b"")})
        await m.chunks.publish()
    assert sets(store) == 2 and await stored(store) == {0: b"old+"}


@pytest.mark.logs("publish failed")
@trio_test
async def test_a_shard_that_cannot_be_stored_leaves_what_waited_before_and_that_is_tried_again(autojump_clock: MockClock) -> None:
    inner = MemoryStore()
    store = FailingStore(inner, {})
    async with mounted(store) as m:
        await m.chunks.update({(0,): b"old"})
        store.errors["set"] = StoreFull("no room")
        with pytest.raises(StoreFull):
            await m.chunks.update(WHOLE)
        # The writer of the old chunk got an acknowledgement.
        assert await m.chunks.get_several(list(WHOLE)) == [b"old", None, None, None]
        await trio.sleep(10)
        assert m.failures and await stored(inner) == {}
        store.errors.clear()
        await trio.sleep(100)
        assert await stored(inner) == {0: b"old"} and not m.queue


class Held(InterruptedStore):
    """A store in which a set waits for the gate, and then fails."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.gate = trio.Event()
        self.fails = True
        self.succeeding = 0
        """Number of sets that succeed before."""

    async def interrupt(self, operation: str, target: str) -> None:
        if operation == "set" and self.fails:
            await self.gate.wait()
            self.succeeding -= 1
            if self.succeeding < 0:
                raise StoreFull("no room")


@trio_test
async def test_what_was_written_while_a_shard_could_not_be_stored_is_not_taken_back_with_it() -> None:
    inner = MemoryStore()
    store = Held(inner)
    async with mounted(store) as m:
        refused: list[bool] = []

        async def write_all() -> None:
            with pytest.raises(StoreFull):
                await m.chunks.update(WHOLE)
            refused.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_all)
            await wait_all_tasks_blocked()
            await m.chunks.update({(0,): b"newer"})
            store.gate.set()
        assert refused and await m.chunks.get_several(list(WHOLE)) == [b"newer", None, None, None]
        store.fails = False
        await m.chunks.publish()
    assert await stored(inner) == {0: b"newer"}


@trio_test
async def test_what_waited_for_an_array_that_is_gone_is_told_as_lost_once_and_waits_no_longer() -> None:
    store, lost = MemoryStore(), list[str]()
    async with mounted(store) as m:

        async def on_loss(shard: QueuedShard, error: Exception) -> bool:
            lost.append(f"{shard.key}: {error}")
            return False

        m.queue._on_loss = on_loss
        await m.chunks.update({(0,): b"old"})
        assert isinstance(m.chunks, DelayedChunks)
        m.chunks._node.end("was erased")
        with pytest.raises(StaleEntry, match="/a was erased"):
            await m.chunks.update(WHOLE)
        assert not m.queue and await m.chunks.get((0,)) is None
    assert lost == ["a/c/0: /a was erased: open the file again"] and await stored(store) == {}


@pytest.mark.parametrize(("cache", "error"), [("gone", StoreError), ("full", StoreFull)])
@trio_test
async def test_where_nothing_more_can_be_kept_the_oldest_is_stored_and_the_new_one_refused_by_its_key(
    cache: str, error: type[StoreError], tmp_path: Path
) -> None:
    store = MemoryStore()
    with unusable_cache(tmp_path, cache) as folder:
        async with mounted(store, memory=5, directory=folder) as m:
            await m.chunks.update({(0,): b"12345"})
            with pytest.raises(error, match="'a/c/1': no room to queue a chunk") as caught:
                await m.chunks.update({(4,): b"67890"})
            assert type(caught.value) is error
            assert caught.value.key == "a/c/1" and await m.chunks.get((4,)) is None
            assert await stored(store) == {0: b"12345"} and not m.queue
            # This has freed memory.
            await m.chunks.update({(4,): b"67890"})
            assert await m.chunks.get((4,)) == b"67890"


@pytest.mark.logs("a/c/0: publish failed, will retry: no room")
@pytest.mark.parametrize(("cache", "error"), [("gone", StoreError), ("full", StoreFull)])
@trio_test
async def test_where_the_oldest_cannot_be_stored_either_it_goes_on_waiting(
    cache: str, error: type[StoreError], tmp_path: Path
) -> None:
    inner = MemoryStore()
    store = FailingStore(inner, {"set": StoreFull("no room")})
    with unusable_cache(tmp_path, cache) as folder:
        async with mounted(store, memory=5, directory=folder) as m:
            await m.chunks.update({(0,): b"12345"})
            with pytest.raises(error, match="'a/c/1': no room to queue a chunk") as caught:
                await m.chunks.update({(4,): b"67890"})
            assert type(caught.value) is error
            assert m.failures == ["a/c/0"] and await m.chunks.get((0,)) == b"12345"
            store.errors.clear()
            await m.chunks.publish()
    assert await stored(inner) == {0: b"12345"}


# --- elements ------------------------------------------------------------------------------------------------------------------

EXAMPLE = Example((4,), (2,), "<i2", None, "C", "little", True)
OF_SHARDS = Example((4,), (2,), "<i2", (2,), "C", "little", True)


def array_over(store: Store, example: Example = EXAMPLE) -> Array:
    node, counters, budget = example.node, WorkCounters(), MemoryBudget(UNLIMITED)
    return Array(node, chunks_of(store, node, ShardLayers(counters, budget)), counters, budget)


def setting(array: Array, *values: int | None, sparse: bool = False) -> ElementMerge:
    """Return a change of elements of the first chunk; None leaves one unchanged."""
    elements = np.array([each or 0 for each in values], "<i2")
    mask = np.array([each is not None for each in values])
    return ElementMerge(array, (0,), elements, lambda: mask, sparse=sparse)


@pytest.mark.parametrize("example", [EXAMPLE, OF_SHARDS], ids=["plain", "shards"])
@trio_test
async def test_a_chunk_whose_last_element_becomes_fill_value_goes_and_not_before(example: Example) -> None:
    store = MemoryStore()
    array = array_over(store, example)
    await store_merged(array, (0,), setting(array, 1, 2))
    for values, expected in (((0, None), [0, 2]), ((None, 0), None)):
        await store_merged(array, (0,), setting(array, *values, sparse=True))
        found = await array.read_chunk((0,))
        assert (found.tolist() if found is not None else None) == expected
    assert [key async for key in store.list()] == []


@pytest.mark.parametrize(("stored_too", "left"), [(None, None), ([0, 0], None), ([5, 0], [5, 0])])
@trio_test
async def test_a_change_that_waited_leaves_what_others_stored_meanwhile(
    stored_too: list[int] | None, left: list[int] | None
) -> None:
    array = array_over(MemoryStore())
    merge = setting(array, None, 0, sparse=True)
    made = await merge.onto(np.array([1, 2], "<i2").tobytes())
    late = merge.lasting(made)
    assert isinstance(late, LastingMerge)
    theirs = np.array(stored_too, "<i2").tobytes() if stored_too is not None else None
    found = await late.kept(made, late.packed).onto(theirs)
    assert (np.frombuffer(found, "<i2").tolist() if found is not None else None) == left


@pytest.mark.parametrize("value", [b"x", b"x" * 100_000], ids=["short", "long"])
@trio_test
async def test_a_chunk_that_cannot_be_decoded_is_not_changed_in_part_and_is_named(value: bytes) -> None:
    store = MemoryStore()
    await store.set(Key("a/c/0"), value)
    array = array_over(store)
    with pytest.raises(ChunkError, match=r"chunk \(0,\) of /a") as caught:
        await store_merged(array, (0,), setting(array, 1, None))
    assert isinstance(caught.value, ChunkDecodeError) and await store.get(Key("a/c/0")) == value


async def _refused(write: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(StoreFull):
        await write()


@trio_test
async def test_what_could_not_be_stored_while_it_was_replaced_is_back_when_its_replacement_is_refused() -> None:
    inner = MemoryStore()
    store = Held(inner)
    async with mounted(store) as m:
        await m.chunks.update({(0,): b"old"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, m.chunks.publish)
            await wait_all_tasks_blocked()
            nursery.start_soon(_refused, lambda: m.chunks.update(WHOLE))
            await wait_all_tasks_blocked()
            store.gate.set()
        # The writer of the old chunk got an acknowledgement.
        assert await m.chunks.get_several(list(WHOLE)) == [b"old", None, None, None]
        store.fails = False
        await m.chunks.publish()
    assert await stored(inner) == {0: b"old"}


@trio_test
async def test_what_was_stored_while_it_was_replaced_is_not_queued_again_when_its_replacement_is_refused() -> None:
    inner = MemoryStore()
    store = Held(inner)
    store.succeeding = 1
    async with mounted(store) as m:
        await m.chunks.update({(0,): b"old"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(m.chunks.publish)
            await wait_all_tasks_blocked()
            nursery.start_soon(_refused, lambda: m.chunks.update(WHOLE))
            await wait_all_tasks_blocked()
            store.gate.set()
        assert not m.queue and await m.chunks.get_several(list(WHOLE)) == [b"old", None, None, None]
    assert await stored(inner) == {0: b"old"}


@trio_test
async def test_chunks_that_another_mount_stores_in_an_array_that_has_grown_stay() -> None:
    """All chunks of the smaller shape were queued, as one came while a set failed: the shard was replaced without the others."""
    inner = MemoryStore()
    store = Held(inner)
    async with mounted(store, node((3,), ShardSpec((4,)))) as m:
        await m.chunks.update({(0,): b"a", (1,): b"b"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, m.chunks.publish)
            await wait_all_tasks_blocked()
            await m.chunks.update({(2,): b"c"})
            store.gate.set()
        [shard] = m.queue.below(Prefix("a/"))
        await opened(inner, ARRAY)[0].update({(3,): b"theirs"})
        grown = DelayedChunks(opened(store, ARRAY)[0], m.queue, node=shard.node, array=ARRAY)
        store.fails = False
        await grown.publish()
    assert await stored(inner) == {0: b"a", 1: b"b", 2: b"c", 3: b"theirs"}


class Renamed(LiveNode):
    """A node whose folder another program has renamed from that of any other node."""

    def has_taken_place_of(self, other: LiveNode) -> bool:
        return True


@trio_test
async def test_a_chunk_whose_array_is_renamed_behind_while_it_waits_for_its_shard_is_stored_before_it_is_answered() -> None:
    """Its writer was answered while it was queued, and without a delay nothing stored it before the next fsync or the end."""

    async def confirm(_: LiveNode) -> bool:
        return True

    inner = MemoryStore()
    store = WaitingStore(inner, "set")
    async with mounted(store, delay=0) as m, trio.open_nursery() as writers:
        layers = ShardLayers(WorkCounters(), queue=m.queue)
        chunks = chunks_of(store, ARRAY, layers, LiveNode(ARRAY.path, ARRAY.chunk_prefix, confirm))
        writers.start_soon(chunks.update, {(0,): b"first"})
        await wait_all_tasks_blocked()
        writers.start_soon(chunks.update, {(1,): b"second"})
        await wait_all_tasks_blocked()
        renamed = replace(ARRAY, path=NodePath("/b"), chunk_prefix=Prefix("b/"))
        chunks_of(store, renamed, layers, Renamed(renamed.path, renamed.chunk_prefix, confirm))
        store.let_go()
        await wait_all_tasks_blocked()
        assert not m.queue
    assert await stored(inner, renamed) == {1: b"second"}
