"""The folders of ``chunks/``: groups and arrays, and what can be done in them.

A folder stands for whatever is at its path *now*: a new group becomes an array when it gets a ``.zarray``, and the kernel still holds the
same folder. What differs between the kinds is in a `_Kind`, found at each call.

File names in a folder are of three sorts: documents, chunks (in an array), and all others, which no node can have and which exist in
this mount only (`zarrfs.vfs.temporary`): editors and rsync write one and rename it over a document or a chunk. In a folder without
``.zarray`` the names of chunks are such names too: they wait for it, since ``cp -r`` copies in any order.
"""

from __future__ import annotations

import abc
import re
from collections.abc import AsyncIterator, Sequence

from zarrfs.dialects.v2 import ZARRAY, ZGROUP, ZMETADATA
from zarrfs.errors import (
    AcrossViews,
    ContentInvalid,
    DirectoryNotEmpty,
    EntryExists,
    IsADirectory,
    NameInvalid,
    NotADirectory,
    NotPermitted,
    StoreReadOnly,
)
from zarrfs.hierarchy.nodes import OpenArray
from zarrfs.keys import ROOT, NodePath
from zarrfs.model.metadata import ArrayNode, GroupNode, UnsupportedNode
from zarrfs.model.metadata import Node as HierarchyNode
from zarrfs.vfs.content import Content
from zarrfs.vfs.node import Attributes, Directory, Entry, File, Handle, Node, OpenFlags, find, lookup_file, no_such_entry
from zarrfs.vfs.staged_file import StagedFile
from zarrfs.vfs.staging import Staged
from zarrfs.vfs.temporary import TemporaryContent, TemporaryFile, is_temporary
from zarrfs.views.chunks_documents import DOCUMENTS, KEYS, documents_of, reason_against
from zarrfs.views.chunks_files import DecodedChunk, LeavingDocument, NodeDocument, shown_document
from zarrfs.views.chunks_state import VIEW, ChunksState, ident
from zarrfs.views.tree import GroupDirectory, Shown, child_path, show_reason

_NUMBERS = re.compile(r"[0-9]+(\.[0-9]+)*")


class ChunksFolder(Directory):
    """The folder of the node at ``path``."""

    def __init__(self, state: ChunksState, path: NodePath) -> None:
        self.state = state
        self.path = path
        self._context = state.context
        self._temporaries = state.context.temporaries

    async def attributes(self) -> Attributes:
        stored_ns = await self._context.store.prefix_mtime_ns(self.path.prefix)
        mtime_ns = self._context.times.shown(self.ident(""), size=0, stored_ns=stored_ns)
        return Attributes(True, mtime_ns=mtime_ns, writable=self._context.writable)

    async def set_mtime(self, mtime_ns: int) -> None:
        for staged in _staged(self.state, self.path).values():
            # close(2) does not wait for the last RELEASE: a name that is being published now would change the time again.
            async with staged.lock:
                pass
        stored_ns = await self._context.store.prefix_mtime_ns(self.path.prefix)
        self._context.times.keep(self.ident(""), mtime_ns, size=0, stored_ns=stored_ns)

    async def lookup(self, name: str) -> Node:
        temporary = self._temporaries.get(self.ident(name))
        return temporary if temporary is not None else await (await self._kind()).lookup(name)

    async def entries(self) -> AsyncIterator[Entry]:
        self.state.listed(self.path)
        taken = set()
        for entry in self._temporaries.entries(self.ident("")):
            taken.add(entry[0])
            yield entry
        async for entry in (await self._kind()).entries():
            if entry[0] not in taken:
                yield entry

    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        self._require_writable()
        if await find(self, name) is not None:
            raise EntryExists(f"{name!r} is there already", key=self.ident(name))
        content = await self.content(name)
        if isinstance(content, TemporaryContent):
            return await self._temporaries.create(content.ident, flags)
        file = StagedFile(self._context.staging, content)
        return file, await file.create(flags)

    async def mkdir(self, name: str) -> Directory:
        self._require_writable()
        kind = await self._kind()
        if not isinstance(kind, _Group):
            raise NotPermitted(f"{self.path} is an array, and holds no groups", key=self.ident(name))
        if await find(self, name) is not None:
            raise EntryExists(f"{name!r} is there already", key=self.ident(name))
        path = child_path(self.path, name)
        layout = await self._context.editor.layout_for(path)
        await self._context.editor.create(GroupNode(path=path, dialect=layout.dialect.name))
        self.state.made_folder(path)
        return ChunksFolder(self.state, path)

    async def unlink(self, name: str) -> None:
        file = await lookup_file(self, name)
        if isinstance(file, TemporaryFile):
            await self._temporaries.unlink(file)
        elif not isinstance(file, StagedFile):
            await super().unlink(name)
        else:
            self._require_writable()
            async with self._context.staging.unnaming(file.ident):
                await file.content.erase()

    async def rmdir(self, name: str) -> None:
        folder = await self.lookup(name)
        if not isinstance(folder, ChunksFolder):
            raise NotADirectory(f"{name!r} is a file", key=self.ident(name))
        self._require_writable()
        await folder.erase()

    async def erase(self) -> None:
        """Erase the node, if nothing is left in the folder that somebody put there. Raises `DirectoryNotEmpty`.

        ``.zgroup`` alone comes with the folder, and goes with it, as long as the store has nothing there that is not shown.
        """
        left = [name async for name, *_ in self.entries()]
        if left == [ZGROUP]:
            left = [
                name async for name, *_ in self._context.store.list_dir(self.path.prefix) if name not in await self._own_names()
            ]
        if left:
            raise DirectoryNotEmpty(f"{self.path} is not empty: it holds {left[0]!r}", key=self.path)
        await self._context.editor.erase(self.path)
        self.state.forget_below(self.ident(""))

    async def rename(self, name: str, new_directory: Directory, new_name: str, *, replace: bool = True) -> None:
        if not isinstance(new_directory, ChunksFolder) or new_directory.state is not self.state:
            raise AcrossViews(f"{name!r} cannot be renamed into another view", key=self.ident(name))
        self._require_writable()
        node = await self.lookup(name)
        target = await find(new_directory, new_name)
        if target is not None and not replace:
            raise EntryExists(f"{new_name!r} is there already", key=new_directory.ident(new_name))
        if isinstance(node, ChunksFolder):
            await self._rename_folder(node, target, child_path(new_directory.path, new_name))
        elif isinstance(target, Directory):
            raise IsADirectory(f"{new_name!r} is a folder", key=new_directory.ident(new_name))
        elif not isinstance(node, StagedFile) or not isinstance(target, StagedFile | None):
            raise NotPermitted(f"{name!r} cannot be renamed to {new_name!r}", key=self.ident(name))
        else:
            await self._rename_file(node, await new_directory.content(new_name))

    async def sync(self) -> None:
        await self._context.store.sync([self.path.prefix])

    def ident(self, name: str) -> str:
        """`File.ident` of the entry called ``name``."""
        return ident(self.path, name)

    async def content(self, name: str) -> Content:
        """What a file of this name stands for, whether or not it is there. Raises `NameInvalid` and `ContentInvalid` where there can
        never be such a file."""
        if is_temporary(name) or name == ZMETADATA:
            return self._temporaries.content(self.ident(name))
        return await (await self._kind()).content(name) or self._temporaries.content(self.ident(name))

    async def _rename_file(self, file: StagedFile, content: Content) -> None:
        if file.ident == content.ident:
            return
        if isinstance(file, TemporaryFile):
            await self._temporaries.move(file, content)
        elif not isinstance(content, TemporaryContent):
            # Two values of the store, of different kinds maybe: copying is all that is left, and the program does that.
            raise AcrossViews(f"{file.ident!r} cannot be renamed in one step", key=file.ident)
        elif isinstance(file.content, NodeDocument):
            leaving = LeavingDocument(self.state, file.content.path, file.content.name)
            await self._temporaries.move(StagedFile(file.area, leaving), content)
        else:
            raise NotPermitted(
                f"{file.ident!r} is a chunk: under the name {content.ident!r} it would not be stored", key=file.ident
            )

    async def _rename_folder(self, folder: ChunksFolder, target: Node | None, path: NodePath) -> None:
        if folder.path == path:
            return
        if path.startswith(folder.path + "/"):
            raise NameInvalid(f"{folder.path} cannot be moved into itself", key=path)
        if isinstance(target, File):
            raise NotADirectory(f"{path} is a file", key=path)
        staging = self._context.staging
        old, new = folder.ident(""), ident(path, "")
        await staging.publish_below(old)
        if isinstance(target, ChunksFolder):
            await target.erase()
        await self._context.editor.rename(folder.path, path)
        staging.rekey_below(old, lambda content: self._moved(content, folder.path, path))
        self._temporaries.move_below(old, new)
        self._context.times.move(old, new)
        self.state.forget_below(old)

    def _moved(self, content: Content, old: NodePath, new: NodePath) -> Content:
        if isinstance(content, NodeDocument | DecodedChunk):
            return content.moved(NodePath(new + content.path[len(old) :]))
        return self._temporaries.content(ident(new, "") + content.ident[len(ident(old, "")) :])

    async def _own_names(self) -> set[str]:
        layout = await self._context.editor.layout_for(self.path)
        return {key.name for key in layout.document_keys(self.path) if key.parent == self.path.prefix}

    async def _kind(self) -> _Kind:
        node = await self._context.hierarchy.node(self.path)
        if self.path == ROOT and isinstance(node, ArrayNode | UnsupportedNode):
            # Below the root, what cannot be shown is no folder.
            reason = node.reason if isinstance(node, UnsupportedNode) else self.state.reason(node, reason_against)
            if reason is not None:
                return _Reason(self.state, UnsupportedNode(path=ROOT, dialect=node.dialect, reason=reason))
        if isinstance(node, ArrayNode):
            opened = await self._context.hierarchy.array(self.path)
            if opened is not None:
                return _Array(self.state, self.path, node, opened)
        if isinstance(node, GroupNode):
            return _Group(self.state, self.path, node)
        raise no_such_entry(self.path)

    def _require_writable(self) -> None:
        if not self._context.writable:
            raise StoreReadOnly("this mount is read-only")


class _Kind(abc.ABC):
    """What a folder is by what lies at its path. Temporary files are not its business."""

    @abc.abstractmethod
    async def lookup(self, name: str) -> Node:
        """See `Directory.lookup`."""

    @abc.abstractmethod
    def entries(self) -> AsyncIterator[Entry]:
        """See `Directory.entries`."""

    @abc.abstractmethod
    async def content(self, name: str) -> Content | None:
        """What a file of this name stands for; None for a temporary one."""


class _Group(GroupDirectory, _Kind):
    """A group: its documents, and a folder for each group and array in it."""

    view = VIEW

    def __init__(self, state: ChunksState, path: NodePath, node: GroupNode) -> None:
        super().__init__(state.context, path)
        self._state = state
        self._node = node

    async def documents(self) -> Sequence[Shown]:
        return _shown_documents(self._state, self._node)

    async def show(self, name: str, node: HierarchyNode) -> Shown:
        if isinstance(node, ArrayNode) and (reason := reason_against(node)) is not None:
            node = UnsupportedNode(path=node.path, dialect=node.dialect, reason=reason)
        if isinstance(node, UnsupportedNode):
            return self.show_unsupported(name, node)
        return Shown(name, True, lambda: ChunksFolder(self._state, node.path), writable=self.context.writable)

    async def _shown(self) -> list[Shown]:
        every = await super()._shown()
        for shown in every:
            if shown.is_directory:
                shown.mtime_ns = self.context.times.shown(f"{ident(self.path, shown.name)}/", size=0, stored_ns=shown.mtime_ns)
        return every

    async def content(self, name: str) -> Content | None:
        if name not in DOCUMENTS:
            return None
        if name == ZARRAY and await self.context.hierarchy.children(self.path):
            raise ContentInvalid(f"{self.path} is a group that holds nodes: it cannot become an array", key=ident(self.path, name))
        return NodeDocument(self._state, self.path, name)


class _Array(_Kind):
    """An array: its documents, and a file for each chunk that is stored."""

    def __init__(self, state: ChunksState, path: NodePath, node: ArrayNode, opened: OpenArray) -> None:
        self._state = state
        self._context = state.context
        self._path = path
        self._node = node
        self._opened = opened

    async def lookup(self, name: str) -> Node:
        if name in DOCUMENTS:
            for shown in _shown_documents(self._state, self._node):
                if shown.name == name:
                    return shown.make()
            raise no_such_entry(name)
        coords = KEYS.decode(name, self._node.metadata.ndim)
        if coords is None or not self._opened.array.has(coords):
            raise no_such_entry(name)
        content = DecodedChunk(self._context, self._opened, coords)
        staged = self._context.staging.get(content.ident)
        is_there = self._context.fill or (staged is not None and staged.unpublished)
        if not is_there and await self._opened.array.chunks.stat(coords) is None:
            raise no_such_entry(name)
        return StagedFile(self._context.staging, content, writable=self._context.writable)

    async def entries(self) -> AsyncIterator[Entry]:
        for shown in _shown_documents(self._state, self._node):
            yield shown.entry
        writable = self._context.writable
        metadata, times = self._opened.array.metadata, self._context.times
        staged = {name: one for name, one in _staged(self._state, self._path).items() if name not in DOCUMENTS}
        async for coords, _, mtime_ns in self._opened.array.chunks.list():
            name = KEYS.encode(coords)
            one = staged.pop(name, None)
            size = metadata.chunk_nbytes(coords) if one is None or one.size is None else one.size
            if one is not None:
                mtime_ns = one.mtime_ns
            elif times:
                mtime_ns = times.shown(ident(self._path, name), size=size, stored_ns=mtime_ns)
            yield name, False, size, mtime_ns, writable
        for name, one in staged.items():
            yield name, False, one.size or 0, one.mtime_ns, writable

    async def content(self, name: str) -> Content | None:
        if name == ZGROUP:
            raise NameInvalid(f"{self._path} is an array, and cannot be a group as well", key=ident(self._path, name))
        if name in DOCUMENTS:
            return NodeDocument(self._state, self._path, name)
        coords = KEYS.decode(name, self._node.metadata.ndim)
        if coords is not None and self._opened.array.has(coords):
            return DecodedChunk(self._context, self._opened, coords)
        if _NUMBERS.fullmatch(name):
            grid_shape = self._node.metadata.grid_shape
            raise NameInvalid(f"{name!r} is no chunk of {self._path}: the grid is {grid_shape}", key=ident(self._path, name))
        return None


class _Reason(_Kind):
    """The root of a store that cannot be shown: one file with the reason."""

    def __init__(self, state: ChunksState, node: UnsupportedNode) -> None:
        self._reason = show_reason(VIEW, state.context.store_name, node, state.context.mounted_ns)

    async def lookup(self, name: str) -> Node:
        if name != self._reason.name:
            raise no_such_entry(name)
        return self._reason.make()

    async def entries(self) -> AsyncIterator[Entry]:
        yield self._reason.entry

    async def content(self, name: str) -> Content | None:
        raise NotPermitted(f"files cannot be created here: {name!r}", key=name)


def _shown_documents(state: ChunksState, node: ArrayNode | GroupNode) -> list[Shown]:
    """The documents of a node that have a name now: made from it, or just created and not yet published."""
    context, path = state.context, node.path
    sizes: dict[str, tuple[int, int | None]] = {}
    made = documents_of(node)
    for name in DOCUMENTS:
        shown = shown_document(state, node, name, made.get(name))
        if shown is not None:
            sizes[name] = len(shown[0]), shown[1]
    for name, one in _staged(state, path).items():
        if name in DOCUMENTS and one.size is not None:
            sizes[name] = one.size, one.mtime_ns
    return [
        Shown(
            name,
            False,
            lambda name=name: StagedFile(context.staging, NodeDocument(state, path, name), writable=context.writable),  # type: ignore[misc]
            size,
            changed_ns,
            writable=context.writable,
        )
        for name, (size, changed_ns) in sorted(sizes.items())
    ]


def _staged(state: ChunksState, path: NodePath) -> dict[str, Staged]:
    """What is staged for chunks and documents directly in the folder of a node, by name."""
    found = state.context.staging.unpublished_in(ident(path, ""))
    return {name: one for name, one in found.items() if not isinstance(one.content, TemporaryContent)}
