"""Many requests for the same data of a store that does not answer: they wait for one deadline together, not one after the other."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from tests.support import small_shards
from tests.support.small_stores import array_document
from tests.support.stores import HangingStore, fill
from tests.support.trees import listing, read, tree_over, write
from zarrfs.arrays.flight import Flight, Flights
from zarrfs.errors import StoreError, StoreTimeout
from zarrfs.keys import Key
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.health import GRACE

SECONDS = 10.0
CHUNKS = 4
VALUES = {
    "zarr.json": json.dumps({"zarr_format": 3, "node_type": "group"}).encode(),
    "plain/.zarray": array_document((8 * CHUNKS,), (8,), "|u1"),
    **{f"plain/{number}": bytes([number + 1]) * 8 for number in range(CHUNKS)},
    "sharded/zarr.json": small_shards.document(8, 8, small_shards.sharding(4)),
    "alive": b"1",
}


async def seconds_of_each(count: int, act: Callable[[], Awaitable[object]]) -> list[float]:
    """Return the time until failure of each of ``count`` calls that begin together."""
    times: list[float] = []
    began = trio.current_time()

    async def one() -> None:
        with pytest.raises(StoreTimeout):
            await act()
        times.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)
    return times


@pytest.mark.parametrize("alive", [False, True], ids=["all hangs", "other keys are answered"])
@pytest.mark.parametrize(
    ("slow", "path"),
    [
        ("*zarr.json", "chunks/plain/0"),
        ("plain/.zarray", "npy/plain.npy"),
        ("plain/0", "chunks/plain/0"),
        ("plain/0", "zarr3/plain/c/0"),
        ("plain/0", "npy/plain.npy"),
        ("plain/3", "npy/plain.npy"),
        ("plain/[0-9]", "npy/plain.npy"),
        ("sharded/c/0", "chunks/sharded/1"),
        ("sharded/c/0", "npy/sharded.npy"),
        ("plain/0", "raw/plain/0"),
    ],
)
@trio_test
async def test_readers_end_together(autojump_clock: MockClock, slow: str, path: str, alive: bool) -> None:
    store = HangingStore(MemoryStore())
    await fill(store, VALUES)
    async with tree_over(store, timeout=f"{SECONDS:g}", watch="false", shard_delay="0") as tree:
        await write(tree, "npy/sharded.npy", await read(tree, "npy/sharded.npy"))
        await write(tree, "chunks/sharded/1", b"1234")
        await trio.sleep(3600)
        if alive:

            async def live() -> None:
                while True:
                    await tree.store.get(Key("alive"))
                    await tree.store.stat(Key("alive"))
                    await trio.sleep(0.1)

            tree._tasks.start_soon(live)
            store.hang(slow)
        else:
            store.hang()
        times = await seconds_of_each(32, lambda: read(tree, path))
        assert max(times) <= SECONDS + 3 * GRACE < SECONDS + 1


@trio_test
async def test_a_listing_does_not_say_that_nodes_are_bad_when_the_store_hangs(autojump_clock: MockClock) -> None:
    store = HangingStore(MemoryStore())
    await fill(store, {f"a{number}/.zarray": VALUES["plain/.zarray"] for number in range(100)})
    async with tree_over(store, timeout=f"{SECONDS:g}", watch="false") as tree:
        store.hang("a*", "get", "get_partial_values")
        times = await seconds_of_each(8, lambda: listing(tree, "npy"))
        assert max(times) <= SECONDS + 3 * GRACE
        store.answer()
        await trio.sleep(2)
        assert len(await listing(tree, "npy")) == 100


@trio_test
async def test_what_others_wait_for_that_was_cancelled_is_not_their_failure() -> None:
    flight = Flight()
    with trio.CancelScope() as scope, flight.under_way():
        scope.cancel()
        await trio.sleep_forever()
    await flight.landed()
    failed = Flight()
    with pytest.raises(StoreError, match="no"), failed.under_way():
        raise StoreError("no")
    for _ in range(2):
        with pytest.raises(StoreError, match="no"):
            await failed.landed()


@trio_test
async def test_who_waits_for_a_request_is_released_where_its_error_cannot_be_copied() -> None:
    class OfAPlugin(StoreError):
        def __init__(self) -> None:
            super().__init__("does not answer")

    flights: Flights[str] = Flights()
    asked = trio.Event()

    async def ask() -> None:
        with flights.started("a"):
            await asked.wait()
            raise OfAPlugin

    async def ask_in_vain() -> None:
        with pytest.raises(TypeError):
            await ask()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_in_vain)
            await wait_all_tasks_blocked()
            nursery.start_soon(flights.joined, "a")
            await wait_all_tasks_blocked()
            asked.set()
