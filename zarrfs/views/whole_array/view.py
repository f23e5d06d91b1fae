"""Whole-array files: each array as one file of a common format, in one folder for each container format (``npy/``).

A write to a file changes the array's elements. A new file becomes an array when it is complete; a file that is truncated and
rewritten replaces its array. Under a temporary name (`zarrfs.vfs.temporary_names`) any file can be written, and a rename turns it
into an array. Other names that no array's file can have are refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from zarrfs import registry
from zarrfs.containers.base import Container
from zarrfs.errors import (
    DirectoryNotEmpty,
    NameInvalid,
    NameTaken,
    NotPermitted,
    NotRepresentable,
)
from zarrfs.hierarchy.node_changes import NodeChange
from zarrfs.hierarchy.spellings import is_same_node
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.stores.change import Change
from zarrfs.vfs import names
from zarrfs.vfs.content import Content
from zarrfs.vfs.extended_attributes import ExtendedAttributes
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Attributes, Directory, Entry, VfsNode, no_such_entry
from zarrfs.vfs.overlay import OverlayDirectory
from zarrfs.vfs.staging import Staged
from zarrfs.vfs.temporary import TemporaryContent
from zarrfs.views.base import Affected, NamedEntry, View, ViewContext, ViewPlugin, path_of
from zarrfs.views.extended_attributes import BECOMING
from zarrfs.views.group_directory import MAX_ENTRY_NBYTES, Child, GroupChildren, child_path, entry_name_of, node_ident
from zarrfs.views.whole_array.array_file import WholeArrayContent, layout_of


class WholeArrayView(View):
    """The view of one container format."""

    def __init__(self, context: ViewContext, container: Container) -> None:
        self._context = context
        self._container = container

    def root(self) -> Directory:
        return WholeArrayRoot(self._context, self._container)

    def affected(self, change: Change, nodes: Iterable[NodeChange]) -> Iterable[Affected]:
        for node in nodes:
            file, folder = self._names(node.path)
            yield Affected(file, gone=node.coords is None)
            if node.coords is None and node.path != ROOT:
                yield Affected(folder, gone=True)

    def follow(self, old: Prefix, new: Prefix) -> None:
        before, after = path_of(old), path_of(new)
        if before is not None and after is not None:
            for was, is_now in zip(self._idents(before), self._idents(after), strict=True):
                if was.endswith("/"):
                    self._context.follow_names(was, is_now)
                else:
                    self._context.times.move(was, is_now)

    def lost(self, prefix: Prefix) -> Iterable[NamedEntry]:
        if (path := path_of(prefix)) is not None:
            file, folder = self._idents(path)
            self._context.lose_names(folder)
            staged = self._context.staging.get(file)
            if staged is None or staged.is_lost:
                self._context.times.forget(file)
            if staged is not None and staged.is_lost:
                self._context.staging.supersede(staged)
        return self.names_of(prefix)

    def left(self) -> Iterable[tuple[str, bool]]:
        return [(each, False) for each in self._context.temporaries.left(f"{self._container.name}/")]

    def names_of(self, prefix: Prefix) -> Iterable[NamedEntry]:
        path = path_of(prefix)
        return [] if path is None else zip(self._names(path), (False, True), strict=True)

    def _names(self, path: NodePath) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the file of a node that is an array, and of the folder of one that is a group."""
        *above, name = [names.name_of(part) for part in path[1:].split("/")]
        stem = self._context.store_name if path == ROOT else name
        return (*above, entry_name_of(stem, self._container.suffix)), (*above, name)

    def _idents(self, path: NodePath) -> tuple[str, str]:
        file, folder = self._names(path)
        return "/".join((self._container.name, *file)), "/".join((self._container.name, *folder, ""))


class ArrayFiles(GroupChildren):
    """The entries of a group: a folder for each group, a file for each array."""

    def __init__(self, context: ViewContext, path: NodePath, container: Container) -> None:
        super().__init__(context, path)
        self._container = container
        self._writable = context.writable and container.writable
        self.view = container.name
        self.suffixes = (container.suffix, *super().suffixes)

    async def array(self, name: str) -> VfsNode | None:
        """Return the file ``name``, if that is the regular name of an array's file."""
        node = await self.array_called(name)
        if node is None or entry_name_of(name[: -len(self._container.suffix)], self._container.suffix) != name:
            return None
        try:
            layout_of(self._container, node.metadata)
        except NotRepresentable:
            return None
        return self._file(node)

    def _file(self, node: ArrayNode) -> StagedFile:
        content = WholeArrayContent(self.context, node.path, self._container)
        return StagedFile(self.context.staging, content, writable=self._writable and self.context.may_write(node))

    async def array_called(self, name: str) -> ArrayNode | None:
        """Return the array whose file has the regular name ``name``, without a listing; a group of that name takes precedence."""
        suffix = self._container.suffix
        if not name.endswith(suffix):
            return None
        node, taken = await self._child_called(name[: -len(suffix)]), await self._child_called(name)
        return node if isinstance(node, ArrayNode) and not isinstance(taken, GroupNode) else None

    async def show(self, name: str, node: Node) -> Child:
        if isinstance(node, GroupNode):
            path = node.path
            writable = self._writable and self.context.may_write(node)
            return Child(name, True, lambda: WholeArrayGroup(self.context, path, self._container), writable=writable)
        if isinstance(node, ArrayNode):
            try:
                layout = layout_of(self._container, node.metadata)
            except NotRepresentable as error:
                node = UnsupportedNode(path=node.path, dialect=node.dialect, reason=str(error))
            else:
                file = self._file(node)
                mtime_ns = await self.context.hierarchy.mtime_ns(node.path)
                return Child(
                    entry_name_of(name, self._container.suffix),
                    False,
                    lambda: file,
                    layout.size,
                    mtime_ns if mtime_ns is not None else self.context.mounted_ns,
                    writable=file.writable,
                    suffix=self._container.suffix,
                )
        return self.show_unsupported(name, node)


class WholeArrayGroup(OverlayDirectory):
    """The folder of a group. It also contains files that are to become arrays."""

    def __init__(self, context: ViewContext, path: NodePath, container: Container) -> None:
        super().__init__(context)
        self.context = context
        self.container = container
        self.view = container.name
        self._bound = context.hierarchy.live.bound_paths.at(path)

    @property
    def path(self) -> NodePath:
        """The present path of its group."""
        return self._bound.path

    @property
    def here(self) -> str:
        return node_ident(self.view, self.path, "")

    @property
    def family(self) -> object:
        return self.container

    @property
    def writable(self) -> bool:
        return self.context.writable and self.container.writable

    @property
    def is_outdated(self) -> bool:
        return self._bound.why_gone is not None

    def check(self) -> None:
        self._bound.check()

    # --- contents -----------------------------------------------------------------------------------------------------------

    async def stored_mtime_ns(self) -> int | None:
        return await self.context.folder_mtime_ns(self.path)

    async def look(self, name: str) -> tuple[VfsNode, Attributes | None]:
        array = await self._files.array(name)
        if array is not None:
            return array, None
        staged = self._staged().get(name)
        if staged is not None and not isinstance(await self.context.hierarchy.node(_array_path(staged)), ArrayNode):
            return self._file(staged.content), None
        return await self._files.lookup(name), None

    def stored_entries(self) -> AsyncIterator[Entry]:
        return self._files.entries()

    async def extended_attributes(self) -> ExtendedAttributes | None:
        with self.entered():
            node = await self.context.hierarchy.node(self.path)
            return None if node is None else self.context.node_attributes.of(node)

    async def extended_attributes_of(self, name: str) -> ExtendedAttributes | None:
        with self.entered():
            if self.context.temporaries.get(self.here + name) is not None:
                return BECOMING
            array = await self._files.array_called(name)
            if array is not None:
                return self.context.node_attributes.of(array)
            node = await self.lookup(name)
            if isinstance(node, StagedFile) and isinstance(node.content, WholeArrayContent):
                return self.context.node_attributes.of(await self.context.hierarchy.node(node.content.path))
            return await node.extended_attributes()

    # --- operations ---------------------------------------------------------------------------------------------------------

    async def content(self, name: str, renamed: StagedFile | None = None) -> Content:
        if not self._may_be_array(name):
            ident = self.here + name
            if name not in self.context.temporary_names:
                raise NameInvalid(
                    f"{ident}: in {self.view}/ a file ends in {self.container.suffix}, or has a temporary name", key=ident
                )
            return self.context.temporaries.content(ident)
        stem = name[: -len(self.container.suffix)]
        path = child_path(self.path, stem)
        if entry_name_of(stem, self.container.suffix) != name:
            # The next mount would show the array under that other name.
            ident = self.here + name
            raise NameInvalid(f"{ident}: in {self.view}/ a name has at most {MAX_ENTRY_NBYTES} bytes", key=ident)
        old = renamed.content.path if renamed is not None and isinstance(renamed.content, WholeArrayContent) else None
        await self.context.editor.check_creatable(path, old)
        # Another program may have put an array there in this moment, which is not reported yet: then the file is opened and emptied.
        if await self.context.hierarchy.reread(path) is not None:
            raise NameTaken(f"{path} already exists and is not an array that {self.view}/ can show", key=path)
        return WholeArrayContent(self.context, path, self.container)

    async def make_folder(self, name: str) -> Directory:
        path = child_path(self.path, name)
        layout = await self.context.editor.layout_for(path)
        await self.context.editor.create(GroupNode(path=path, dialect=layout.dialect.name))
        return WholeArrayGroup(self.context, path, self.container)

    async def remove_folder(self, folder: Directory) -> None:
        assert isinstance(folder, WholeArrayGroup)
        await folder._require_empty()
        await self.context.editor.erase(folder.path, only_empty=True, seen=GroupNode)

    async def sync(self) -> None:
        self.check()
        await self.context.sync_node(self.path)

    async def rename_file(self, file: StagedFile, content: Content, target: VfsNode | None) -> None:
        """Run rename(2) of a file. Staged bytes are stored first; a replaced array is removed before the other takes its path."""
        old = file.content
        assert isinstance(old, WholeArrayContent) and isinstance(content, WholeArrayContent)
        staging = self.context.staging
        # Checked before anything is lost.
        await self.context.editor.check_rename(old.path, content.path)
        async with staging.renaming(file.ident, content), staging.unnaming(content.ident):
            await self.context.editor.rename(old.path, content.path, over=target is not None)

    async def withdraw(self, file: StagedFile, content: TemporaryContent, new_directory: OverlayDirectory) -> None:
        raise NameInvalid(f"{content.ident!r}: the file of an array cannot get a temporary name", key=content.ident)

    async def rename_folder(
        self, folder: Directory, target: Directory | None, new_directory: OverlayDirectory, new_name: str
    ) -> None:
        assert isinstance(folder, WholeArrayGroup) and isinstance(new_directory, WholeArrayGroup)
        new = child_path(new_directory.path, new_name)
        if folder.path == new:
            return
        await self.context.editor.check_rename(folder.path, new)
        is_over = isinstance(target, WholeArrayGroup) and not await is_same_node(self.context.hierarchy, folder.path, new)
        if is_over:
            assert isinstance(target, WholeArrayGroup)
            await target._require_empty()
        # Staged files in it move with it.
        await self.context.editor.rename(folder.path, new, empty=GroupNode if is_over else None)

    async def erase_file(self, file: StagedFile) -> None:
        assert isinstance(file.content, WholeArrayContent)
        # What a failed save has moved apart is removed too.
        await self.context.editor.settle_at(file.content.path)
        # Another node may have appeared at the path meanwhile: that one stays.
        if isinstance(await self.context.hierarchy.node(file.content.path), ArrayNode):
            await file.content.erase()

    def require_writable(self) -> None:
        super().require_writable()
        if not self.container.writable:
            raise NotPermitted(f"{self.container.name}/ cannot be written")

    def _may_be_array(self, name: str) -> bool:
        """Return False for a name that no file of an array gets: programs such as rsync and editors write hidden names first."""
        return name.endswith(self.container.suffix) and not name.startswith(".")

    async def _require_empty(self) -> None:
        async for name, *_ in self.entries():
            raise DirectoryNotEmpty(f"{self.path} is not empty: it holds {name!r}", key=self.path)
        await self.context.editor.require_nothing_hidden(self.path)

    @property
    def _files(self) -> ArrayFiles:
        return ArrayFiles(self.context, self.path, self.container)


class WholeArrayRoot(WholeArrayGroup):
    """The root of the view. If the root of the store is an array, its file is named after the store.

    Beside that there are only temporary files, which programs rename over it.
    """

    def __init__(self, context: ViewContext, container: Container) -> None:
        super().__init__(context, ROOT, container)

    async def look(self, name: str) -> tuple[VfsNode, Attributes | None]:
        only = await self._only()
        if only is None:
            return await super().look(name)
        if name != only.name:
            raise no_such_entry(name)
        return only.make(), None

    async def stored_entries(self) -> AsyncIterator[Entry]:
        only = await self._only()
        if only is not None:
            yield only.entry
            return
        async for entry in super().stored_entries():
            yield entry

    async def require_room(self, name: str) -> None:
        only = await self._only()
        if only is not None and only.suffix == self.container.suffix:
            is_temporary = not self._may_be_array(name) and name in self.context.temporary_names
            if name == only.name or is_temporary:
                return
        self._require_none(only, name)

    async def make_folder(self, name: str) -> Directory:
        self._require_none(await self._only(), name)
        return await super().make_folder(name)

    def _require_none(self, only: Child | None, name: str) -> None:
        if only is not None:
            raise NotPermitted(f"{name!r}: the root of the store is an array, and no other entry can exist", key=name)

    async def _only(self) -> Child | None:
        node = await self.context.hierarchy.node(ROOT)
        return await self._files.show(self.context.store_name, node) if isinstance(node, ArrayNode | UnsupportedNode) else None


def _array_path(staged: Staged) -> NodePath:
    assert isinstance(staged.content, WholeArrayContent)
    return staged.content.path


def _plugin(container: Container) -> ViewPlugin:
    return ViewPlugin(
        container.name,
        f"every array as one {container.suffix} file",
        lambda context: WholeArrayView(context, container),
        example=container.example,
    )


PLUGIN = tuple(_plugin(each) for each in registry.plugins("zarrfs.containers") if isinstance(each, Container))
