"""The files of ``chunks/``: decoded chunks and documents, as values that can be read and replaced."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np

from zarrfs.dialects.base import Edit
from zarrfs.dialects.v2 import ZARRAY, ZATTRS, ZGROUP
from zarrfs.errors import (
    ChunkSizeMismatch,
    ContentInvalid,
    GenerationMismatch,
    NoSuchEntry,
    StaleEntry,
    StoreUnsupported,
    ZarrfsError,
)
from zarrfs.hierarchy.arrays import Elements, fill
from zarrfs.hierarchy.nodes import OpenArray
from zarrfs.keys import NodePath
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.vfs.content import Snapshot, WholeContent
from zarrfs.vfs.node import Attributes, Buffer
from zarrfs.views.base import ViewContext
from zarrfs.views.chunks_documents import (
    KEYS,
    array_written,
    attributes_written,
    check_group,
    check_only_shape_differs,
    documents_of,
    says_the_same,
)
from zarrfs.views.chunks_state import ChunksState, ident

log = logging.getLogger(__name__)


class NodeDocument(WholeContent):
    """A document of the node at ``path``: made from the node when it is read; when it is published, the node is changed so that it
    says the same (`zarrfs.views.chunks_documents`)."""

    verbatim = False

    def __init__(self, state: ChunksState, path: NodePath, name: str) -> None:
        self._state = state
        self._context = state.context
        self.path = path
        self.name = name
        self.ident = ident(path, name)

    async def snapshot(self) -> Snapshot | None:
        shown = await self._shown()
        return _TextSnapshot(*shown) if shown is not None else None

    async def load(self) -> bytes | None:
        shown = await self._shown()
        return shown[0] if shown is not None else None

    async def publish(self, data: Buffer) -> None:
        written = bytes(data)
        node = await self._node()
        if self.name == ZATTRS:
            await self._context.editor.amend(self.path, Edit(attributes=attributes_written(node, self.ident, written)))
        elif self.name == ZARRAY:
            await self._publish_array(node, written)
        else:
            await self._publish_group(node, written)
        self._state.show(self.ident)
        if self.name == ZGROUP:
            self._state.filled(self.path)
        made = await self._made()
        if says_the_same(self.path, self.name, made, written):
            self._state.wrote(self.ident, made, written)
        if self.name == ZARRAY:
            await chunks_from_waiting(self._state, self.path)

    async def erase(self) -> None:
        """unlink(2): the attributes are emptied; of the other documents only the name goes (`ChunksState`)."""
        if self.name == ZATTRS:
            node = await self._found()
            if node is not None and node.attributes:
                await self._context.editor.amend(self.path, Edit(attributes={}))
        await self.hide()

    async def hide(self) -> None:
        """Take the name away and change nothing."""
        self._state.hide(self.ident, await self._made())

    async def sync(self) -> None:
        layout = await self._context.editor.layout_for(self.path)
        keys = await self._context.hierarchy.documents((*layout.document_keys(self.path), *layout.consolidated_keys(self.path)))
        await self._context.store.sync(keys)

    async def set_mtime(self, mtime_ns: int) -> None:
        self._state.set_mtime(self.ident, await self._made(), mtime_ns)
        layout = await self._context.editor.layout_for(self.path)
        for key in await self._context.hierarchy.documents(layout.document_keys(self.path)):
            try:
                await self._context.store.set_times(key, mtime_ns)
            except StoreUnsupported:
                return

    def moved(self, path: NodePath) -> NodeDocument:
        """The same document of the node that is called ``path`` now."""
        return type(self)(self._state, path, self.name)

    async def _publish_array(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        written = array_written(self.path, self.ident, data)
        editor = self._context.editor
        if isinstance(node, ArrayNode):
            before = array_written(self.path, self.ident, documents_of(node)[ZARRAY])
            check_only_shape_differs(self.ident, before, written)
            if before.shape != written.shape:
                await editor.resize(self.path, written.shape, erase_outside=self._context.resize_erases)
            return
        new = self._context.new_arrays.node(
            self.path,
            await editor.layout_for(self.path),
            shape=written.shape,
            data_type=written.data_type,
            chunk_shape=written.chunk_grid.chunk_shape((0,) * written.ndim),
            fill_value=written.fill_value,
        )
        # An undefined fill value stays so where the dialect can say it.
        metadata = replace(new.metadata, fill_value=written.fill_value)
        await editor.turn_into_array(replace(new, metadata=metadata, attributes=node.attributes))

    async def _publish_group(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        check_group(self.ident, data)
        if isinstance(node, ArrayNode):
            raise ContentInvalid(f"{self.ident}: {self.path} is an array, and cannot be a group as well", key=self.ident)
        if not node.explicit:
            layout = await self._context.editor.layout_for(self.path)
            await self._context.editor.create(GroupNode(path=self.path, dialect=layout.dialect.name))

    async def _found(self) -> ArrayNode | GroupNode | None:
        node = await self._context.hierarchy.node(self.path)
        return node if isinstance(node, ArrayNode | GroupNode) else None

    async def _node(self) -> ArrayNode | GroupNode:
        node = await self._found()
        if node is None:
            raise NoSuchEntry(f"there is no node at {self.path}", key=self.ident)
        return node

    async def _shown(self) -> tuple[bytes, int] | None:
        node = await self._found()
        return None if node is None else shown_document(self._state, node, self.name, documents_of(node).get(self.name))

    async def _made(self) -> bytes | None:
        node = await self._found()
        return documents_of(node).get(self.name) if node is not None else None


def shown_document(state: ChunksState, node: ArrayNode | GroupNode, name: str, made: bytes | None) -> tuple[bytes, int] | None:
    """A document of ``node`` as it is shown, and its mtime_ns; None where it has no such name (now). ``made``: what `documents_of`
    makes for it."""
    document = ident(node.path, name)
    text = state.text(document, made)
    if text is None or state.is_hidden(document, made) or (name == ZGROUP and state.is_new(node.path)):
        return None
    context = state.context
    return text, state.mtime_ns(document, made) or context.hierarchy.documents_mtime_ns(node.path) or context.mounted_ns


class LeavingDocument(NodeDocument):
    """A document that is renamed to what is no document: the new name gets what it says, the node keeps it, the old name is away."""

    async def erase(self) -> None:
        await self.hide()


async def chunks_from_waiting(state: ChunksState, path: NodePath) -> None:
    """Let the files that have the names of chunks of the array at ``path``, and were there before it, become these chunks.

    Raises `ContentInvalid` for those that do not fit; they go on waiting.
    """
    context = state.context
    opened = await context.hierarchy.array(path)
    if opened is None:
        return
    refused: list[str] = []
    for name, *_ in list(context.temporaries.entries(ident(path, ""))):
        coords = KEYS.decode(name, opened.array.metadata.ndim)
        if coords is None or not opened.array.has(coords):
            continue
        try:
            await _become_chunk(state, DecodedChunk(context, opened, coords))
        except ZarrfsError as error:
            refused.append(str(error))
    if refused:
        raise ContentInvalid(f"{path} is made, but not every chunk that waited for it: {refused[0]}", key=path)


async def _become_chunk(state: ChunksState, chunk: DecodedChunk) -> None:
    context = state.context
    staged = context.staging.get(chunk.ident)
    if staged is not None:
        await staged.publish_now()
    async with context.staging.renaming(chunk.ident, chunk):
        snapshot = await context.temporaries.content(chunk.ident).snapshot()
        if snapshot is None:
            return
        state.became_chunks.add(chunk.ident)
        try:
            await chunk.publish(await snapshot.read(0, snapshot.attributes.size))
        finally:
            state.became_chunks.discard(chunk.ident)
            await snapshot.aclose()
        context.temporaries.remove(chunk.ident)
    context.staging.changed(chunk.ident)


class _TextSnapshot(Snapshot):
    def __init__(self, data: bytes, mtime_ns: int) -> None:
        self._data = memoryview(data)
        self.attributes = Attributes(False, len(data), mtime_ns)

    async def read(self, offset: int, size: int) -> Buffer:
        return self._data[offset : offset + size]


class DecodedChunk(WholeContent):
    """A chunk's elements as bytes; its size is fixed by the metadata. Codecs may round what is written, and padding is replaced."""

    verbatim = False

    def __init__(self, context: ViewContext, opened: OpenArray, coords: Coords, path: NodePath | None = None) -> None:
        self._context = context
        self._opened = opened
        self._coords = coords
        self._nbytes = opened.array.metadata.chunk_nbytes(coords)
        self.fixed_size = self._nbytes
        self.path = path if path is not None else opened.array.path
        self.ident = ident(self.path, KEYS.encode(coords))

    async def snapshot(self) -> Snapshot | None:
        opened = self._opened
        stat = await opened.array.chunks.stat(self._coords)
        if stat is None and not self._context.fill:
            return None
        stored_ns = stat.mtime_ns if stat is not None else None
        mtime_ns = self._context.times.shown(self.ident, size=self._nbytes, stored_ns=stored_ns)
        return _ChunkSnapshot(opened, self._coords, self._nbytes, mtime_ns, stat.generation if stat is not None else None)

    async def load(self) -> Buffer | None:
        opened = await self._current()
        # What was decoded before may be another value than the one that a part of is about to be changed.
        elements: Elements | None = None
        while (stat := await opened.array.chunks.stat(self._coords)) is not None:
            try:
                elements = await opened.reader.chunk(self._coords, stat.generation)
                break
            except GenerationMismatch:
                continue
        if elements is None and self._context.fill:
            elements = _filled(opened, self._coords)
        return None if elements is None else _as_bytes(elements)

    async def publish(self, data: Buffer) -> None:
        opened = await self._current()
        if len(data) != self._nbytes:
            raise ChunkSizeMismatch(
                f"{self.ident} has exactly {self._nbytes} bytes, not {len(data)}: nothing was stored", key=self.ident
            )
        await opened.array.write_chunk(self._coords, data)

    async def erase(self) -> None:
        await (await self._current()).array.chunks.update({self._coords: None})

    async def sync(self) -> None:
        await self._context.store.sync(self._opened.array.chunks.keys(self._coords))

    async def set_mtime(self, mtime_ns: int) -> None:
        for key in self._opened.array.chunks.keys(self._coords):
            try:
                await self._context.store.set_times(key, mtime_ns)
            except StoreUnsupported:
                stat = await self._opened.array.chunks.stat(self._coords)
                if stat is not None:
                    self._context.times.keep(self.ident, mtime_ns, size=self._nbytes, stored_ns=stat.mtime_ns)

    def moved(self, path: NodePath) -> DecodedChunk:
        """The same chunk of the array that is called ``path`` now."""
        return DecodedChunk(self._context, self._opened, self._coords, path)

    async def _current(self) -> OpenArray:
        """The array as it is now. Where it has another shape, or another name, but the same chunks, this is still one of them."""
        before = self._opened
        if before.superseded or before.array.path != self.path:
            now = await self._context.hierarchy.array(self.path)
            if now is None or not now.array.has(self._coords) or _chunk_of(now, self._coords) != _chunk_of(before, self._coords):
                raise StaleEntry(f"the metadata of {self.path} changed: open the chunk again", key=self.ident)
            self._opened = now
        return self._opened


class _ChunkSnapshot(Snapshot):
    def __init__(self, opened: OpenArray, coords: Coords, nbytes: int, mtime_ns: int | None, generation: str | None) -> None:
        self._opened = opened
        self._coords = coords
        self._generation = generation
        self._data: Buffer | None = None
        self.attributes = Attributes(False, nbytes, mtime_ns)

    async def read(self, offset: int, size: int) -> Buffer:
        if self._data is None:
            try:
                elements = await self._opened.reader.chunk(self._coords, self._generation)
            except GenerationMismatch as error:
                path = self._opened.array.path
                raise StaleEntry(f"chunk {self._coords} of {path} was replaced before it was read", key=path) from error
            if elements is None:
                elements = _filled(self._opened, self._coords)
            self._data = _as_bytes(elements)
        return self._data[offset : offset + size]


def _chunk_of(opened: OpenArray, coords: Coords) -> tuple[Any, ...]:
    metadata = opened.array.metadata
    return metadata.chunk_grid.chunk_shape(coords), metadata.data_type, metadata.fill_value


def _filled(opened: OpenArray, coords: Coords) -> Elements:
    metadata = opened.array.metadata
    elements: Elements = np.empty(metadata.chunk_grid.chunk_shape(coords), metadata.data_type.dtype)
    fill(metadata, elements)
    return elements


def _as_bytes(elements: Elements) -> Buffer:
    return np.ascontiguousarray(elements).reshape(-1).view(np.uint8).data.toreadonly() if elements.size else b""
