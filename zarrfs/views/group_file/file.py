"""The file of a group: elements of its arrays between the literal bytes of a format."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from zarrfs.buffers import Buffer
from zarrfs.containers.base import Elements, GroupContainer
from zarrfs.errors import NotPermitted, StaleEntry
from zarrfs.hierarchy.live_array import LiveArray
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import NodePath
from zarrfs.model.metadata import ArrayMetadata
from zarrfs.stores.values import latest
from zarrfs.vfs.extended_attributes import ExtendedAttributes
from zarrfs.vfs.node import Attributes, File, Handle, OpenFlags
from zarrfs.views.base import ViewContext
from zarrfs.views.group_file.layouts import GroupLayout, GroupLayouts
from zarrfs.views.group_file.times import ChangeTimes
from zarrfs.views.open_elements import OpenElements, read_range

MAX_OPEN = 256
"""Number of arrays that an open file keeps ready to be read."""


@dataclass(frozen=True, slots=True)
class MountedFormat:
    """A format of groups' files in a mount."""

    context: ViewContext
    container: GroupContainer
    layouts: GroupLayouts
    times: ChangeTimes


class GroupFile(File):
    """The file of the node at ``path``, read-only. Its elements change with the arrays."""

    def __init__(self, mounted: MountedFormat, path: NodePath, ident: str) -> None:
        self._context = mounted.context
        self._layouts = mounted.layouts
        self._times = mounted.times
        self._path = path
        self.ident = ident

    @property
    def of(self) -> object:
        return self._layouts.last(self._path)

    @property
    def in_parts(self) -> bool:
        return True

    async def attributes(self) -> Attributes:
        return await self._attributes(await self._layouts.at(self._path))

    async def _attributes(self, layout: GroupLayout) -> Attributes:
        documents_ns = await self._layouts.documents_ns(self._path)
        known_ns = documents_ns if documents_ns is not None else self._context.mounted_ns
        return Attributes(False, layout.layout.size, latest(known_ns, self._times.at(self._path)), writable=False)

    async def extended_attributes(self) -> ExtendedAttributes | None:
        return self._context.node_attributes.of(await self._context.hierarchy.node(self._path))

    async def open(self, flags: OpenFlags) -> Handle:
        if flags.write:
            raise NotPermitted(f"{self.ident} cannot be written", key=self.ident)
        layout = await self._layouts.at(self._path)
        return _GroupHandle(self._context.hierarchy, layout, await self._attributes(layout))


class _GroupHandle(Handle):
    """A group's file with its layout at open. An array that is gone makes its own extents stale, and no others."""

    def __init__(self, hierarchy: Hierarchy, layout: GroupLayout, attributes: Attributes) -> None:
        self._layout = self.of = layout
        self._attributes = attributes
        self._arrays = _OpenArrays(hierarchy, layout)

    async def attributes(self) -> Attributes:
        return self._attributes

    async def read(self, offset: int, size: int) -> Buffer:
        return await read_range(self._layout.layout, offset, size, self._arrays.read)

    async def release(self) -> None:
        await self._arrays.aclose()


class _Array:
    """An array of an open file. ``readers``: reads in progress."""

    def __init__(self, elements: OpenElements) -> None:
        self.elements = elements
        self.readers = 0


class _OpenArrays:
    """The arrays of an open file, opened at the first read of their elements; the `MAX_OPEN` used last stay open."""

    def __init__(self, hierarchy: Hierarchy, layout: GroupLayout) -> None:
        self._hierarchy = hierarchy
        self._layout = layout
        self._open: OrderedDict[NodePath, _Array] = OrderedDict()
        # Held beyond that, to recognise an array that was replaced by an equal one.
        self._lives: dict[NodePath, LiveArray] = {}

    async def read(self, extent: Elements, begin: int, nbytes: int) -> Buffer:
        """Return ``nbytes`` bytes from byte ``begin`` of ``extent``, converted. Raises `StaleEntry`."""
        assert extent.path is not None
        start = extent.start + begin
        metadata, _ = self._layout.arrays[extent.path]
        array = self._open.get(extent.path)
        if array is None:
            open_array = await self._array_at(extent.path, metadata)
            array = self._open.setdefault(extent.path, open_array)
        self._open.move_to_end(extent.path)
        with _reading(array):
            await self._close_unused()
            stored = metadata.data_type.npy_dtype
            if extent.dtype is None or extent.dtype == stored:
                return await array.elements.read(start, nbytes)
            first, end = start // extent.dtype.itemsize, -(-(start + nbytes) // extent.dtype.itemsize)
            data = await array.elements.read(first * stored.itemsize, (end - first) * stored.itemsize)
            converted = np.frombuffer(data, stored).astype(extent.dtype)
            skipped = start - first * extent.dtype.itemsize
            return converted.view(np.uint8).data[skipped : skipped + nbytes]

    async def _array_at(self, path: NodePath, metadata: ArrayMetadata) -> _Array:
        _, bound = self._layout.arrays[path]
        live = self._lives.get(path)
        (live if live is not None else bound).check()
        now = live.path if live is not None else bound.path
        open_array = await self._hierarchy.array(now)
        if (
            open_array is None
            or (live is not None and open_array.live is not live)
            or (open_array.array.metadata.shape, open_array.array.metadata.data_type) != (metadata.shape, metadata.data_type)
        ):
            raise StaleEntry(f"{now} is gone, or was replaced or resized: open the file again", key=now)
        self._lives[path] = open_array.live
        return _Array(OpenElements(self._hierarchy, open_array))

    async def _close_unused(self) -> None:
        if (surplus := len(self._open) - MAX_OPEN) > 0:
            unused = [path for path, array in self._open.items() if not array.readers]
            for path in unused[:surplus]:
                await self._open.pop(path).elements.aclose()

    async def aclose(self) -> None:
        """Close all arrays."""
        while self._open:
            await self._open.popitem()[1].elements.aclose()


@contextmanager
def _reading(array: _Array) -> Iterator[None]:
    array.readers += 1
    try:
        yield
    finally:
        array.readers -= 1
