"""The folders of a view of nodes, for groups and arrays, and the operations in them.

A folder stands for the object at its path *now*: a new group becomes an array when an array's document is written, while the kernel
still holds the same folder. A `FolderContents`, found at each call, implements the differences between kinds, and a `ViewFormat`
those between views.

There are three sorts of file names in a folder: documents, chunks (in an array), and temporary names
(`zarrfs.vfs.temporary_names`), which exist in this mount only: editors and rsync write one and rename it over a document or a
chunk. Any other name is refused, since the file would be lost at the end of the mount. In a folder without an array's document,
names of chunks are temporary too: they wait for the document, since ``cp -r`` copies in any order. If chunk keys have slashes,
folders whose names can be a part of a key also wait in a new folder, and become groups once their kind is determined
(`zarrfs.views.nodes.undecided`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial

from zarrfs.arrays.concurrency import has_any
from zarrfs.arrays.live_node import LiveNode
from zarrfs.buffers import Buffer
from zarrfs.errors import (
    AcrossViews,
    CopyMayNotFit,
    DirectoryNotEmpty,
    NameInvalid,
    NotPermitted,
    ZarrfsError,
)
from zarrfs.hierarchy.new_nodes import require_no_nodes
from zarrfs.hierarchy.spellings import is_same_node
from zarrfs.keys import ROOT, NodePath
from zarrfs.model.metadata import ArrayNode, GroupNode, UnsupportedNode
from zarrfs.vfs.content import Content
from zarrfs.vfs.extended_attributes import ExtendedAttributes
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Attributes, Directory, Entry, VfsNode, find, no_such_entry
from zarrfs.vfs.overlay import OverlayDirectory
from zarrfs.vfs.temporary import TemporaryContent, is_temporary
from zarrfs.vfs.temporary_names import edited
from zarrfs.vfs.times import ANY
from zarrfs.views.extended_attributes import BECOMING
from zarrfs.views.group_directory import child_path
from zarrfs.views.nodes.contents import (
    ArrayContents,
    FolderContents,
    GroupContents,
    UndecidedContents,
    UnsupportedContents,
)
from zarrfs.views.nodes.undecided import become_chunk_if_possible, groups_from_undecided, make_group, node_from_undecided
from zarrfs.views.nodes.view_format import DocumentContent, NodeContent, ViewFormat, is_part_of_key


class NodeFolder(OverlayDirectory):
    """The folder at ``path``: of a node, or of a part of an array's chunk keys."""

    def __init__(self, view_format: ViewFormat, path: NodePath) -> None:
        super().__init__(view_format.context)
        self.view_format = view_format
        self.view = view_format.view
        self.state = view_format.state
        self._bound = view_format.context.hierarchy.live.bound_paths.at(path)
        self._live: LiveNode | None = None
        self._is_new = True
        self._context = view_format.context

    @property
    def path(self) -> NodePath:
        """The present path of its node: a program in the folder of a node follows it through renames."""
        return self._bound.path

    @property
    def here(self) -> str:
        return self.ident("")

    @property
    def family(self) -> object:
        return self.view_format

    @property
    def is_outdated(self) -> bool:
        return self._bound.why_gone is not None

    def check(self) -> None:
        self._bound.check()

    # --- contents -----------------------------------------------------------------------------------------------------------

    async def attributes(self) -> Attributes:
        await self._know_array()
        return await super().attributes()

    async def stored_mtime_ns(self) -> int | None:
        return await self.view_format.folder_mtime_ns(self.path)

    async def time_to_keep_for(self) -> int | None:
        # utimens(2) must not fail because of documents.
        with suppress(ZarrfsError):
            node = (await self._contents()).node
            if isinstance(node, ArrayNode) and node.path == self.path and self.view_format.has_other_folders(node):
                return ANY
        return await self.stored_mtime_ns()

    async def look(self, name: str) -> tuple[VfsNode, Attributes | None]:
        return await (await self._contents()).look(name)

    async def extended_attributes(self) -> ExtendedAttributes | None:
        return self._described(await self._contents())

    async def extended_attributes_of(self, name: str) -> ExtendedAttributes | None:
        """Return the node's extended attributes for each entry in its folder, except for the folders of other nodes."""
        if self._context.temporaries.get(self.ident(name)) is not None:
            return BECOMING
        contents = await self._contents()
        if isinstance(contents, GroupContents) and name not in (*self.view_format.documents, self.view_format.copy_document):
            return await (await contents.lookup(name)).extended_attributes()
        return self._described(contents)

    async def stored_entries(self) -> AsyncIterator[Entry]:
        self.state.listed(self.path)
        async for entry in (await self._contents()).entries():
            yield entry

    # --- operations ---------------------------------------------------------------------------------------------------------

    async def make_folder(self, name: str) -> Directory:
        contents = await self._contents()
        is_part = self.view_format.folders and is_part_of_key(name)
        if isinstance(contents, ArrayContents) and is_part and contents.may_hold_chunks(name):
            self.state.add_undecided(self.path.child(name))
            return NodeFolder(self.view_format, self.path.child(name))
        if not isinstance(contents, GroupContents | UndecidedContents):
            raise NotPermitted(f"{self.path} is an array and cannot contain groups", key=self.ident(name))
        path = child_path(self.path, name)
        if is_part and await self._may_become_array(contents):
            self.state.add_undecided(path)
        else:
            await groups_from_undecided(self.view_format, self.path)
            await make_group(self.view_format, path)
        return NodeFolder(self.view_format, path)

    def creator(self, content: Content) -> Callable[[Buffer], Awaitable[None]] | None:
        return content.publish if isinstance(content, NodeContent) else None

    async def erase_file(self, file: StagedFile) -> None:
        await file.content.erase()
        if not isinstance(file.content, DocumentContent):
            self.state.removed_chunk(file.ident)
            if isinstance(file.content, NodeContent):
                self._keep_folders(file.content.path)

    def _keep_folders(self, array: NodePath) -> None:
        """Keep this folder of chunk keys and those around it, although nothing may be left in them: rm -r removes them next."""
        # In an array created in this view, folders that no program has created would exist only while they hold a chunk.
        if self.state.is_created_array(array):
            folder = self.path
            while folder != array and folder.prefix.startswith(array.prefix):
                self.state.keep_folder(folder)
                folder = folder.parent

    async def remove_folder(self, folder: Directory) -> None:
        assert isinstance(folder, NodeFolder)
        await folder.erase()

    async def erase(self) -> None:
        """Erase the node, if the folder contains nothing that a program put there. Raises `DirectoryNotEmpty`.

        A group's own document is removed with its folder, unless it has other content. Hidden keys of the store prevent the
        removal.
        """
        contents = await self._contents()
        if not isinstance(contents, GroupContents):
            # The listing of an array may take long.
            await self._erase(contents)
            return
        async with self._context.editor.several():
            # No other task of the mount creates a node in it between the listing and the removal.
            await self._erase(await self._contents())

    async def _require_empty(self, contents: FolderContents) -> None:
        left = [entry[0] for entry in self._context.temporaries.entries(self.ident(""))] + [
            entry[0] async for entry in contents.left()
        ]
        if (
            left == [self.view_format.group_document]
            and isinstance(contents, GroupContents)
            and self.view_format.is_hollow(contents.node)
        ):
            left = []
        if left:
            raise DirectoryNotEmpty(f"{self.path} is not empty: it holds {left[0]!r}", key=self.path)

    async def _erase(self, contents: FolderContents) -> None:
        await self._require_empty(contents)
        if isinstance(contents, UndecidedContents) or (isinstance(contents, ArrayContents) and contents.inside):
            self.state.decided(self.path)
            return
        if await self._context.unstored.is_alone(self.path):
            await self._context.unstored.erase(self.path)
            self.state.forget_below(self.path)
            return
        if not isinstance(contents, ArrayContents):
            await self._context.editor.require_nothing_hidden(self.path)
        seen = contents.node if isinstance(contents.node, ArrayNode | GroupNode) else None
        await self._context.editor.erase(self.path, only_empty=True, seen=seen)
        self.state.forget_below(self.path)

    async def remove(self) -> None:
        if isinstance(await self._contents(), ArrayContents):
            self.require_writable()
            await self.erase()
        else:
            # The documents of a group stay: they tell the layout of what is stored next.
            await super().remove()

    async def rename_file(self, file: StagedFile, content: Content, target: VfsNode | None) -> None:
        # The values may differ in kind: the program has to copy them instead.
        across = AcrossViews if _are_alike(file.content, content) else CopyMayNotFit
        raise across(f"{file.ident!r} cannot be renamed in one step", key=file.ident)

    async def withdraw(self, file: StagedFile, content: TemporaryContent, new_directory: OverlayDirectory) -> None:
        if not isinstance(file.content, DocumentContent):
            assert isinstance(new_directory, NodeFolder)
            if await new_directory._may_wait(await new_directory._contents(), content.ident.rpartition("/")[2]):
                # mv(1) of an array into another hierarchy renames each of its files first, and copies them on this error only.
                raise AcrossViews(f"{file.ident!r} cannot be renamed in one step", key=file.ident)
            raise NotPermitted(
                f"{file.ident!r} is a chunk: under the name {content.ident!r} it would not be stored", key=file.ident
            )
        await self._context.temporaries.move(StagedFile(file.area, file.content.leaving()), content)

    async def rename_folder(
        self, folder: Directory, target: Directory | None, new_directory: OverlayDirectory, new_name: str
    ) -> None:
        assert isinstance(folder, NodeFolder) and isinstance(new_directory, NodeFolder)
        path = child_path(new_directory.path, new_name)
        if folder.path == path:
            return
        if path.startswith(folder.path + "/"):
            raise NameInvalid(f"{folder.path} cannot be moved into itself", key=path)
        async with self._context.editor.several():
            # A new group is not stored between the look at it and its renaming.
            await self._rename_folder(folder, target, path)

    async def _rename_folder(self, folder: NodeFolder, target: Directory | None, path: NodePath) -> None:
        contents = await folder._contents()
        if isinstance(contents, UndecidedContents) or (isinstance(contents, ArrayContents) and contents.inside):
            raise AcrossViews(f"{folder.path} is not a node and cannot be renamed", key=path)
        unstored = self._context.unstored
        is_unstored = await unstored.is_alone(folder.path)
        if is_unstored:
            await self._context.editor.check_creatable(path, folder.path)
        else:
            await self._context.editor.check_rename(folder.path, path)
        empty: GroupNode | None = None
        if isinstance(target, NodeFolder) and not await is_same_node(self._context.hierarchy, folder.path, path):
            there = await target._contents()
            if isinstance(there, GroupContents) and not is_unstored and not await unstored.is_alone(target.path):
                await target._require_empty(there)
                empty = there.node
            else:
                await target.erase()
        await groups_from_undecided(self.view_format, path.parent)
        # Staged files, and state kept by name, follow as in a rename through another view.
        await (unstored.rename(folder.path, path) if is_unstored else self._context.editor.rename(folder.path, path, empty=empty))

    async def sync(self) -> None:
        contents = await self._contents()
        # In a folder of chunk keys: of the array, whose chunks may lie elsewhere in the store.
        await self._context.sync_node(contents.live.path if isinstance(contents, ArrayContents) else self.path)
        # A new folder that was to be stored by this may have been lost with the group above it.
        self.check()

    def ident(self, name: str) -> str:
        """Return `File.ident` of the entry called ``name``."""
        return self.view_format.ident(self.path, name)

    async def content(self, name: str, renamed: StagedFile | None = None) -> Content:
        temporaries = self._context.temporaries
        if is_temporary(name):
            return temporaries.content(self.ident(name))
        if name in self.view_format.documents:
            await node_from_undecided(self.view_format, self.path)
        contents = await self._contents()
        if (
            name in self.view_format.array_documents
            and name != self.view_format.group_document
            and isinstance(contents, GroupContents)
        ):
            await require_no_nodes(self._context.hierarchy, self._context.store, contents.node)
        content = await contents.content(name)
        if content is not None:
            return content
        if await self._may_wait(contents, name):
            return temporaries.content(self.ident(name), become=partial(self._become_chunk, name))
        if name in self.view_format.ignored or name in self._context.temporary_names:
            return temporaries.content(self.ident(name))
        if (original := edited(name)) is not None and isinstance(await find(self, original), StagedFile):
            return temporaries.content(self.ident(name))
        raise NameInvalid(
            f"{self.ident(name)}: in {self.view_format.view}/ a file is a document, a chunk of an array, or has a temporary name",
            key=self.ident(name),
        )

    async def _become_chunk(self, name: str) -> None:
        # Another array may be at the path by now.
        self.check()
        await become_chunk_if_possible(self.view_format, self.path, name)

    async def _may_wait(self, contents: FolderContents, name: str) -> bool:
        """Return True if a file called ``name`` may be a chunk that precedes the document of its array."""
        if not self.view_format.looks_like_chunk(name) or isinstance(contents, ArrayContents):
            return False
        return isinstance(contents, UndecidedContents) or not await has_any(self._context.hierarchy.children(self.path))

    async def _contents(self) -> FolderContents:
        """Return the present contents. Raises `StaleEntry` if its node is gone, even if another is at the path."""
        self._bound.check()
        contents = await self._found()
        if isinstance(contents, ArrayContents) and not contents.inside:
            # While the array is in use, its documents are compared.
            self._live = contents.live
        self._bound.check()
        self._context.unstored.touch(self.path)
        return contents

    async def _know_array(self) -> None:
        """Put an array in use: a program may have its working directory here from now on."""
        self._bound.check()
        if self._is_new and not is_part_of_key(self.path.name):
            self._is_new = False
            # A stat(2) must not fail because of documents.
            with suppress(ZarrfsError):
                node = await self._context.hierarchy.node(self.path)
                open_array = await self._context.hierarchy.array(self.path) if isinstance(node, ArrayNode) else None
                self._live = open_array.live if open_array is not None else self._live
            self._bound.check()

    async def _found(self) -> FolderContents:
        if (array := await self._array_around()) is not None:
            return array
        view_format, hierarchy = self.view_format, self._context.hierarchy
        node = await hierarchy.node(self.path)
        if self.path == ROOT and isinstance(node, ArrayNode | UnsupportedNode):
            # Below the root, an unsupported node is a file, not a folder.
            reason = node.reason if isinstance(node, UnsupportedNode) else self.state.reason(node, view_format.reason_against)
            if reason is not None:
                return UnsupportedContents(view_format, UnsupportedNode(path=ROOT, dialect=node.dialect, reason=reason))
        if isinstance(node, ArrayNode):
            open_array = await hierarchy.array(self.path)
            if open_array is not None:
                return ArrayContents(view_format, node, open_array, self._folder)
        if isinstance(node, GroupNode):
            return GroupContents(view_format, self.path, node, self._folder)
        if self.state.is_undecided(self.path):
            return UndecidedContents(view_format, self.path, self._folder)
        raise no_such_entry(self.path)

    async def _array_around(self) -> ArrayContents | None:
        """Return the array with chunk keys in this folder. Raises `NoSuchEntry` inside an array, if it is not part of a key."""
        node = await self.view_format.array_above(self.path)
        if node is None:
            return None
        open_array = await self._context.hierarchy.array(node.path)
        inside = self.path.prefix[len(node.path.prefix) :]
        is_undecided = self.state.is_undecided(self.path)
        if (
            open_array is None
            or self.view_format.reason_against(node)
            or not (is_undecided or self.view_format.may_hold_chunks(node, inside))
        ):
            raise no_such_entry(self.path)
        return ArrayContents(self.view_format, node, open_array, self._folder, inside)

    async def _may_become_array(self, contents: FolderContents) -> bool:
        """Return True if the folder may get an array's document: its kind is not determined yet."""
        if isinstance(contents, UndecidedContents):
            return True
        if not isinstance(contents, GroupContents):
            return False
        is_written = contents.node.explicit if self.path == ROOT else not self.state.is_unwritten(self.path)
        if is_written or await has_any(self._context.hierarchy.children(self.path)):
            return False
        # Another program may have written the group's document meanwhile. After this answer nothing is awaited.
        if self.path != ROOT:
            return self.state.is_unwritten(self.path)
        root = await self._context.hierarchy.node(ROOT)
        return isinstance(root, GroupNode) and not root.explicit

    def _described(self, contents: FolderContents) -> ExtendedAttributes:
        forgets = isinstance(contents, GroupContents) and self.state.is_unwritten(self.path)
        return self._context.node_attributes.of(contents.node, forgets=forgets)

    def _folder(self, path: NodePath) -> NodeFolder:
        return NodeFolder(self.view_format, path)


def _are_alike(one: Content, other: Content) -> bool:
    """Return True for two chunks of one array with the same size: what is stored as one of them can be stored as the other."""
    return (
        isinstance(one, NodeContent)
        and isinstance(other, NodeContent)
        and not isinstance(one, DocumentContent)
        and not isinstance(other, DocumentContent)
        and (one.path, one.fixed_size) == (other.path, other.fixed_size)
    )
