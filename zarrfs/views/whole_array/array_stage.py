"""Stage of changes to the whole-array file of an existing array.

An `ArrayWriter` holds the elements; this module handles the bytes of the format around them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from zarrfs.arrays.array import Array
from zarrfs.arrays.reader_pool import StartSoon
from zarrfs.arrays.writer import ArrayWriter
from zarrfs.buffers import Buffer, Mask
from zarrfs.containers.base import FileLayout, Literal
from zarrfs.errors import (
    ContentInvalid,
    FileTooLarge,
    NotPermitted,
    StaleEntry,
)
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import Contents, Key, NodePath
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayNode
from zarrfs.vfs.known_pages import SeenPages
from zarrfs.vfs.stage import Stage, StagingRoom

Stored = Callable[[Sequence[Key | Contents]], None]
"""Called with what was set or erased, which a sync has to make durable."""


class ElementsStage(Stage):
    """Changed elements of an existing array. Its size, and the bytes around the elements, are fixed."""

    def __init__(
        self,
        hierarchy: Hierarchy,
        ident: str,
        open_array: OpenArray,
        layout: FileLayout,
        room: StagingRoom,
        start_soon: StartSoon,
        on_stored: Stored,
    ) -> None:
        self._hierarchy = hierarchy
        self._ident = ident
        self._open_array = open_array
        self._layout = layout
        self._writer = ArrayWriter(
            open_array.array,
            open_array.reader,
            budget=room.budget,
            directory=room.directory,
            start_soon=start_soon,
            on_stored=on_stored,
        )

    @property
    def size(self) -> int:
        return self._layout.size

    @property
    def nbytes(self) -> int:
        return self._writer.nbytes

    def opened(self) -> None:
        self._open_array.reader.expire()

    async def read(self, offset: int, size: int) -> Buffer:
        await self._require_current()
        out = bytearray()
        for extent, start, nbytes in self._layout.parts(offset, size):
            if isinstance(extent, Literal):
                out += extent.data[start : start + nbytes]
            else:
                out += await self._writer.read(extent.start + start, nbytes)
        return out

    async def write(self, offset: int, data: Buffer) -> None:
        await self._write(offset, data, None)

    async def write_over(self, offset: int, data: Buffer, known: SeenPages) -> None:
        await self._write(offset, data, known)

    async def _write(self, offset: int, data: Buffer, known: SeenPages | None) -> None:
        await self._require_current()
        if offset + len(data) > self.size:
            raise FileTooLarge(f"{self._ident} has exactly {self.size} bytes", key=self._ident)
        view = memoryview(data)
        parts = list(self._layout.parts(offset, len(data)))
        for extent, start, nbytes in parts:
            if isinstance(extent, Literal):
                # A program that maps the file writes whole pages back, including the header.
                begin = extent.offset + start - offset
                if extent.data[start : start + nbytes] != bytes(view[begin : begin + nbytes]):
                    raise NotPermitted(f"{self._ident}: the header describes the array and cannot be changed", key=self._ident)
        for extent, start, nbytes in parts:
            if not isinstance(extent, Literal):
                at, element_at = extent.offset + start, extent.start + start
                piece = view[at - offset : at - offset + nbytes]
                await (
                    self._writer.write(element_at, piece)
                    if known is None
                    else self._writer.write(*self._as_seen(element_at, piece, at, known))
                )

    def _as_seen(self, element_at: int, data: Buffer, at: int, known: SeenPages) -> tuple[int, Buffer, Mask | None]:
        """Return the arguments of `ArrayWriter.write` for bytes written at ``at`` of the file, which is ``element_at`` in the elements.

        Elements written in part are completed with the bytes last read or written there: the kernel writes a mapping back in pages.
        """
        changed = known.changed(at, data)
        itemsize = self._open_array.array.metadata.data_type.itemsize
        # If these bytes are unknown, the present ones complete the elements.
        first = known.content(at - element_at % itemsize, element_at % itemsize) or b""
        last = known.content(at + len(data), -(element_at + len(data)) % itemsize) or b""
        if not first and not last:
            return element_at, data, changed
        in_elements = np.zeros(len(first) + len(data) + len(last), bool)
        in_elements[len(first) : len(first) + len(data)] = True if changed is None else changed
        return element_at - len(first), b"".join((first, data, last)), in_elements

    async def truncate(self, size: int) -> None:
        if size > self.size:
            raise FileTooLarge(f"{self._ident} has exactly {self.size} bytes", key=self._ident)
        if size < self.size:
            raise ContentInvalid(f"{self._ident} has exactly {self.size} bytes and cannot be truncated to {size}", key=self._ident)

    async def publish(self) -> None:
        await self._require_current()
        await self._writer.publish()

    @property
    def path(self) -> NodePath:
        """The present or last path of the array."""
        return self._open_array.array.path

    async def publish_into(self, array: Callable[[ArrayNode], Awaitable[Array]]) -> list[Coords]:
        """Publish into another array with the same metadata, which ``array`` creates, and return the chunks."""
        chunks = self._writer.dirty
        self._writer.redirect(await array(self._open_array.array.node))
        await self._writer.publish()
        return chunks

    async def aclose(self) -> None:
        await self._writer.aclose()

    async def _require_current(self) -> None:
        if not await self._hierarchy.is_current(self._open_array):
            raise StaleEntry(
                f"the metadata of {self._open_array.array.path} was changed concurrently: open the file again", key=self._ident
            )
