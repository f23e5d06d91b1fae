"""What differs between the views that show each node of the hierarchy as a folder: ``chunks/`` and ``zarr3/``.

A `ViewFormat` says which documents a node is shown with, what chunks are called, and what their files hold. Folders, temporary files,
what waits, and what becomes of nodes that are made, renamed and removed are the same for all (`zarrfs.views.nodes.folder`).
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar

from zarrfs import threads
from zarrfs.hierarchy.known_nodes import without_large_attributes
from zarrfs.hierarchy.live_array import OpenArray
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.keys import NodePath
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.model.unparsed import are_large, nbytes_of
from zarrfs.vfs.content import WholeContent
from zarrfs.views.base import ViewContext
from zarrfs.views.nodes.mount_only import MountOnly
from zarrfs.views.nodes.shown_copies import DocumentsForm, Shown, ShownCopies


class NodeContent(WholeContent):
    """What a file in the folder of the node at ``path`` stands for: a document, or a chunk."""

    verbatim = False
    path: NodePath


class DocumentContent(NodeContent):
    """A document of a node."""

    @abc.abstractmethod
    def leaving(self) -> DocumentContent:
        """The same, for a rename to what is no document: the new name gets what it says, the node keeps it, the old name is away."""


class ViewFormat(DocumentsForm):
    """See the module's text. One for each view of a mount.

    ``view``: the view's name. ``documents``: names of documents; each of ``array_documents`` makes a group an array, ``group_document``
    comes with the folder of a group and goes with it; ``copy_document`` holds its consolidated copy. ``ignored``: names of documents that
    are kept as temporary files, where they are no documents, and never missed. ``folders``: whether chunk keys may have slashes.
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

    def ident(self, path: NodePath, name: str) -> str:
        return self.state.ident(path, name)

    @abc.abstractmethod
    def made(self, node: ArrayNode | GroupNode) -> Mapping[str, bytes]:
        """The documents of ``node`` by name. Raises `ZarrfsError` where it cannot be shown."""

    @abc.abstractmethod
    def keys(self, node: ArrayNode) -> ChunkKeyEncoding:
        """What the chunks of ``node`` are called."""

    @abc.abstractmethod
    def known_keys(self, path: NodePath) -> ChunkKeyEncoding | None:
        """What those of the array at ``path`` are called, as far as it was shown."""

    @abc.abstractmethod
    def looks_like_chunk(self, key: str) -> bool:
        """Whether ``key`` could be a chunk of some array: in one that has no such chunk it is refused, rather than temporary."""

    @abc.abstractmethod
    def document(self, path: NodePath, name: str) -> DocumentContent:
        """A document of the node at ``path``."""

    @abc.abstractmethod
    def chunk(self, opened: OpenArray, coords: Coords, path: NodePath | None = None) -> NodeContent:
        """The file of a chunk; ``path`` where the array is called otherwise by now."""

    @abc.abstractmethod
    async def chunk_size(self, opened: OpenArray, coords: Coords, stored_nbytes: int) -> int:
        """Bytes of the file of a chunk that is stored in ``stored_nbytes``."""

    def why_no_document(self, node: ArrayNode, name: str) -> str | None:
        """Why the array ``node`` can have no document called ``name``, one of ``documents``; None where it can."""
        is_of_group = name == self.group_document and name not in self.array_documents
        return f"{node.path} is an array, and cannot be a group as well" if is_of_group else None

    def fills(self, node: ArrayNode) -> bool:
        """True if missing chunks of the array can be read."""
        return False

    def lists_missing(self, node: ArrayNode) -> bool:
        """True if missing chunks are listed, as far as they are few (`zarrfs.views.shown_fill`)."""
        return False

    async def documents_of(self, node: ArrayNode | GroupNode) -> Mapping[str, bytes]:
        """As `made`, beside the event loop where that takes long."""
        return await threads.cpu(nbytes_of(node.attributes), self.made, node) if are_large(node.attributes) else self.made(node)

    def shown(self, node: ArrayNode | GroupNode, name: str, made: bytes | None) -> Shown | None:
        """A document of ``node`` as it is shown, without a consolidated copy, and its mtime_ns; None where it has no such name (now).
        ``made``: what `made` has."""
        state, context, document = self.state, self.context, self.ident(node.path, name)
        text = state.text(document, made)
        if text is None or state.is_hidden(document, made):
            return None
        if name == self.group_document and isinstance(node, GroupNode) and state.is_new(node.path):
            return None
        return text, state.mtime_ns(document, made) or context.hierarchy.documents_mtime_ns(node.path) or context.mounted_ns

    async def shown_documents(self, node: ArrayNode | GroupNode) -> dict[str, Shown]:
        made = await self.documents_of(node)
        return {name: shown for name in self.documents if (shown := self.shown(node, name, made.get(name))) is not None}

    def is_hollow(self, node: GroupNode) -> bool:
        """Whether a folder with nothing but its ``group_document`` holds nothing that somebody put there."""
        return True

    def reason_against(self, node: ArrayNode) -> str | None:
        """Why the view cannot show an array; None when it can."""
        try:
            self.made(without_large_attributes(node))
        except Exception as error:  # noqa: BLE001 - an array that a view fails on is one that it cannot show
            return reason_of(node.path, error)
        return None

    def may_hold_chunks(self, node: ArrayNode, folder: str) -> bool:
        """Whether the key of some chunk of the array begins with ``folder``, a part of a key with its trailing slash."""
        keys, grid_shape = self.keys(node), node.metadata.grid_shape
        if not self.folders or keys.separator != "/" or not grid_shape or 0 in grid_shape:
            return False
        if len(folder) <= len(keys.prefix):
            return keys.prefix.startswith(folder)
        if not folder.startswith(keys.prefix):
            return False
        indices = folder[len(keys.prefix) : -1].split("/")
        # As a chunk's: whether each is an index, and inside the grid.
        coords = keys.decode(keys.prefix + "/".join([*indices, *"0" * (len(grid_shape) - len(indices))]), len(grid_shape))
        return len(indices) < len(grid_shape) and coords is not None and all(a < b for a, b in zip(coords, grid_shape, strict=True))
