"""An in-memory `Content` that fails on request."""

from __future__ import annotations

import trio

from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkSizeMismatch
from zarrfs.vfs.content import Snapshot, WholeContent
from zarrfs.vfs.node import Attributes


class FakeContent(WholeContent):
    """One value. `publish` and `sync` raise ``refuses`` and ``fails_to_sync`` while set; `publish` waits for ``waits``.

    ``held`` is the last value given to `publish`, as a store that timed out may hold it.
    """

    def __init__(self, value: bytes | None = None, *, fixed_size: int | None = None, ident: str = "raw/k") -> None:
        self.ident = ident
        self.fixed_size = fixed_size
        self.value = value
        self.refuses: Exception | None = None
        self.fails_to_sync: Exception | None = None
        self.waits: trio.Event | None = None
        self.held: Buffer = b""
        self.mtime_ns: int | None = None
        self.tried = 0
        self.published = 0
        self.synced = 0
        self.loaded = 0

    async def snapshot(self) -> Snapshot | None:
        await trio.lowlevel.checkpoint()
        return None if self.value is None else FakeSnapshot(self.value, self.mtime_ns)

    async def load(self) -> Buffer | None:
        await trio.lowlevel.checkpoint()
        self.loaded += 1
        return self.value

    async def publish(self, data: Buffer) -> None:
        if self.fixed_size is not None and len(data) != self.fixed_size:
            raise ChunkSizeMismatch(f"{len(data)} bytes", key=self.ident)
        self.held = data
        self.tried += 1
        if self.waits is not None:
            await self.waits.wait()
        await trio.lowlevel.checkpoint()
        if self.refuses is not None:
            raise self.refuses
        self.value = bytes(data)
        self.mtime_ns = None
        self.published += 1

    async def erase(self) -> None:
        await trio.lowlevel.checkpoint()
        self.value = None

    async def sync(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.fails_to_sync is not None:
            raise self.fails_to_sync
        self.synced += 1

    async def set_mtime(self, mtime_ns: int) -> None:
        await trio.lowlevel.checkpoint()
        self.mtime_ns = mtime_ns


class FakeSnapshot(Snapshot):
    def __init__(self, value: bytes, mtime_ns: int | None) -> None:
        self._value = value
        self.attributes = Attributes(False, len(value), mtime_ns)

    async def read(self, offset: int, size: int) -> Buffer:
        await trio.lowlevel.checkpoint()
        return self._value[offset : offset + size]
