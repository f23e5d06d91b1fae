"""Documents of nodes as files, generated from the node at each read; a view defines how a published one changes the node."""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.dialects.documents import check_bare_tokens, parse_object
from zarrfs.dialects.json_text import MAX_NBYTES, end_of_value
from zarrfs.errors import ContentInvalid, MetadataError, NoSuchEntry, StoreTimeout, ZarrfsError, raise_first
from zarrfs.hierarchy.new_nodes import reread_above
from zarrfs.hierarchy.unforeseen import require_readable
from zarrfs.keys import NodePath
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode
from zarrfs.vfs.content import Snapshot
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Attributes
from zarrfs.vfs.stage import Stage, StagingRoom
from zarrfs.vfs.temporary import staged_in
from zarrfs.views.group_directory import Child
from zarrfs.views.nodes.view_format import DocumentContent, ViewFormat


class NodeDocument(DocumentContent):
    """The document ``name`` of the node at ``path``."""

    def __init__(self, view_format: ViewFormat, path: NodePath, name: str, *, leaves: bool = False) -> None:
        self._view_format = view_format
        self._state = view_format.state
        self._context = view_format.context
        self._leaves = leaves
        self._bound = view_format.context.hierarchy.live.bound_paths.at(path)
        self.live = view_format.context.hierarchy.live.at(path)
        self.path = path
        self.name = name
        self.ident = view_format.ident(path, name)

    @property
    def is_outdated(self) -> bool:
        return self._bound.why_gone is not None or (self.live is not None and self.live.why_gone is not None)

    @property
    def is_elsewhere(self) -> bool:
        return self.live is not None and self.live.is_moved_away

    def follow(self) -> None:
        if self._bound.path != self.path:
            self.path = self._bound.path
            self.ident = self._view_format.ident(self.path, self.name)

    async def open_to_write(self) -> None:
        # Cached data about the array may be old: it is in use now, and is confirmed before a change.
        if self.live is None and (open_array := await self._context.hierarchy.array(self.path)) is not None:
            self.live = open_array.live

    def check_is_of(self, node: ArrayNode | GroupNode) -> None:
        """Raise `ContentInvalid` if ``node`` is an array that cannot have a document of this name."""
        if isinstance(node, ArrayNode) and (reason := self._view_format.why_no_document(node, self.name)) is not None:
            raise ContentInvalid(f"{self.ident}: {reason}", key=self.ident)

    @abc.abstractmethod
    async def change(self, node: ArrayNode | GroupNode, data: bytes) -> None:
        """Change ``node`` to match ``data``. Raises `ContentInvalid`; then nothing was changed."""

    @abc.abstractmethod
    def is_equivalent(self, rendered: bytes | None, written: bytes) -> bool:
        """Return True if the written document is equivalent to that of the view (None: the node has none)."""

    async def snapshot(self) -> Snapshot | None:
        shown = await self._shown()
        return _TextSnapshot(*shown) if shown is not None else None

    async def load(self) -> bytes | None:
        shown = await self._shown()
        return shown[0] if shown is not None else None

    async def stage_over(self, room: StagingRoom, seen: Snapshot, new_nbytes: int) -> Stage:
        # Offsets in one text mean nothing in another: a document with a piece of each can be valid.
        return await self.stage_of(room, seen, new_nbytes)

    async def publish(self, data: Buffer) -> None:
        if (nbytes := memoryview(data).nbytes) > MAX_NBYTES:
            # Before it is copied: it may be larger than memory.
            raise ContentInvalid(
                f"{self.ident}: document of {nbytes} bytes exceeds the limit of {MAX_NBYTES} bytes", key=self.ident
            )
        async with self._editing() as node, self._view_format.keeping_times_above(self.path):
            self._context.editor.require_settled(self.path)
            written = await self._without_remains(bytes(data))
            await self.change(node, written)
            self._state.show(self.ident)
            if self.name == self._view_format.group_document:
                self._state.filled(self.path)
            changed = await self._found()
            rendered = await self._generated(changed)
            if await threads.cpu(len(written), self.is_equivalent, rendered, written):
                self._state.wrote(self.ident, rendered, written, self._view_format.beyond(changed, self.name))
        if self.name in self._view_format.array_documents:
            await self._store_waiting()
        await self._view_format.copies.came(self.path)
        if self.name == self._view_format.copy_document and b"consolidated" in written and isinstance(node, GroupNode):
            await self._view_format.copies.spelled(await self._node(), written)

    async def _store_waiting(self) -> None:
        """Let what waits for the array, in any view, become its chunks; raise the first failure after trying all."""
        failed: list[Exception] = []
        for become in self._context.on_array_written:
            try:
                await become(self.path)
            except ZarrfsError as error:
                failed.append(error)
        raise_first(failed)

    async def _without_remains(self, written: bytes) -> bytes:
        """Return the document without the end of the previous one, over which a program wrote a shorter one in place.

        netCDF-C does not truncate its documents, and ignores the error of close(2): its attributes would be lost.
        """
        end = await threads.cpu(len(written), end_of_value, written)
        if not written[end:].strip():
            return written
        shown = await self.load()
        return written[:end] if shown is not None and len(shown) == len(written) and shown[end:] == written[end:] else written

    async def erase(self) -> None:
        """Run unlink(2): only the name is removed (`zarrfs.views.nodes.mount_only`)."""
        self._state.hide(self.ident, await self._rendered())

    async def sync(self) -> None:
        layout = await self._context.editor.layout_for(self.path)
        keys = await self._context.hierarchy.documents((*layout.document_keys(self.path), *layout.consolidated_keys(self.path)))
        await self._context.store.sync([*keys, *await self._context.unsynced_documents(self.path)])

    async def set_mtime(self, mtime_ns: int) -> None:
        if self.name == self._view_format.copy_document and self.live is None:
            # The copy is computed at this time: a program that sets a time has looked up the file.
            await self._shown()
            self._view_format.copies.set_mtime(self.path, mtime_ns)
        self._state.set_mtime(self.ident, await self._rendered(), mtime_ns)
        layout = await self._context.editor.layout_for(self.path)
        if self._context.store.capabilities.times:
            for key in await self._context.hierarchy.documents(layout.document_keys(self.path)):
                await self._context.store.set_times(key, mtime_ns)

    def leaving(self) -> NodeDocument:
        return type(self)(self._view_format, self.path, self.name, leaves=True)

    @asynccontextmanager
    async def _editing(self) -> AsyncIterator[ArrayNode | GroupNode]:
        """Return a context for a change of the node, which exists, and stays in place. Raises `StaleEntry`."""
        hierarchy = self._context.hierarchy
        async with self._context.editor.several(), hierarchy.live.lock.staying(self._bound):
            # The staged file has followed a move already (`StagingArea.follow`).
            self.follow()
            # A document that equals the stored one is accepted without a request: no earlier edit may arrive, or be undone, after it.
            await self._context.editor.settle_documents(self.path)
            if self.live is not None:
                await self.live.confirmed()
            else:
                # Another program may have removed the group, or put an array there: a new one erases the chunks that lie at its path.
                await hierarchy.reread(self.path)
                await reread_above(hierarchy, self.path)
            node = await self._node()
            turning, may_have_turned = hierarchy.live.turning, hierarchy.live.may_have_turned
            turns = isinstance(node, GroupNode) and self.path not in turning
            if turns:
                turning.add(self.path)
            try:
                yield node
                if turns:
                    # From here on every task sees an array.
                    await hierarchy.node(self.path)
                    may_have_turned.discard(self.path)
            except StoreTimeout:
                if turns:
                    may_have_turned.add(self.path)
                raise
            finally:
                if turns:
                    turning.discard(self.path)

    async def _found(self) -> ArrayNode | GroupNode | None:
        self._check()
        node = await self._context.hierarchy.node(self.path)
        self._check()
        return node if isinstance(node, ArrayNode | GroupNode) else None

    def _check(self) -> None:
        self._bound.check()
        if self.live is not None:
            self.live.check()

    async def _node(self) -> ArrayNode | GroupNode:
        node = await self._found()
        if node is None:
            require_readable(await self._context.hierarchy.node(self.path))
            raise NoSuchEntry(f"no node at {self.path}", key=self.ident)
        return node

    async def _shown(self) -> tuple[bytes, int] | None:
        node = await self._found()
        if node is None:
            return None
        plain = await self._view_format.shown(node, self.name, await self._generated(node))
        return await self._view_format.copies.shown(node, self.name, plain)

    async def _rendered(self) -> bytes | None:
        return await self._generated(await self._found())

    async def _generated(self, node: ArrayNode | GroupNode | None) -> bytes | None:
        """Return the document that the view generates for ``node``; None if there is none."""
        return (await self._view_format.documents_of(node)).get(self.name) if node is not None else None


async def document_children(view_format: ViewFormat, node: ArrayNode | GroupNode) -> list[Child]:
    """Return the documents of a node that have a name now: generated from it, or just created and not yet published.

    Sizes exclude a consolidated copy. The document that defines the node comes first: ``rm -r`` removes it before the others.
    """
    first = {*view_format.array_documents, view_format.group_document}
    context, path, writable = view_format.context, node.path, view_format.context.may_write(node)
    shown = await view_format.shown_documents(node)
    sizes: dict[str, tuple[int, int | None]] = {name: (len(text), mtime_ns) for name, (text, mtime_ns) in shown.items()}
    for name, one in staged_in(context.staging, view_format.ident(path, "")).items():
        if name in view_format.documents and one.size is not None:
            sizes[name] = one.size, one.mtime_ns
    return [
        Child(
            name,
            False,
            lambda name=name: StagedFile(context.staging, view_format.document(path, name), writable=writable),  # type: ignore[misc]
            size,
            changed_ns,
            writable=writable,
        )
        for name, (size, changed_ns) in sorted(sizes.items(), key=lambda each: (each[0] not in first, each[0]))
    ]


def check_only_shape_differs(ident: str, before: ArrayMetadata, after: ArrayMetadata, names: dict[str, str]) -> None:
    """Raise `ContentInvalid` if a written document changes a fixed property of an array.

    ``names``: the compared members of `ArrayMetadata`, with their names in the document.
    """
    if before.ndim == after.ndim and after.chunk_grid != before.chunk_grid:
        # A grid may state where each chunk ends, which depends on the shape.
        before = replace(before, chunk_grid=before.chunk_grid.resized(after.shape))
    for member, name in ({"ndim": "the number of dimensions"} | names).items():
        if getattr(before, member) != getattr(after, member):
            raise ContentInvalid(f"{ident}: {name} of an array cannot be changed; its shape can", key=ident)


def parsed(ident: str, data: bytes, loose: Collection[tuple[str, ...]] = ()) -> dict[str, object]:
    """Return the written JSON object; ``loose`` as for `parse_object`. Raises `ContentInvalid`."""
    try:
        return parse_object(ident, data, loose)
    except MetadataError as error:
        raise ContentInvalid(str(error), key=ident) from error


def check_attributes(ident: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Raise `ContentInvalid` if written attributes contain numbers that JSON does not allow, unless the node already has them."""
    try:
        check_bare_tokens(dict(before), dict(after))
    except MetadataError as error:
        raise ContentInvalid(f"{ident}: {error}", key=ident) from error


class _TextSnapshot(Snapshot):
    def __init__(self, data: bytes, mtime_ns: int) -> None:
        self._data = memoryview(data)
        self.attributes = Attributes(False, len(data), mtime_ns, generation=str(hash(data)))

    async def read(self, offset: int, size: int) -> Buffer:
        return self._data[offset : offset + size]
