"""The elements of an array, as bytes of an open file that contains them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from zarrfs.arrays.position import Position
from zarrfs.buffers import Buffer
from zarrfs.containers.base import Elements, FileLayout, Literal
from zarrfs.errors import StaleEntry
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.model.chunk_plan import ChunkPlan


class OpenElements:
    """The elements of an array in C order, little-endian, with its metadata at open; read chunk by chunk at the time of each read.

    After a resize, the elements that remain are still read in the layout at open. Once the array is gone or replaced, every method
    raises `StaleEntry`.
    """

    def __init__(self, hierarchy: Hierarchy, open_array: OpenArray) -> None:
        self._hierarchy = hierarchy
        self._open_array = open_array
        self._resized: OpenArray | None = None
        self._position: Position | None = None
        self._is_closed = False

    async def check(self) -> None:
        """Return if the array is still the one that was opened."""
        live = self._open_array.live
        live.check()
        if live.is_unread:
            await self._hierarchy.reread(live.path)
            live.check()

    def generation(self) -> object:
        """Return another value after each known change of elements."""
        return self._open_array.reader.generation()

    async def read(self, start: int, nbytes: int) -> Buffer:
        """Return ``nbytes`` bytes from byte ``start`` of the elements; valid until the caller's next await."""
        live = self._open_array.live
        while True:
            await self.check()
            layouts = live.layouts
            if self._open_array.superseded:
                await self._require_inside(start, nbytes)
            if self._position is None:
                self._position = self._open_array.reader.new_position()
            try:
                data = await self._open_array.reader.read(start, nbytes, self._position)
            finally:
                if self._is_closed:
                    # A handle that moves on to another value does not wait for its reads.
                    self._let_go()
            # A resize during the read may have removed these elements.
            if live.layouts == layouts:
                return data

    async def _require_inside(self, start: int, nbytes: int) -> None:
        """Raise `StaleEntry` unless the array still has all elements in this range."""
        before = self._open_array
        # Held, so that its earlier readers also get notifications of changed chunks.
        now = self._resized = await self._hierarchy.array(before.live.path)
        metadata = before.array.metadata
        if now is not None and now.live is before.live and now.array.metadata.is_resize_of(metadata):
            itemsize = metadata.data_type.itemsize
            plan = ChunkPlan(metadata.shape, metadata.chunk_grid, start // itemsize, -(-(start + nbytes) // itemsize))
            if all(box.is_within(now.array.metadata.shape) for box in plan.boxes()):
                return
        path = before.live.path
        raise StaleEntry(f"{path} was resized and no longer has these elements: open the file again", key=path)

    async def aclose(self) -> None:
        """Release the reader."""
        self._is_closed = True
        self._let_go()

    def _let_go(self) -> None:
        position, self._position = self._position, None
        if position is not None:
            self._open_array.reader.closed(position)


async def read_range(layout: FileLayout, offset: int, size: int, read: Callable[[Elements, int, int], Awaitable[Buffer]]) -> Buffer:
    """Return at most ``size`` bytes from ``offset`` of a file with this layout; valid until the caller's next await.

    ``read(extent, begin, nbytes)`` returns ``nbytes`` bytes from byte ``begin`` of an extent of elements.
    """
    pieces: list[Buffer] = []
    parts = list(layout.parts(offset, size))
    for extent, begin, nbytes in parts:
        if isinstance(extent, Literal):
            piece: Buffer = memoryview(extent.data)[begin : begin + nbytes]
        else:
            piece = await read(extent, begin, nbytes)
        if len(parts) == 1:
            return piece
        pieces.append(bytes(piece))
    return b"".join(pieces)
