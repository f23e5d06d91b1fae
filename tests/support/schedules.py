"""Schedules: the order in which concurrent tasks go on, drawn by a seed.

`GatedStore` stops each request twice, before it takes effect and before it is answered, and `Schedule` lets them go in random order. Some
are held for many steps, so that other tasks do much meanwhile. Time is that of a mock clock, threads end at once, and trio draws the
order of its own tasks from the same seed: a schedule can be repeated.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from unittest.mock import patch

import trio
import trio.testing

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreError, StoreFull, StoreTimeout
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.values import Answer, DirEntry, Expected, Generation, KeyStat
from zarrfs.transformers.forwarding import ForwardingStore

T = TypeVar("T")

HOURS_S = 10_000
"""Time after which a schedule hangs. It passes at once where nothing else happens."""


@dataclass(slots=True, eq=False)
class _Gate:
    held: int
    opened: trio.Event = field(default_factory=trio.Event)


class Schedule:
    """Lets stopped tasks go on one by one, in an order drawn from ``chance``; nothing stops before `run`, nor after `end`.

    ``failing``: the part of the changes of the store that fail.
    """

    def __init__(self, chance: random.Random, failing: float) -> None:
        self.chance = chance
        self._failing = failing
        self._often_held = chance.choice((0, 0.05, 0.15, 0.3))
        self._gates: list[_Gate] = []
        self._stopped = trio.Event()
        self._runs = False

    async def step(self) -> None:
        """Wait until the schedule lets this task go on."""
        if not self._runs:
            await trio.lowlevel.checkpoint()
            return
        held = self.chance.choice((3, 10, 30, 60)) if self.chance.random() < self._often_held else 0
        gate = _Gate(held)
        self._gates.append(gate)
        self._stopped.set()
        try:
            await gate.opened.wait()
        finally:
            if gate in self._gates:
                self._gates.remove(gate)

    def error(self, *errors: StoreError) -> StoreError | None:
        """Return one of ``errors`` now and then."""
        return self.chance.choice(errors) if self._runs and self.chance.random() < self._failing else None

    async def run(self) -> None:
        """Let tasks go on, each when all others wait. Runs as a task."""
        self._runs = True
        while True:
            await trio.testing.wait_all_tasks_blocked()
            if not self._gates:
                self._stopped = trio.Event()
                await self._stopped.wait()
                continue
            gate = self.chance.choice([each for each in self._gates if not each.held] or self._gates)
            for each in self._gates:
                each.held = max(0, each.held - 1)
            self._gates.remove(gate)
            gate.opened.set()

    def end(self) -> None:
        """Let all tasks go on."""
        self._runs = False
        for gate in self._gates:
            gate.opened.set()


class GatedStore(ForwardingStore):
    """A store whose operations a `Schedule` lets go on, and makes fail before or after they take effect.

    ``late``: seconds by which they take effect, or are answered, too late, instead of failing.
    """

    def __init__(self, inner: Store, schedule: Schedule, *, late: float = 0) -> None:
        super().__init__(inner)
        self._schedule = schedule
        self._late = late

    async def _read(self, operation: Callable[[], Awaitable[T]]) -> T:
        await self._schedule.step()
        result = await operation()
        await self._schedule.step()
        return result

    async def _change(self, operation: Callable[[], Awaitable[T]], *refusals: StoreError) -> T:
        await self._schedule.step()
        unanswered = StoreTimeout("no answer")
        error = self._schedule.error(*refusals, StoreTimeout("no answer"), unanswered)
        if error is not None and error is not unanswered:
            if not self._late:
                raise error
            await trio.sleep(self._late)
        result = await operation()
        await self._schedule.step()
        if error is unanswered:
            if not self._late:
                raise error
            await trio.sleep(self._late)
        return result

    async def hold(self, key: Key) -> None:
        """Do nothing: a held value would be read without a request to this store."""

    async def get(self, key: Key) -> Buffer | None:
        return await self._read(lambda: self.inner.get(key))

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        return await self._read(lambda: self.inner.get_partial_values(key_ranges, if_generation=if_generation))

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        return await self._read(lambda: self.inner.get_with_stat(key, byte_range))

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        return await self._read(lambda: self.inner.get_many(key_ranges))

    async def stat(self, key: Key) -> KeyStat | None:
        return await self._read(lambda: self.inner.stat(key))

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        return await self._change(lambda: self.inner.set(key, value, expect=expect), StoreFull("no room"))

    async def erase(self, key: Key) -> None:
        await self._change(lambda: self.inner.erase(key))

    async def erase_if(self, key: Key, generation: Generation) -> None:
        await self._change(lambda: self.inner.erase_if(key, generation))

    async def erase_values(self, keys: Iterable[Key]) -> None:
        for key in keys:
            await self.erase(key)

    async def erase_prefix(self, prefix: Prefix) -> None:
        await self._change(lambda: self.inner.erase_prefix(prefix))

    async def copy(self, old: Key, new: Key) -> bool:
        return await self._change(lambda: self.inner.copy(old, new))

    async def rename(self, old: Key, new: Key) -> bool:
        return await self._change(lambda: self.inner.rename(old, new))

    async def rename_prefix(self, old: Prefix, new: Prefix) -> bool:
        return await self._change(lambda: self.inner.rename_prefix(old, new))

    async def exchange_prefixes(self, one: Prefix, other: Prefix) -> None:
        await self._change(lambda: self.inner.exchange_prefixes(one, other))

    async def prefix_exists(self, prefix: Prefix) -> bool:
        return await self._read(lambda: self.inner.prefix_exists(prefix))

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        return await self._read(lambda: self.inner.prefix_mtime_ns(prefix))

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        return await self._read(lambda: self.inner.peek(prefix, most))

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        await self._schedule.step()
        entries = [entry async for entry in self.inner.list_dir(prefix)]
        await self._schedule.step()
        for entry in entries:
            yield entry


def run(main: Callable[[random.Random], Awaitable[None]], seed: str) -> None:
    """Run ``main`` with chance from ``seed``, which also orders the tasks of trio. Fails if it hangs."""
    runner = trio._core._run
    chance = random.Random(seed)

    async def timely() -> None:
        with trio.fail_after(HOURS_S):
            await main(chance)

    runner._r.seed(seed)
    with patch.object(runner, "_ALLOW_DETERMINISTIC_SCHEDULING", True), patch.object(trio.to_thread, "run_sync", _at_once):
        trio.run(timely, clock=trio.testing.MockClock(autojump_threshold=0))


async def _at_once(function: Callable[..., T], *args: object, **_: object) -> T:
    """Run what would run in a thread: the mock clock does not wait for threads."""
    await trio.lowlevel.checkpoint()
    return function(*args)
