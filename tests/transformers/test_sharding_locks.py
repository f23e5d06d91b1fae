"""Many writers of one shard: no write is lost, under any holder of the lock, through stacks and between processes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from tests.support.sharding import Grid
from tests.support.stores import WaitingStore, contents, fill
from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch, StoreTimeout
from zarrfs.keys import WHOLE, ByteRange, Key, Prefix
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.shards import ShardSpec
from zarrfs.stores.base import Store
from zarrfs.stores.folder.store import FolderStore
from zarrfs.stores.memory import MemoryStore
from zarrfs.stores.values import ABSENT, Expected, Generation
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.forwarding import ForwardingStore
from zarrfs.transformers.observed import ObservedStore
from zarrfs.transformers.sharding import ShardingStore

FOO = Prefix("data/root/foo/")
ENCODING = ChunkKeyEncoding("c", "/", "c0")
SHAPE = (4, 6)
COORDS = list(itertools.product(range(4), range(6)))


class SlowStore(ForwardingStore):
    """Others get a turn before each operation, and after it."""

    async def get_partial_values(
        self, key_ranges: list[tuple[Key, ByteRange]], *, if_generation: str | None = None
    ) -> list[Buffer | None]:
        await trio.lowlevel.checkpoint()
        values = await super().get_partial_values(key_ranges, if_generation=if_generation)
        await trio.lowlevel.checkpoint()
        return values

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        await trio.lowlevel.checkpoint()
        generation = await super().set(key, value, expect=expect)
        await trio.lowlevel.checkpoint()
        return generation


def sharded(inner: Store, shape: tuple[int, ...] = SHAPE, chunks_per_shard: tuple[int, ...] = SHAPE) -> ShardingStore:
    return ShardingStore(inner, FOO, ENCODING, shape, ShardSpec(chunks_per_shard))


def chunk(*coords: int) -> Key:
    return FOO.key("c" + "/".join(map(str, coords)))


@trio_test
async def test_many_tasks_set_chunks_of_one_shard() -> None:
    inner = SlowStore(MemoryStore())
    # As two independent parts of one process.
    stores = [sharded(inner), sharded(inner)]
    async with trio.open_nursery() as nursery:
        for number, coords in enumerate(COORDS):
            nursery.start_soon(stores[number % 2].set, chunk(*coords), b"%d,%d" % coords)
    expected = {chunk(*coords): b"%d,%d" % coords for coords in COORDS}
    assert await contents(stores[0]) == await contents(stores[1]) == expected
    async with trio.open_nursery() as nursery:
        for number, coords in enumerate(COORDS):
            store = stores[number % 2]
            if number % 3:
                nursery.start_soon(store.set_partial_values, [(chunk(*coords), 1, b"+")])
            else:
                nursery.start_soon(store.erase, chunk(*coords))
    assert await contents(stores[0]) == {
        chunk(*coords): b"%d+%d" % coords for number, coords in enumerate(COORDS) if number % 3
    }  # fmt: skip
    assert Grid(SHAPE, (SHAPE,), FOO).decoded(await contents(inner)) == await contents(stores[1])


@trio_test
async def test_two_processes_set_chunks_of_one_shard(tmp_path: Path) -> None:
    """flock(2) distinguishes descriptors of two stores as it does those of two processes."""
    stores = [sharded(FolderStore(str(tmp_path))) for _ in range(2)]
    async with trio.open_nursery() as nursery:
        for number, coords in enumerate(COORDS):
            nursery.start_soon(stores[number % 2].set, chunk(*coords), b"%d,%d" % coords)
    assert await contents(sharded(FolderStore(str(tmp_path)))) == {chunk(*coords): b"%d,%d" % coords for coords in COORDS}


@trio_test
async def test_exclusive_of_a_chunk_loses_no_update() -> None:
    inner = SlowStore(MemoryStore())
    stores = [sharded(inner), sharded(inner)]

    async def increment(store: Store, key: Key) -> None:
        async with store.exclusive(key):
            value = await store.get(key)
            await trio.lowlevel.checkpoint()
            await store.set(key, b"%d" % (int(bytes(value or b"0")) + 1))

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(increment, stores[number % 2], chunk(0, number % 3))
    assert await contents(stores[0]) == {chunk(0, 0): b"10", chunk(0, 1): b"10", chunk(0, 2): b"10"}


@trio_test
async def test_through_a_stack_of_two_with_deadlines_no_update_is_lost() -> None:
    """The upper transformer holds a chunk of the lower one, and sets it from another task: that of its deadline."""
    inner = SlowStore(MemoryStore())
    grid = Grid(SHAPE, ((2, 3), (2, 2)), FOO)
    values = {chunk(*coords): b"%d,%d" % coords for coords in COORDS}
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            stores = []
            for _ in range(2):
                lower = sharded(DeadlineStore(ObservedStore(inner), 30, nursery), grid.above.shape, (2, 2))
                stores.append(sharded(DeadlineStore(lower, 30, nursery), SHAPE, (2, 3)))
            async with trio.open_nursery() as writers:
                for number, (key, value) in enumerate(values.items()):
                    writers.start_soon(stores[number % 2].set, key, value)
            assert await contents(stores[0]) == await contents(stores[1]) == values
    assert grid.decoded(await contents(inner)) == values


@trio_test
async def test_one_task_may_hold_several_chunks_of_a_shard_and_set_others() -> None:
    store = sharded(MemoryStore())
    with trio.fail_after(30):
        async with store.exclusive(chunk(0, 0)), store.exclusive(chunk(0, 1)):
            await store.set(chunk(0, 0), b"a")
            await store.set_partial_values([(chunk(0, 1), 0, b"b"), (chunk(3, 5), 0, b"c")])
            await store.erase(chunk(3, 5))
            # Several tasks of the holder write one shard in turn.
            async with trio.open_nursery() as nursery:
                for column in range(6):
                    nursery.start_soon(store.set, chunk(1, column), b"d")
            with trio.CancelScope() as scope:
                scope.cancel()
                async with store.exclusive(chunk(0, 0)):
                    pytest.fail("held twice")
        async with store.exclusive(chunk(0, 0)):
            pass
    expected = {chunk(0, 0): b"a", chunk(0, 1): b"b"} | {chunk(1, column): b"d" for column in range(6)}
    assert await contents(store) == expected


@trio_test
async def test_tasks_of_the_holder_that_write_one_shard_take_turns() -> None:
    store = sharded(SlowStore(MemoryStore()))
    async with store.exclusive(chunk(0, 0)), trio.open_nursery() as nursery:
        for coords in COORDS:
            nursery.start_soon(store.set, chunk(*coords), b"%d,%d" % coords)
    assert await contents(store) == {chunk(*coords): b"%d,%d" % coords for coords in COORDS}


@trio_test
async def test_strangers_wait_for_whoever_holds_a_chunk_of_their_shard() -> None:
    inner = MemoryStore()
    store, stranger = sharded(inner, SHAPE, (2, 6)), sharded(inner, SHAPE, (2, 6))
    async with trio.open_nursery() as nursery:
        async with store.exclusive(chunk(0, 0)):
            # In the context of the holder, and excluded all the same: it belongs to another store.
            nursery.start_soon(stranger.set, chunk(0, 1), b"same shard")
            nursery.start_soon(stranger.set, chunk(2, 0), b"other shard")
            await wait_all_tasks_blocked()
            assert await contents(store) == {chunk(2, 0): b"other shard"}
    assert set(await contents(store)) == {chunk(0, 1), chunk(2, 0)}


@trio_test
async def test_what_outlives_its_holder_holds_nothing() -> None:
    inner = MemoryStore()
    store = sharded(inner)
    go_on = trio.Event()

    async def later() -> None:
        await go_on.wait()
        await store.set(chunk(0, 1), b"late")

    async with trio.open_nursery() as nursery:
        async with store.exclusive(chunk(0, 0)):
            nursery.start_soon(later)
        async with inner.exclusive(chunk(0, 0)):
            go_on.set()
            await wait_all_tasks_blocked()
            assert await contents(store) == {}
    assert await contents(store) == {chunk(0, 1): b"late"}


@pytest.mark.logs("given up by its caller")
@trio_test
async def test_a_set_that_was_given_up_takes_no_later_one_with_it(autojump_clock: MockClock) -> None:
    """Its shard, with the chunks of the time when it began, is stored before the shard of the next one, or not at all."""
    waiting = WaitingStore(MemoryStore(), stubborn=True)
    async with trio.open_nursery() as nursery:
        store = sharded(DeadlineStore(waiting, 5, nursery))
        await store.set(chunk(3, 3), b"neighbour")
        waiting.waits.add("set")
        with pytest.raises(StoreTimeout):
            await store.set(chunk(0, 0), b"given up")
        async with trio.open_nursery() as writers:
            writers.start_soon(store.set, chunk(0, 1), b"next")
            await wait_all_tasks_blocked()
            waiting.let_go()
    found = await contents(store)
    assert found.pop(chunk(0, 0), b"given up") == b"given up"
    assert found == {chunk(0, 1): b"next", chunk(3, 3): b"neighbour"}


@pytest.mark.parametrize("generation", ["", "now"])
@trio_test
async def test_of_many_conditional_sets_of_a_chunk_one_wins(generation: str) -> None:
    inner = SlowStore(MemoryStore())
    stores = [sharded(inner), sharded(inner)]
    key = chunk(2, 2)
    await stores[0].set(chunk(2, 3), b"neighbour")
    if generation:
        await stores[0].set(key, b"first")
    won = []

    async def compete(number: int) -> None:
        store = stores[number % 2]
        stat = await store.stat(key)
        try:
            told = await store.set(key, b"%d" % number, expect=stat.generation if stat is not None else ABSENT)
        except GenerationMismatch:
            return
        won.append((number, told))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(compete, number)
    ((number, told),) = won
    assert await contents(stores[0]) == {key: b"%d" % number, chunk(2, 3): b"neighbour"}
    stat = await stores[number % 2].stat(key)
    assert stat is not None and told in (None, stat.generation)
    with pytest.raises(GenerationMismatch):
        await stores[0].set(chunk(2, 3), b"x", expect=ABSENT)


@trio_test
async def test_a_chunk_keeps_its_generation_while_others_of_its_shard_change() -> None:
    store = sharded(MemoryStore())
    await fill(store, {chunk(0, 0): b"stays", chunk(0, 1): b"old"})
    stat = await store.stat(chunk(0, 0))
    assert stat is not None
    seen = {stat.generation}
    for value in (b"new", b"old", b"new"):
        await store.set(chunk(0, 1), value)
        assert await store.stat(chunk(0, 0)) == stat
        changed = await store.stat(chunk(0, 1))
        assert changed is not None and changed.generation not in seen
        seen.add(changed.generation)
        assert await store.get_partial_values([(chunk(0, 0), WHOLE)], if_generation=stat.generation) == [b"stays"]
    await store.erase(chunk(0, 0))
    for key in (chunk(0, 0), chunk(99, 0)):
        with pytest.raises(GenerationMismatch):
            await store.get_partial_values([(key, WHOLE)], if_generation=stat.generation)
