"""Background tasks of a mount: an exception in one ends no other."""

from __future__ import annotations

import contextvars
import logging

import pytest
import trio
from trio.testing import MockClock, trio_test

from zarrfs.daemon.tasks import Tasks


async def _fail() -> None:
    raise MemoryError


@pytest.mark.logs("background task .* failed")
@trio_test
async def test_an_error_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    done = trio.Event()
    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        tasks.start_soon(_fail)

        async def succeed() -> None:
            done.set()

        tasks.start_soon(succeed)
    assert done.is_set()
    assert [(each.levelno, "_fail failed: MemoryError" in each.message) for each in caplog.records] == [(logging.ERROR, True)]


_held = contextvars.ContextVar("held", default="nothing")


@trio_test
async def test_a_task_that_nobody_waits_for_has_nothing_of_what_its_caller_holds() -> None:
    seen: list[str] = []

    async def see() -> None:
        seen.append(_held.get())

    async with trio.open_nursery() as nursery:
        tasks = Tasks(nursery)
        token = _held.set("a lock")
        tasks.start_apart(see)
        tasks.keep(see)
        tasks.start_soon(see)
        _held.reset(token)
    assert sorted(seen) == ["a lock", "nothing", "nothing"]


@pytest.mark.logs("background task .* failed")
def test_what_runs_for_ever_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    begun = 0

    async def twice() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise OSError(12, "no memory")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            Tasks(nursery).keep(twice)

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert begun == 3
    assert len(caplog.records) == 2
