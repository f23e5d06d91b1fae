"""Threads that hang: their number is bounded, and they block nothing else. Errors in threads."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
import trio
from trio.testing import trio_test, wait_all_tasks_blocked

from zarrfs import threads


@pytest.fixture
def answers() -> threading.Event:
    return threading.Event()


@trio_test
async def test_a_thousand_calls_that_hang(answers: threading.Event) -> None:
    before = threading.active_count()

    async def hang() -> None:
        await threads.io(answers.wait, abandon_on_cancel=True)

    try:
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for _ in range(1000):
                    nursery.start_soon(hang)
                await wait_all_tasks_blocked()
                # Work without a store continues beside them.
                assert await threads.io(lambda: "local") == "local"
                nursery.cancel_scope.cancel()
            assert threading.active_count() - before <= threads.IO_THREADS + threads.ABANDONED_THREADS + 2
    finally:
        answers.set()
    # They are free again once the store answers.
    assert await threads.io(lambda: "stored", abandon_on_cancel=True) == "stored"


@trio_test
async def test_calls_that_were_abandoned_leave_their_place_to_others(answers: threading.Event) -> None:
    try:
        async with trio.open_nursery() as nursery:
            for _ in range(threads.IO_THREADS):
                nursery.start_soon(lambda: threads.io(answers.wait, abandon_on_cancel=True))
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert await threads.io(lambda: "another key", abandon_on_cancel=True) == "another key"
    finally:
        answers.set()


CALLS: dict[str, Callable[[Callable[[], None]], Awaitable[None]]] = {
    "io": threads.io,
    "io that may hang": partial(threads.io, abandon_on_cancel=True),
    "cpu": partial(threads.cpu, 1 << 20),
}


@pytest.mark.parametrize("name", CALLS)
@trio_test
async def test_an_error_that_was_handled_keeps_nothing(name: str) -> None:
    held: list[weakref.ref[set[int]]] = []

    def fail() -> None:
        document = {1}
        held.append(weakref.ref(document))
        raise ValueError(len(document))

    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            await CALLS[name](fail)
        assert held[0]() is None
    finally:
        gc.enable()
