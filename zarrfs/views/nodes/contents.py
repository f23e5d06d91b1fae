"""Contents of a folder in a view of nodes: those of a group, an array, a part of its chunk keys, or a waiting folder.

Temporary files are handled elsewhere.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress

from zarrfs.errors import ContentInvalid, NameInvalid, NotPermitted
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.stores.answers_now import WouldWait
from zarrfs.vfs import names
from zarrfs.vfs.content import Content
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Attributes, Directory, Entry, VfsNode, no_such_entry
from zarrfs.vfs.staging import Staged
from zarrfs.vfs.temporary import TemporaryContent, staged_in
from zarrfs.views.group_directory import Child, GroupChildren, unsupported_child
from zarrfs.views.nodes.document import document_children
from zarrfs.views.nodes.missing_chunks import MissingChunks
from zarrfs.views.nodes.view_format import ViewFormat

Folder = Callable[[NodePath], Directory]
"""Returns the folder at a path."""

_Stored = tuple[str, Coords | None, int, int | None]
"""Name of a stored chunk, its coordinates (None for a folder of chunks), stored bytes, and time."""


class FolderContents(abc.ABC):
    """See the module's text. ``node``: the node of the folder, or of the array around it; None before there is one."""

    node: Node | None

    @abc.abstractmethod
    async def lookup(self, name: str) -> VfsNode:
        """See `Directory.lookup`."""

    async def look(self, name: str) -> tuple[VfsNode, Attributes | None]:
        """Return the entry ``name``, and its attributes if the lookup finds them."""
        return await self.lookup(name), None

    @abc.abstractmethod
    def entries(self) -> AsyncIterator[Entry]:
        """See `Directory.entries`."""

    @abc.abstractmethod
    async def content(self, name: str) -> Content | None:
        """Return the content of a file of this name; None if it is neither a document nor a chunk."""

    def left(self) -> AsyncIterator[Entry]:
        """Return the entries that prevent a removal of the folder."""
        return self.entries()


class GroupContents(GroupChildren, FolderContents):
    """A group: its documents, and a folder for each group and array in it."""

    def __init__(self, view_format: ViewFormat, path: NodePath, node: GroupNode, folder: Folder) -> None:
        super().__init__(view_format.context, path)
        self.view = view_format.view
        self.node: GroupNode = node
        self._view_format = view_format
        self._folder = folder

    async def documents(self) -> Sequence[Child]:
        return await document_children(self._view_format, self.node)

    async def documents_beside(self, name: str) -> Sequence[Child]:
        # Documents need not be rendered for other names: one that gives way to a document begins with its name.
        return await self.documents() if name.startswith(self._view_format.documents) else ()

    async def lookup(self, name: str) -> VfsNode:
        if name == self._view_format.copy_document and name not in self._view_format.documents and await self._copy() is not None:
            return StagedFile(
                self.context.staging, self._view_format.document(self.path, name), writable=self.context.may_write(self.node)
            )
        path = self._undecided_called(name)
        return self._folder(path) if path is not None else await super().lookup(name)

    async def entries(self) -> AsyncIterator[Entry]:
        copy = await self._copy()
        if copy is not None and copy[0] not in self._view_format.documents:
            yield copy
        async for entry in self._entries():
            yield copy if copy is not None and entry[0] == copy[0] else entry

    def left(self) -> AsyncIterator[Entry]:
        return self._entries()

    async def _copy(self) -> Entry | None:
        """Return the entry of the document with the consolidated copy, if there is one, or one is being written."""
        view_format, name = self._view_format, self._view_format.copy_document
        staged = staged_in(self.context.staging, view_format.ident(self.path, "")).get(name)
        if staged is not None and staged.size is not None:
            return name, False, staged.size, staged.mtime_ns, self.context.may_write(self.node)
        return await view_format.copies.entry(self.node)

    async def _entries(self) -> AsyncIterator[Entry]:
        """Yield all entries but a document that exists for a consolidated copy alone; sizes exclude a copy."""
        undecided = {path.name for path in self._view_format.state.undecided_in(self.path)}
        async for entry in super().entries():
            undecided.discard(entry[0])
            yield entry
        for name in undecided:
            yield await folder_entry(self._view_format, self.path.child(name))

    async def show(self, name: str, node: Node) -> Child:
        if isinstance(node, ArrayNode) and (reason := self._view_format.reason_against(node)) is not None:
            node = UnsupportedNode(path=node.path, dialect=node.dialect, reason=reason)
        if isinstance(node, UnsupportedNode):
            return self.show_unsupported(name, node)
        path = node.path
        return Child(name, True, lambda: self._folder(path), writable=self.context.may_write(node))

    async def content(self, name: str) -> Content | None:
        if name not in (*self._view_format.documents, self._view_format.copy_document):
            return None
        return self._view_format.document(self.path, name)

    def _undecided_called(self, name: str) -> NodePath | None:
        return next((path for path in self._view_format.state.undecided_in(self.path) if path.name == name), None)


class ArrayContents(FolderContents):
    """An array: its documents, and a file for each stored chunk.

    If chunk keys have slashes, also a folder with a part of the chunks: those whose keys begin with ``inside`` (with its trailing
    slash).
    """

    def __init__(self, view_format: ViewFormat, node: ArrayNode, open_array: OpenArray, folder: Folder, inside: str = "") -> None:
        self._view_format = view_format
        self._context = view_format.context
        self._path = node.path
        self.node = self._node = node
        self._open_array = open_array
        self._writable = view_format.context.may_write(node)
        self.live = open_array.live
        self._folder = folder
        self.inside = inside
        self._keys = view_format.keys(node)
        self._fills = view_format.fills(open_array.array.node)
        self._lists_missing = view_format.lists_missing(open_array.array.node)
        self._here = NodePath(f"/{node.path.prefix}{inside}".rstrip("/") or "/")

    async def lookup(self, name: str) -> VfsNode:
        return (await self.look(name))[0]

    async def look(self, name: str) -> tuple[VfsNode, Attributes | None]:
        if not self.inside and name in self._view_format.documents:
            for child in await document_children(self._view_format, self._node):
                if child.name == name:
                    return child.make(), None
            raise no_such_entry(name)
        key = self.inside + name
        coords = self._keys.decode(key, self._node.metadata.ndim)
        if coords is None or not self._open_array.array.has(coords):
            path = self._here.child(name)
            if self._view_format.state.is_undecided(path) or (self.may_hold_chunks(name) and await self._is_folder(f"{key}/")):
                return self._folder(path), None
            raise no_such_entry(name)
        content = self._view_format.chunk(self._open_array, coords)
        file = StagedFile(self._context.staging, content, writable=self._writable)
        staged = self._context.staging.get(content.ident)
        if staged is not None and staged.unpublished:
            return file, None
        if self._fills:
            if self._lists_missing and self._view_format.state.hides_missing(self._path, content.ident):
                await self._require_stored(name, coords)
                if await content.is_removed():
                    raise no_such_entry(name)
            return file, None
        if self._open_array.array.plain is not None:
            # Its size is known only after a decoding.
            await self._require_stored(name, coords)
            return file, None
        snapshot = await content.snapshot()
        if snapshot is None:
            raise no_such_entry(name)
        # Another task may have begun to write it meanwhile.
        return file, file.shown(snapshot.attributes) if self._context.staging.get(content.ident) is None else None

    def entries(self) -> AsyncIterator[Entry]:
        missing = MissingChunks.of(self._open_array.array) if self._lists_missing else None
        return self._entries(None) if missing is None else self._with_missing(missing)

    async def _with_missing(self, missing: MissingChunks) -> AsyncIterator[Entry]:
        async for entry in self._entries(missing):
            yield entry
        async for name, nbytes in missing.files(self._keys):
            yield name, False, nbytes, None, self._writable

    async def left(self) -> AsyncIterator[Entry]:
        async for entry in self._entries(None):
            if not (self._lists_missing and await self._is_removed(entry[0])):
                yield entry

    async def _is_removed(self, name: str) -> bool:
        coords = self._keys.decode(self.inside + name, self._node.metadata.ndim)
        return coords is not None and await self._view_format.chunk(self._open_array, coords).is_removed()

    async def _require_stored(self, name: str, coords: Coords) -> None:
        if await self._open_array.array.chunks.stat(coords) is None:
            raise no_such_entry(name)

    async def _entries(self, missing: MissingChunks | None) -> AsyncIterator[Entry]:
        """Yield all entries but missing chunks; stored chunks are removed from ``missing``."""
        if not self.inside:
            for child in await document_children(self._view_format, self._node):
                yield child.entry
        staged, folders = self._staged()
        # If all keys are in one folder, the first key found proves that it exists.
        only = (
            self._keys.prefix.partition("/")[0]
            if self._view_format.folders and not self.inside and "/" in self._keys.prefix
            else None
        )
        if only not in folders:
            async with aclosing(self._stored()) as found:
                async for name, coords, nbytes, mtime_ns in found:
                    if coords is None:
                        folders[name] = None
                        if name == only:
                            break
                        continue
                    if missing is not None:
                        missing.remove(coords)
                    size = await self._view_format.chunk_size(self._open_array, coords, nbytes)
                    staged.pop(name, None)
                    yield name, False, size, mtime_ns, self._writable
        for name, one in staged.items():
            if missing is not None and (coords := self._keys.decode(self.inside + name, self._node.metadata.ndim)) is not None:
                missing.remove(coords)
            yield name, False, one.size or 0, one.mtime_ns, self._writable
        for name in folders:
            yield await folder_entry(self._view_format, self._here.child(name))

    async def content(self, name: str) -> Content | None:
        view_format, key = self._view_format, self.inside + name
        if not self.inside and name in view_format.documents:
            if (reason := view_format.why_no_document(self._node, name)) is not None:
                raise NameInvalid(reason, key=self._ident(name))
            return view_format.document(self._path, name)
        coords = self._keys.decode(key, self._node.metadata.ndim)
        if coords is not None and self._open_array.array.has(coords):
            return view_format.chunk(self._open_array, coords)
        if view_format.looks_like_chunk(key):
            grid_shape = self._node.metadata.grid_shape
            raise NameInvalid(f"{key!r} is not a chunk of {self._path}: grid shape {grid_shape}", key=self._ident(name))
        return None

    def may_hold_chunks(self, name: str) -> bool:
        """Return True if a folder of this name could contain a chunk, at any depth."""
        return self._view_format.may_hold_chunks(self._node, f"{self.inside}{name}/")

    async def _is_folder(self, inside: str) -> bool:
        """Return True if there is a folder of keys that chunks could have.

        That is always so, since a search for chunks takes long; in an array created here only if there are some: ``cp -r`` creates
        each folder, and fails if it exists.
        """
        if not self._view_format.state.is_created_array(self._path):
            return True
        if any(not each.is_lost for each in self._context.staging.unpublished_below(self._view_format.ident(self._path, inside))):
            return True
        if self._view_format.has_stored_keys(self._node):
            return await self._holds_any(inside)
        async for _ in self._open_array.array.chunks.list(under=self._indices(inside)):
            return True
        return False

    async def _holds_any(self, inside: str) -> bool:
        """Return True if the store has chunks of the array there: a folder of the store may be empty, or hold only other keys."""
        array = self._open_array.array
        async for name, is_prefix, _, _ in self._context.store.list_dir(Prefix(self._node.chunk_prefix + inside)):
            coords = None if is_prefix else self._keys.decode(inside + name, self._node.metadata.ndim)
            if (coords is not None and array.has(coords)) or (is_prefix and await self._holds_any(f"{inside}{name}/")):
                return True
        return False

    async def _stored(self) -> AsyncGenerator[_Stored]:
        """Yield names of stored chunks, with coordinates, stored bytes and times.

        Folders have None as coordinates, and may repeat.
        """
        ndim, array = self._node.metadata.ndim, self._open_array.array
        if self.inside and self._view_format.has_stored_keys(self._node):
            # One folder of many: list only this one in the store.
            async for name, is_prefix, nbytes, mtime_ns in self._context.store.list_dir(
                Prefix(self._node.chunk_prefix + self.inside)
            ):
                if is_prefix:
                    if self.may_hold_chunks(name) and await self._holds_any(f"{self.inside}{name}/"):
                        yield name, None, nbytes, mtime_ns
                    continue
                coords = self._keys.decode(self.inside + name, ndim)
                if coords is not None and array.has(coords):
                    yield name, coords, nbytes, mtime_ns
            return
        if not self.inside:
            with suppress(WouldWait):
                for chunk in array.chunks.list_now():
                    yield self._named(*chunk)
                return
        async for coords, nbytes, mtime_ns in array.chunks.list(under=self._indices(self.inside)):
            yield self._named(coords, nbytes, mtime_ns)

    def _named(self, coords: Coords, nbytes: int, mtime_ns: int | None) -> _Stored:
        name, slash, _ = self._keys.encode(coords)[len(self.inside) :].partition("/")
        return name, None if slash else coords, nbytes, mtime_ns

    def _indices(self, inside: str) -> Coords:
        """Return the first indices of the chunks whose keys begin with ``inside``, a folder with some of them."""
        return tuple(map(int, inside[len(self._keys.prefix) :].split("/")[:-1]))

    def _staged(self) -> tuple[dict[str, Staged], dict[str, None]]:
        """Return the staged files here, by name, and names of folders that contain staged files, or wait.

        (In a dictionary, which has an order, from which a listing is continued: that of a set is another after an addition.)
        """
        here = self._ident("")
        files: dict[str, Staged] = {}
        folders: dict[str, None] = {}
        for staged in self._context.staging.unpublished_below(here):
            if not isinstance(staged.content, TemporaryContent) and not staged.is_lost:
                name, slash, _ = staged.content.ident[len(here) :].partition("/")
                if slash:
                    folders[name] = None
                elif self.inside or name not in self._view_format.documents:
                    files[name] = staged
        folders |= dict.fromkeys(path.name for path in self._view_format.state.undecided_in(self._here))
        return files, folders

    def _ident(self, name: str) -> str:
        return self._view_format.ident(self._path, self.inside + name)


class UndecidedContents(FolderContents):
    """A folder that may become part of chunk keys, or a group: its entries are temporary, or wait as well."""

    node = None

    def __init__(self, view_format: ViewFormat, path: NodePath, folder: Folder) -> None:
        self._view_format = view_format
        self._path = path
        self._folder = folder

    async def lookup(self, name: str) -> VfsNode:
        for path in self._view_format.state.undecided_in(self._path):
            if path.name == name:
                return self._folder(path)
        raise no_such_entry(name)

    async def entries(self) -> AsyncIterator[Entry]:
        for path in self._view_format.state.undecided_in(self._path):
            yield await folder_entry(self._view_format, path)

    async def content(self, name: str) -> Content | None:
        if name in self._view_format.documents:
            raise ContentInvalid(f"{self._path} is not a node yet", key=self._view_format.ident(self._path, name))
        return None


class UnsupportedContents(FolderContents):
    """The root of a store that cannot be shown: one file with the reason."""

    def __init__(self, view_format: ViewFormat, node: UnsupportedNode) -> None:
        self.node = node
        self._reason = unsupported_child(view_format.view, view_format.context.store_name, node, view_format.context.mounted_ns)

    async def lookup(self, name: str) -> VfsNode:
        if name != self._reason.name:
            raise no_such_entry(name)
        return self._reason.make()

    async def entries(self) -> AsyncIterator[Entry]:
        yield self._reason.entry

    async def content(self, name: str) -> Content | None:
        raise NotPermitted(f"files cannot be created here: {name!r}", key=name)


async def folder_entry(view_format: ViewFormat, path: NodePath) -> Entry:
    """Return the entry of the folder at ``path`` in a listing."""
    return names.name_of(path.name), True, 0, await view_format.folder_mtime_ns(path), view_format.context.writable
