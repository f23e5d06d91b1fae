"""Long work yields to other tasks, short work is done at once, and equal pending work is done once."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from zarrfs.daemon import slices
from zarrfs.daemon.slices import AT_ONCE, Slices


def work(done: list[tuple[str, int]], what: str, steps: int, seconds: float = 0.0) -> Iterator[None]:
    for step in range(steps):
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        done.append((what, step))
        yield


@trio_test
async def test_short_work_is_done_before_run_returns() -> None:
    async with trio.open_nursery() as nursery:
        done: list[tuple[str, int]] = []
        Slices(nursery.start_soon).run(work(done, "a", AT_ONCE, 0.0001))
        assert len(done) == AT_ONCE


@trio_test
async def test_long_work_goes_on_in_slices_and_in_its_order() -> None:
    done: list[tuple[str, int]] = []
    async with trio.open_nursery() as nursery:
        told = Slices(nursery.start_soon)
        told.run(work(done, "a", 1000, 0.0001), in_turn=True)
        told.run(work(done, "b", 10), in_turn=True)
        assert 0 < len(done) < 1000
        lengths = []
        while len(done) < 1010:
            before = len(done)
            await trio.lowlevel.checkpoint()
            lengths.append(len(done) - before)
        assert max(lengths) < 200, "others have a turn in between"
        await told.done()
    assert done == [*(("a", step) for step in range(1000)), *(("b", step) for step in range(10))]


@trio_test
async def test_what_this_mount_does_is_not_kept_waiting_by_news_of_others() -> None:
    done: list[tuple[str, int]] = []
    async with trio.open_nursery() as nursery:
        told = Slices(nursery.start_soon)
        told.run(work(done, "others", 2000, 0.0001), in_turn=True)
        told.run(work(done, "ours", 3))
        assert [step for what, step in done if what == "ours"] == [0, 1, 2]
        await told.done()


@trio_test
async def test_news_that_say_the_same_are_one_until_it_begins() -> None:
    done: list[tuple[str, int]] = []
    async with trio.open_nursery() as nursery:
        told = Slices(nursery.start_soon)
        told.run(work(done, "long", 1000, 0.0001), in_turn=True)
        for _ in range(50):
            told.run(work(done, "all", 100), in_turn=True, name="all")
        while ("all", 0) not in done:
            await trio.lowlevel.checkpoint()
        # It has begun: new work of the same name may concern parts that it has passed already.
        told.run(work(done, "all", 100), in_turn=True, name="all")
        await told.done()
    assert done.count(("all", 99)) == 2


@trio_test
async def test_nothing_is_done_without_room() -> None:
    done: list[tuple[str, int]] = []
    room = trio.Event()
    async with trio.open_nursery() as nursery:
        told = Slices(nursery.start_soon)
        told.room = room.wait
        told.run(work(done, "a", 1000, 0.0001))
        begun = len(done)
        await wait_all_tasks_blocked()
        assert len(done) == begun
        room.set()
        await told.done()
    assert len(done) == 1000


@trio_test
async def test_at_the_end_nobody_waits_for_it() -> None:
    done: list[tuple[str, int]] = []
    async with trio.open_nursery() as nursery:
        told = Slices(nursery.start_soon)
        told.run(work(done, "a", 10_000, 0.001))
        nursery.start_soon(told.done)
        await trio.lowlevel.checkpoint()
        told.end()
        told.run(work(done, "b", 1))
    assert len(done) < 1000 and ("b", 0) not in done


@pytest.mark.logs("notice of a change failed")
@trio_test
async def test_work_that_fails_is_over() -> None:
    def failing() -> Iterator[None]:
        yield
        raise ValueError("a defect")

    async with trio.open_nursery() as nursery:
        told = Slices(nursery.start_soon)
        told.run(failing())
        await told.done()


def test_a_slice_is_short() -> None:
    assert slices.SECONDS <= 0.005
