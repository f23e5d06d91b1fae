"""Many items: doing one thing to them a few at a time, and sorting them beside other work."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TypeVar

import trio

from zarrfs import threads

T = TypeVar("T")

# Sorting so many names takes 2 ms, during which the interpreter does nothing else.
_RUN = 10_000


async def for_each(items: Iterable[T], act: Callable[[T], Awaitable[None]], width: int) -> None:
    """``act(item)`` for every item, at most ``width`` at once. The first error stops the rest and is raised as it is, ungrouped."""
    iterator = iter(items)
    failed: list[Exception] = []

    async def work(scope: trio.CancelScope) -> None:
        for item in iterator:
            # What is answered from memory waits for nothing, and there may be many such items.
            await trio.lowlevel.checkpoint()
            try:
                await act(item)
            except Exception as error:  # noqa: BLE001 - raised again below, ungrouped
                failed.append(error)
                scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        for _ in range(width):
            nursery.start_soon(work, nursery.cancel_scope)
    if failed:
        raise failed[0]


async def in_order(names: Collection[str]) -> list[str]:
    """``names``, sorted; many of them in a thread that gives way."""
    return sorted(names) if len(names) <= _RUN else await threads.cpu(len(names), _sorted_in_runs, names)


def _sorted_in_runs(names: Collection[str]) -> list[str]:
    left = iter(names)
    runs = []
    while run := sorted(itertools.islice(left, _RUN)):
        runs.append(run)
    return list(heapq.merge(*runs))
