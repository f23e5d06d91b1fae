"""Stage of a whole-array file that begins empty, and becomes an array when it is complete."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import trio

from zarrfs.arrays.writer import ArrayWriter, FileOrder
from zarrfs.buffers import Buffer
from zarrfs.containers.base import Container, Elements, Head, Literal
from zarrfs.dialects.base import Layout
from zarrfs.errors import (
    ContentInvalid,
    FileTooLarge,
    MetadataError,
    NodeInDoubt,
    NotPermitted,
    StaleEntry,
    ZarrfsError,
)
from zarrfs.hierarchy.erasing import erase_stored
from zarrfs.hierarchy.live_array import LiveArray, OpenArray
from zarrfs.hierarchy.placing import Placing
from zarrfs.hierarchy.replacing_arrays import kept_attributes, replacing
from zarrfs.keys import NodePath
from zarrfs.keys.unsynced_keys import UnsyncedKeys
from zarrfs.model.data_type import from_numpy
from zarrfs.model.metadata import ArrayNode
from zarrfs.vfs.stage import Stage, StagingRoom
from zarrfs.views.base import ViewContext
from zarrfs.views.whole_array.array_stage import Stored

log = logging.getLogger(__name__)

# Bytes staged before the header is complete are passed on in pieces of this size.
_PIECE_NBYTES = 1 << 20
# Bytes searched for a header; a container refuses longer ones.
_HEAD_NBYTES = 1 << 16


class NewArrayStage(Stage):
    """A whole-array file that begins empty. Its header describes the array, which exists once the complete file is published.

    Elements that exceed the memory are stored before that, apart from all nodes (`zarrfs.hierarchy.placing`), and erased if the
    file stays incomplete. Then the new array is put in place in one step; until then, an array that it replaces (``replaced``) is
    unchanged. If shape and type are equal, the old array keeps its metadata and attributes, its chunks change one by one, and
    elements that exceed the memory are in a spill file. `zarrfs.hierarchy.replacing_arrays` defines what an array of another shape
    or type keeps.
    """

    def __init__(
        self,
        context: ViewContext,
        making: LiveArray,
        ident: str,
        container: Container,
        room: StagingRoom,
        replaced: OpenArray | None,
        on_stored: Stored,
        on_closed: Callable[[NewArrayStage], None],
    ) -> None:
        self._context = context
        self._making = making
        self._ident = ident
        self._container = container
        self._room = room
        self._replaced = replaced
        self._on_stored = on_stored
        self._on_closed = on_closed
        self._bytes = room.bytes()
        """All bytes until the header is complete, and until the elements among them are with the writer; then the header."""
        self._size = 0
        self._end = 0
        """The end of the written bytes; those beyond it, up to the size, come from `truncate`."""
        self._nbytes_written = 0
        """Bytes of all writes: fewer than the file has if a part of it was never written."""
        self._is_zero = True
        """True if no element was written, or zeros alone."""
        self._has_failed = False
        """True if a write has failed since the file was empty."""
        self._early: set[int] = set()
        """Pieces of the file that were written before the header was complete, and are not with the writer yet, by number."""
        self._head: Head | None = None
        self._node: ArrayNode | None = None
        self._writer: ArrayWriter | None = None
        self._same = False
        self._placing: Placing | None = None
        self._is_created = False
        """True if its creation in place has begun."""
        self.stored: LiveArray | None = None
        """The array in use, once it is stored."""
        self._abandoned = False
        self._stored_apart = UnsyncedKeys()
        self._pending: list[trio.Event] = []
        """The ends of steps of its creation in place that timed out."""
        self._refused: ZarrfsError | None = None
        """The reason why the written bytes cannot become an array."""
        self._is_lost = False
        """True if some written bytes are neither here nor in the store."""

    @property
    def _path(self) -> NodePath:
        return self._making.path

    @property
    def replaced(self) -> LiveArray | None:
        """The array that it replaces."""
        return self._replaced.live if self._replaced is not None else None

    def may_replace(self, found: LiveArray) -> bool:
        """Return True if ``found``, at its path, is the array that it replaces, or may be what a failed publish has left there."""
        placing = self._placing
        if placing is None:
            return found is self.replaced or self._is_created
        return found is self.replaced or placing.is_placed or placing.was_moved

    @property
    def size(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        return self._bytes.allocated + (self._writer.nbytes if self._writer is not None else 0)

    async def read(self, offset: int, size: int) -> Buffer:
        if self._is_lost:
            raise StaleEntry(f"{self._ident} was unlinked, and its stored part erased", key=self._ident)
        size = max(0, min(size, self._size - offset))
        head, writer = self._head, self._writer
        if head is None or writer is None or self._early or offset + size <= head.nbytes:
            return self._bytes.read(offset, size)
        await self._check_settled()
        first = bytes(self._bytes.read(offset, max(0, head.nbytes - offset)))
        return first + bytes(await writer.read(max(0, offset - head.nbytes), size - len(first)))

    async def write(self, offset: int, data: Buffer) -> None:
        try:
            await self._write(offset, data)
        except BaseException:
            self._has_failed = True
            raise

    async def _write(self, offset: int, data: Buffer) -> None:
        end = offset + len(data)
        self._nbytes_written += len(data)
        if self._head is None or self._writer is None:
            before, held = (self._size, self._end), (min(offset, self._size), self._bytes.read(offset, len(data)))
            await self._bytes.put(offset, data)
            self._size, self._end = max(self._size, end), max(self._end, end)
            self._early.update(range(offset // _PIECE_NBYTES, -(-end // _PIECE_NBYTES)))
            await self._look_for_head(before, held)
            return
        if end > self._whole_size:
            raise FileTooLarge(f"{self._ident}: the header limits the file to {self._whole_size} bytes", key=self._ident)
        await self._hand_over()
        view = memoryview(data)
        head = max(0, min(end, self._head.nbytes) - offset)
        if bytes(self._bytes.read(offset, head)) != bytes(view[:head]):
            raise NotPermitted(f"{self._ident}: the header is in use and cannot be changed", key=self._ident)
        if head < len(view):
            await self._check_settled()
            await self._write_elements(offset + head - self._head.nbytes, view[head:])
        self._size, self._end = max(self._size, end), max(self._end, end)

    async def _check_settled(self) -> None:
        """Raise `NodeInDoubt` if chunks stored apart may be in the array's place already: here they would be zeros, or old ones."""
        if self._placing is not None and self._placing.is_unknown:
            await self._settle(self._placing)
        placing = self._placing
        # Another edit may have found that the array is in place, and changed it since.
        if placing is not None and (
            placing.is_unsettled or (placing.is_placed and self._making.chunk_prefix == placing.chunk_prefix)
        ):
            raise NodeInDoubt(f"{self._ident}: not stored, and that not undone yet: close or sync the file", key=self._ident)

    async def truncate(self, size: int) -> None:
        if self._head is None or self._writer is None:
            before = self._size, self._end
            # A failure leaves the file as it is.
            await self._bytes.resize(size)
            self._size, self._end = size, min(self._end, size)
            await self._look_for_head(before)
            self._has_failed = self._has_failed and size > 0
        elif size > self._whole_size:
            raise FileTooLarge(f"{self._ident}: the header limits the file to {self._whole_size} bytes", key=self._ident)
        elif size < self._size:
            raise ContentInvalid(f"{self._ident}: cannot be truncated while it is being written", key=self._ident)
        else:
            self._size = size

    async def publish(self) -> None:
        self._making.check()
        if self._head is None or self._writer is None or self._node is None:
            raise self._refused or ContentInvalid(
                f"{self._ident}: no {self._container.suffix} header in its {self._size} bytes", key=self._ident
            )
        await self._hand_over()
        if self._size not in (self._head.nbytes, self._whole_size):
            raise ContentInvalid(
                f"{self._ident} has {self._size} bytes, but its header requires {self._whole_size}: nothing was stored",
                key=self._ident,
            )
        # The header alone is an array without written elements. Programs close the file at that point, some after they have extended it,
        # and open it again to map the elements where this header puts them (`numpy.lib.format.open_memmap`).
        is_blank = self._end <= self._head.nbytes or (self._is_zero and self._nbytes_written < self._whole_size)
        if is_blank and self._head.nbytes < self._whole_size and not self._elements_stay(self._head, self._node):
            raise ContentInvalid(
                f"{self._ident} is a header without elements, which in Fortran order, big-endian or after a header of "
                "another length would be misread when they are written later: nothing was stored",
                key=self._ident,
            )
        is_begun = self.is_left_open and self._head.nbytes < self._whole_size
        if is_blank and (self._has_failed or is_begun):
            # The writer may have stopped at the error. Python writes a buffered header again when it closes the file.
            why = "since a write failed" if self._has_failed else "and still open for writing"
            raise ContentInvalid(f"{self._ident} is a header without elements, {why}: nothing was stored", key=self._ident)
        if self._same:
            await self._writer.publish_whole()
            self.stored = self.replaced
        else:
            if self._placing is not None and (self._placing.is_unsettled or self._placing.is_unknown):
                # Before more is stored apart: the place apart may be that of the old array now.
                await self._settle(self._placing)
            # Unwritten elements are zeros, even if the kept fill value is not zero. Of an array in its place all are stored.
            is_whole = self._placing is not None and self._placing.is_placed
            is_whole |= not any(self._node.metadata.fill_bytes)
            await (self._writer.publish() if is_whole else self._writer.publish_whole())
            layout = await self._context.editor.layout_for(self._path)
            node = replace(self._node, path=self._path, chunk_prefix=layout.chunk_prefix(self._path))
            await (self._create(node) if self._placing is None else self._put(node, self._placing))
            self.stored = self._making
            self.stored = await self._array_in_use()
        self.replaces = self._replaced is not None and not self._same
        shown = self._container.layout(self._node.metadata).extents[0]
        self.moved = self._head.fortran_order or not isinstance(shown, Literal) or shown.data != bytes(self._bytes.whole())

    async def unnamed(self) -> None:
        if self._writer is None or self._node is None or self.stored is not None:
            return
        await self._writer.store_no_more()
        if not self._same:
            self._is_lost = bool(self._writer.stored)
            await self._abandon()
        self._abandoned = True

    async def aclose(self) -> None:
        self._on_closed(self)
        try:
            if self._writer is not None:
                await self._writer.aclose()
            if self.stored is None and not self._abandoned and self._node is not None and not self._same:
                await self._abandon()
        finally:
            self._bytes.close()

    # --- header -------------------------------------------------------------------------------------------------------------

    @property
    def _whole_size(self) -> int:
        assert self._head is not None
        return self._head.file_nbytes

    def _elements_stay(self, head: Head, node: ArrayNode) -> bool:
        """Return True if the file of the stored array has each element at the same offset, in the same bytes, as under ``head``."""
        metadata = node.metadata
        elements = next((each for each in self._container.layout(metadata).extents if isinstance(each, Elements)), None)
        in_order = not head.fortran_order or sum(extent > 1 for extent in head.shape) < 2
        return elements is not None and elements.offset == head.nbytes and in_order and head.dtype == metadata.data_type.npy_dtype

    async def _look_for_head(self, before: tuple[int, int], held: tuple[int, Buffer] | None = None) -> None:
        """Look for a header after a change. If that is refused, it is undone: from the sizes ``before``, and the bytes ``held`` there."""
        self._refused = None
        try:
            await self._read_head()
        except ZarrfsError as error:
            error.key = error.key or self._ident
            self._refused = error
            if self._head is None or held is None:
                self._size, self._end = before
                await self._bytes.resize(self._size)
                await self._bytes.put(*(held or (0, b"")))
            raise

    async def _read_head(self) -> None:
        head = self._container.read_head(bytes(self._bytes.read(0, _HEAD_NBYTES)))
        if head is None:
            return
        metadata = self._replaced.array.metadata if self._replaced is not None else None
        little = head.dtype.newbyteorder("<")
        self._same = metadata is not None and metadata.shape == head.shape and metadata.data_type.npy_dtype == little
        if self._same and self._replaced is not None and metadata is not None:
            node = self._replaced.array.node
        else:
            node = await self._new_node(head)
        data_type = node.metadata.data_type
        is_held = head.dtype == little == data_type.npy_dtype
        file_order = FileOrder(data_type.dtype if is_held else head.dtype, head.fortran_order)
        if self._size > (whole_size := head.file_nbytes):
            raise FileTooLarge(f"{self._ident}: the header limits the file to {whole_size} bytes", key=self._ident)
        if not self._same:
            self._placing = await self._context.editor.place_apart(node, over=self._replaced is not None)
            self._making.chunk_prefix = node.chunk_prefix if self._placing is None else self._placing.chunk_prefix
            if self._placing is None:
                self._context.hierarchy.hide(self._making)
        self._head, self._node = head, node
        self._writer = ArrayWriter(
            self._replaced.array
            if self._same and self._replaced is not None
            else self._context.hierarchy.array_of(node, self._making),
            None,
            budget=self._room.budget,
            directory=self._room.directory,
            start_soon=None if self._same else self._context.start_soon,
            file_order=file_order,
            on_stored=self._on_stored if self._placing is None else self._stored_apart.add,
            is_apart=self._placing is not None,
        )
        await self._hand_over()

    async def _hand_over(self) -> None:
        """Give the writer the elements that were written before the header. After an error, the next call continues."""
        assert self._head is not None and self._writer is not None
        head = self._head.nbytes
        for number in sorted(self._early):
            start, stop = max(head, number * _PIECE_NBYTES), min(self._end, (number + 1) * _PIECE_NBYTES)
            if start < stop:
                await self._write_elements(start - head, self._bytes.read(start, stop - start))
            self._early.discard(number)
        if len(self._bytes) > head:
            self._bytes.truncate(head)

    async def _write_elements(self, offset: int, data: Buffer) -> None:
        assert self._writer is not None
        self._is_zero = self._is_zero and not np.frombuffer(data, np.uint8).any()
        await self._writer.write(offset, data)

    async def _new_node(self, head: Head) -> ArrayNode:
        try:
            layout = await self._context.editor.layout_for(self._path)
            above = self._path.parent
            # An array may be the root of a hierarchy of its own (2019, 2022).
            around = layout if layout.holds(above) else await self._context.editor.layout_for(above)
            group = await self._context.hierarchy.documents(around.document_keys(above))
            self._making.document = next(iter(group), None)
            old = self._replaced.array.node if self._replaced is not None else None
            data_type, order = from_numpy(np.dtype(head.dtype)), "F" if head.fortran_order else "C"
            if old is not None and old.metadata.data_type.npy_dtype == head.dtype.newbyteorder("<"):
                # The old type may be one that NumPy lacks.
                data_type = old.metadata.data_type
            new_arrays = self._context.new_arrays
            return replacing(old, self._path, layout, new_arrays, shape=head.shape, data_type=data_type, order=order)
        except MetadataError as error:
            raise ContentInvalid(f"{self._ident} cannot become an array: {error}", key=self._ident) from error

    async def _settle(self, placing: Placing) -> None:
        """Determine the outcome of a failed attempt. If it has put the array in place, further chunks go there."""
        assert self._node is not None
        layout = await self._context.editor.layout_for(self._path)
        node = replace(self._node, path=self._path, chunk_prefix=layout.chunk_prefix(self._path))
        async with self._making.changing():
            await self._context.editor.settle(placing, node)
            if placing.is_placed and self._making.chunk_prefix != node.chunk_prefix:
                self._follow(node, placing, layout)

    def _follow(self, node: ArrayNode, placing: Placing, layout: Layout) -> None:
        assert self._writer is not None
        self._writer.in_place()
        self._making.document, self._making.generation = placing.document(layout, node)
        self._making.move(self._making.path, node.chunk_prefix)
        # A later array at its path is a different array.
        self._making.anchor = None
        self._context.hierarchy.live.hold(self._making)

    async def _put(self, node: ArrayNode, placing: Placing) -> None:
        if not placing.is_placed:
            await self._making.confirm()
        layout = await self._context.editor.layout_for(self._path)
        apart = placing.chunk_prefix
        # Concurrent readers of the file find its chunks at the old prefix or at the new one.
        async with self._making.changing():
            if self._replaced is not None:
                placing.keep = partial(kept_attributes, new=node, dialect=layout.dialect)
            over = self._replaced.live if self._replaced is not None else None
            await self._context.editor.put(node, placing, over=over, of=self._making)
            if self._making.chunk_prefix != node.chunk_prefix:
                self._follow(node, placing, layout)
        await placing.end()
        # Without the slash: the key of a 0-dimensional array may lie beside its prefix.
        before, now = apart.rstrip("/"), node.chunk_prefix.rstrip("/")
        # The keys of an array at the root begin with no slash.
        apart_ones = self._stored_apart.versions()
        stored = [type(each)((now + each[len(before) :]).lstrip("/")) if each.startswith(before) else each for each in apart_ones]
        self._on_stored([*stored, *layout.document_keys(node.path)])

    async def _create(self, node: ArrayNode) -> None:
        assert self._writer is not None
        self._context.hierarchy.hide(self._making)
        self._is_created = True
        try:
            await self._context.editor.create(node, stored=self._writer.has_stored_in, pending=self._pending, of=self._making)
        except BaseException:
            self._context.hierarchy.hide(self._making)
            raise
        self._on_stored(tuple((await self._context.editor.layout_for(self._path)).format(node)))

    async def _array_in_use(self) -> LiveArray:
        """Return the stored array as all others find it: that one follows renames."""
        with suppress(ZarrfsError):
            open_array = await self._context.hierarchy.array(self._path)
            if open_array is not None and not self._making.has_left_its_path:
                self._context.hierarchy.live.hold(open_array.live)
                return open_array.live
        return self._making

    async def _abandon(self) -> None:
        """Erase the stored part of an incomplete file; its path is free again, or still has the old array."""
        if self._placing is not None:
            await self._context.hierarchy.queued.drop(self._context.hierarchy.queued.below(self._placing.chunk_prefix))
            await self._placing.end()
            return
        chunks_there = self._writer.may_be_stored if self._writer is not None else ()
        if self._writer is not None and chunks_there and self._making.why_gone is None and not await self._is_whole():
            try:
                # Values stored there by another program meanwhile stay. Those of ours that still arrive are waited for.
                await erase_stored(self._context.store, self._making.chunk_prefix, self._writer.array.chunks, chunks_there)
            except ZarrfsError as error:
                log.error("%s: chunks of the incomplete array could not be erased: %s", self._path, error)
        self._context.hierarchy.reveal(self._path)

    async def _is_whole(self) -> bool:
        """Return True if its documents are stored despite an error, or may be: a failed step may have taken effect, or still do so."""
        assert self._node is not None
        if not all(step.is_set() for step in self._pending):
            return True
        try:
            written = (await self._context.editor.layout_for(self._path)).format(replace(self._node, path=self._path))
            return await self._context.hierarchy.documents(written) == written
        except ZarrfsError:
            # Unknown: its chunks stay.
            return True
