"""Work without progress is given up after its time, and work with progress is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from zarrfs.daemon.overdue import Overdue

SECONDS = 0.2


@contextmanager
def watched(progress: Callable[[], object], *, is_due: bool = False) -> Iterator[tuple[Overdue, threading.Event]]:
    given_up = threading.Event()
    overdue = Overdue(SECONDS, progress=progress, is_due=lambda: is_due, give_up=lambda seconds: given_up.set())

    async def start() -> None:
        overdue.start()

    trio.run(start)
    try:
        yield overdue, given_up
    finally:
        overdue.begin()
        overdue.over()


def test_what_makes_no_progress_is_given_up() -> None:
    with watched(lambda: 0) as (overdue, given_up):
        assert not given_up.wait(3 * SECONDS), "it has not begun"
        overdue.begin()
        assert given_up.wait(60)


def test_it_is_due_though_nobody_says_so() -> None:
    with watched(lambda: 0, is_due=True) as (_, given_up):
        assert given_up.wait(60)


def test_what_makes_progress_is_not_given_up() -> None:
    with watched(time.monotonic) as (overdue, given_up):
        overdue.begin()
        assert not given_up.wait(10 * SECONDS)


def test_what_cannot_be_counted_is_being_changed() -> None:
    def progress() -> object:
        raise RuntimeError("dictionary changed size during iteration")

    with watched(progress) as (overdue, given_up):
        overdue.begin()
        assert not given_up.wait(5 * SECONDS)


def test_what_is_over_is_not_given_up() -> None:
    with watched(lambda: 0) as (overdue, given_up):
        overdue.begin()
        overdue.over()
        assert not given_up.wait(5 * SECONDS)


def test_it_tells_where_everything_waits() -> None:
    found: list[str] = []

    async def main() -> None:
        overdue = Overdue(60, progress=lambda: 0, is_due=lambda: False, give_up=lambda seconds: None)
        overdue.start()
        found.extend(overdue.positions())
        overdue.begin()
        overdue.over()

    trio.run(main)
    assert any(line.startswith("thread MainThread in ") for line in found)
