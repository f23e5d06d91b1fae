"""Sharded arrays of a store: where their chunks lie, and their documents without shards.

For `zarrfs.transformers.unsharded`, which knows keys but no hierarchies: from a folder of the store to its nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zarrfs import threads
from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.reader_pool import ReaderPool
from zarrfs.arrays.slab_pool import SlabPool
from zarrfs.dialects.base import Dialect, Layout
from zarrfs.errors import NameInvalid, StoreAccessDenied
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.keys import APART, ROOT, Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.base import Store
from zarrfs.stores.values import Generation

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Documents:
    """Conversion of documents of a hierarchy of ``layout``, with and without shards. ``arrays``: those that they describe.

    ``is_presumed``: no node is known where the documents are.
    """

    layout: Layout
    arrays: ShardedArrays
    is_presumed: bool = False

    async def shown(self, key: Key, document: bytes, generation: Generation) -> bytes:
        """Return a stored document without shards; its chunks are looked up by this document, or a later one, from now on.

        Else its reader would look for chunks at keys that are of no chunks, or of others: in shards as an earlier document has them.
        """
        self.arrays.was_read(key, generation, self.layout)
        documents = (await self.arrays.folder(key.parent)).documents(key)
        is_of_node = documents is not None and not documents.is_presumed
        return await self.unsharded(key, document) if is_of_node else document

    async def unsharded(self, key: Key, document: bytes) -> bytes:
        """Return `Layout.unsharded`."""
        try:
            return await threads.cpu(len(document), self.layout.unsharded, key, document)
        except Exception as error:  # noqa: BLE001 - an unreadable document is shown unchanged
            reason_of(key, error)
            return document

    async def copied_keys(self, key: Key, document: bytes) -> Mapping[str, Key]:
        """Return `Layout.copied_keys`."""
        return await threads.cpu(len(document), self.layout.copied_keys, key, document)

    async def resharded(self, key: Key, document: bytes, stored: bytes, nodes: Mapping[str, bytes]) -> bytes:
        """Return `Layout.resharded`."""
        return await threads.cpu(len(document), self.layout.resharded, key, document, stored, nodes)


@dataclass(frozen=True, slots=True)
class Folder:
    """Knowledge of a folder of the store. ``array``: the sharded array whose chunks lie there, below, or above.

    ``presumed``: the layouts in which a document there would describe a node, if no node is known there, nor above.
    """

    arrays: ShardedArrays
    array: ArrayNode | None = None
    layouts: tuple[tuple[Layout, NodePath | None], ...] = ()
    presumed: tuple[tuple[Layout, NodePath], ...] = ()

    def documents(self, key: Key) -> Documents | None:
        """Return the conversion of ``key``, directly in the folder; None if it is not a document of a hierarchy with shards."""
        for layouts in (self.layouts, self.presumed):
            for layout, path in layouts:
                found = layout.node_of_document(key)
                if found is not None and path in (None, found):
                    return Documents(layout, self.arrays, is_presumed=layouts is self.presumed)
        return None

    def document_keys(self) -> list[Key]:
        """Return the keys in the folder that may hold documents with their nodes."""
        found = [key for layout, path in (*self.layouts, *self.presumed) if path is not None for key in layout.document_keys(path)]
        return [key for key in found if self.documents(key) is not None]


class ShardedArrays:
    """The sharded arrays of ``store``. What was learnt is valid for ``ttl`` seconds, or until `changed`."""

    def __init__(self, store: Store, *, ttl: float, dialects: Sequence[Dialect] | None = None) -> None:
        counters = WorkCounters()
        readers = ReaderPool(ChunkCache(0), SlabPool(0, counters), ttl=0)
        self._hierarchy = Hierarchy(store, readers, counters, ttl=ttl, dialects=dialects)
        self._lists = store.capabilities.list
        self._warned: set[NodePath] = set()

    async def folder(self, prefix: Prefix) -> Folder:
        """Return what is known of the folder ``prefix``. Unreadable documents mean no array; raises the store's other errors."""
        if prefix.startswith(APART):
            return Folder(self)
        try:
            return await self._folder(prefix, ROOT, Prefix(""))
        except StoreAccessDenied as error:
            log.debug("%s: unreadable, not taken for a sharded array: %s", prefix, error)
            return Folder(self)

    def was_read(self, key: Key, generation: Generation, layout: Layout) -> None:
        """Invalidate what concerns a document of ``layout`` that was read, unless its node is known from this very document."""
        path = layout.node_of_document(key)
        if path is not None and key in layout.document_keys(path) and self._hierarchy.document_of(path) != (key, generation):
            self._hierarchy.changed(key, is_prefix=False)

    def changed(self, target: Key | Prefix) -> set[Prefix]:
        """Invalidate what a change at ``target`` concerns; return the chunk prefixes of arrays whose documents changed, if known."""
        changes = self._hierarchy.changed(target, is_prefix=isinstance(target, Prefix))
        if isinstance(target, Prefix):
            return set()
        layouts = [layout for layout in self._hierarchy.roots.known if layout.dialect.new_index_codecs is not None]
        return {layout.chunk_prefix(node.path) for node in changes.nodes for layout in layouts if layout.holds(node.path)}

    async def _folder(self, prefix: Prefix, top: NodePath, base: Prefix) -> Folder:
        """Search down from ``top``. ``base``: chunk prefix of an array at ``top``; nodes below it have folders of their names."""
        path, here = top, base
        layouts: list[tuple[Layout, NodePath | None]] = []
        for name in [*prefix[len(base) :].split("/")[:-1], None]:
            per_node: list[tuple[Layout, NodePath | None]] = []
            for layout in await self._hierarchy.layouts(path):
                if layout.dialect.new_index_codecs is None:
                    continue
                if layout.per_node:
                    per_node.append((layout, path))
                elif layout.prefix == path.prefix and not base:
                    layouts.append((layout, None))
                    chunks = layout.chunk_prefix(path)
                    if prefix.startswith(chunks):
                        return await self._folder(prefix, path, chunks)
            if name is None:
                layouts += per_node
            node = await self._hierarchy.node(path)
            if isinstance(node, ArrayNode):
                array = node if node.chunk_prefix == here and self._can_be_unsharded(node) else None
                return Folder(self, array, tuple(layouts))
            if name is None:
                break
            if node is None and self._lists:
                return Folder(self, None, tuple(layouts), await self._presumed(prefix) if not base else ())
            here = here.child(name)
            try:
                path = path.child(name)
            except NameInvalid:
                break
        return Folder(self, None, tuple(layouts))

    async def _presumed(self, prefix: Prefix) -> tuple[tuple[Layout, NodePath], ...]:
        try:
            path = NodePath(f"/{prefix[:-1]}")
        except NameInvalid:
            return ()
        layouts = await self._hierarchy.roots.layouts_at(path)
        return tuple((each, path) for each in layouts if each.per_node and each.dialect.new_index_codecs is not None)

    def _can_be_unsharded(self, node: ArrayNode) -> bool:
        if node.metadata.shards and not node.metadata.can_be_unsharded and node.path not in self._warned:
            self._warned.add(node.path)
            log.warning("%s: shown with its shards: codecs after the sharding encode each shard as a whole", node.path)
        return node.metadata.can_be_unsharded
