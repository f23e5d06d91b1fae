"""Concurrent work over many items with a limit, and sorting that yields to other work."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from typing import TypeVar

import trio

from zarrfs import threads
from zarrfs.errors import StoreTimeout, raise_first

T = TypeVar("T")
F = TypeVar("F")

# Sorting this many names takes 2 ms, during which the interpreter runs nothing else.
_RUN = 10_000
_MOMENT_S, _LONG_S = 0.05, 0.5
# Work between two checkpoints, in seconds.
_SLICE_S = 0.0005


async def for_each(items: Iterable[T], act: Callable[[T], Awaitable[None]], width: int, *, completes: bool = False) -> None:
    """Run ``act(item)`` for every item, at most ``width`` concurrently. The first error stops the rest and is raised ungrouped.

    ``completes``: what has begun is not cancelled but completed first, except after a timeout. A write that is given up takes effect
    after its caller has got the error.
    """
    iterator = iter(items)
    failed: list[Exception] = []

    until = 0.0

    async def work(scope: trio.CancelScope) -> None:
        nonlocal until
        while True:
            # An answer from memory never waits, and there may be many. A checkpoint takes as long as such an answer.
            if time.perf_counter() >= until:
                await trio.lowlevel.checkpoint()
                until = time.perf_counter() + _SLICE_S
            if failed:
                return
            for item in iterator:  # noqa: B007 - the next one
                break
            else:
                return
            try:
                await act(item)
            except Exception as error:  # noqa: BLE001 - raised again below, ungrouped
                failed.append(error)
                if not completes or isinstance(error, StoreTimeout):
                    scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        for _ in range(width):
            nursery.start_soon(work, nursery.cancel_scope)
    raise_first(failed)


async def each_found(items: Sequence[T], look: Callable[[T], Awaitable[F | None]], width: int) -> AsyncGenerator[tuple[T, F]]:
    """Yield each item in order with the result of ``look``, where it is not None; ``width`` concurrently, errors as in `for_each`.

    Items are processed in batches: large ones while an item takes microseconds, for few pauses; small ones while it takes seconds, to
    keep the wait short; single items while these seconds are processor time.
    """
    found: dict[T, F] = {}

    async def add(item: T) -> None:
        if (one := await look(item)) is not None:
            found[item] = one

    begin, size = 0, width
    while part := items[begin : begin + size]:
        began, busy_before = time.monotonic(), time.process_time()
        await for_each(part, add, width)
        begin += size
        if time.process_time() - busy_before > _LONG_S:
            size = max(1, size // 2)
        elif time.monotonic() - began < _MOMENT_S:
            size = min(2 * size, _RUN)
        elif size > width:
            size = max(width, size // 2)
        for item in part:
            if (one := found.pop(item, None)) is not None:
                yield item, one


async def has_any(items: AsyncGenerator[object]) -> bool:
    """Return True if ``items`` yields one; the others are not awaited."""
    async with aclosing(items):
        return await anext(items, None) is not None


async def in_order(names: Collection[str]) -> list[str]:
    """Return ``names`` sorted; many of them in a thread that yields the interpreter."""
    return sorted(names) if len(names) <= _RUN else await threads.cpu(len(names), _sorted_in_runs, names)


def _sorted_in_runs(names: Collection[str]) -> list[str]:
    left = iter(names)
    runs = []
    while run := sorted(itertools.islice(left, _RUN)):
        runs.append(run)
    return list(heapq.merge(*runs))
