"""``chunks/``: the hierarchy with every array a folder of decoded chunks, laid out as an uncompressed Zarr v2 hierarchy.

A chunk file is all elements of the chunk at its full shape, in C order, little-endian; its name is the coordinates joined by dots.
Chunks that are not stored are not listed (with ``fill`` they can be read as fill value); writing one creates it. The documents beside
them (``.zgroup``, ``.zarray``, ``.zattrs``) say just this, so that Zarr v2 readers open the folder whatever the store's own layout.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zarrfs.dialects.v2 import PLUGIN as V2
from zarrfs.errors import (
    ChunkSizeMismatch,
    EntryExists,
    GenerationMismatch,
    NameInvalid,
    StaleEntry,
    StoreReadOnly,
    StoreUnsupported,
    ZarrfsError,
)
from zarrfs.hierarchy.arrays import Elements, fill
from zarrfs.hierarchy.nodes import NodeChange, OpenArray
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import Coords, RegularGrid
from zarrfs.model.data_type import from_numpy
from zarrfs.model.metadata import ArrayNode, CodecSpec, GroupNode, UnsupportedNode
from zarrfs.model.metadata import Node as HierarchyNode
from zarrfs.stores.base import Change, Store
from zarrfs.vfs import names
from zarrfs.vfs.content import Snapshot, WholeContent
from zarrfs.vfs.generated import text
from zarrfs.vfs.node import Attributes, Buffer, Directory, Entry, File, Handle, Node, OpenFlags, lookup_file, no_such_entry
from zarrfs.vfs.staging import StagedFile
from zarrfs.views.base import Affected, View, ViewContext, ViewPlugin
from zarrfs.views.tree import GroupDirectory, Shown, show_reason

_DOCUMENTS = (".zarray", ".zgroup", ".zattrs")
_LAYOUT = V2.create(Prefix(""))
_KEYS = chunk_key.v2(".")


class ChunksView(View):
    """See the module's text."""

    def __init__(self, context: ViewContext) -> None:
        self._context = context

    def root(self) -> Directory:
        return ChunksRoot(self._context)

    def affected(self, change: Change, nodes: Sequence[NodeChange]) -> Iterable[Affected]:
        for node in nodes:
            folder = tuple(names.name_of(part) for part in node.path[1:].split("/") if part)
            if node.coords is not None:
                gone = change.kind in ("erase", "unknown")
                yield Affected((*folder, _KEYS.encode(node.coords)), gone=gone, content=change.kind != "times")
            else:
                yield Affected(folder, gone=True)
                for document in _DOCUMENTS:
                    yield Affected((*folder, document), gone=True)


def documents_of(node: ArrayNode | GroupNode) -> dict[str, bytes]:
    """The v2 documents of a node by file name. Raises `NotRepresentable`."""
    attributes: dict[str, Any] = dict(node.attributes)
    if isinstance(node, GroupNode):
        shown: ArrayNode | GroupNode = GroupNode(path=node.path, dialect=V2.name, attributes=attributes)
    else:
        metadata = node.metadata
        if metadata.dimension_names and all(metadata.dimension_names) and "_ARRAY_DIMENSIONS" not in attributes:
            attributes["_ARRAY_DIMENSIONS"] = list(metadata.dimension_names)
        data_type = metadata.data_type
        if data_type.npy_dtype != data_type.dtype:
            attributes["zarrfs"] = {"data_type": data_type.v3_name}
            data_type = from_numpy(data_type.npy_dtype)
        shown = ArrayNode(
            path=node.path,
            dialect=V2.name,
            metadata=replace(
                metadata,
                data_type=data_type,
                chunk_key_encoding=_KEYS,
                codecs=(CodecSpec("bytes", {"endian": "little"}),),
                dimension_names=None,
            ),
            chunk_prefix=node.path.prefix,
            attributes=attributes,
        )
    documents = _LAYOUT.format(shown)
    return {key[len(node.path.prefix) :]: value for key, value in documents.items()}


class ChunksGroup(GroupDirectory):
    """A group: its documents, and a folder for each group and array in it."""

    view = "chunks"

    async def documents(self) -> Sequence[Shown]:
        node = await self.context.hierarchy.node(self.path)
        if not isinstance(node, GroupNode):
            return ()
        return _shown_documents(self.context, self.path, documents_of(node))

    async def show(self, name: str, node: HierarchyNode) -> Shown:
        if isinstance(node, GroupNode):
            return Shown(name, True, lambda: ChunksGroup(self.context, node.path))
        if isinstance(node, ArrayNode):
            reason = _reason(node)
            if reason is None:
                return Shown(name, True, lambda: ChunksArray(self.context, node.path), writable=self.context.writable)
            node = UnsupportedNode(path=node.path, dialect=node.dialect, reason=reason)
        return self.show_unsupported(name, node)


class ChunksRoot(ChunksGroup):
    """The root of the view: a group's folder, or an array's where the root of the store is an array."""

    def __init__(self, context: ViewContext) -> None:
        super().__init__(context, ROOT)

    async def attributes(self) -> Attributes:
        other = await self._instead()
        return await super().attributes() if other is None else await other.attributes()

    async def lookup(self, name: str) -> Node:
        other = await self._instead()
        return await super().lookup(name) if other is None else await other.lookup(name)

    async def entries(self) -> AsyncIterator[Entry]:
        other = await self._instead()
        async for entry in super().entries() if other is None else other.entries():
            yield entry

    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        other = await self._instead()
        return await super().create(name, flags) if other is None else await other.create(name, flags)

    async def unlink(self, name: str) -> None:
        other = await self._instead()
        await (super().unlink(name) if other is None else other.unlink(name))

    async def _instead(self) -> Directory | None:
        node = await self.context.hierarchy.node(ROOT)
        if isinstance(node, ArrayNode):
            reason = _reason(node)
            if reason is None:
                return ChunksArray(self.context, ROOT)
            node = UnsupportedNode(path=ROOT, dialect=node.dialect, reason=reason)
        if isinstance(node, UnsupportedNode):
            return _ReasonDirectory(show_reason(self.view, self.context.store_name, node, self.context.mounted_ns))
        return None


class ChunksArray(Directory):
    """An array: its documents, and a file for each chunk that is stored."""

    def __init__(self, context: ViewContext, path: NodePath) -> None:
        self.context = context
        self.path = path

    async def attributes(self) -> Attributes:
        mtime_ns = await self.context.store.prefix_mtime_ns(self.path.prefix)
        return Attributes(True, mtime_ns=mtime_ns, writable=self.context.writable)

    async def lookup(self, name: str) -> Node:
        opened = await self._opened()
        if name in _DOCUMENTS:
            for shown in _shown_documents(self.context, self.path, documents_of(opened.array.node)):
                if shown.name == name:
                    return shown.make()
            raise no_such_entry(name)
        coords = _KEYS.decode(name, opened.array.metadata.ndim)
        if coords is None or not opened.array.has(coords):
            raise no_such_entry(name)
        content = DecodedChunk(self.context, opened, coords)
        if not self._is_staged(content) and not self.context.fill and await opened.array.chunks.stat(coords) is None:
            raise no_such_entry(name)
        return self._file(content)

    async def entries(self) -> AsyncIterator[Entry]:
        opened = await self._opened()
        for shown in _shown_documents(self.context, self.path, documents_of(opened.array.node)):
            yield shown.entry
        metadata = opened.array.metadata
        start = len(_ident(self.path, ""))
        staged = {one.content.ident[start:]: one for one in self.context.staging.unpublished_below(_ident(self.path, ""))}
        staged = {name: one for name, one in staged.items() if "/" not in name}
        async for coords, _, mtime_ns in opened.array.chunks.list():
            name = _KEYS.encode(coords)
            one = staged.pop(name, None)
            size = metadata.chunk_nbytes(coords) if one is None or one.size is None else one.size
            yield name, False, size, mtime_ns if one is None else one.mtime_ns, self.context.writable
        for name, one in staged.items():
            yield name, False, one.size or 0, one.mtime_ns, self.context.writable

    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        opened = await self._opened()
        if not self.context.writable:
            raise StoreReadOnly("this mount is read-only")
        coords = _KEYS.decode(name, opened.array.metadata.ndim)
        if coords is None or not opened.array.has(coords):
            raise NameInvalid(
                f"{name!r} is no chunk of {self.path}: the grid is {opened.array.metadata.grid_shape}", key=f"{self.path}/{name}"
            )
        content = DecodedChunk(self.context, opened, coords)
        if self._is_staged(content) or await opened.array.chunks.stat(coords) is not None:
            raise EntryExists(f"{content.ident!r} is there already", key=content.ident)
        file = self._file(content)
        return file, await file.create(flags)

    async def unlink(self, name: str) -> None:
        file = await lookup_file(self, name)
        if not isinstance(file, StagedFile):
            await super().unlink(name)
        elif not self.context.writable:
            raise StoreReadOnly("this mount is read-only")
        else:
            async with self.context.staging.unnaming(file.ident):
                await file.content.erase()

    async def _opened(self) -> OpenArray:
        opened = await self.context.hierarchy.array(self.path)
        if opened is None:
            raise no_such_entry(self.path)
        return opened

    def _is_staged(self, content: DecodedChunk) -> bool:
        """Whether the file is there although the store need not have it."""
        staged = self.context.staging.get(content.ident)
        return staged is not None and staged.unpublished

    def _file(self, content: DecodedChunk) -> StagedFile:
        return StagedFile(self.context.staging, content, writable=self.context.writable)


class DecodedChunk(WholeContent):
    """A chunk's elements as bytes; its size is fixed by the metadata. Codecs may round what is written, and padding is replaced."""

    verbatim = False

    def __init__(self, context: ViewContext, opened: OpenArray, coords: Coords) -> None:
        self._context = context
        self._opened = opened
        self._coords = coords
        self._nbytes = opened.array.metadata.chunk_nbytes(coords)
        self.fixed_size = self._nbytes
        self.ident = _ident(opened.array.path, _KEYS.encode(coords))

    async def snapshot(self) -> Snapshot | None:
        stat = await self._opened.array.chunks.stat(self._coords)
        if stat is None and not self._context.fill:
            return None
        mtime_ns = stat.mtime_ns if stat is not None else None
        return _ChunkSnapshot(self._opened, self._coords, self._nbytes, mtime_ns, stat.generation if stat is not None else None)

    async def load(self) -> Buffer | None:
        self._require_current()
        # What was decoded before may be another value than the one that a part of is about to be changed.
        elements: Elements | None = None
        while (stat := await self._opened.array.chunks.stat(self._coords)) is not None:
            try:
                elements = await self._opened.reader.chunk(self._coords, stat.generation)
                break
            except GenerationMismatch:
                continue
        if elements is None and self._context.fill:
            elements = _filled(self._opened, self._coords)
        return None if elements is None else _as_bytes(elements)

    async def publish(self, data: Buffer) -> None:
        self._require_current()
        if len(data) != self._nbytes:
            raise ChunkSizeMismatch(
                f"{self.ident} has exactly {self._nbytes} bytes, not {len(data)}: nothing was stored", key=self.ident
            )
        await self._opened.array.write_chunk(self._coords, data)

    async def erase(self) -> None:
        self._require_current()
        await self._opened.array.chunks.update({self._coords: None})

    async def sync(self) -> None:
        await self._context.store.sync(self._opened.array.chunks.keys(self._coords))

    async def set_mtime(self, mtime_ns: int) -> None:
        await _set_times(self._context.store, self._opened, self._coords, mtime_ns)

    def _require_current(self) -> None:
        if self._opened.superseded:
            raise StaleEntry(f"the metadata of {self._opened.array.path} changed: open the chunk again", key=self.ident)


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


def _filled(opened: OpenArray, coords: Coords) -> Elements:
    metadata = opened.array.metadata
    elements: Elements = np.empty(metadata.chunk_grid.chunk_shape(coords), metadata.data_type.dtype)
    fill(metadata, elements)
    return elements


class _ReasonDirectory(Directory):
    """The root of a view that the store's root cannot be shown in: one file with the reason."""

    def __init__(self, reason: Shown) -> None:
        self._reason = reason

    async def attributes(self) -> Attributes:
        return Attributes(True, writable=False)

    async def lookup(self, name: str) -> Node:
        if name != self._reason.name:
            raise no_such_entry(name)
        return self._reason.make()

    async def entries(self) -> AsyncIterator[Entry]:
        yield self._reason.entry


async def _set_times(store: Store, opened: OpenArray, coords: Coords, mtime_ns: int) -> None:
    for key in opened.array.chunks.keys(coords):
        try:
            await store.set_times(key, mtime_ns)
        except StoreUnsupported:
            return


def _shown_documents(context: ViewContext, path: NodePath, documents: dict[str, bytes]) -> list[Shown]:
    mtime_ns = context.hierarchy.documents_mtime_ns(path) or context.mounted_ns
    return [
        Shown(
            name,
            False,
            lambda name=name, data=data: text(_ident(path, name), data, mtime_ns=mtime_ns),  # type: ignore[misc]
            len(data),
            mtime_ns,
        )
        for name, data in sorted(documents.items())
    ]


def _reason(node: ArrayNode) -> str | None:
    """Why the view cannot show an array; None when it can."""
    if not isinstance(node.metadata.chunk_grid, RegularGrid):
        return f"the chunk grid of {node.path} has no Zarr v2 form"
    try:
        documents_of(node)
    except ZarrfsError as error:
        return str(error)
    return None


def _ident(path: NodePath, name: str) -> str:
    return "/".join(("chunks", *(names.name_of(part) for part in path[1:].split("/") if part), name))


def _as_bytes(elements: np.ndarray[Any, np.dtype[Any]]) -> Buffer:
    return np.ascontiguousarray(elements).reshape(-1).view(np.uint8).data.toreadonly() if elements.size else b""


PLUGIN = ViewPlugin(
    "chunks", "every array a folder of decoded chunks (C order, little-endian), which Zarr v2 readers open", ChunksView
)
