"""Deadlines, and the fence around writes whose caller has given up."""

from __future__ import annotations

import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from tests.support.stores import InterruptedStore, WaitingStore, contents, fill
from zarrfs.arrays.concurrency import for_each
from zarrfs.arrays.flight import Flight
from zarrfs.errors import StoreError, StoreFull, StoreTimeout
from zarrfs.keys import WHOLE, Key, Prefix
from zarrfs.memory.budget import MemoryBudget
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers.deadline import DeadlineStore

A, B = Key("d/a"), Key("d/b")
SECONDS = 10.0


@asynccontextmanager
async def limited(*waits: str, stubborn: bool = True) -> AsyncIterator[tuple[DeadlineStore, WaitingStore]]:
    """Yield a store with a deadline around one in memory whose operations ``waits`` wait."""
    async with trio.open_nursery() as nursery:
        inner = WaitingStore(MemoryStore(), *waits, stubborn=stubborn)
        yield DeadlineStore(inner, SECONDS, nursery), inner
        inner.let_go()


@trio_test
async def test_what_is_in_time_is_as_if_there_were_no_deadline() -> None:
    async with limited() as (store, _):
        await fill(store, {A: b"1", B: b"2"})
        await store.set_partial_values([(A, 1, b"x")])
        assert await contents(store) == {A: b"1x", B: b"2"}
        assert await store.get_partial_values([(A, WHOLE)]) == [b"1x"]
        assert await store.rename(A, Key("c")) and not await store.rename(A, B)
        assert await store.rename_prefix(Prefix("d/"), Prefix("e/"))
        await store.sync([Key("c")])
        await store.erase_values([Key("c")])
        assert await contents(store) == {"e/b": b"2"}
        await store.erase_prefix(Prefix("e/"))
        assert await contents(store) == {}
        with pytest.raises(ValueError, match="negative"):
            await store.set_partial_values([(A, -1, b"x")])


@trio_test
async def test_a_listing_longer_than_a_portion(autojump_clock: MockClock) -> None:
    async with limited() as (store, inner):
        keys = {f"d/{number}": b"" for number in range(1000)}
        await fill(inner, keys)
        assert await contents(store) == keys


@pytest.mark.parametrize("operation", ["get", "get_partial_values", "stat", "list_dir"])
@trio_test
async def test_a_read_that_takes_too_long(autojump_clock: MockClock, operation: str) -> None:
    async def listed(prefix: Prefix) -> list[object]:
        return [entry async for entry in store.list_dir(prefix)]

    async with limited(operation, stubborn=False) as (store, inner):
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "get": lambda: store.get(A),
            "get_partial_values": lambda: store.get_partial_values([(A, WHOLE)]),
            "stat": lambda: store.stat(A),
            "list_dir": lambda: listed(Prefix("d/")),
        }
        began = trio.current_time()
        with pytest.raises(StoreTimeout, match=r"'d/.*within 10 s"):
            await calls[operation]()
        assert trio.current_time() - began == pytest.approx(SECONDS)
        assert inner.waiting == []


@pytest.mark.logs("given up by its caller, ended: done")
@trio_test
async def test_a_later_set_does_not_overtake_one_that_was_given_up(autojump_clock: MockClock) -> None:
    async with limited("set") as (store, inner):
        with pytest.raises(StoreTimeout) as raised:
            await store.set(A, b"old")
        assert raised.value.key == A and inner.waiting == [A]
        began = trio.current_time()
        for later in (
            store.set(A, b"new"),
            store.erase(A),
            store.erase_values([B, A]),
            store.erase_prefix(Prefix("d/")),
            store.erase_prefix(Prefix("")),
            store.rename(B, A),
            store.rename_prefix(Prefix("d/"), Prefix("e/")),
        ):
            with pytest.raises(StoreTimeout):
                await later
        assert trio.current_time() - began == pytest.approx(7 * SECONDS)
        assert inner.waiting == [A]
        inner.waits.clear()
        await store.set(B, b"elsewhere")
        assert await store.get(A) is None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.set, A, b"new")
            await wait_all_tasks_blocked()
            assert await contents(inner) == {B: b"elsewhere"}
            inner.let_go()
        assert await contents(store) == {A: b"new", B: b"elsewhere"}


@pytest.mark.logs("given up by its caller, ended: done")
@trio_test
async def test_a_set_whose_caller_was_cancelled_is_fenced_as_well(autojump_clock: MockClock) -> None:
    async with limited("set") as (store, inner):
        with trio.move_on_after(1):
            await store.set(A, b"old")
        assert inner.waiting == [A]
        with pytest.raises(StoreTimeout):
            await store.erase(A)
        inner.let_go()
        await store.erase(A)
        assert await contents(store) == {}


@pytest.mark.logs("given up by its caller, ended: done")
@trio_test
async def test_an_erased_prefix_fences_the_keys_under_it(autojump_clock: MockClock) -> None:
    async with limited("erase_prefix") as (store, inner):
        await fill(store, {A: b"1", "other": b"2"})
        with pytest.raises(StoreTimeout):
            await store.erase_prefix(Prefix("d/"))
        with pytest.raises(StoreTimeout):
            await store.set(A, b"new")
        await store.set(Key("other"), b"3")
        inner.let_go()
        await store.set(A, b"new")
        assert await contents(store) == {A: b"new", "other": b"3"}


@trio_test
async def test_a_lock_that_does_not_come_and_one_that_is_held_for_long(autojump_clock: MockClock) -> None:
    async with limited() as (store, _):
        async with store.exclusive(A):
            await trio.sleep(3 * SECONDS)

            async def compete() -> None:
                with pytest.raises(StoreTimeout, match="locking 'd/a'"):
                    async with store.exclusive(A):
                        pytest.fail("held twice")

            async with trio.open_nursery() as nursery:
                nursery.start_soon(compete)
        async with store.exclusive(A):
            pass


@pytest.mark.logs("given up by its caller, ended: done")
@trio_test
async def test_a_lock_outlives_a_set_that_was_given_up_under_it(autojump_clock: MockClock) -> None:
    """Otherwise another mount merges into data that is about to be overwritten."""
    async with limited("set") as (store, inner):
        with pytest.raises(StoreTimeout):
            async with store.exclusive(A):
                await store.set(A, b"late")
        with trio.move_on_after(1) as waited:
            async with inner.inner.exclusive(A):
                pytest.fail("another mount has the lock, and the set is still under way")
        assert waited.cancelled_caught
        inner.let_go()
        async with inner.inner.exclusive(A):
            assert await inner.inner.get(A) == b"late"


@trio_test
async def test_writes_under_way_when_the_nursery_ends(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as callers:
        async with trio.open_nursery() as nursery:
            inner = WaitingStore(MemoryStore(), "set")
            store = DeadlineStore(inner, SECONDS, nursery)

            async def write() -> None:
                with pytest.raises(StoreTimeout):
                    await store.set(A, b"1")

            callers.start_soon(write)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert await contents(inner) == {}


class Value(bytearray):
    """A value whose release can be observed."""


class FullStore(InterruptedStore):
    async def interrupt(self, operation: str, target: str) -> None:
        raise StoreFull("full")


@contextmanager
def without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("way", ["alone", "several", "shared"])
@trio_test
async def test_the_value_of_a_failed_write_is_not_kept_by_its_error(way: str) -> None:
    """The collector may find such a cycle after many further failed writes: each kept its value."""
    async with trio.open_nursery() as nursery:
        store = DeadlineStore(FullStore(MemoryStore()), SECONDS, nursery)

        async def write(value: memoryview) -> None:
            async def one(key: Key) -> None:
                await store.set(key, value)

            match way:
                case "alone":
                    await one(A)
                case "several":
                    await for_each([A, B], one, 2)
                case "shared":
                    flight = Flight()
                    with suppress(StoreError), flight.under_way():
                        await one(A)
                    await flight.landed()

        with without_collector():
            value = Value(b"1")
            released = weakref.ref(value)
            with suppress(StoreFull):
                await write(memoryview(value))
            del value
            assert released() is None


@pytest.mark.logs("given up by its caller, ended: done")
@trio_test
async def test_values_of_abandoned_writes_are_counted_and_further_ones_are_in_files(autojump_clock: MockClock) -> None:
    """The writers have released them, and a store may hang for hours."""
    nbytes = 1 << 20
    budget = MemoryBudget(2 * nbytes + nbytes // 2)
    async with trio.open_nursery() as nursery:
        inner = WaitingStore(MemoryStore(), "set", stubborn=True)
        store = DeadlineStore(inner, SECONDS, nursery, budget)
        released: list[weakref.ref[Value]] = []
        with without_collector():
            for number in range(6):
                value = Value(bytes([number]) * nbytes)
                released.append(weakref.ref(value))
                with suppress(StoreTimeout):
                    await store.set(Key(f"{number}"), memoryview(value))
                del value
                # Each may be the probe of a store that does not accept changes.
                await trio.sleep(2 * SECONDS)
            assert [each() is None for each in released] == [False, False, True, True, True, True]
            assert budget.nbytes == 2 * nbytes
            inner.let_go()
        # Writes to the same keys wait for those that were abandoned.
        await store.erase_prefix(Prefix(""))
        assert budget.nbytes == 0
