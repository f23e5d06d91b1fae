"""The memory budget: allocation, waiting, and release."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import trio_test

from zarrfs.memory.budget import MemoryBudget


def test_holders_have_their_share_and_no_more() -> None:
    budget = MemoryBudget(100)
    one, other = budget.share(50), budget.share(25)
    assert budget.for_work == 25
    assert one.take(50) and not one.take(1)
    assert other.take(25) and not other.take(1)
    one.give(10)
    assert not other.take(1) and one.take(10)
    assert (budget.nbytes, one.nbytes, other.nbytes) == (75, 50, 25)


def test_a_cache_gives_back_what_others_need() -> None:
    budget = MemoryBudget(100)
    cached = []

    def release(nbytes: int) -> None:
        while cached and nbytes > 0:
            budget.give(cached[0])
            nbytes -= cached.pop()

    budget.on_pressure(release)
    share = budget.share(60)
    for _ in range(9):
        assert budget.take(10)
        cached.append(10)
    assert share.take(60)
    assert (len(cached), budget.nbytes) == (4, 100)
    assert not budget.take(10) or len(cached) < 4


def test_caches_release_everything_when_the_machine_is_short_of_memory() -> None:
    released: list[int] = []
    budget = MemoryBudget(100)
    budget.on_pressure(released.append)
    budget.release()
    assert released == [100]


@trio_test
async def test_work_waits_and_is_served_in_its_order() -> None:
    budget = MemoryBudget(100)
    began: list[str] = []
    go = {name: trio.Event() for name in "abc"}

    async def work(name: str, nbytes: int) -> None:
        async with budget.working(nbytes):
            began.append(name)
            await go[name].wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, "a", 60)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(work, "b", 60)
        await trio.testing.wait_all_tasks_blocked()
        # It would fit, but another task came before.
        nursery.start_soon(work, "c", 10)
        await trio.testing.wait_all_tasks_blocked()
        assert began == ["a"] and not budget.take(1)
        go["a"].set()
        await trio.testing.wait_all_tasks_blocked()
        # Both were admitted; the event loop chooses which of them runs first.
        assert began[0] == "a" and set(began) == {"a", "b", "c"}
        go["b"].set()
        go["c"].set()
    assert budget.nbytes == 0


@trio_test
async def test_who_works_never_waits() -> None:
    budget = MemoryBudget(10)
    async with budget.working(10):
        with trio.fail_after(1):
            async with budget.working(10):
                assert budget.nbytes == 20
    assert budget.nbytes == 0


@trio_test
async def test_more_than_there_is_for_work_is_counted_as_all_of_it() -> None:
    budget = MemoryBudget(100)
    budget.share(80).take(80)
    async with budget.working(1000):
        assert budget.nbytes == 100


@trio_test
async def test_who_gives_up_waiting_takes_nothing() -> None:
    budget = MemoryBudget(10)
    async with budget.working(10):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as scope:
                nursery.start_soon(_work, budget, scope)
                await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
            nursery.cancel_scope.cancel()
    assert budget.nbytes == 0
    assert budget.take(10)


async def _work(budget: MemoryBudget, scope: trio.CancelScope) -> None:
    # Work of another task, not inside that of the task that started it.
    from zarrfs.memory import budget as memory

    memory._working.set(False)
    async with budget.working(10):
        pytest.fail("there is nothing left")
