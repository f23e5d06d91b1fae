"""Doing one thing to many items, a few at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

T = TypeVar("T")


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
