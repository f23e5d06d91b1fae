"""Chunks bound to one node, at whatever path it currently has: the outermost `ChunkStore` layer of an array.

A publish goes to the node's current path, or is refused. A read that overlaps a move is repeated. A missing chunk, one that cannot be
decoded, and any result while another folder is at the path of the held one, or while changes by other programs wait to be reported,
counts only after the store has confirmed that the node is still there: a folder that another program renamed lists no chunks, and one
that another program put in its place has chunks of another form, which proves nothing about the array
(docs/design/019-nodes-in-use.md).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import trio

from zarrfs.arrays.chunk_store import ChunkStore, Merge, StoredChunk, Written
from zarrfs.arrays.live_node import LiveNode
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkError, LayoutChanged, NodeMoving, StaleEntry, StoreReadOnly, ZarrfsError
from zarrfs.keys import WHOLE, ByteRange, Key
from zarrfs.model.chunk_grid import Coords
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.values import Generation, KeyStat

T = TypeVar("T")

# Of one chunk, if its array is read anew after each of them.
_READINGS = 16


class BoundChunks(ChunkStore):
    """The chunks that ``chunks`` stores for ``node``, which supplies its current prefix.

    ``of_layout``: publishes belong to the node's present layout; after a resize they raise `LayoutChanged`. Publishes to a node that is
    not ``writable`` raise `StoreReadOnly`. ``has_changes()``: changes by other programs wait to be reported.
    """

    def __init__(
        self, chunks: ChunkStore, node: LiveNode, has_changes: Callable[[], bool], *, of_layout: bool, writable: bool = True
    ) -> None:
        self._has_changes = has_changes
        self._writable = writable
        self._chunks = self.below = chunks
        self._layouts = node.layouts if of_layout else None
        self.node = node

    # --- reading ------------------------------------------------------------------------------------------------------------

    async def get_with_stat(self, coords: Coords, byte_range: ByteRange) -> tuple[Buffer, KeyStat] | None:
        return await self._read(lambda: self._chunks.get_with_stat(coords, byte_range), _is_none)

    async def get_parts(self, coords: Coords, byte_ranges: Sequence[ByteRange], generation: Generation) -> list[Buffer]:
        return await self._read(lambda: self._chunks.get_parts(coords, byte_ranges, generation), _never)

    async def get_several(self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE) -> list[Buffer | ChunkError | None]:
        return await self._read(lambda: self._chunks.get_several(coords, byte_range), _has_none)

    async def get_stamped(
        self, coords: Sequence[Coords], byte_range: ByteRange = WHOLE
    ) -> list[tuple[Buffer, Generation] | ChunkError | None]:
        return await self._read(lambda: self._chunks.get_stamped(coords, byte_range), _has_none)

    async def stat(self, coords: Coords) -> KeyStat | None:
        return await self._read(lambda: self._chunks.stat(coords), _is_none)

    async def list(self, *, outside: bool = False, under: Coords = ()) -> AsyncIterator[StoredChunk]:
        moves = await self.node.wait_stable()
        async for chunk in self._chunks.list(outside=outside, under=under):
            yield chunk
        if not self.node.has_stayed(moves):
            raise StaleEntry(f"{self.node.path}: moved while its chunks were listed", key=self.node.path)

    def list_now(self) -> Sequence[StoredChunk]:
        self.node.check()
        if not self.node.is_stable:
            raise WouldWait
        return self._chunks.list_now()

    async def wait_stable(self) -> None:
        await self.node.wait_stable()

    async def confirm(self) -> None:
        await self.node.wait_stable()
        await self.node.confirm()

    # --- writing ------------------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        if not self._writable:
            raise StoreReadOnly(f"{self.node.path}: layout is read-only", key=self.node.path)
        async with self.node.holding():
            if self._layouts not in (None, self.node.layouts):
                raise LayoutChanged(f"{self.node.path}: resized since the file was opened: open it again", key=self.node.path)
            yield

    async def update(self, chunks: Mapping[Coords, Buffer | None]) -> None:
        async with self.holding():
            await self._chunks.update(chunks)

    async def modify(self, changes: Mapping[Coords, Buffer | Merge | None]) -> None:
        async with self.holding():
            await self._chunks.modify(changes)

    @asynccontextmanager
    async def exclusive(self, coords: Coords) -> AsyncIterator[None]:
        async with self.holding(), self._chunks.exclusive(coords):
            yield

    async def merge(self, chunks: Mapping[Coords, Written]) -> Mapping[Coords, Generation | None]:
        async with self.holding():
            return await self._chunks.merge(chunks)

    async def publish(self, coords: Iterable[Coords] | None = None) -> None:
        async with self.node.holding():
            await self._chunks.publish(coords)

    async def set_times(self, coords: Coords, mtime_ns: int) -> None:
        async with self.holding():
            await self._chunks.set_times(coords, mtime_ns)

    # --- keys ---------------------------------------------------------------------------------------------------------------

    def keys(self, coords: Coords) -> tuple[Key, ...]:
        return self._chunks.keys(coords)

    def unit(self, coords: Coords) -> Coords:
        return self._chunks.unit(coords)

    async def _read(self, ask: Callable[[], Awaitable[T]], lacks: Callable[[T], bool]) -> T:
        readings = 0
        while True:
            moves = await self.node.wait_stable()
            try:
                found = await ask()
            except NodeMoving:
                raise
            except ZarrfsError as error:
                if self.node.has_stayed(moves):
                    if readings >= _READINGS or not isinstance(error, ChunkError) or await self.node.confirm():
                        raise
                    readings += 1
                await trio.lowlevel.checkpoint()
                continue
            is_doubtful = lacks(found) or self.node.is_unread or self._has_changes() or not self.node.are_chunks_in_place()
            if is_doubtful and self.node.has_stayed(moves) and not await self.node.confirm():
                readings += 1
                # An equal node may have replaced it between the two. A program that stores documents all the time, faster than they are
                # confirmed, would be waited for without end: it was the same node before each of these readings, and after it.
                if readings < _READINGS or not self.node.are_chunks_in_place():
                    await trio.lowlevel.checkpoint()
                    continue
            if self.node.has_stayed(moves):
                return found
            await trio.lowlevel.checkpoint()


def _is_none(found: object | None) -> bool:
    return found is None


def _has_none(found: Sequence[object | None]) -> bool:
    return any(each is None or isinstance(each, ChunkError) for each in found)


def _never(found: object) -> bool:
    return False
