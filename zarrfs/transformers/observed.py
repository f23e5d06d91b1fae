"""A store that counts operations and publishes changes.

This is the change stream of a mount: it publishes the mount's own writes when they succeed, and changes by other programs
through `ObservedStore.follow`, where the backend reports them. Subscribers are plain functions, called before the operation
returns, so that a view that answers afterwards answers with the new value.

Below a `zarrfs.transformers.deadline.DeadlineStore` it also publishes a write that took effect after its caller had given up.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Literal, TypeVar

from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch, KeyConflict, StoreNotFound, StoreUnsupported, ZarrfsError
from zarrfs.keys import APART, ByteRange, Key, Prefix
from zarrfs.stores.base import Held, Store
from zarrfs.stores.change import Change
from zarrfs.stores.moving import is_moving
from zarrfs.stores.values import Answer, DirEntry, Generation, Got, KeyStat
from zarrfs.transformers.counters import StoreCounters
from zarrfs.transformers.intercepting import InterceptingStore, Kind, Operation

log = logging.getLogger(__name__)

T = TypeVar("T")

# Operations that may fail after a change, wholly or in part; those that may be refused are refused before any change.
_IN_DOUBT = frozenset(
    {"set", "erase", "copy", "rename", "set_partial_values", "erase_values", "erase_prefix", "rename_prefix", "exchange_prefixes"}
)
_REFUSALS = (StoreUnsupported, KeyConflict, StoreNotFound)
_REFUSABLE: dict[str, tuple[type[ZarrfsError], ...]] = {
    "set": (KeyConflict, GenerationMismatch),
    "erase": (GenerationMismatch,),
    "rename": _REFUSALS,
    "rename_prefix": _REFUSALS,
    "exchange_prefixes": _REFUSALS,
}

_COUNTED = frozenset(StoreCounters.__slots__)
_COUNTED_AS = {
    "get_with_stat": "get_partial_values",
    "exchange_prefixes": "rename_prefix",
    "sync_all": "sync",
    "hold": "stat",
    "peek": "list_dir",
}


class ObservedStore(InterceptingStore):
    """Counts operations in ``counters``; publishes every change to subscribers.

    A change that fails may have taken effect, as when the answer of a server is lost. It is published too, so that nothing known before
    it counts as the present state: as ``"unknown"``, unless a value was to be set, or a renamed prefix is found at its new place.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.counters = StoreCounters()
        self._subscribers: list[Callable[[Change], None]] = []

    def subscribe(self, subscriber: Callable[[Change], None]) -> Callable[[], None]:
        """Call ``subscriber`` with every change until the returned function is called; log the exceptions it raises."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    async def follow(self, watching: Callable[[bool], None]) -> None:
        """Publish changes by other programs for as long as the backend reports them.

        ``watching(True)`` is called when from then on no change is missed; ``watching(False)`` when this no longer holds, also on
        cancellation.
        """
        complete = False

        def on_changes(changes: Sequence[Change]) -> None:
            nonlocal complete
            if not complete:
                complete = True
                watching(True)
            self.announce(*changes)

        try:
            await self.inner.watch(on_changes)
        finally:
            if complete:
                watching(False)

    def announce(self, *changes: Change) -> None:
        """Publish ``changes`` to the subscribers."""
        for change in changes:
            for subscriber in tuple(self._subscribers):
                try:
                    subscriber(change)
                except Exception:
                    log.exception("a subscriber failed on %r", change)

    async def intercept(self, operation: Operation, begin: Callable[[], Awaitable[T]]) -> T:
        self._count(operation.name)
        try:
            result = await begin()
        except BaseException as error:
            if operation.name in _IN_DOUBT and not isinstance(error, _REFUSABLE.get(operation.name, ())):
                if isinstance(error, ZarrfsError) and await self._is_moved(operation):
                    self.announce(*_moves(*operation.targets))
                else:
                    kind: Literal["set", "unknown"] = "set" if operation.name == "set" else "unknown"
                    self.announce(*(Change(target, kind) for target in operation.targets))
            raise
        self.counters.bytes_written += operation.nbytes
        self._count_read(operation, result)
        if operation.kind is Kind.CHANGES:
            self.announce(*self._changes(operation, result))
        return result

    def intercept_listing(self, operation: Operation, entries: AsyncIterator[T]) -> AsyncIterator[T]:
        self._count(operation.name)
        return entries

    def exclusive(self, key: Key) -> AbstractAsyncContextManager[None]:
        self._count("exclusive")
        return self.inner.exclusive(key)

    async def hold(self, key: Key) -> Held | None:
        held = await self.inner.hold(key)
        if held is None:
            return None
        self._count("hold")
        return _CountedHeld(held, self.counters)

    # Counted once answered: an operation that would have to wait is repeated, and counted then.

    def get_partial_values_now(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        values = self.inner.get_partial_values_now(key_ranges, if_generation=if_generation)
        self.counters.get_partial_values += 1
        self.counters.bytes_read += sum(len(value or b"") for value in values)
        return values

    def get_with_stat_now(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        found = self.inner.get_with_stat_now(key, byte_range)
        self.counters.get_partial_values += 1
        self.counters.bytes_read += len(found[0]) if found is not None else 0
        return found

    def get_many_now(self, key_ranges: Sequence[tuple[Key, ByteRange]]) -> list[Answer]:
        answers = self.inner.get_many_now(key_ranges)
        self.counters.get_many += 1
        self.counters.bytes_read += _nbytes_of(answers)
        return answers

    def stat_now(self, key: Key) -> KeyStat | None:
        stat = self.inner.stat_now(key)
        self.counters.stat += 1
        return stat

    def list_dir_now(self, prefix: Prefix) -> Sequence[DirEntry]:
        entries = self.inner.list_dir_now(prefix)
        self.counters.list_dir += 1
        return entries

    def prefix_mtime_ns_now(self, prefix: Prefix) -> int | None:
        mtime_ns = self.inner.prefix_mtime_ns_now(prefix)
        self.counters.prefix_mtime_ns += 1
        return mtime_ns

    async def _is_moved(self, operation: Operation) -> bool:
        """Return True for a rename of a prefix that has failed and yet taken effect."""
        if operation.name != "rename_prefix":
            return False
        old, new = map(Prefix, operation.targets)
        with suppress(ZarrfsError):
            return await self.inner.prefix_exists(new) and not await self.inner.prefix_exists(old)
        return False

    def _changes(self, operation: Operation, result: Any) -> Iterator[Change]:
        """Return the changes of an operation that has succeeded."""
        targets = operation.targets
        match operation.name:
            case "rename":
                yield from _moves(*targets) if result else ()
            case "rename_prefix":
                if result:
                    yield from _moves(*targets)
                elif self.capabilities.empty_prefixes:
                    # Another program has moved or removed it: what is known of both places may be wrong.
                    yield from (Change(target, "unknown") for target in targets)
                elif targets[0] != targets[1]:
                    # Folders without keys exist in this mount only, and move nevertheless.
                    yield Change(targets[0], "moved", new_target=targets[1])
            case "exchange_prefixes":
                for target in targets:
                    yield Change(target, "erase")
                    yield Change(target, "set")
            case "copy":
                yield from (Change(target, "set") for target in targets[1:] if result)
            case "set_times":
                yield from (Change(target, "times") for target in targets if result)
            case "erase" | "erase_values" | "erase_prefix" | "remove_prefix":
                yield from (Change(target, "erase") for target in targets)
            case _:
                yield from (Change(target, "set") for target in targets)

    def _count(self, name: str) -> None:
        name = _COUNTED_AS.get(name, name)
        if name in _COUNTED:
            setattr(self.counters, name, getattr(self.counters, name) + 1)

    def _count_read(self, operation: Operation, result: Any) -> None:
        match operation.name:
            case "get":
                self.counters.bytes_read += len(result or b"")
            case "get_with_stat":
                self.counters.bytes_read += len(result[0]) if result is not None else 0
            case "get_partial_values":
                self.counters.bytes_read += sum(len(value or b"") for value in result)
            case "get_many":
                self.counters.bytes_read += _nbytes_of(result)


def _nbytes_of(answers: Iterable[Answer]) -> int:
    return sum(len(each.value) for each in answers if isinstance(each, Got))


def _moves(old: Key | Prefix, new: Key | Prefix) -> Iterator[Change]:
    if is_moving():
        yield Change(old, "erase", of_move=True)
        yield Change(new, "set", of_move=True)
    elif old.startswith(APART) or new.startswith(APART):
        # To observers of the store, the value appears or disappears.
        yield Change(old, "erase")
        yield Change(new, "set")
    elif old != new:
        yield Change(old, "moved", new_target=new)
        yield Change(old, "erase", of_move=True)
        yield Change(new, "set", of_move=True)


class _CountedHeld(Held):
    """Counts all reads of ``inner`` as one: a held value needs no further look-up."""

    def __init__(self, inner: Held, counters: StoreCounters) -> None:
        self._inner = inner
        self._counters = counters
        self.stat = inner.stat
        self._is_read = False

    async def read(self, offset: int, size: int) -> Buffer:
        self._counters.get_partial_values += not self._is_read
        self._is_read = True
        data = await self._inner.read(offset, size)
        self._counters.bytes_read += len(data)
        return data

    def close(self) -> None:
        self._inner.close()
