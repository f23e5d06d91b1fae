"""Whole-array files: each array as one file of a format that other programs open; one folder for each container format (``npy/``).

A file that is written to changes the array's elements. A new file becomes an array when it is whole; one that is emptied and written anew
replaces its array. Under a temporary name (`zarrfs.vfs.temporary_names`) any file can be written: a rename makes an array of it. Other
names that no array's file can have are refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from zarrfs import registry
from zarrfs.containers.base import Container
from zarrfs.errors import (
    AcrossViews,
    DirectoryNotEmpty,
    EntryExists,
    IsADirectory,
    NameInvalid,
    NotADirectory,
    NotPermitted,
    NotRepresentable,
    StoreReadOnly,
)
from zarrfs.hierarchy.node_changes import NodeChange
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode, UnsupportedNode
from zarrfs.model.metadata import Node as HierarchyNode
from zarrfs.stores.base import Change
from zarrfs.vfs import names
from zarrfs.vfs.content import Content
from zarrfs.vfs.extended_attributes import ExtendedAttributes
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Attributes, Directory, Entry, File, Handle, Node, OpenFlags, find, no_such_entry
from zarrfs.vfs.staging import Staged
from zarrfs.vfs.temporary import TemporaryFile
from zarrfs.views.base import Affected, NamedEntry, View, ViewContext, ViewPlugin, path_of
from zarrfs.views.extended_attributes import BECOMING
from zarrfs.views.group_directory import Child, GroupDirectory, child_path, made_name, node_ident
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

    def lost(self, place: Prefix) -> Iterable[NamedEntry]:
        if (path := path_of(place)) is not None:
            file, folder = self._idents(path)
            self._context.lose_names(folder)
            staged = self._context.staging.get(file)
            if staged is None or staged.is_lost:
                self._context.times.forget(file)
            if staged is not None and staged.is_lost:
                self._context.staging.supersede(staged)
        return self.names_of(place)

    def left(self) -> Iterable[tuple[str, bool]]:
        return [(each, False) for each in self._context.temporaries.left(f"{self._container.name}/")]

    def names_of(self, place: Prefix) -> Iterable[NamedEntry]:
        path = path_of(place)
        return [] if path is None else zip(self._names(path), (False, True), strict=True)

    def _names(self, path: NodePath) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Of the file that a node has where it is an array, and of the folder where it is a group."""
        *above, name = [names.name_of(part) for part in path[1:].split("/")]
        stem = self._context.store_name if path == ROOT else name
        return (*above, made_name(stem, self._container.suffix)), (*above, name)

    def _idents(self, path: NodePath) -> tuple[str, str]:
        file, folder = self._names(path)
        return "/".join((self._container.name, *file)), "/".join((self._container.name, *folder, ""))


class WholeArrayGroup(GroupDirectory):
    """A group: a folder for each group in it, a file for each array, and the files that are to become arrays."""

    def __init__(self, context: ViewContext, path: NodePath, container: Container) -> None:
        super().__init__(context, path)
        self._place = context.hierarchy.live.places.at(path)
        self.container = container
        self.view = container.name
        self.suffixes = (container.suffix, *super().suffixes)

    def _stand(self) -> None:
        """Be where the group is now. Raises `StaleEntry` where it is gone, whatever is there instead."""
        self._place.check()
        self.path = self._place.path

    async def attributes(self) -> Attributes:
        self._stand()
        return replace(await super().attributes(), writable=self._writable)

    async def lookup(self, name: str) -> Node:
        self._stand()
        temporary = self.context.temporaries.get(self._ident(name))
        if temporary is not None:
            return temporary
        node = await self._array_called(name)
        if node is not None:
            shown = await self.show(name[: -len(self.container.suffix)], node)
            if shown.name == name:
                return shown.make()
        staged = self._staged_new().get(name)
        if staged is not None and not isinstance(await self.context.hierarchy.node(_array_path(staged)), ArrayNode):
            return StagedFile(self.context.staging, staged.content, writable=self._writable)
        return await super().lookup(name)

    async def extended_attributes(self) -> ExtendedAttributes | None:
        self._stand()
        node = await self.context.hierarchy.node(self.path)
        return None if node is None else self.context.node_attributes.of(node)

    async def extended_attributes_of(self, name: str) -> ExtendedAttributes | None:
        self._stand()
        if self.context.temporaries.get(self._ident(name)) is not None:
            return BECOMING
        array = await self._array_called(name)
        if array is not None:
            return self.context.node_attributes.of(array)
        node = await self.lookup(name)
        if isinstance(node, StagedFile) and isinstance(node.content, WholeArrayContent):
            return self.context.node_attributes.of(await self.context.hierarchy.node(node.content.path))
        return await node.extended_attributes()

    async def entries(self) -> AsyncIterator[Entry]:
        self._stand()
        staged = self._staged_new()
        async for entry in super().entries():
            staged.pop(entry[0], None)
            yield entry
        for name, one in staged.items():
            yield name, False, one.size or 0, one.mtime_ns, True
        for entry in self.context.temporaries.entries(self._ident("")):
            yield entry

    async def show(self, name: str, node: HierarchyNode) -> Child:
        if isinstance(node, GroupNode):
            path = node.path
            return Child(name, True, lambda: WholeArrayGroup(self.context, path, self.container), writable=self._writable)
        if isinstance(node, ArrayNode):
            try:
                layout = layout_of(self.container, node.metadata)
            except NotRepresentable as error:
                node = UnsupportedNode(path=node.path, dialect=node.dialect, reason=str(error))
            else:
                content = WholeArrayContent(self.context, node.path, self.container)
                file = StagedFile(self.context.staging, content, writable=self._writable)
                staged = self.context.staging.get(file.ident)
                return Child(
                    made_name(name, self.container.suffix),
                    False,
                    lambda: file,
                    layout.size if staged is None or staged.size is None else staged.size,
                    (staged.mtime_ns if staged is not None else None) or await content.mtime_ns(layout.size),
                    writable=self._writable,
                    suffix=self.container.suffix,
                )
        return self.show_unsupported(name, node)

    # --- change -------------------------------------------------------------------------------------------------------------

    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        self._stand()
        self._require_writable()
        if await find(self, name) is not None:
            raise EntryExists(f"{name!r} is there already", key=name)
        if self._require_temporary(name):
            return await self.context.temporaries.create(self._ident(name), flags)
        file = self._file(await self._new_child(name))
        return file, await file.create(flags)

    async def mkdir(self, name: str) -> Directory:
        self._stand()
        self._require_writable()
        path = child_path(self.path, name)
        if await find(self, name) is not None:
            raise EntryExists(f"{name!r} is there already", key=name)
        layout = await self.context.editor.layout_for(path)
        await self.context.editor.create(GroupNode(path=path, dialect=layout.dialect.name))
        return WholeArrayGroup(self.context, path, self.container)

    async def unlink(self, name: str) -> None:
        self._stand()
        node = await self.lookup(name)
        if isinstance(node, Directory):
            raise IsADirectory(f"{name!r} is a folder", key=name)
        if isinstance(node, TemporaryFile):
            await self.context.temporaries.unlink(node)
            return
        self._require_writable()
        if not isinstance(node, StagedFile):
            await super().unlink(name)
            return
        await self._erase(node)

    async def rmdir(self, name: str) -> None:
        self._stand()
        node = await self.lookup(name)
        if not isinstance(node, WholeArrayGroup):
            raise NotADirectory(f"{name!r} is a file", key=name)
        self._require_writable()
        await node._require_empty()
        await self.context.editor.erase(node.path)

    async def rename(self, name: str, new_directory: Directory, new_name: str, *, replace: bool = True) -> None:
        self._stand()
        if not isinstance(new_directory, WholeArrayGroup) or new_directory.container is not self.container:
            raise AcrossViews(f"{name!r} cannot be renamed into another view", key=name)
        new_directory._stand()
        self._require_writable()
        node = await self.lookup(name)
        target = await find(new_directory, new_name)
        if target is not None and not replace:
            raise EntryExists(f"{new_name!r} is there already", key=new_name)
        if isinstance(node, WholeArrayGroup):
            await self._rename_group(node, target, child_path(new_directory.path, new_name))
        elif isinstance(target, Directory):
            raise IsADirectory(f"{new_name!r} is a folder", key=new_name)
        elif isinstance(node, TemporaryFile):
            await self.context.temporaries.move(node, await new_directory._content(new_name))
        elif isinstance(node, StagedFile) and isinstance(node.content, WholeArrayContent):
            if not new_directory._is_array_file(new_name):
                raise NameInvalid(f"{new_name!r}: an array's file ends in {self.container.suffix}", key=new_name)
            await self._rename_array(node, node.content, target, await new_directory._content(new_name, node.content.path))
        else:
            raise NotPermitted(f"{name!r} cannot be renamed", key=name)

    async def _rename_array(self, file: StagedFile, old: WholeArrayContent, target: Node | None, new: Content) -> None:
        """What is staged is stored first; an array that is replaced goes before the other takes its place."""
        assert isinstance(new, WholeArrayContent)
        if file.ident == new.ident:
            return
        staging = self.context.staging
        # Before anything is lost.
        await self.context.editor.check_rename(old.path, new.path)
        if (staged := staging.get(file.ident)) is not None:
            await staged.publish_now()
        async with staging.renaming(file.ident, new), staging.unnaming(new.ident):
            await self.context.editor.rename(old.path, new.path, over=target is not None)

    async def _rename_group(self, node: WholeArrayGroup, target: Node | None, new: NodePath) -> None:
        if node.path == new:
            return
        await self.context.editor.check_rename(node.path, new)
        if isinstance(target, WholeArrayGroup):
            await target._require_empty()
            await self.context.editor.erase(new)
        elif target is not None:
            raise NotADirectory(f"{new} is a file", key=new)
        # What is written to files in it goes with it.
        await self.context.editor.rename(node.path, new)

    async def _erase(self, file: StagedFile) -> None:
        async with self.context.staging.unnaming(file.ident):
            assert isinstance(file.content, WholeArrayContent)
            # Anything else that has come there meanwhile is not what the name stands for.
            if isinstance(await self.context.hierarchy.node(file.content.path), ArrayNode):
                await file.content.erase()

    # --- names --------------------------------------------------------------------------------------------------------------

    @property
    def _writable(self) -> bool:
        return self.context.writable and self.container.writable

    def _require_writable(self) -> None:
        if not self.context.writable:
            raise StoreReadOnly("this mount is read-only")
        if not self.container.writable:
            raise NotPermitted(f"{self.container.name}/ cannot be written")

    def _is_array_file(self, name: str) -> bool:
        """Whether a file of this name is an array's. Hidden names are what programs write first (rsync, editors)."""
        return name.endswith(self.container.suffix) and not name.startswith(".")

    def _require_temporary(self, name: str) -> bool:
        """Whether ``name`` is that of a temporary file, rather than of an array's. Raises `NameInvalid` where it is neither."""
        if self._is_array_file(name):
            return False
        if name not in self.context.temporary_names:
            ident, suffix = self._ident(name), self.container.suffix
            raise NameInvalid(f"{ident}: in {self.view}/ a file ends in {suffix}, or has a temporary name", key=ident)
        return True

    def _child(self, name: str) -> NodePath:
        return child_path(self.path, name[: -len(self.container.suffix)])

    async def _new_child(self, name: str, old_path: NodePath | None = None) -> NodePath:
        """The path of the array that a new file called ``name`` becomes, or that at ``old_path``. Raises `NameInvalid`, `EntryExists`."""
        path = self._child(name)
        await self.context.editor.check_creatable(path, old_path)
        if await self.context.hierarchy.node(path) is not None:
            raise EntryExists(f"there is a node at {path} already, which is no array that {self.view}/ can show", key=path)
        return path

    async def _content(self, name: str, old_path: NodePath | None = None) -> Content:
        """What a file called ``name`` in this folder stands for, whether it is there or not; ``old_path``: of the array that is renamed
        to it."""
        if self._require_temporary(name):
            return self.context.temporaries.content(self._ident(name))
        node = await find(self, name)
        if isinstance(node, StagedFile):
            return node.content
        return WholeArrayContent(self.context, await self._new_child(name, old_path), self.container)

    def _ident(self, name: str) -> str:
        return node_ident(self.container.name, self.path, name)

    def _file(self, path: NodePath) -> StagedFile:
        return StagedFile(self.context.staging, WholeArrayContent(self.context, path, self.container), writable=self._writable)

    async def _array_called(self, name: str) -> ArrayNode | None:
        """The array of which ``name`` is the usual name of its file, without listing the folder; a real group of that name goes first."""
        if not name.endswith(self.container.suffix):
            return None
        node, taken = await self._child_called(name[: -len(self.container.suffix)]), await self._child_called(name)
        return node if isinstance(node, ArrayNode) and not isinstance(taken, GroupNode) else None

    def _staged_new(self) -> dict[str, Staged]:
        """Files in this folder that are written and not stored yet, by name: of those that replace an array, that is shown too."""
        found = self.context.staging.unpublished_in(self._ident(""))
        return {name: one for name, one in found.items() if isinstance(one.content, WholeArrayContent)}

    async def _require_empty(self) -> None:
        self._stand()
        async for name, *_ in self.entries():
            raise DirectoryNotEmpty(f"{self.path} is not empty: it holds {name!r}", key=self.path)
        await self.context.editor.require_nothing_hidden(self.path)


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

    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        await self._require_group(name)
        return await super().create(name, flags)

    async def mkdir(self, name: str) -> Directory:
        await self._require_group(name)
        return await super().mkdir(name)

    async def rename(self, name: str, new_directory: Directory, new_name: str, *, replace: bool = True) -> None:
        await self._require_group(name)
        await super().rename(name, new_directory, new_name, replace=replace)

    async def _require_group(self, name: str) -> None:
        if await self._only() is not None:
            raise NotPermitted(f"{name!r}: the root of the store is an array, beside which there is nothing", key=name)

    async def _only(self) -> Child | None:
        node = await self.context.hierarchy.node(ROOT)
        return await self.show(self.context.store_name, node) if isinstance(node, ArrayNode | UnsupportedNode) else None


def _array_path(staged: Staged) -> NodePath:
    assert isinstance(staged.content, WholeArrayContent)
    return staged.content.path


def _plugin(container: Container) -> ViewPlugin:
    return ViewPlugin(
        container.name, f"every array as one {container.suffix} file", lambda context: WholeArrayView(context, container)
    )


PLUGIN = tuple(_plugin(container) for container in registry.plugins("zarrfs.containers"))
