"""Written chunks of shards are queued, visible, and stored: the time, and the number of operations."""

from __future__ import annotations

import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from tests.arrays.test_shard_changes import Late
from tests.arrays.test_sharded import node, opened, reads, sets
from tests.support.stores import FailingStore, WaitingStore
from zarrfs.arrays.chunk_store import ChunkStore
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.layers import ShardLayers, chunks_of
from zarrfs.arrays.shard_queue import ShardQueue
from zarrfs.arrays.spill_file import SpillFile
from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch, StoreError, StoreFull
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.memory.budget import MemoryBudget
from zarrfs.model.metadata import ArrayNode
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import Expected, Generation
from zarrfs.transformers.observed import ObservedStore

ARRAY = node((8,), ShardSpec((4,)))


@dataclass
class Mount:
    """A store with queued chunks."""

    queue: ShardQueue
    chunks: ChunkStore
    told: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@asynccontextmanager
async def mounted(
    store: Store,
    array: ArrayNode = ARRAY,
    *,
    delay: float = 5,
    memory: int = 1 << 20,
    budget: MemoryBudget | None = None,
    directory: str | None = None,
) -> AsyncIterator[Mount]:
    async with trio.open_nursery() as nursery:
        queue = ShardQueue(
            delay=delay,
            budget=budget if budget is not None else MemoryBudget(memory),
            directory=directory,
            start_soon=nursery.start_soon,
            on_change=lambda change, prefix, coords: mount.told.extend((change.kind, each) for each in coords),
            on_failure=lambda key, error: mount.failures.append(key),
        )
        layers = ShardLayers(WorkCounters(), queue=queue)
        mount = Mount(queue, chunks_of(store, array, layers))
        yield mount
        nursery.cancel_scope.cancel()


async def stored(store: Store, array: ArrayNode = ARRAY) -> dict[int, bytes]:
    """Return the chunks that any other reader finds in the store."""
    chunks, _ = opened(store, array)
    return {coords[0]: bytes(await chunks.get(coords) or b"?") async for coords, _, _ in chunks.list()}


@trio_test
async def test_what_waits_is_seen_here_and_nowhere_else() -> None:
    store = MemoryStore()
    await opened(store, ARRAY)[0].update({(0,): b"old", (1,): b"one"})
    async with mounted(store) as mount:
        await mount.chunks.update({(0,): b"new", (2,): b"two", (1,): None})
        assert await mount.chunks.get_several([(0,), (1,), (2,), (3,)]) == [b"new", None, b"two", None]
        assert await mount.chunks.get((0,), ByteRange(1, 1)) == b"e"
        assert {coords[0]: nbytes async for coords, nbytes, _ in mount.chunks.list()} == {0: 3, 2: 3}
        stat = await mount.chunks.stat((0,))
        assert stat is not None and await mount.chunks.stat((1,)) is None
        assert await mount.chunks.get_parts((0,), [ByteRange(2)], stat.generation) == [b"w"]
        assert await mount.chunks.get_with_stat((0,), ByteRange.suffix(1)) == (b"w", stat)
        with pytest.raises(GenerationMismatch):
            await mount.chunks.get_parts((1,), [ByteRange()], stat.generation)
        assert await stored(store) == {0: b"old", 1: b"one"}
        assert sorted(mount.told) == [("set", (0,)), ("set", (2,)), ("unknown", (1,))]


@trio_test
async def test_publishing_is_one_set_and_changes_nothing_for_readers() -> None:
    store = ObservedStore(MemoryStore())
    await opened(store, ARRAY)[0].update({(0,): b"old", (1,): b"one"})
    async with mounted(store) as mount:
        untouched = await mount.chunks.stat((1,))
        await mount.chunks.update({(0,): b"new"})
        await mount.chunks.update({(3,): b"three"})
        before = [await mount.chunks.stat((i,)) for i in range(4)]
        count = sets(store)
        await mount.chunks.publish([(0,)])
        assert sets(store) == count + 1
        assert await stored(store) == {0: b"new", 1: b"one", 3: b"three"}
        assert [await mount.chunks.stat((i,)) for i in range(4)] == before and before[1] == untouched
        assert len(mount.queue) == 0 and mount.queue.nbytes == 0
        await mount.chunks.publish([(0,)])
        await mount.chunks.publish()
        assert sets(store) == count + 1


@trio_test
async def test_a_shard_is_stored_when_its_last_chunk_within_the_array_comes() -> None:
    array = node((6,), ShardSpec((4,)))
    store = ObservedStore(MemoryStore())
    async with mounted(store, array) as mount:
        for i in (0, 2, 1, 4, 5):
            assert sets(store) == 0 or i == 5
            await mount.chunks.update({(i,): b"%d" % i})
        assert sets(store) == 1
        await mount.chunks.update({(3,): b"3"})
        # No shard was read: none of their old chunks remained.
        assert (sets(store), reads(store)) == (2, 0)
        assert await stored(store, array) == {i: b"%d" % i for i in range(6)}


@trio_test
async def test_what_waits_is_stored_after_the_delay(autojump_clock: MockClock) -> None:
    store = ObservedStore(MemoryStore())
    async with mounted(store, delay=5) as mount:
        await mount.chunks.update({(0,): b"a"})
        await trio.sleep(4)
        await mount.chunks.update({(1,): b"b", (5,): b"f"})
        assert sets(store) == 0
        await trio.sleep(1.5)
        assert await stored(store) == {0: b"a", 1: b"b"}
        await trio.sleep(4)
        assert await stored(store) == {0: b"a", 1: b"b", 5: b"f"}
        assert sets(store) == 2 and len(mount.queue) == 0


@trio_test
async def test_without_a_delay_nothing_waits() -> None:
    store = ObservedStore(MemoryStore())
    async with mounted(store, delay=0) as mount:
        await mount.chunks.update({(0,): b"a"})
        assert await stored(store) == {0: b"a"} and len(mount.queue) == 0


@pytest.mark.logs("a/c/0: publish failed, will retry: no room")
@trio_test
async def test_a_failed_publish_keeps_what_waits_tells_and_tries_again(autojump_clock: MockClock) -> None:
    store = FailingStore(MemoryStore(), {})
    async with mounted(store, delay=5) as mount:
        await mount.chunks.update({(0,): b"a"})
        store.errors["set"] = StoreFull("no room")
        with pytest.raises(StoreFull):
            await mount.chunks.publish([(0,)])
        while not mount.failures:  # noqa: ASYNC110 (the clock is a mock)
            await trio.sleep(1)
        assert mount.failures[0] == "a/c/0"
        assert await mount.chunks.get((0,)) == b"a"
        store.errors.clear()
        while len(mount.queue):  # noqa: ASYNC110 (as above)
            await trio.sleep(60)
        assert await stored(store) == {0: b"a"}


@trio_test
async def test_who_learns_of_a_failure_has_written_nothing() -> None:
    """The chunk that completes the shard is refused with it; chunks acknowledged before stay queued."""
    store = FailingStore(MemoryStore(), {})
    async with mounted(store) as mount:
        await mount.chunks.update({(0,): b"a", (1,): b"b", (3,): b"earlier"})
        store.errors["set"] = StoreError("broken")
        with pytest.raises(StoreError):
            await mount.chunks.update({(2,): b"c", (3,): b"d"})
        assert await mount.chunks.get_several([(i,) for i in range(4)]) == [b"a", b"b", None, b"earlier"]
        assert mount.told[-2:] == [("set", (3,)), ("unknown", (2,))]
        store.errors.clear()
        assert await mount.queue.end() == []
        assert await stored(store) == {0: b"a", 1: b"b", 3: b"earlier"}


@trio_test
async def test_what_comes_while_a_shard_is_being_stored_waits_for_the_next_time() -> None:
    store = WaitingStore(MemoryStore(), "set")
    async with mounted(store) as mount, trio.open_nursery() as nursery:
        await mount.chunks.update({(0,): b"a"})
        nursery.start_soon(mount.chunks.publish, [(0,)])
        await wait_all_tasks_blocked()
        await mount.chunks.update({(0,): b"again", (1,): b"b"})
        assert await mount.chunks.get_several([(0,), (1,)]) == [b"again", b"b"]
        store.let_go()
        await wait_all_tasks_blocked()
        assert await stored(store) == {0: b"a"}
        assert await mount.chunks.get_several([(0,), (1,)]) == [b"again", b"b"]
        await mount.chunks.publish()
        assert await stored(store) == {0: b"again", 1: b"b"}


@trio_test
async def test_what_finds_no_memory_waits_in_files(tmp_path: str) -> None:
    array = node((64,), ShardSpec((32,)))
    store = ObservedStore(MemoryStore())
    async with mounted(store, array, memory=1000, directory=str(tmp_path)) as mount:
        for i in range(31):
            await mount.chunks.update({(i,): b"%03d" % i * 30})
        assert sets(store) == 0 and mount.queue.nbytes == 31 * 90
        assert await mount.chunks.get((30,)) == b"030" * 30
        await mount.chunks.publish()
        assert await stored(store, array) == {i: b"%03d" % i * 30 for i in range(31)}
        assert mount.queue.nbytes == 0


@trio_test
async def test_what_waits_in_memory_is_counted_from_its_first_chunk_until_it_is_stored() -> None:
    budget = MemoryBudget(1000)
    async with mounted(MemoryStore(), budget=budget) as mount:
        await mount.chunks.update({(0,): bytes(100)})
        assert budget.nbytes == 100
        await mount.chunks.update({(1,): bytes(50), (4,): bytes(7)})
        assert budget.nbytes == 157
        await mount.chunks.publish([(0,)])
        assert budget.nbytes == 7
        await mount.chunks.publish()
        assert budget.nbytes == 0


@trio_test
async def test_a_defect_that_one_shard_meets_costs_no_other() -> None:
    class Defective(FailingStore):
        async def interrupt(self, operation: str, target: str) -> None:
            if target == "a/c/0":
                await super().interrupt(operation, target)

    store = Defective(MemoryStore(), {"set": ZeroDivisionError("a defect")})
    async with mounted(store) as mount:
        await mount.chunks.update({(0,): b"a", (4,): b"e"})
        assert await mount.queue.end() == ["a/c/0"]
        assert await stored(store) == {4: b"e"}
        # A chunk that cannot be stored at the end is reported, and no longer queued.
        assert len(mount.queue) == 0 == mount.queue.nbytes


@trio_test
async def test_many_writers_of_one_shard_in_two_mounts_lose_nothing() -> None:
    array = node((64,), ShardSpec((32,)))
    store = MemoryStore()
    async with mounted(store, array, delay=0) as one, mounted(store, array, delay=0) as other, trio.open_nursery() as nursery:
        for i in range(64):
            nursery.start_soon((one, other)[i % 2].chunks.update, {(i,): b"%d" % i})
    assert await stored(store, array) == {i: b"%d" % i for i in range(64)}


@trio_test
async def test_what_waits_for_what_is_erased_is_dropped() -> None:
    store = MemoryStore()
    async with mounted(store) as mount:
        await mount.chunks.update({(0,): b"a"})
        await mount.queue.drop(mount.queue.below(Prefix("a/")))
        assert await mount.chunks.get((0,)) is None and len(mount.queue) == 0
        await mount.queue.publish(Key("a/c/0"))
        assert await stored(store) == {}


@trio_test
async def test_all_chunks_are_stored_while_the_first_one_of_a_shard_gets_its_room(tmp_path: Path) -> None:
    store = MemoryStore()
    async with mounted(store, memory=0, directory=str(tmp_path)) as mount, trio.open_nursery() as nursery:
        await mount.chunks.update({(0,): b"a"})
        nursery.start_soon(mount.chunks.update, {(4,): b"b"})
        while len(mount.queue) < 2:
            await trio.lowlevel.checkpoint()
        await mount.chunks.publish()
        assert await stored(store) == {0: b"a"}
    assert len(mount.queue) == 1


@trio_test
async def test_a_chunk_on_its_way_into_the_queue_is_counted_although_the_rest_of_its_shard_was_stored() -> None:
    """It waits for a change of another one, which waits for the publish."""
    store, budget = WaitingStore(MemoryStore(), "set"), MemoryBudget(1000)
    async with mounted(store, budget=budget) as mount, trio.open_nursery() as nursery:
        await mount.chunks.update({(0,): b"old"})
        nursery.start_soon(mount.chunks.publish, [(0,)])
        await wait_all_tasks_blocked()
        nursery.start_soon(mount.chunks.modify, {(0,): Late(b"+")})
        await wait_all_tasks_blocked()
        nursery.start_soon(mount.chunks.update, {(1,): b"one"})
        await wait_all_tasks_blocked()
        store.let_go()
        await wait_all_tasks_blocked()
        assert await mount.chunks.get_several([(0,), (1,)]) == [b"old+", b"one"]
        assert mount.queue.nbytes <= budget.nbytes
        await mount.chunks.publish()
        assert budget.nbytes == 0


@trio_test
async def test_a_shard_that_was_stored_while_more_was_written_takes_the_room_of_that_alone() -> None:
    store, budget = WaitingStore(MemoryStore(), "set"), MemoryBudget(1000)
    async with mounted(store, budget=budget) as mount, trio.open_nursery() as nursery:
        await mount.chunks.update({(0,): bytes(100)})
        nursery.start_soon(mount.chunks.publish, [(0,)])
        await wait_all_tasks_blocked()
        await mount.chunks.update({(1,): bytes(50)})
        store.let_go()
        await wait_all_tasks_blocked()
        assert budget.nbytes == 50 == mount.queue.nbytes


@pytest.mark.parametrize("memory", [4 << 20, 0], ids=["memory", "files"])
@trio_test
async def test_a_chunk_that_is_replaced_many_times_before_it_is_stored_takes_little_room(tmp_path: Path, memory: int) -> None:
    budget = MemoryBudget(memory)
    async with mounted(MemoryStore(), budget=budget, directory=str(tmp_path)) as mount:
        for number in range(300):
            await mount.chunks.update({(0,): bytes([number % 256]) * (1 << 20)})
        (shard,) = mount.queue.below(Prefix("a/"))
        # Of 300 MiB.
        assert budget.nbytes + shard.files.nbytes <= 64 << 20
        assert await mount.chunks.get((0,)) == bytes([299 % 256]) * (1 << 20)
        await mount.chunks.publish()
        assert budget.nbytes == 0


@trio_test
async def test_chunks_that_are_replaced_while_many_tasks_write_take_little_room(tmp_path: Path) -> None:
    async with mounted(MemoryStore(), budget=MemoryBudget(0), directory=str(tmp_path)) as mount:
        await mount.chunks.update({(1,): bytes(1)})
        (shard,) = mount.queue.below(Prefix("a/"))
        # As if one of them, always another one, were in progress.
        with shard.inserting() as buffers:
            await mount.queue._room.kept(shard, b"arriving", buffers)
            for number in range(300):
                await mount.chunks.update({(0,): bytes([number % 256]) * (1 << 20)})
            assert shard.files.nbytes <= 2 * 64 << 20
            (arriving,) = buffers
            assert isinstance(arriving, memoryview) and any(arriving.obj is each for each in shard.files._files)
        await mount.chunks.publish()
        assert not shard.files.nbytes


@trio_test
async def test_an_empty_chunk_is_kept_where_nothing_else_has_been(tmp_path: Path) -> None:
    files = SpillFile(str(tmp_path))
    assert await files.keep(b"") == b"" and await files.keep(b"a") == b"a"


class Broken(MemoryStore):
    """A store with one key that cannot be set."""

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        if key.endswith("0"):
            raise StoreError("no")
        return await super().set(key, value, expect=expect)


@pytest.mark.logs("publish failed, will retry")
@trio_test
async def test_a_shard_that_cannot_be_stored_delays_no_other(autojump_clock: MockClock) -> None:
    store = Broken()
    async with mounted(store, delay=1) as mount:
        await mount.chunks.update({(0,): b"new"})
        # It has failed three times; the next attempt follows twenty seconds later.
        await trio.sleep(17)
        assert len(mount.failures) == 3
        await mount.chunks.update({(4,): b"other"})
        await trio.sleep(1.5)
        assert await stored(store) == {4: b"other"}
        await trio.sleep(20)
        assert len(mount.failures) == 4


@pytest.mark.logs("publish failed, will retry")
@trio_test
async def test_a_shard_that_cannot_be_stored_does_not_keep_others_from_making_room(tmp_path: Path) -> None:
    array = node((16,), ShardSpec((4,)))
    store = Broken()
    async with mounted(store, array, delay=600, memory=0, directory=str(tmp_path)) as mount:
        for first in (0, 4, 8, 12):
            await mount.chunks.update({(first,): b"new"})
        assert mount.failures == ["a/c/0"] and await stored(store, array) == {4: b"new", 8: b"new"}


@trio_test
async def test_many_incomplete_shards_beyond_the_memory_are_stored_once(tmp_path: Path) -> None:
    """Each counted as 64 MiB, and they were stored again for a few chunks of the others."""
    array = node((32,), ShardSpec((4,)))
    store = ObservedStore(MemoryStore())
    async with mounted(store, array, memory=2 << 20, directory=str(tmp_path)) as mount:
        for chunk in range(4):
            for shard in range(8):
                await mount.chunks.update({(4 * shard + chunk,): bytes(128 << 10)})
            assert sets(store) == (8 if chunk == 3 else 0)


@trio_test
async def test_incomplete_shards_beyond_the_memory_leave_descriptors_to_others(tmp_path: Path) -> None:
    """Each has a file of its own. Without any descriptor left, nobody could read, and their writers got an error."""
    store = ObservedStore(MemoryStore())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with mounted(store, node((400,), ShardSpec((4,))), memory=64 << 20, directory=str(tmp_path)) as mount:
        assert mount.queue._room._budget.take(64 << 20)
        # Other tests of the same process may have left some open.
        limit = len(os.listdir("/proc/self/fd")) + 140
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            for shard in range(100):
                await mount.chunks.update({(4 * shard,): b"few"})
            assert sum(each.files.count for each in mount.queue.below(Prefix(""))) <= limit // 8 // 2 + 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            mount.queue._room._budget.give(64 << 20)
        await mount.chunks.publish()
    assert len(await stored(store, node((400,), ShardSpec((4,))))) == 100
