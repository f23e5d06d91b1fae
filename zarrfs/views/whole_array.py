"""Whole-array files: each array as one file of a format that other programs open; one folder for each container format (``npy/``)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from zarrfs import registry
from zarrfs.containers.base import Container, FileLayout, Literal
from zarrfs.errors import NotPermitted, NotRepresentable, StaleEntry
from zarrfs.hierarchy.nodes import NodeChange, OpenArray
from zarrfs.keys import ROOT, NodePath
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, UnsupportedNode
from zarrfs.model.metadata import Node as HierarchyNode
from zarrfs.stores.base import Change
from zarrfs.vfs import names
from zarrfs.vfs.node import Attributes, Buffer, Directory, Entry, File, Handle, Node, OpenFlags, no_such_entry
from zarrfs.views.base import Affected, View, ViewContext, ViewPlugin
from zarrfs.views.tree import GroupDirectory, Shown, made_name

MAX_NBYTES = 2**63 - 1
"""Of a file: the kernel's offsets are signed."""


class WholeArrayView(View):
    """The view of one container format."""

    def __init__(self, context: ViewContext, container: Container) -> None:
        self._context = context
        self._container = container

    def root(self) -> Directory:
        return WholeArrayRoot(self._context, self._container)

    def affected(self, change: Change, nodes: Sequence[NodeChange]) -> Iterable[Affected]:
        for node in nodes:
            *folder, name = [names.name_of(part) for part in node.path[1:].split("/")]
            stem = self._context.store_name if node.path == ROOT else name
            yield Affected((*folder, made_name(stem, self._container.suffix)), gone=node.coords is None)
            if node.coords is None and node.path != ROOT:
                yield Affected((*folder, name), gone=True)


class WholeArrayGroup(GroupDirectory):
    """A group: a folder for each group in it, a file for each array."""

    def __init__(self, context: ViewContext, path: NodePath, container: Container) -> None:
        super().__init__(context, path)
        self.container = container
        self.view = container.name

    async def lookup(self, name: str) -> Node:
        suffix = self.container.suffix
        if name.endswith(suffix):
            # The usual name of an array's file, without listing the folder; a real group of that name goes first.
            node, taken = await self._child_called(name[: -len(suffix)]), await self._child_called(name)
            if isinstance(node, ArrayNode) and not isinstance(taken, GroupNode):
                shown = await self.show(name[: -len(suffix)], node)
                if shown.name == name:
                    return shown.make()
        return await super().lookup(name)

    async def show(self, name: str, node: HierarchyNode) -> Shown:
        if isinstance(node, GroupNode):
            return Shown(name, True, lambda: WholeArrayGroup(self.context, node.path, self.container))
        if isinstance(node, ArrayNode):
            try:
                layout = _layout(self.container, node.metadata)
            except NotRepresentable as error:
                node = UnsupportedNode(path=node.path, dialect=node.dialect, reason=str(error))
            else:
                return Shown(
                    made_name(name, self.container.suffix),
                    False,
                    lambda: WholeArrayFile(self.context, node.path, self.container),
                    layout.size,
                    await _mtime_ns(self.context, node.path),
                    suffix=self.container.suffix,
                )
        return self.show_unsupported(name, node)


class WholeArrayRoot(WholeArrayGroup):
    """The root of the view; where the root of the store is an array, its file is named after the store."""

    def __init__(self, context: ViewContext, container: Container) -> None:
        super().__init__(context, ROOT, container)

    async def lookup(self, name: str) -> Node:
        only = await self._only()
        if only is None:
            return await super().lookup(name)
        if name != only.name:
            raise no_such_entry(name)
        return only.make()

    async def entries(self) -> AsyncIterator[Entry]:
        only = await self._only()
        if only is not None:
            yield only.entry
            return
        async for entry in super().entries():
            yield entry

    async def _only(self) -> Shown | None:
        node = await self.context.hierarchy.node(ROOT)
        return await self.show(self.context.store_name, node) if isinstance(node, ArrayNode | UnsupportedNode) else None


class WholeArrayFile(File):
    """An array as one file. Its size follows from the metadata, its bytes are made when they are read."""

    def __init__(self, context: ViewContext, path: NodePath, container: Container) -> None:
        self._context = context
        self._path = path
        self._container = container
        self.ident = f"{container.name}{path}{container.suffix}"

    async def attributes(self) -> Attributes:
        _, layout = await self._opened()
        return await _attributes(self._context, self._path, layout)

    async def open(self, flags: OpenFlags) -> Handle:
        if flags.write:
            raise NotPermitted(f"{self.ident} cannot be written", key=self.ident)
        opened, layout = await self._opened()
        return _WholeArrayHandle(self._context, opened, layout)

    async def _opened(self) -> tuple[OpenArray, FileLayout]:
        opened = await self._context.hierarchy.array(self._path)
        if opened is None:
            raise no_such_entry(self.ident)
        return opened, _layout(self._container, opened.array.metadata)


class _WholeArrayHandle(Handle):
    def __init__(self, context: ViewContext, opened: OpenArray, layout: FileLayout) -> None:
        self._context = context
        self._opened = opened
        self._layout = layout
        self._position = opened.reader.opened()

    async def attributes(self) -> Attributes:
        return await _attributes(self._context, self._opened.array.path, self._layout)

    async def read(self, offset: int, size: int) -> Buffer:
        if self._opened.superseded:
            raise StaleEntry(f"the metadata of {self._opened.array.path} changed: open the file again", key=self._opened.array.path)
        stop = min(offset + size, self._layout.size)
        parts: list[Buffer] = []
        for extent in self._layout.extents:
            begin, end = max(offset, extent.offset), min(stop, extent.offset + extent.nbytes)
            if begin >= end:
                continue
            if isinstance(extent, Literal):
                parts.append(extent.data[begin - extent.offset : end - extent.offset])
            else:
                part = await self._opened.reader.read(extent.start + begin - extent.offset, end - begin, self._position)
                if begin == offset and end == stop:
                    return part
                parts.append(bytes(part))
        return b"".join(parts)

    async def release(self) -> None:
        self._opened.reader.closed(self._position)


def _layout(container: Container, metadata: ArrayMetadata) -> FileLayout:
    layout = container.layout(metadata)
    if layout.size > MAX_NBYTES:
        raise NotRepresentable(f"a file of {layout.size} bytes is larger than any file can be ({MAX_NBYTES})")
    return layout


async def _attributes(context: ViewContext, path: NodePath, layout: FileLayout) -> Attributes:
    return Attributes(False, layout.size, await _mtime_ns(context, path), writable=False)


async def _mtime_ns(context: ViewContext, path: NodePath) -> int:
    return await context.hierarchy.mtime_ns(path) or context.mounted_ns


def _plugin(container: Container) -> ViewPlugin:
    return ViewPlugin(
        container.name, f"every array as one {container.suffix} file", lambda context: WholeArrayView(context, container)
    )


PLUGIN = tuple(_plugin(container) for container in registry.plugins("zarrfs.containers"))
