"""Stores for tests: one that fails, one that waits, and short ways to fill and to read any."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import trio

from zarrfs.keys import ByteRange, Key, Prefix
from zarrfs.stores.base import Buffer, DirEntry, Generation, KeyStat, Store
from zarrfs.transformers.forwarding import ForwardingStore


async def fill(store: Store, values: Mapping[str, bytes]) -> None:
    for key, value in values.items():
        await store.set(Key(key), value)


async def contents(store: Store, prefix: str = "") -> dict[str, bytes]:
    """Every key below ``prefix`` and its value, by listing and getting."""
    found: dict[str, bytes] = {}
    async for key in store.list_prefix(Prefix(prefix)):
        value = await store.get(key)
        assert value is not None, f"{key!r} is listed and has no value"
        assert key not in found, f"{key!r} is listed twice"
        found[key] = bytes(value)
    return found


async def names(store: Store, prefix: str = "") -> dict[tuple[str, bool], int]:
    """What `list_dir` gives: name and whether it is a prefix, to size."""
    found: dict[tuple[str, bool], int] = {}
    async for name, is_prefix, size, _ in store.list_dir(Prefix(prefix)):
        assert (name, is_prefix) not in found, f"{name!r} is listed twice"
        found[name, is_prefix] = size
    return found


class InterruptedStore(ForwardingStore):
    """Each operation on values first goes through `interrupt`, which may raise or wait."""

    async def interrupt(self, operation: str, place: str) -> None:
        raise NotImplementedError

    async def get(self, key: Key) -> Buffer | None:
        await self.interrupt("get", key)
        return await super().get(key)

    async def get_partial_values(
        self, key_ranges: Sequence[tuple[Key, ByteRange]], *, if_generation: Generation | None = None
    ) -> list[Buffer | None]:
        for key, _ in key_ranges:
            await self.interrupt("get_partial_values", key)
        return await super().get_partial_values(key_ranges, if_generation=if_generation)

    async def get_with_stat(self, key: Key, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        await self.interrupt("get_partial_values", key)
        return await super().get_with_stat(key, byte_range)

    async def stat(self, key: Key) -> KeyStat | None:
        await self.interrupt("stat", key)
        return await super().stat(key)

    async def set(self, key: Key, value: Buffer, *, if_generation: Generation | None = None) -> Generation | None:
        await self.interrupt("set", key)
        return await super().set(key, value, if_generation=if_generation)

    async def erase(self, key: Key) -> None:
        await self.interrupt("erase", key)
        await super().erase(key)

    async def erase_prefix(self, prefix: Prefix) -> None:
        await self.interrupt("erase_prefix", prefix)
        await super().erase_prefix(prefix)

    async def list_dir(self, prefix: Prefix) -> AsyncIterator[DirEntry]:
        await self.interrupt("list_dir", prefix)
        async for entry in super().list_dir(prefix):
            yield entry


class FailingStore(InterruptedStore):
    """Raises what ``errors`` says for the name of an operation."""

    def __init__(self, inner: Store, errors: Mapping[str, Exception]) -> None:
        super().__init__(inner)
        self.errors = dict(errors)

    async def interrupt(self, operation: str, place: str) -> None:
        if operation in self.errors:
            raise self.errors[operation]


class WaitingStore(InterruptedStore):
    """Operations named in ``waits`` do not begin before `let_go`; ``stubborn``: not even their cancellation ends them earlier.

    ``waiting`` holds the place of each that waits now.
    """

    def __init__(self, inner: Store, *waits: str, stubborn: bool = False) -> None:
        super().__init__(inner)
        self.waits = set(waits)
        self.stubborn = stubborn
        self.waiting: list[str] = []
        self._gate = trio.Event()

    def let_go(self) -> None:
        """Let everything go on that waits, and everything to come."""
        self._gate.set()

    async def interrupt(self, operation: str, place: str) -> None:
        if operation in self.waits:
            self.waiting.append(place)
            try:
                with trio.CancelScope(shield=self.stubborn):
                    await self._gate.wait()
            finally:
                self.waiting.remove(place)
