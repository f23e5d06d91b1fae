"""A store whose operations end by a deadline.

A read that exceeds its deadline is cancelled. A write is not, because a cancelled thread or request continues and may still take
effect. Each write therefore runs in its own task, which continues when its caller gives up (by deadline or cancellation). Until it
ends, later writes to the same keys wait for it, so that an old value never overwrites a newer one. This wait counts against their
deadline.

Requests to a store that does not answer fail early; `zarrfs.transformers.health` defines when.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import trio

from zarrfs import fences
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreTimeout, TooLarge, ZarrfsError, raise_first
from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.memory.budget import MemoryBudget
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.base import Store
from zarrfs.stores.values import Answer, DirEntry, Expected, Generation, KeyStat
from zarrfs.transformers.abandoned_values import AbandonedValues, HeldValue
from zarrfs.transformers.health import StoreHealth, Subject, Target
from zarrfs.transformers.intercepting import InterceptingStore, Kind, Operation

log = logging.getLogger(__name__)

T = TypeVar("T")

_PORTION = 256
"""Entries of a listing that share one deadline: a deadline for each entry would cost more than the entry."""

_MAX_PARTS = 100
"""Limit on the parts of a store whose health is tracked. The author of the store chooses the parts."""


class Tasks(Protocol):
    """Starts tasks in the background: a `trio.Nursery` or an equivalent."""

    def start_soon(self, function: Callable[..., Awaitable[Any]], /, *args: Any, name: object = None) -> None:
        """Run ``function(*args)``."""


class DeadlineStore(InterceptingStore):
    """Limits every operation of ``inner``, and the wait for each portion of a listing, to ``seconds``; then raises `StoreTimeout`.

    While the store hangs, operations fail at once. Writes run in ``nursery``, which the caller keeps open while the store is in use;
    cancelling it abandons the writes in flight. ``budget``: see `AbandonedValues`.
    """

    def __init__(self, inner: Store, seconds: float, nursery: Tasks, budget: MemoryBudget | None = None) -> None:
        super().__init__(inner)
        self.seconds = seconds
        self._nursery = nursery
        self._health: dict[str, StoreHealth] = {}
        # Writes whose caller has given up. Others need no fence: two writes whose ends were not observed have no order.
        self._abandoned: list[_Write] = []
        self._values = AbandonedValues(budget)

    async def intercept(self, operation: Operation, begin: Callable[[], Awaitable[T]]) -> T:
        targets = operation.targets
        match operation.kind:
            case Kind.CHANGES:
                return await self._write(operation.doing, targets, begin)
            case Kind.SYNC:
                # A sync needs no order: writes in flight are not part of it, and no later write depends on it.
                return await self._write(operation.doing, (), begin)
            case Kind.VALUES:
                return await self._read(Subject.VALUES, operation.doing, targets, begin)
        return await self._read(Subject.NAMES, operation.doing, targets, begin)

    def intercept_listing(self, operation: Operation, entries: AsyncIterator[T]) -> AsyncIterator[T]:
        return self._list(operation.doing, operation.targets, entries)

    # --- answers without waiting need no deadline ---------------------------------------------------------------------------

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        try:
            return self.get_partial_values_now(key_ranges, if_generation=if_generation)
        except WouldWait:
            return await super().get_partial_values(key_ranges, if_generation=if_generation)

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        try:
            return self.get_with_stat_now(key, byte_range)
        except WouldWait:
            return await super().get_with_stat(key, byte_range)

    async def get_many(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        try:
            return self.get_many_now(key_ranges)
        except WouldWait:
            return await super().get_many(key_ranges)

    async def stat(self, key: Key) -> KeyStat | None:
        try:
            return self.stat_now(key)
        except WouldWait:
            return await super().stat(key)

    async def peek(self, prefix: Prefix, most: int) -> Sequence[DirEntry] | None:
        with suppress(WouldWait):
            if entries := self.list_dir_now(prefix):
                return entries[:most]
        return await super().peek(prefix, most)

    async def prefix_exists(self, prefix: Prefix) -> bool:
        try:
            return self.prefix_mtime_ns_now(prefix) is not None
        except WouldWait:
            return await super().prefix_exists(prefix)

    async def prefix_mtime_ns(self, prefix: Prefix) -> int | None:
        try:
            return self.prefix_mtime_ns_now(prefix)
        except WouldWait:
            return await super().prefix_mtime_ns(prefix)

    # --- values ------------------------------------------------------------------------------------------------------------

    async def set(self, key: Key, value: Buffer, *, expect: Expected = None) -> Generation:
        operation = Operation("set", Kind.CHANGES, (key,), memoryview(value).nbytes)
        held = HeldValue(value)
        return await self._write(operation.doing, (key,), lambda: self.inner.set(key, held.data, expect=expect), held)

    # --- empty operations send no request ----------------------------------------------------------------------------------

    async def set_partial_values(self, key_start_values: Iterable[tuple[Key, int, Buffer]]) -> None:
        if pieces := list(key_start_values):
            await super().set_partial_values(pieces)

    async def erase_values(self, keys: Iterable[Key]) -> None:
        if erased := tuple(keys):
            await super().erase_values(erased)

    async def sync(self, targets: Iterable[Key | Prefix]) -> None:
        if synced := tuple(targets):
            await super().sync(synced)

    # --- locks --------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def exclusive(self, key: Key) -> AsyncIterator[None]:
        """Lock ``key``; the deadline applies to acquiring the lock, not to holding it."""
        lock = self.inner.exclusive(key)
        await self._read(Subject.LOCKS, f"locking {key!r}", (key,), lock.__aenter__)
        try:
            yield
        finally:
            if any(write.touches((key,)) for write in self._abandoned):
                # Abandoned writes must not overwrite those of the next holder of the lock, in this process or another.
                self._nursery.start_soon(self._unlock_later, key, lock, name=f"store: unlocking {key!r}")
            else:
                await lock.__aexit__(None, None, None)

    async def _unlock_later(self, key: Key, lock: AbstractAsyncContextManager[None]) -> None:
        try:
            while write := next((write for write in self._abandoned if write.touches((key,))), None):
                await write.ended.wait()
        finally:
            try:
                await lock.__aexit__(None, None, None)
            except ZarrfsError as error:
                log.warning("%s: unlocking %r: %s", self.url, key, error)

    # --- deadlines ----------------------------------------------------------------------------------------------------------

    async def _read(self, kind: Subject, doing: str, targets: tuple[Target, ...], operation: Callable[[], Awaitable[T]]) -> T:
        patience = await self._admitted(kind, doing, targets)
        began = trio.current_time()
        with trio.move_on_after(patience):
            try:
                result = await operation()
            except StoreTimeout:
                self._health_of(targets).given_up(kind, targets, began)
                raise
            except Exception:
                self._health_of(targets).answered(kind, targets)
                raise
            self._health_of(targets).answered(kind, targets)
            return result
        self._health_of(targets).missed(kind, targets, began)
        raise self._timeout(doing, targets)

    async def _list(self, doing: str, targets: tuple[Target, ...], entries: AsyncIterator[T]) -> AsyncIterator[T]:
        patience = await self._admitted(Subject.NAMES, doing, targets)
        portion: list[T] = []
        more = True
        while more:
            began = trio.current_time()
            with trio.move_on_after(patience) as scope:
                more = await _fill(portion, entries)
            if portion or not scope.cancelled_caught:
                self._health_of(targets).answered(Subject.NAMES, targets)
            for entry in portion:
                yield entry
            portion.clear()
            if scope.cancelled_caught:
                self._health_of(targets).missed(Subject.NAMES, targets, began)
                raise self._timeout(doing, targets)
            patience = self.seconds

    async def _write(
        self, doing: str, targets: tuple[Key | Prefix, ...], operation: Callable[[], Awaitable[T]], value: HeldValue | None = None
    ) -> T:
        try:
            patience = await self._admitted(Subject.CHANGES, doing, targets)
        except StoreTimeout:
            fences.never_begun()
            raise
        began: float | None = None
        with trio.move_on_after(patience):
            while before := next((write for write in self._abandoned if write.touches(targets)), None):
                await before.ended.wait()
            if value is not None:
                await self._begin(doing, targets, value)
            began = trio.current_time()
            write = _Write(doing, targets, began, value)
            self._nursery.start_soon(self._run, write, operation, name=f"store: {doing}")
            try:
                await write.ended.wait()
            finally:
                if not write.ended.is_set():
                    self._abandoned.append(write)
                    fences.given_up(write.ended)
                    if value is not None:
                        self._values.abandon(value)
            if write.error is not None:
                failed, write.error = [write.error], None
                raise_first(failed)
            result: T = write.result
            return result
        if began is None:
            # It only waited for an earlier one.
            fences.never_begun()
        else:
            self._health_of(targets).missed(Subject.CHANGES, targets, began)
        raise self._timeout(doing, targets)

    async def _begin(self, doing: str, targets: tuple[Key | Prefix, ...], value: HeldValue) -> None:
        try:
            await self._values.begin(value)
        except TooLarge as error:
            raise StoreTimeout(
                f"{doing}: earlier writes to {self.url} do not end, and hold the memory: {error}", key=targets[0]
            ) from error

    async def _admitted(self, kind: Subject, doing: str, targets: tuple[Target, ...]) -> float:
        patience = await self._health_of(targets).admit(kind, targets)
        if patience is None:
            raise StoreTimeout(f"{self._no_answer(doing)}, and has not since", key=targets[0] if targets else None)
        return patience

    def _health_of(self, targets: tuple[Target, ...]) -> StoreHealth:
        """Return the health of the part of the store that contains the first of ``targets``."""
        part = self.inner.part_of(targets[0]) if targets else ""
        health = self._health.get(part)
        if health is None:
            while len(self._health) >= _MAX_PARTS:
                del self._health[next(iter(self._health))]
            name = f"{self.url}: {part}" if part else self.url
            health = StoreHealth(name, self.seconds, ask=self._ask, start_soon=self._nursery.start_soon, part=part)
            self._health[part] = health
        return health

    async def _ask(self, kind: Subject, target: Target) -> None:
        if kind is Subject.VALUES:
            await self.inner.get_partial_values([(Key(target), ByteRange(0, 1))])
        elif isinstance(target, Prefix):
            await self.inner.prefix_exists(target)
        else:
            await self.inner.stat(target)

    async def _run(self, write: _Write, operation: Callable[[], Awaitable[Any]]) -> None:
        write.error = self._timeout(write.doing, ())
        try:
            write.result = await operation()
            write.error = None
            self._health_of(write.targets).answered(Subject.CHANGES, write.targets)
        except Exception as error:  # noqa: BLE001 (raised by the caller)
            write.error = error
            if isinstance(error, StoreTimeout):
                self._health_of(write.targets).given_up(Subject.CHANGES, write.targets, write.began)
            else:
                self._health_of(write.targets).answered(Subject.CHANGES, write.targets)
        finally:
            write.ended.set()
            if write.value is not None:
                self._values.end(write.value)
            if write in self._abandoned:
                self._abandoned.remove(write)
                log.warning("%s: %s, given up by its caller, ended: %s", self.url, write.doing, write.error or "done")
                write.error = None

    def _timeout(self, doing: str, targets: tuple[Target, ...]) -> StoreTimeout:
        return StoreTimeout(self._no_answer(doing), key=targets[0] if targets else None)

    def _no_answer(self, doing: str) -> str:
        return f"{doing}: {self.url} did not answer within {self.seconds:g} s"


@dataclass(slots=True, eq=False)
class _Write:
    """A write in flight. ``result`` and ``error`` are valid once it has ended."""

    doing: str
    targets: tuple[Key | Prefix, ...]
    began: float
    value: HeldValue | None = None
    ended: trio.Event = field(default_factory=trio.Event)
    result: Any = None
    error: Exception | None = None

    def touches(self, targets: tuple[Key | Prefix, ...]) -> bool:
        """Return True if a key of one is a key of the other."""
        return any(_meet(mine, other) for mine in self.targets for other in targets)


def _meet(one: Key | Prefix, other: Key | Prefix) -> bool:
    return (
        one == other
        or (isinstance(one, Prefix) and other.startswith(one))
        or (isinstance(other, Prefix) and one.startswith(other))
    )  # fmt: skip


async def _fill(portion: list[T], entries: AsyncIterator[T]) -> bool:
    """Append the next entries to ``portion``; return True if more may follow."""
    async for entry in entries:
        portion.append(entry)
        if len(portion) == _PORTION:
            return True
    return False
