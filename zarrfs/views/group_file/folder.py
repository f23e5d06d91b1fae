"""The folders of a view of groups' files: in each, a file and a folder for every group directly below."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from zarrfs.errors import NotRepresentable
from zarrfs.keys import ROOT, NodePath
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.vfs.extended_attributes import ExtendedAttributes
from zarrfs.vfs.node import Attributes, Directory, Entry, VfsNode
from zarrfs.views.group_directory import UNSUPPORTED_SUFFIX, Child, GroupChildren, entry_name_of, node_ident, unsupported_child
from zarrfs.views.group_file.file import GroupFile, MountedFormat


class GroupFiles(GroupChildren):
    """The entries of a group: a folder and a file for each group in it, and a file with the reason for each node that cannot be read.

    The root also has the file of the whole store. If the root is an array, that is the only entry.
    """

    def __init__(self, mounted: MountedFormat, path: NodePath) -> None:
        super().__init__(mounted.context, path)
        self._mounted = mounted
        self._suffix = mounted.container.suffix
        self.view = mounted.container.name
        # A file that cannot be rendered keeps its suffix.
        self._unsupported_suffix = self._suffix + UNSUPPORTED_SUFFIX
        self.suffixes = (self._suffix, self._unsupported_suffix, *super().suffixes)

    async def documents(self) -> Sequence[Child]:
        if self.path != ROOT or (node := await self.context.hierarchy.node(ROOT)) is None:
            return ()
        return (await self._file(self.context.store_name, node),)

    async def documents_beside(self, name: str) -> Sequence[Child]:
        own = [self.context.store_name + suffix for suffix in (self._suffix, self._unsupported_suffix)]
        if self.path != ROOT or name in own:
            return await self.documents()
        # The file of the whole store need not be rendered.
        return [Child(each, False, lambda: GroupFolder(self._mounted, ROOT), suffix=self._suffix) for each in own]

    async def show_all(self, name: str, node: Node) -> AsyncGenerator[Child]:
        match node:
            case GroupNode():
                # First, as its lookup needs no rendering.
                yield self._folder(name, node.path)
                yield await self._file(name, node)
            case UnsupportedNode():
                yield self.show_unsupported(name, node)
            case ArrayNode():
                pass

    def _folder(self, name: str, path: NodePath) -> Child:
        return Child(name, True, lambda: GroupFolder(self._mounted, path))

    async def _file(self, name: str, node: Node) -> Child:
        if isinstance(node, UnsupportedNode):
            return self.show_unsupported(name, node)
        file_name = entry_name_of(name, self._suffix)
        file = GroupFile(self._mounted, node.path, node_ident(self.view, node.path.parent, file_name))
        try:
            attributes = await file.attributes()
        except NotRepresentable as error:
            unsupported = UnsupportedNode(path=node.path, dialect=node.dialect, reason=str(error))
            child = unsupported_child(self.view, f"{name}{self._suffix}", unsupported, self.context.mounted_ns)
            child.suffix = self._unsupported_suffix
            return child
        return Child(file_name, False, lambda: file, attributes.size, attributes.mtime_ns, suffix=self._suffix)


class GroupFolder(Directory):
    """The folder of a group, read-only."""

    def __init__(self, mounted: MountedFormat, path: NodePath) -> None:
        self._mounted = mounted
        self._context = mounted.context
        self._bound = mounted.context.hierarchy.live.bound_paths.at(path)

    @property
    def is_outdated(self) -> bool:
        return self._bound.why_gone is not None

    async def attributes(self) -> Attributes:
        self._bound.check()
        mtime_ns = await self._context.folder_mtime_ns(self._bound.path)
        return Attributes(True, mtime_ns=mtime_ns if mtime_ns is not None else self._context.mounted_ns, writable=False)

    async def lookup(self, name: str) -> VfsNode:
        return await self._files.lookup(name)

    def entries(self) -> AsyncIterator[Entry]:
        return self._files.entries()

    async def extended_attributes(self) -> ExtendedAttributes | None:
        self._bound.check()
        node = await self._context.hierarchy.node(self._bound.path)
        return None if node is None else self._context.node_attributes.of(node)

    @property
    def _files(self) -> GroupFiles:
        self._bound.check()
        return GroupFiles(self._mounted, self._bound.path)
