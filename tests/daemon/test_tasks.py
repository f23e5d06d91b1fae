"""Tasks in the background of a mount: what one raises ends no other."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock, trio_test

from zarrfs.daemon.tasks import Tasks


async def _fail() -> None:
    raise MemoryError


@pytest.mark.logs("failed in the background")
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
    assert [(each.levelno, "_fail failed in the background: MemoryError" in each.message) for each in caplog.records] == [
        (logging.ERROR, True)
    ]


@pytest.mark.logs("failed in the background")
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
