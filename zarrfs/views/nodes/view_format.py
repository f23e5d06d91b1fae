"""Differences between the views that show each node of the hierarchy as a folder: ``chunks/`` and ``zarr3/``.

A `ViewFormat` defines the documents of a node, the names of chunks, and the content of their files. Folders, temporary files,
waiting files, and the creation, renaming and removal of nodes are the same for all (`zarrfs.views.nodes.folder`).
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar

from zarrfs import threads
from zarrfs.hierarchy.known_nodes import without_large_attributes
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.keys import ROOT, NodePath
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.model.unparsed import are_large, nbytes_of
from zarrfs.vfs.content import WholeContent
from zarrfs.views.base import ViewContext
from zarrfs.views.nodes.mount_only import MountOnly
from zarrfs.views.nodes.shown_copies import DocumentsForm, ShownCopies, TimedDocument
from zarrfs.views.nodes.shown_forms import ShownForms


class NodeContent(WholeContent):
    """The content of a file in the folder of the node at ``path``: a document, or a chunk."""

    verbatim = False
    path: NodePath

    async def is_removed(self) -> bool:
        """Return True if a program removed the file, and the store holds only what its removal left there."""
        return False


class DocumentContent(NodeContent):
    """A document of a node."""

    @abc.abstractmethod
    def leaving(self) -> DocumentContent:
        """Return the content for a rename to a name that is no document's.

        The new name gets the document's bytes; the node keeps the document, but its old name is hidden.
        """


class ViewFormat(DocumentsForm):
    """See the module's text. One for each view of a mount.

    ``view``: the view's name. ``documents``: names of documents. Each of ``array_documents`` turns a group into an array;
    ``group_document`` appears and disappears with the folder of a group; ``copy_document`` holds its consolidated copy.
    ``ignored``: document names that become temporary files if the view has no such document, and whose loss is not reported.
    ``folders``: True if chunk keys may contain slashes.
    """

    view: ClassVar[str]
    array_documents: ClassVar[tuple[str, ...]]
    group_document: ClassVar[str]
    ignored: ClassVar[frozenset[str]] = frozenset()
    folders: ClassVar[bool] = False

    def __init__(self, context: ViewContext) -> None:
        self.context = context
        self.state = MountOnly(self.view)
        self.copies = ShownCopies(self)
        self._root_has_nodes = False
        self._forms = ShownForms()
        context.hierarchy.empty_groups.on_stored.append(lambda path: context.times.rebase(self.ident(path.parent, "")))

    def ident(self, path: NodePath, name: str) -> str:
        return self.state.ident(path, name)

    @abc.abstractmethod
    def render(self, node: ArrayNode | GroupNode) -> Mapping[str, bytes]:
        """Return the documents of ``node`` by name. Raises `ZarrfsError` if it cannot be shown."""

    @abc.abstractmethod
    def keys(self, node: ArrayNode) -> ChunkKeyEncoding:
        """Return the key encoding of the chunks of ``node``."""

    @abc.abstractmethod
    def known_keys(self, path: NodePath) -> ChunkKeyEncoding | None:
        """Return the key encoding of the array at ``path``; None if it was never shown."""

    @abc.abstractmethod
    def looks_like_chunk(self, key: str) -> bool:
        """Return True if ``key`` could be a chunk of some array; an array without that chunk refuses it as a name."""

    @abc.abstractmethod
    def document(self, path: NodePath, name: str) -> DocumentContent:
        """Return the content of a document of the node at ``path``."""

    @abc.abstractmethod
    def chunk(self, open_array: OpenArray, coords: Coords, path: NodePath | None = None) -> NodeContent:
        """Return the content of a chunk; ``path`` is the present path of a renamed array."""

    @abc.abstractmethod
    async def chunk_size(self, open_array: OpenArray, coords: Coords, stored_nbytes: int) -> int:
        """Return the size in bytes of the file of a chunk with ``stored_nbytes`` stored bytes."""

    def why_no_document(self, node: ArrayNode, name: str) -> str | None:
        """Return the reason why the array ``node`` cannot have a document called ``name``, one of ``documents``; None if it can."""
        is_of_group = name == self.group_document and name not in self.array_documents
        return f"{node.path} is an array, and cannot be a group as well" if is_of_group else None

    def fills(self, node: ArrayNode) -> bool:
        """Return True if missing chunks of the array can be read."""
        return False

    def lists_missing(self, node: ArrayNode) -> bool:
        """Return True if missing chunks are listed, if there are few (`zarrfs.views.shown_fill`)."""
        return False

    def beyond(self, node: ArrayNode | GroupNode | None, name: str) -> bytes | None:
        """Return what a written document called ``name`` may say of ``node`` that the one of `render` does not."""
        return None

    async def removed_reads_as(self, node: ArrayNode) -> bytes | None:
        """Return the element to store throughout a chunk that is removed; None to erase it."""
        return None

    async def documents_of(self, node: ArrayNode | GroupNode) -> Mapping[str, bytes]:
        """Return the result of `render`, computed in a thread if that takes long."""
        return await threads.cpu(nbytes_of(node.attributes), self.render, node) if are_large(node.attributes) else self.render(node)

    async def shown(self, node: ArrayNode | GroupNode, name: str, rendered: bytes | None) -> TimedDocument | None:
        """Return a document of ``node`` without a consolidated copy, and its mtime_ns; None if the node has no such name now.

        ``rendered``: the document according to `render`.
        """
        state, document = self.state, self.ident(node.path, name)
        text = state.text(document, rendered, self.beyond(node, name))
        if text is None or state.is_hidden(document, rendered):
            return None
        if name == self.group_document and isinstance(node, GroupNode) and await self._is_undecided(node):
            return None
        mtime_ns = state.mtime_ns(document, rendered)
        return text, mtime_ns if mtime_ns is not None else self._mtime_ns(node.path)

    async def shown_documents(self, node: ArrayNode | GroupNode) -> dict[str, TimedDocument]:
        rendered = await self.documents_of(node)
        return {name: shown for name in self.documents if (shown := await self.shown(node, name, rendered.get(name))) is not None}

    async def documents_in_copy(self, node: ArrayNode | GroupNode) -> Mapping[str, TimedDocument]:
        documents = await self.shown_documents(node)
        defining = self.array_documents if isinstance(node, ArrayNode) else (self.group_document,)
        if any(name in documents for name in defining):
            return documents
        if isinstance(node, ArrayNode) or not await self._has_shown_members(node):
            # zarr-python 3 opens no group whose copy has attributes without a node.
            return {}
        # Nor one whose copy has the members of a group and not the group.
        name = self.group_document
        return documents | {name: ((await self.documents_of(node))[name], self._mtime_ns(node.path))}

    async def _has_shown_members(self, group: GroupNode) -> bool:
        """Return True if there is an array, or a group that has a document now, below ``group``."""
        for child in await self.context.hierarchy.child_names(group.path):
            match await self.context.hierarchy.node(group.path.child(child)):
                case ArrayNode():
                    return True
                case GroupNode() as inner if await self.documents_in_copy(inner):
                    return True
        return False

    def _mtime_ns(self, path: NodePath) -> int:
        mtime_ns = self.context.hierarchy.documents_mtime_ns(path)
        return mtime_ns if mtime_ns is not None else self.context.mounted_ns

    async def _is_undecided(self, group: GroupNode) -> bool:
        """Return True if programs expect no document of ``group`` yet: it is new, or the root of a store without nodes."""
        if group.explicit or group.path != ROOT:
            return self.state.is_new(group.path) or (not group.explicit and group.path in self.context.unstored)
        if self._root_has_nodes or self.state.root_is_written or not self.context.writable:
            return False
        hierarchy = self.context.hierarchy
        # An entry point is a document of the root.
        has_entry_point = any(not layout.per_node for layout in await hierarchy.layouts(ROOT))
        self._root_has_nodes = has_entry_point or await self.context.unstored.holds_nodes(ROOT)
        return not self._root_has_nodes

    def is_hollow(self, node: GroupNode) -> bool:
        """Return True if a folder with only its ``group_document`` contains nothing that a program put there."""
        return True

    def reason_against(self, node: ArrayNode) -> str | None:
        """Return the reason why the view cannot show an array; None if it can."""
        plain = without_large_attributes(node)
        # Few nodes have large attributes.
        form = self._forms.form(node) if plain is node else None
        if self._forms.knows(form):
            return None
        try:
            self.render(plain)
            self._forms.add(form)
        except Exception as error:  # noqa: BLE001 - an array that a view fails on is one that it cannot show
            return reason_of(node.path, error)
        return None

    def has_stored_keys(self, node: ArrayNode) -> bool:
        """Return True if the chunk keys of the array in this view are those of the store."""
        return node.metadata.chunk_key_encoding == self.keys(node) and not node.metadata.shards

    async def folder_mtime_ns(self, path: NodePath) -> int | None:
        """Return `ViewContext.folder_mtime_ns`; None for a folder of chunks that the store has under other keys, if at all."""
        array = await self.array_above(path)
        if array is not None and not self.has_stored_keys(array):
            # A folder of this name in the store is one of shards, and appears with the first of them.
            return None
        return await self.context.folder_mtime_ns(path)

    async def array_above(self, path: NodePath) -> ArrayNode | None:
        """Return the array that may have the folder ``path`` in its chunk keys; None if there is none."""
        above = []
        while self.folders and path != ROOT and is_part_of_key(path.name):
            path = path.parent
            above.append(path)
        # From the top: a search for a node in an array, which has no members, would list all chunks there.
        for each in reversed(above):
            node = await self.context.hierarchy.node(each)
            if isinstance(node, ArrayNode):
                return node
        return None

    def has_other_folders(self, array: ArrayNode) -> bool:
        """Return True if the chunks of ``array`` are below folders that the store does not have, or not for each of them."""
        return self.folders and not self.has_stored_keys(array) and "/" in self.keys(array).encode((0,) * array.metadata.ndim)

    def keeping_times(self, path: NodePath, key: str) -> AbstractAsyncContextManager[None]:
        """Keep the times set for the folders above that of the chunk ``key`` of the array at ``path``, while the body changes the chunk.

        Their names do not change then: the folders in them were created before their chunks.
        """
        folders = [path]
        for part in key.split("/")[:-1]:
            folders.append(folders[-1].child(part))
        return self._keeping(folders[:-1])

    def keeping_times_above(self, path: NodePath) -> AbstractAsyncContextManager[None]:
        """Keep the times set for the groups above the node at ``path`` while the body stores documents of it.

        Where documents lie apart, the folders of groups have those of their members, whose folders were created before.
        """
        return self._keeping(path.ancestors())

    @asynccontextmanager
    async def _keeping(self, folders: Iterable[NodePath]) -> AsyncIterator[None]:
        times, kept = self.context.times, []
        for folder in folders:
            ident = self.ident(folder, "")
            if times.is_set(ident):
                # A change by another program before counts.
                times.mtime_ns_of(ident, size=0, stored_ns=await self.folder_mtime_ns(folder))
                kept.append(ident)
        with times.steady(kept):
            yield

    def may_hold_chunks(self, node: ArrayNode, folder: str) -> bool:
        """Return True if a chunk key of the array can begin with ``folder``, a part of a key with its trailing slash."""
        keys, grid_shape = self.keys(node), node.metadata.grid_shape
        if not self.folders or keys.separator != "/" or not grid_shape or 0 in grid_shape:
            return False
        if len(folder) <= len(keys.prefix):
            return keys.prefix.startswith(folder)
        if not folder.startswith(keys.prefix):
            return False
        indices = folder[len(keys.prefix) : -1].split("/")
        # Decoded as a chunk's key: each part must be an index, and inside the grid.
        coords = keys.decode(keys.prefix + "/".join([*indices, *"0" * (len(grid_shape) - len(indices))]), len(grid_shape))
        return len(indices) < len(grid_shape) and coords is not None and all(a < b for a, b in zip(coords, grid_shape, strict=True))


def is_part_of_key(name: str) -> bool:
    """Return True if a folder of this name may be part of a chunk key, in some array with slashes in its keys."""
    return name == "c" or (name.isascii() and name.isdecimal() and str(int(name)) == name)
