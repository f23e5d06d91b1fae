"""Chunks as files: decoded, or encoded as stored."""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable
from types import EllipsisType
from typing import Any

import numpy as np

from zarrfs.arrays.array import Array
from zarrfs.arrays.failed_chunk import FailedChunk
from zarrfs.arrays.filling import part
from zarrfs.arrays.merging import ElementMerge, store_merged
from zarrfs.buffers import Buffer, Mask, NDArray, same_bytes
from zarrfs.errors import (
    ChunkDecodeError,
    ChunkEncodeError,
    ChunkSizeMismatch,
    ContentInvalid,
    FileTooLarge,
    GenerationMismatch,
    LayoutChanged,
    ShardIndexInvalid,
    StaleEntry,
    StoreUnsupported,
    ZarrfsError,
)
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.keys import ByteRange, NodePath
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES
from zarrfs.stores.values import KeyStat
from zarrfs.vfs.content import Snapshot
from zarrfs.vfs.kept import kept
from zarrfs.vfs.stage import Stage, StagingRoom
from zarrfs.views.nodes.chunk_snapshots import IN_FILE_NBYTES, CachedPages, DecodedSnapshot, EncodedSnapshot, as_bytes
from zarrfs.views.nodes.chunk_stage import ChunkStage
from zarrfs.views.nodes.missing_chunks import missing_size
from zarrfs.views.nodes.view_format import NodeContent, ViewFormat
from zarrfs.views.shown_fill import removed_reads_as

# Chunks up to this size are read at open: at the first READ the value may have been replaced, and some programs (numpy.fromfile) take
# an error of read(2) for data.
_AT_ONCE_NBYTES = 1024 * 1024
_TRIES = 3


class ChunkFile(NodeContent):
    """Chunk ``coords`` of an array; ``path`` is the present path of an array renamed since it was opened."""

    def __init__(self, view_format: ViewFormat, open_array: OpenArray, coords: Coords, path: NodePath | None = None) -> None:
        self._view_format = view_format
        self._context = view_format.context
        self._open_array = open_array
        self.held_nbytes = open_array.array.metadata.held_nbytes
        self._coords = coords
        self._cached_pages = CachedPages()
        self._be_at(path if path is not None else open_array.array.path)

    @property
    def is_outdated(self) -> bool:
        return self._open_array.live.why_gone is not None

    @property
    def is_elsewhere(self) -> bool:
        return self._open_array.live.is_moved_away

    async def open_snapshot(self) -> Snapshot | None:
        # A later open of the same value finds it in the kernel's pages, if these have all of it.
        if self._cached_pages.is_whole:
            snapshot = await self.snapshot()
            if snapshot is None or self._cached_pages.are_of(snapshot.attributes.generation):
                return snapshot
            await snapshot.aclose()
        return await self.open_to_change()

    async def open_to_write(self) -> None:
        await self._context.hierarchy.live.open_to_write(self._open_array.live)

    def follow(self) -> None:
        if self._open_array.live.path != self.path:
            self._be_at(self._open_array.live.path)

    def _be_at(self, path: NodePath) -> None:
        self.path = path
        self._key = self._view_format.keys(self._open_array.array.node).encode(self._coords)
        self.ident = self._view_format.ident(path, self._key)

    async def erase(self) -> None:
        async def store(array: Array) -> None:
            value = await self._view_format.removed_reads_as(array.node)
            if value is None:
                await array.chunks.update({self._coords: None})
            else:
                await array.write_chunk(self._coords, as_bytes(await array.filled(self._coords, value)))

        await self._in_layout(store)

    async def is_removed(self) -> bool:
        if not self._view_format.state.is_removed(self.ident):
            return False
        array = self._open_array.array
        if await array.chunks.stat(self._coords) is None:
            return True
        value = removed_reads_as(array.node)
        return value is not None and await array.holds_only(self._coords, value)

    async def sync(self) -> None:
        chunks = self._open_array.array.chunks
        await chunks.publish([self._coords])
        await self._context.store.sync(
            [*chunks.keys(self._coords), *await self._context.unsynced_documents(self._open_array.live.path)]
        )

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
        return await self.stage_of(room, seen, new_nbytes)

    async def stored(self) -> Buffer | EllipsisType | None:
        return await self.load()

    async def is_another(self, seen: Snapshot, loaded: Stage) -> bool:
        if not self._open_array.array.metadata.shards:
            return await super().is_another(seen, loaded)
        # The generation of a chunk in a shard is that of all chunks in it: its bytes tell whether it is another one.
        return (held := seen.held()) is not None and not same_bytes(held, await loaded.read(0, loaded.size))

    async def _in_layout(self, store: Callable[[Array], Awaitable[None]]) -> None:
        """Run ``store`` on the array as it is now; again if it is resized meanwhile, unless this chunk has changed with it."""
        array = (await self._current()).array
        while True:
            try:
                async with self._view_format.keeping_times(self.path, self._key):
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
            # A save, or another program, may have replaced it meanwhile.
            before.live.check()
            if now is not None and now.live is before.live and now.array.has(self._coords):
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

    def __init__(self, view_format: ViewFormat, open_array: OpenArray, coords: Coords, path: NodePath | None) -> None:
        super().__init__(view_format, open_array, coords, path)
        self._room = view_format.context.staging.room.kept
        self._merge: ElementMerge | None = None
        """The merge that has failed last."""
        self._is_variable = open_array.array.plain is not None
        self._nbytes = open_array.array.metadata.chunk_nbytes(coords)
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
        return DecodedSnapshot(open_array, self._coords, nbytes, mtime_ns, generation, self._room, self._cached_pages)

    async def open_to_change(self) -> Snapshot | None:
        if not self._is_variable and self._nbytes <= _AT_ONCE_NBYTES:
            since = self._open_array.reader.cache.changes
            found = await self._open_array.array.stored_chunk(self._coords)
            if found is not None:
                data, stat = found
                self._cached_pages.begin(stat.generation, self._nbytes)
                mtime_ns = self._context.times.mtime_ns_of(self.ident, size=self._nbytes, stored_ns=stat.mtime_ns)
                stored = kept(data, self._room)
                return DecodedSnapshot(
                    self._open_array,
                    self._coords,
                    self._nbytes,
                    mtime_ns,
                    stat.generation,
                    self._room,
                    self._cached_pages,
                    stored=(stored, since) if stored is not None else None,
                )
        return await self.snapshot()

    async def load(self) -> Buffer | None:
        open_array = await self._current()
        # Decoded again: an earlier result may be of another value than the one whose part is changed.
        elements, _ = await _decoded(open_array, self._coords)
        if elements is None and self._view_format.fills(open_array.array.node):
            elements = await open_array.array.filled(self._coords)
        return None if elements is None else as_bytes(elements)

    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        if self._is_variable:
            return await super().stage(room, empty=empty)
        data = None
        if not empty:
            data = await self.load()
            if data is None:
                # Another program has erased it since it was opened.
                data = as_bytes(await self._open_array.array.filled(self._coords))
        return self._stage(room, data)

    async def stage_over(self, room: StagingRoom, seen: Snapshot, new_nbytes: int) -> Stage:
        if self._is_variable or not isinstance(seen, DecodedSnapshot):
            return await super().stage_over(room, seen, new_nbytes)
        await self._current()
        if (data := await seen.at_hand()) is None:
            return await self.stage(room, empty=False)
        # The change is based on the bytes at open or at the first read, although the stored value may differ by now.
        return self._stage(room, data)

    def _stage(self, room: StagingRoom, data: Buffer | None) -> ChunkStage:
        self._context.hierarchy.live.hold(self._open_array.live)
        itemsize = self._open_array.array.metadata.data_type.itemsize
        return ChunkStage(room, data, self._publish_elements, self._stored, nbytes=self._nbytes, itemsize=itemsize)

    async def _stored(self) -> Buffer | None:
        if self._merge is not None and not isinstance(self._merge.base, EllipsisType):
            return self._merge.base
        array = (await self._current()).array
        limit = array.encoded_limit(self._coords)
        stored = await array.chunks.get(self._coords, ByteRange(0, limit + 1))
        if stored is not None and len(stored) > limit:
            raise array.oversized(self._coords, limit)
        return stored

    def check_write(self, offset: int, size: int) -> None:
        if self._is_variable and offset + size > MAX_VARIABLE_NBYTES:
            raise FileTooLarge(
                f"{self.ident}: exceeds the maximum of {MAX_VARIABLE_NBYTES} bytes of a chunk of variable-length elements",
                key=self.ident,
            )
        super().check_write(offset, size)

    async def publish(self, data: Buffer) -> None:
        self._merge = None

        async def store(array: Array) -> None:
            if not self._is_variable:
                self._check_size(data)
            await array.write_chunk(self._coords, data)

        try:
            await self._in_layout(store)
        except ShardIndexInvalid:
            # The stored shard is damaged, not the content.
            raise
        except (ChunkDecodeError, ChunkEncodeError) as error:
            if not self._is_variable:
                raise
            raise ContentInvalid(f"{self.ident}: {error}: nothing was stored", key=self.ident) from error
        self._view_format.state.wrote_chunk(self.ident)

    async def _publish_elements(self, data: Buffer, changed: Mask | None = None, failed: FailedChunk | None = None) -> None:
        """Run `publish`; with ``changed`` store only those elements, of all of the chunk in C order. ``failed``: see `ElementMerge`."""
        if changed is None:
            await self.publish(data)
            return
        self._merge, mask = None, changed

        async def store(array: Array) -> None:
            self._check_size(data)
            metadata = array.metadata
            shape = metadata.chunk_grid.chunk_shape(self._coords)
            elements: NDArray = np.frombuffer(data, metadata.data_type.dtype).reshape(shape)
            where = array.inside(self._coords)
            inside = part(mask.reshape(shape), where)
            rewritten = failed.rewritten() if failed is not None else None
            since = part(rewritten.reshape(shape), where) if rewritten is not None else None
            earlier = (failed, lambda: since) if failed is not None else None
            self._merge = ElementMerge(array, self._coords, elements, lambda: inside, sparse=False, failed=earlier)
            await store_merged(array, self._coords, self._merge)

        await self._in_layout(store)
        self._merge = None
        self._view_format.state.wrote_chunk(self.ident)

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
        data = as_bytes(elements)
        stored_ns = stat.mtime_ns if stat is not None else None
        mtime_ns = self._context.times.mtime_ns_of(self.ident, size=len(data), stored_ns=stored_ns)
        return DecodedSnapshot(
            self._open_array,
            self._coords,
            len(data),
            mtime_ns,
            stat.generation if stat is not None else None,
            self._room,
            self._cached_pages,
            data=kept(data, self._room, in_file=len(data) >= IN_FILE_NBYTES),
        )


class EncodedChunk(ChunkFile):
    """A chunk's stored bytes, unchanged. Written bytes must decode to a chunk, and are stored as they are, including padding."""

    verbatim = True

    async def snapshot(self) -> EncodedSnapshot | None:
        chunks = self._open_array.array.chunks
        stat = await chunks.stat(self._coords)
        if stat is None:
            return None
        mtime_ns = self._context.times.mtime_ns_of(self.ident, size=stat.size, stored_ns=stat.mtime_ns)
        return EncodedSnapshot(self._open_array, self._coords, stat, mtime_ns, self._context.staging.room.kept, self._cached_pages)

    async def open_to_change(self) -> Snapshot | None:
        for _ in range(_TRIES):
            snapshot = await self.snapshot()
            if snapshot is None or snapshot.attributes.size > _AT_ONCE_NBYTES:
                break
            self._cached_pages.begin(snapshot.attributes.generation, snapshot.attributes.size)
            try:
                await snapshot.take()
            except StaleEntry:
                await snapshot.aclose()
            except ZarrfsError:
                # It is the error of read(2).
                break
            else:
                break
        else:
            return await self.snapshot()
        return snapshot

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
        except ShardIndexInvalid:
            raise
        except ChunkDecodeError as error:
            raise ContentInvalid(f"{self.ident}: {error}: nothing was stored", key=self.ident) from error

    @property
    def _form_of_bytes(self) -> tuple[Any, ...]:
        metadata = self._open_array.array.metadata
        return metadata.chunk_grid.chunk_shape(self._coords), metadata.data_type, metadata.codecs


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
