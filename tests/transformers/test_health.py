"""A store that hangs, and one of which a single key hangs: failing operations, their times, and the number of requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, trio_test, wait_all_tasks_blocked

from tests.support.stores import HangingStore
from zarrfs.errors import StoreTimeout
from zarrfs.keys import WHOLE, Key, Prefix
from zarrfs.stores.memory import MemoryStore
from zarrfs.transformers import health
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.health import GRACE, PAUSE

SECONDS = 10.0
A, B = Key("a"), Key("b")


@asynccontextmanager
async def hanging() -> AsyncIterator[tuple[DeadlineStore, HangingStore]]:
    """Yield a store with a deadline around one with the keys ``0`` to ``99``, each with its name as value."""
    async with trio.open_nursery() as nursery:
        inner = HangingStore(MemoryStore())
        for number in range(100):
            await inner.set(Key(str(number)), str(number).encode())
        yield DeadlineStore(inner, SECONDS, nursery), inner
        nursery.cancel_scope.cancel()


async def took(operation: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds after which an operation gave up; negative if it got an answer."""
    began = trio.current_time()
    try:
        await operation()
    except StoreTimeout:
        return trio.current_time() - began
    return -1


async def seconds_until_answered(operation: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds until repeated attempts get an answer."""
    began = trio.current_time()
    for _ in range(1000):
        if await took(operation) < 0:
            return trio.current_time() - began
        await trio.sleep(0.1)
    raise AssertionError("it never came back")


async def at_once(*operations: Callable[[], Awaitable[object]]) -> list[float]:
    """Return `took` of each; all begin together."""
    times = [0.0] * len(operations)

    async def one(number: int) -> None:
        times[number] = await took(operations[number])

    async with trio.open_nursery() as nursery:
        for number in range(len(operations)):
            nursery.start_soon(one, number)
    return times


def gets(store: DeadlineStore, *numbers: int) -> list[Callable[[], Awaitable[object]]]:
    return [lambda number=number: store.get(Key(str(number))) for number in numbers]  # type: ignore[misc]


def sets(store: DeadlineStore, count: int) -> list[Callable[[], Awaitable[object]]]:
    return [lambda number=number: store.set(Key(f"n{number}"), b"new") for number in range(count)]  # type: ignore[misc]


async def listed(store: DeadlineStore) -> list[object]:
    return [entry async for entry in store.list_dir(Prefix(""))]


@trio_test
async def test_after_one_deadline_all_fail_at_once(autojump_clock: MockClock) -> None:
    async with hanging() as (store, inner):
        inner.hang()
        assert await at_once(*gets(store, *range(50))) == pytest.approx([SECONDS] * 50)
        with pytest.raises(StoreTimeout, match=r"reading '50': .*did not answer within 10 s, and has not since") as raised:
            await store.get(Key("50"))
        assert raised.value.key == "50"
        assert all(each <= GRACE for each in await at_once(*gets(store, *range(100))))
        each = [lambda: store.stat(A), lambda: listed(store), lambda: store.prefix_exists(Prefix("d/"))]
        writes = [lambda: store.set(A, b""), lambda: store.erase(B), store.sync_all]
        assert all(0 <= time <= GRACE for time in await at_once(*each, *writes))  # type: ignore[arg-type]


@trio_test
async def test_a_store_that_hangs_is_not_hammered(autojump_clock: MockClock) -> None:
    async with hanging() as (store, inner):
        inner.hang()
        await at_once(*gets(store, 0))
        asked, began = inner.asked, trio.current_time()
        while trio.current_time() < began + 60:
            assert await took(gets(store, 1)[0]) <= GRACE
            assert len(inner.hanging) <= 2
            await trio.sleep(0.01)
        assert inner.asked - asked <= 60 / PAUSE + 1
        # Without requests, the store is not probed.
        asked = inner.asked
        await trio.sleep(600)
        assert inner.asked == asked


@pytest.mark.parametrize("lost", [False, True], ids=["requests go on", "requests are lost"])
@trio_test
async def test_it_is_back_when_the_store_is(autojump_clock: MockClock, lost: bool) -> None:
    async with hanging() as (store, inner):
        inner.hang()
        await at_once(*gets(store, *range(8)))
        for _ in range(40):
            await took(gets(store, 9)[0])
            await trio.sleep(0.1)
        if lost:
            inner.lose()
        else:
            inner.answer()
        assert await seconds_until_answered(gets(store, 9)[0]) <= PAUSE + GRACE
        assert await at_once(*gets(store, *range(50)), lambda: listed(store)) == [-1] * 51
        await store.set(A, b"new")


@trio_test
async def test_who_asks_first_after_a_quiet_time_is_answered(autojump_clock: MockClock) -> None:
    async with hanging() as (store, inner):
        inner.hang()
        await at_once(*gets(store, *range(8)))
        inner.answer()
        await trio.sleep(2 * PAUSE)
        assert await at_once(*gets(store, *range(50))) == [-1] * 50


@pytest.mark.parametrize("number", [0, 99])
@trio_test
async def test_one_slow_key_fails_nobody_else(autojump_clock: MockClock, number: int) -> None:
    async with hanging() as (store, inner):
        assert await store.get(Key(str(number))) is not None
        inner.hang(str(number))
        for _ in range(3):
            assert await took(gets(store, number)[0]) == pytest.approx(SECONDS)
            # As the kernel does, which repeats failed reads page by page.
            assert (await took(gets(store, number)[0]), await took(gets(store, number)[0])) == (pytest.approx(GRACE), 0)
            assert await at_once(*gets(store, *range(1, 99)), lambda: store.stat(A)) == [-1] * 99
            await trio.sleep(PAUSE)
        inner.answer()
        await trio.sleep(PAUSE)
        assert await store.get(Key(str(number))) is not None


@trio_test
async def test_of_several_keys_that_were_asked_for_together_one_may_be_slow(autojump_clock: MockClock) -> None:
    async with hanging() as (store, inner):
        inner.hang("5")
        keys = [(Key(str(number)), WHOLE) for number in range(8)]
        assert await took(lambda: store.get_partial_values(keys)) == pytest.approx(SECONDS)
        assert await at_once(*gets(store, *range(8))) == [-1] * 5 + [pytest.approx(GRACE)] + [-1] * 2


@trio_test
async def test_names_may_be_answered_where_values_are_not(autojump_clock: MockClock) -> None:
    async with hanging() as (store, inner):
        inner.hang("*", "get", "get_partial_values")
        await at_once(*gets(store, *range(8)))
        for _ in range(3):
            assert await took(gets(store, 9)[0]) <= GRACE
            assert await at_once(lambda: store.stat(A), lambda: listed(store), lambda: store.set(A, b"")) == [-1] * 3


@trio_test
async def test_a_slow_store_that_answers_in_time_is_never_given_up(autojump_clock: MockClock) -> None:
    async with hanging() as (store, inner):
        inner.hang()
        assert await took(gets(store, 0)[0]) == pytest.approx(SECONDS)
        inner.answer()
        inner.delay = 0.9 * SECONDS
        assert await seconds_until_answered(gets(store, 1)[0]) <= 3 * SECONDS
        assert await at_once(*gets(store, *range(50))) == [-1] * 50


@pytest.mark.logs("given up by its caller, ended: done")
@trio_test
async def test_writes_that_hang_alone(autojump_clock: MockClock) -> None:
    async with hanging() as (store, inner):
        inner.hang("*", "set")
        writes = sets(store, 100)
        assert await took(writes[0]) == pytest.approx(SECONDS)
        # One key does not show that the others hang.
        assert await took(writes[1]) == pytest.approx(SECONDS)
        times = [await took(write) for write in writes[2:]]
        assert sum(times) <= SECONDS
        assert await at_once(*gets(store, *range(50))) == [-1] * 50
        await trio.sleep(PAUSE)
        # One goes through as the probe, and waits as long as a write may.
        assert sorted(await at_once(*writes[50:60])) == pytest.approx([0] * 9 + [SECONDS])
        inner.answer()
        await wait_all_tasks_blocked()
        assert await at_once(*writes) == [-1] * 100


@trio_test
async def test_a_lock_that_others_hold_says_nothing_about_the_store(autojump_clock: MockClock) -> None:
    async with hanging() as (store, _):
        async with store.exclusive(A):

            async def lock() -> None:
                async with store.exclusive(A):
                    pytest.fail("held twice")

            assert await at_once(lock, lock, lock) == pytest.approx([SECONDS] * 3)
            assert await at_once(*gets(store, *range(50)), lambda: store.set(A, b"")) == [-1] * 51


@trio_test
async def test_locks_of_a_store_that_hangs_are_not_waited_for(autojump_clock: MockClock) -> None:
    async def lock() -> None:
        async with store.exclusive(B):
            pytest.fail("the store hangs")

    async with hanging() as (store, inner):
        inner.hang()
        assert await took(lock) == pytest.approx(SECONDS)
        assert sum([await took(lock) for _ in range(100)]) <= 3 * GRACE


@trio_test
async def test_a_backend_with_a_deadline_of_its_own(autojump_clock: MockClock) -> None:
    """An error of such a deadline is not an answer."""

    class Impatient(HangingStore):
        async def interrupt(self, operation: str, target: str) -> None:
            with trio.move_on_after(3) as scope:
                await super().interrupt(operation, target)
            if scope.cancelled_caught:
                raise StoreTimeout(f"{target}: {self.url} did not answer within 10 s", key=target)

    async with trio.open_nursery() as nursery:
        inner = Impatient(MemoryStore())
        store = DeadlineStore(inner, SECONDS, nursery)
        inner.hang()
        assert await at_once(*gets(store, *range(8))) == pytest.approx([3] * 8)
        assert all(each <= GRACE for each in await at_once(*gets(store, *range(8))))
        nursery.cancel_scope.cancel()


@trio_test
async def test_of_many_keys_that_were_late_the_first_are_forgotten_and_asked_for_as_any(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_MAX_LATE", 4)
    async with hanging() as (store, inner):
        for number in range(6):
            inner.hang(str(number))
        # Others are answered all the time: not the whole store hangs.
        for number in range(6):
            assert await took(lambda number=number: store.get(Key(str(number)))) == SECONDS  # type: ignore[misc]
            assert await store.get(Key("99")) == b"99"
        assert len(store._health_of((A,))._late) == 4
