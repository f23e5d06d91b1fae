"""Chunks as files: decoded, or encoded as stored."""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from zarrfs.arrays.array import Array
from zarrfs.arrays.filling import part
from zarrfs.arrays.merging import ElementMerge, Mask, store_merged
from zarrfs.buffers import Buffer, NDArray
from zarrfs.errors import (
    ChunkDecodeError,
    ChunkEncodeError,
    ChunkSizeMismatch,
    ContentInvalid,
    FileTooLarge,
    GenerationMismatch,
    LayoutChanged,
    StaleEntry,
    StoreUnsupported,
)
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.keys import WHOLE, ByteRange, NodePath
from zarrfs.memory.budget import MemoryBudget
from zarrfs.memory.spill import contiguous
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES
from zarrfs.stores.values import KeyStat
from zarrfs.vfs.content import Snapshot
from zarrfs.vfs.kept import Kept, kept
from zarrfs.vfs.node import Attributes
from zarrfs.vfs.stage import Stage, StagingRoom
from zarrfs.views.nodes.chunk_stage import ChunkStage
from zarrfs.views.nodes.missing_chunks import missing_size
from zarrfs.views.nodes.view_format import NodeContent, ViewFormat

# Encoded chunks up to this size are read whole, once, at the first read; larger ones in the requested ranges.
_WHOLE_NBYTES = 8 * 1024 * 1024
# Decoded chunks up to this size are read at open: that costs no more than the check that they still exist.
_AT_ONCE_NBYTES = 1024 * 1024
# An open file keeps a chunk of at least this size in a spill file if memory is short; a smaller one is decoded again.
_IN_FILE_NBYTES = 1024 * 1024


class ChunkFile(NodeContent):
    """Chunk ``coords`` of an array; ``path`` is the present path of an array renamed since it was opened."""

    def __init__(self, view_format: ViewFormat, open_array: OpenArray, coords: Coords, path: NodePath | None = None) -> None:
        self._view_format = view_format
        self._context = view_format.context
        self._open_array = open_array
        self.held_nbytes = open_array.held_nbytes
        self._coords = coords
        self._be_at(path if path is not None else open_array.array.path)

    @property
    def is_outdated(self) -> bool:
        return self._open_array.live.why_gone is not None

    async def open_to_write(self) -> None:
        await self._context.hierarchy.live.open_to_write(self._open_array.live)

    def follow(self) -> None:
        if self._open_array.live.path != self.path:
            self._be_at(self._open_array.live.path)

    def _be_at(self, path: NodePath) -> None:
        self.path = path
        self.ident = self._view_format.ident(path, self._view_format.keys(self._open_array.array.node).encode(self._coords))

    async def erase(self) -> None:
        await self._in_layout(lambda array: array.chunks.update({self._coords: None}))

    async def sync(self) -> None:
        chunks = self._open_array.array.chunks
        await chunks.publish([self._coords])
        await self._context.store.sync(chunks.keys(self._coords))

    async def set_mtime(self, mtime_ns: int) -> None:
        chunks = self._open_array.array.chunks
        try:
            await chunks.set_times(self._coords, mtime_ns)
        except StoreUnsupported:
            stat = await chunks.stat(self._coords)
            if stat is not None:
                size = await self._view_format.chunk_size(self._open_array, self._coords, stat.size)
                self._context.times.keep(self.ident, mtime_ns, size=size, stored_ns=stat.mtime_ns)

    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        # A later array in the place of this one is another array.
        self._context.hierarchy.live.hold(self._open_array.live)
        return await super().stage(room, empty=empty)

    async def stage_over(self, room: StagingRoom, seen: Snapshot, new_nbytes: int) -> Stage:
        # The generation of a chunk in a shard is that of all chunks in it.
        if self._open_array.array.metadata.shards:
            return await self.stage(room, empty=False)
        return await self.stage_of(room, seen, new_nbytes)

    async def _in_layout(self, store: Callable[[Array], Awaitable[None]]) -> None:
        """Run ``store`` on the array as it is now; again if it is resized meanwhile, unless this chunk has changed with it."""
        array = (await self._current()).array
        while True:
            try:
                await store(array)
                return
            except LayoutChanged:
                before, array = array, (await self._current()).array
                if array is before:
                    raise

    @property
    @abc.abstractmethod
    def _form_of_bytes(self) -> tuple[Any, ...]:
        """Return the metadata that determines the bytes of this chunk; after a change of it, staged bytes are no longer valid."""

    async def _current(self) -> OpenArray:
        """Return the array as it is now. If its shape has changed but this chunk has not, the file is still valid."""
        before = self._open_array
        if not await self._context.hierarchy.is_current(before):
            now = await self._context.hierarchy.array(before.live.path)
            was = self._form_of_bytes
            if now is not None and now.array.has(self._coords):
                self._open_array = now
                if self._form_of_bytes == was:
                    return now
                self._open_array = before
            raise StaleEntry(f"the metadata of {self.path} was changed concurrently: open the chunk again", key=self.ident)
        return self._open_array


class DecodedChunk(ChunkFile):
    """A chunk's elements as bytes; its size is fixed by the metadata. Codecs may round what is written, and padding is replaced.

    Elements without a fixed size have their plain encoding (`Array.plain`), whose size is known after the decoding.
    """

    def __init__(self, view_format: ViewFormat, open_array: OpenArray, coords: Coords, path: NodePath | None = None) -> None:
        super().__init__(view_format, open_array, coords, path)
        self._room = view_format.context.staging.room.kept
        self._is_variable = open_array.array.plain is not None
        self._nbytes = open_array.array.metadata.chunk_nbytes(coords)
        self._was_given = False
        self.fixed_size = None if self._is_variable else self._nbytes
        # Elements without a fixed size are replaced together.
        self.merged = not self._is_variable

    async def snapshot(self) -> Snapshot | None:
        open_array = self._open_array
        if self._is_variable:
            return await self._decoded_snapshot()
        stat = await open_array.array.chunks.stat(self._coords)
        if stat is None and not self._view_format.fills(open_array.array.node):
            return None
        stored_ns = stat.mtime_ns if stat is not None else None
        mtime_ns = self._context.times.mtime_ns_of(self.ident, size=self._nbytes, stored_ns=stored_ns)
        generation = stat.generation if stat is not None else None
        nbytes = self._nbytes if stat is not None else await missing_size(open_array.array, self._coords)
        return _DecodedSnapshot(open_array, self._coords, nbytes, mtime_ns, generation, self._room)

    async def open_snapshot(self) -> Snapshot | None:
        # A second open finds the chunk in the kernel's pages.
        if not self._was_given:
            return await self.open_to_change()
        return await self.snapshot()

    async def open_to_change(self) -> Snapshot | None:
        if not self._is_variable and self._nbytes <= _AT_ONCE_NBYTES:
            self._was_given = True
            found = await self._open_array.array.stored_chunk(self._coords)
            if found is not None:
                data, stat = found
                mtime_ns = self._context.times.mtime_ns_of(self.ident, size=self._nbytes, stored_ns=stat.mtime_ns)
                return _DecodedSnapshot(
                    self._open_array,
                    self._coords,
                    self._nbytes,
                    mtime_ns,
                    stat.generation,
                    self._room,
                    stored=kept(data, self._room),
                )
        return await self.snapshot()

    async def load(self) -> Buffer | None:
        open_array = await self._current()
        # Decoded again: an earlier result may be of another value than the one whose part is changed.
        elements, _ = await _decoded(open_array, self._coords)
        if elements is None and self._view_format.fills(open_array.array.node):
            elements = await open_array.array.filled(self._coords)
        return None if elements is None else _as_bytes(elements)

    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        if self._is_variable:
            return await super().stage(room, empty=empty)
        data = None
        if not empty:
            data = await self.load()
            if data is None:
                # Another program has erased it since it was opened.
                data = _as_bytes(await self._open_array.array.filled(self._coords))
        return self._stage(room, data)

    async def stage_over(self, room: StagingRoom, seen: Snapshot, new_nbytes: int) -> Stage:
        if self._is_variable or not isinstance(seen, _DecodedSnapshot):
            return await super().stage_over(room, seen, new_nbytes)
        await self._current()
        if (data := await seen.at_hand()) is None:
            return await self.stage(room, empty=False)
        # The change is based on the bytes at open or at the first read, although the stored value may differ by now.
        return self._stage(room, data)

    def _stage(self, room: StagingRoom, data: Buffer | None) -> ChunkStage:
        self._context.hierarchy.live.hold(self._open_array.live)
        itemsize = self._open_array.array.metadata.data_type.itemsize
        return ChunkStage(room, data, self._publish_elements, nbytes=self._nbytes, itemsize=itemsize)

    def check_write(self, offset: int, size: int) -> None:
        if self._is_variable and offset + size > MAX_VARIABLE_NBYTES:
            raise FileTooLarge(
                f"{self.ident}: exceeds the maximum of {MAX_VARIABLE_NBYTES} bytes of a chunk of variable-length elements",
                key=self.ident,
            )
        super().check_write(offset, size)

    async def publish(self, data: Buffer) -> None:
        async def store(array: Array) -> None:
            if not self._is_variable:
                self._check_size(data)
            await array.write_chunk(self._coords, data)

        try:
            await self._in_layout(store)
        except (ChunkDecodeError, ChunkEncodeError) as error:
            if not self._is_variable:
                raise
            raise ContentInvalid(f"{self.ident}: {error}: nothing was stored", key=self.ident) from error

    async def _publish_elements(self, data: Buffer, changed: Mask | None = None) -> None:
        """Run `publish`; with ``changed`` store only those elements, of all of the chunk in C order."""
        if changed is None:
            await self.publish(data)
            return
        mask = changed

        async def store(array: Array) -> None:
            self._check_size(data)
            metadata = array.metadata
            shape = metadata.chunk_grid.chunk_shape(self._coords)
            elements: NDArray = np.frombuffer(data, metadata.data_type.dtype).reshape(shape)
            inside = part(mask.reshape(shape), array.inside(self._coords))
            await store_merged(array, self._coords, ElementMerge(array, self._coords, elements, lambda: inside, sparse=False))

        await self._in_layout(store)

    def _check_size(self, data: Buffer) -> None:
        if len(data) != self._nbytes:
            raise ChunkSizeMismatch(
                f"{self.ident} has exactly {self._nbytes} bytes, not {len(data)}: nothing was stored", key=self.ident
            )

    @property
    def _form_of_bytes(self) -> tuple[Any, ...]:
        metadata = self._open_array.array.metadata
        return metadata.chunk_grid.chunk_shape(self._coords), metadata.data_type, metadata.fill_value

    async def _decoded_snapshot(self) -> Snapshot | None:
        elements, stat = await _decoded(self._open_array, self._coords)
        if elements is None and self._view_format.fills(self._open_array.array.node):
            elements = await self._open_array.array.filled(self._coords)
        if elements is None:
            return None
        data = _as_bytes(elements)
        stored_ns = stat.mtime_ns if stat is not None else None
        mtime_ns = self._context.times.mtime_ns_of(self.ident, size=len(data), stored_ns=stored_ns)
        return _DecodedSnapshot(
            self._open_array,
            self._coords,
            len(data),
            mtime_ns,
            stat.generation if stat is not None else None,
            self._room,
            data=kept(data, self._room, in_file=len(data) >= _IN_FILE_NBYTES),
        )


class EncodedChunk(ChunkFile):
    """A chunk's stored bytes, unchanged. Written bytes must decode to a chunk, and are stored as they are, including padding."""

    verbatim = True

    async def snapshot(self) -> Snapshot | None:
        chunks = self._open_array.array.chunks
        stat = await chunks.stat(self._coords)
        if stat is None:
            return None
        mtime_ns = self._context.times.mtime_ns_of(self.ident, size=stat.size, stored_ns=stat.mtime_ns)
        return _EncodedSnapshot(self._open_array, self._coords, stat, mtime_ns, self._context.staging.room.kept)

    async def load(self) -> Buffer | None:
        array = (await self._current()).array
        limit = array.chain.encoded_limit(array.metadata.chunk_grid.chunk_shape(self._coords))
        data = await array.chunks.get(self._coords, ByteRange(0, limit + 1))
        if data is not None:
            self.check_write(len(data), 0)
        return data

    def check_write(self, offset: int, size: int) -> None:
        array = self._open_array.array
        # Refused before bytes are staged that no chunk can have.
        limit = array.chain.encoded_limit(array.metadata.chunk_grid.chunk_shape(self._coords))
        if offset + size > limit:
            raise FileTooLarge(f"{self.ident}: exceeds the maximum of {limit} bytes of a chunk of this array", key=self.ident)

    async def publish(self, data: Buffer) -> None:
        try:
            await self._in_layout(lambda array: array.write_encoded(self._coords, data))
        except ChunkDecodeError as error:
            raise ContentInvalid(f"{self.ident}: {error}: nothing was stored", key=self.ident) from error

    @property
    def _form_of_bytes(self) -> tuple[Any, ...]:
        metadata = self._open_array.array.metadata
        return metadata.chunk_grid.chunk_shape(self._coords), metadata.data_type, metadata.codecs


class _DecodedSnapshot(Snapshot):
    def __init__(
        self,
        open_array: OpenArray,
        coords: Coords,
        nbytes: int,
        mtime_ns: int | None,
        generation: str | None,
        room: MemoryBudget,
        *,
        data: Kept | None = None,
        stored: Kept | None = None,
    ) -> None:
        self._open_array = open_array
        self._coords = coords
        self._generation = generation
        self._room = room
        self._data = data
        self._stored = stored
        self.attributes = Attributes(False, nbytes, mtime_ns, generation=generation)

    async def at_hand(self) -> Buffer | None:
        """Return the chunk, if no request to the store is needed."""
        if self._data is None and self._stored is None:
            return None
        return await self.read(0, self.attributes.size)

    async def read(self, offset: int, size: int) -> Buffer:
        if self._data is not None:
            return self._data.data[offset : offset + size]
        stored = self._stored.data if self._stored is not None else None
        try:
            elements = await self._open_array.reader.chunk(self._coords, self._generation, stored)
        except GenerationMismatch as error:
            raise _replaced(self._open_array, self._coords) from error
        if elements is None:
            elements = await self._open_array.array.filled(self._coords)
        data = _as_bytes(elements)
        # A small chunk is decoded again if there is no room for it.
        self._data, self._stored = kept(data, self._room, in_file=len(data) >= _IN_FILE_NBYTES), None
        return data[offset : offset + size]

    async def aclose(self) -> None:
        self._data = self._stored = None


class _EncodedSnapshot(Snapshot):
    def __init__(self, open_array: OpenArray, coords: Coords, stat: KeyStat, mtime_ns: int | None, room: MemoryBudget) -> None:
        self._open_array = open_array
        self._coords = coords
        self._generation = stat.generation
        self._room = room
        self._data: Kept | None = None
        self.attributes = Attributes(False, stat.size, mtime_ns, generation=stat.generation)

    async def read(self, offset: int, size: int) -> Buffer:
        nbytes = self.attributes.size
        if offset >= nbytes or not size:
            return b""
        if self._data is None and nbytes <= _WHOLE_NBYTES and self._room.has(nbytes):
            self._data = kept(await self._part(WHOLE), self._room)
        if self._data is None:
            return await self._part(ByteRange(offset, min(size, nbytes - offset)))
        return self._data.data[offset : offset + size]

    async def aclose(self) -> None:
        self._data = None

    async def _part(self, byte_range: ByteRange) -> Buffer:
        try:
            parts = await self._open_array.array.chunks.get_parts(self._coords, [byte_range], self._generation)
        except GenerationMismatch as error:
            raise _replaced(self._open_array, self._coords) from error
        if not parts:
            raise _replaced(self._open_array, self._coords)
        return parts[0]


async def decoded_size(open_array: OpenArray, coords: Coords) -> int:
    """Return the size in bytes of the file of a decoded chunk.

    Chunks with elements of no fixed size are decoded; a corrupt one counts as 0 bytes, and its open returns the error.
    """
    if open_array.array.plain is None:
        return open_array.array.metadata.chunk_nbytes(coords)
    try:
        elements, _ = await _decoded(open_array, coords)
    except ChunkDecodeError:
        return 0
    return 0 if elements is None else elements.nbytes


async def _decoded(open_array: OpenArray, coords: Coords) -> tuple[NDArray | None, KeyStat | None]:
    """Return a chunk as it is now, and the stat of its stored value; None if there is none."""
    while (stat := await open_array.array.chunks.stat(coords)) is not None:
        try:
            return await open_array.reader.chunk(coords, stat.generation), stat
        except GenerationMismatch:
            continue
    return None, None


def _replaced(open_array: OpenArray, coords: Coords) -> StaleEntry:
    path = open_array.array.path
    return StaleEntry(f"chunk {coords} of {path} was replaced before it was read", key=path)


def _as_bytes(elements: NDArray) -> Buffer:
    return contiguous(elements).reshape(-1).view(np.uint8).data.toreadonly() if elements.size else b""
