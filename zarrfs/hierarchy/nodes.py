"""Nodes of a store: lookup, documents, and the nodes that a changed key concerns.

Dialects define the keys and the meaning of documents; this module caches the nodes, and returns arrays ready to be read. Several
hierarchies may share a store: of those that can have a node at a path, the first in the order of their dialects owns it.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing

import trio

from zarrfs.arrays.array import Array
from zarrfs.arrays.concurrency import each_found, in_order
from zarrfs.arrays.counters import WorkCounters
from zarrfs.arrays.flight import Flights
from zarrfs.arrays.layers import ChunkBox, ShardLayers, chunks_of, chunks_under_key
from zarrfs.arrays.reader_pool import ReaderPool
from zarrfs.arrays.shard_queue import ShardQueue
from zarrfs.dialects.base import Dialect, Layout
from zarrfs.errors import MetadataError, StoreTimeout, ZarrfsError
from zarrfs.hierarchy.empty_groups import EmptyGroups
from zarrfs.hierarchy.forgotten import Forgotten
from zarrfs.hierarchy.known_nodes import KnownNode, KnownNodes, Source, without_large_attributes
from zarrfs.hierarchy.listed_times import ListedTimes
from zarrfs.hierarchy.live_array import DocumentVersion, LiveArray, OpenArray
from zarrfs.hierarchy.live_nodes import LiveNodes
from zarrfs.hierarchy.node_changes import NodeChange, NodeChanges, count
from zarrfs.hierarchy.node_reader import NodeReader
from zarrfs.hierarchy.probe import Document
from zarrfs.hierarchy.queued import QueuedShards
from zarrfs.hierarchy.roots import Roots
from zarrfs.hierarchy.roots import dialects as all_dialects
from zarrfs.hierarchy.stored_documents import IsOther, StoredDocuments, contents
from zarrfs.hierarchy.undefined_fills import UndefinedFills
from zarrfs.hierarchy.unforeseen import reason_of, unusable
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model.chunk_grid import Coords
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.stores.base import Store
from zarrfs.stores.values import latest

log = logging.getLogger(__name__)

_WIDTH, _LOOKS = 16, 8
# Beyond these numbers of changed chunks all of their array are dropped, and of arrays all.
_FEW_CHUNKS, _FEW_ARRAYS = 64, 64


class Hierarchy:
    """The nodes in a store. What was learnt is valid for ``ttl`` seconds, or until `changed` is called for a key.

    ``chunk_store``: the store of chunks, if arrays that are being created have some apart.
    """

    def __init__(
        self,
        store: Store,
        readers: ReaderPool,
        counters: WorkCounters,
        *,
        ttl: float,
        layers: ShardLayers | None = None,
        chunk_store: Store | None = None,
        dialects: Sequence[Dialect] | None = None,
    ) -> None:
        self._store = store
        self._chunk_store = chunk_store if chunk_store is not None else store
        self._readers = readers
        self._counters = counters
        self.ttl = ttl
        self._now = trio.lowlevel.current_clock().current_time  # `trio.current_time`, without two of its three calls.
        self._layers = layers if layers is not None else ShardLayers(counters)
        self._unqueued = self._layers.unqueued
        self.queued = QueuedShards(self._chunk_store, self._layers)
        self._known = KnownNodes()
        self.forgotten = Forgotten()
        self._flights: Flights[NodePath] = Flights()
        self.stored = StoredDocuments(store)
        self.roots = Roots(dialects or all_dialects(), self.stored, ttl=ttl, on_others=self._others_below)
        self._hidden: set[LiveArray] = set()
        self.empty_groups = EmptyGroups(self._expire)
        self.live = LiveNodes(store, self.reread, self.roots.paths_of, self.forgotten)
        self.live.on_resized, self.live.on_ended = self.queued.resized, self._known.ended
        self._reading = NodeReader(store, self.stored, self.roots, self.live, counters, self._known.weigh)
        self.undefined_fills = UndefinedFills(self.live.bound_paths)
        self._epoch = 0

    async def node(self, path: NodePath) -> Node | None:
        """Return the node at ``path``; None if there is none. A node with bad documents is an `UnsupportedNode`, never an error."""
        return (await self._lookup(path)).node

    async def array(self, path: NodePath) -> OpenArray | None:
        """Return the array at ``path``, ready to be read; None if there is no (usable) array."""
        while True:
            await self.live.lock.wait_stable(path)
            changes = self.live.changes
            known = await self._lookup(path)
            if (open_array := known.open_array) is not None and open_array.live.path != path:
                known.open_array = None  # It has left; this may be another.
                self._expire(path)
            elif changes == self.live.changes and not self.live.lock.is_changing(path):
                break
            # Else a change came meanwhile: the documents may be those of another array, before or after it.
        if not isinstance(known.node, ArrayNode):
            return None
        if open_array is None or open_array.superseded:
            self.live.set_document(live := self.live.at(path) or self.live.add(path, known.node.chunk_prefix), known.document)
            try:
                node = without_large_attributes(known.node)
                array = Array(node, chunks_of(self._chunk_store, node, self._layers, live), self._counters, self._layers.budget)
            except Exception as error:
                raise error if isinstance(error, ZarrfsError) else MetadataError(reason_of(path, error), key=path) from error
            known.open_array = live.open_array = open_array = OpenArray(array, self._readers, live)
        return open_array

    async def is_current(self, open_array: OpenArray) -> bool:
        """Return True if the documents of an array are unchanged since it was returned.

        Raises `StaleEntry` if it is gone, and `NodeInDoubt` if that is unknown.
        """
        self.live.hold(open_array.live)
        known = self._known.get(open_array.live.path)
        if known is None or known.open_array is not open_array or not self._counts(open_array.live.path, known):
            await self.live.confirm(open_array.live)
        return not open_array.superseded

    async def layouts(self, path: NodePath) -> list[Layout]:
        """Return the layouts that a node at ``path`` may have, in the order in which they are tried."""
        # The lookup finds the hierarchy that owns the folder.
        await self._lookup(path.parent)
        await self._lookup(path)
        return await self.roots.layouts_at(path)

    async def others_at(self, path: NodePath) -> list[str]:
        """Return the dialects of what else lies at ``path``: documents of other nodes, or the root of another hierarchy."""
        known = await self._lookup(path)
        node, own = known.node, [] if isinstance(known.node, UnsupportedNode) else [known.document[0]]
        others = [each for each in await self.roots.layouts_at(path) if node is None or each.dialect.name != node.dialect]
        probe = self.stored.probe(path, others, None, self.stored.get_small)
        found = await self.stored.describing(probe) + await self.roots.hidden_at(probe, own)
        return [name for name in dict.fromkeys(found) if node is None or name != node.dialect]

    def folder_of(self, path: NodePath) -> Prefix:
        """Return the prefix that is the folder of a node that was looked up: of an array's chunks, or of a group's members."""
        node = known.node if (known := self._known.get(path)) is not None else None
        if isinstance(node, ArrayNode):
            return node.chunk_prefix
        layout = self.roots.layout_of(node) if node is not None else None
        return layout.listing_prefix(path) if layout is not None else path.prefix

    def document_of(self, path: NodePath) -> DocumentVersion:
        """Return the document from which the node at ``path`` is known, valid or not any more."""
        return known.document if (known := self._known.get(path)) is not None else (None, None)

    async def is_described(self, path: NodePath, layout: Layout) -> bool:
        """Return True if the store holds documents of the layout for a node at ``path``, valid or bad."""
        return bool(await self.stored.describing(self.stored.probe(path, [layout], None, self.stored.get_small)))

    async def documents(self, keys: Iterable[Key]) -> dict[Key, bytes]:
        """Return `StoredDocuments.get` without what is known of the documents."""
        return contents(await self.stored.get(tuple(dict.fromkeys(keys))))

    def array_of(self, node: ArrayNode, making: LiveArray | None = None) -> Array:
        """Return the array that ``node`` describes, stored or not. Nothing is queued for it, unless it is ``making``, in creation."""
        layers = self._layers if making is not None else self._unqueued
        return Array(node, chunks_of(self._chunk_store, node, layers, making), self._counters, self._layers.budget)

    def hide(self, making: LiveArray) -> None:
        """Hide the path of an array in creation until `reveal`: its chunks precede its documents."""
        self._hidden.add(making)

    def reveal(self, path: NodePath) -> None:
        """Undo `hide` for ``path``."""
        self._hidden = {each for each in self._hidden if each.path != path}
        self._expire(path)

    async def replaced(self, live: LiveArray, path: NodePath, chunk_prefix: Prefix) -> None:
        """Record that this mount replaced ``live``, at ``path``, by another array. What is queued for it is dropped with it."""
        self.live.replaced(live, path, chunk_prefix)
        await self.queued.drop_of(live)

    def documents_mtime_ns(self, path: NodePath) -> int | None:
        """Return the time of the newest document of a node that was looked up, if the store keeps times."""
        return known.documents_ns if (known := self._known.get(path)) is not None else None

    async def mtime_ns(self, path: NodePath) -> int | None:
        """Return the newest time of the array's documents, the names in its folder, and chunks changed through this mount."""
        known, epoch = await self._lookup(path), self._epoch
        if known.folder_epoch != epoch:
            known.folder_ns, known.folder_epoch = await self._store.prefix_mtime_ns(self.folder_of(path)), epoch
        return latest(known.documents_ns, known.chunks_ns, known.folder_ns)

    async def children(self, path: NodePath, names: Collection[str] | None = None) -> AsyncGenerator[tuple[str, Node]]:
        """Yield names and nodes directly below a group, by name, as they are read; bad ones are `UnsupportedNode`, attributes not large.

        ``names``: those of `child_names`, if known. The dialect of a node that cannot be read is empty."""
        unanswered: list[StoreTimeout] = []

        async def look(name: str) -> Node | None:
            try:
                node = await self.node(path.child(name))
            except Exception as error:  # noqa: BLE001 - the others are listed
                unanswered.extend([error] if isinstance(error, StoreTimeout) else [])
                node = unusable(path.child(name), "", error)
            if len(unanswered) > 1:
                # One may be slow; several mean a store that does not answer, whose listing would be false.
                raise unanswered[0]
            return without_large_attributes(node) if node is not None else None

        ordered = await in_order(names if names is not None else await self.child_names(path))
        found: AsyncGenerator[tuple[str, Node]] = each_found(ordered, look, _WIDTH)
        async with aclosing(found):
            async for each in found:
                yield each

    async def child_names(self, path: NodePath, times: ListedTimes | None = None, is_other: IsOther | None = None) -> set[str]:
        """Return `StoredDocuments.child_names`, with the names of empty groups of this mount."""
        if times is not None:
            times.begin(self.ttl, lambda: self._epoch)
        return self.empty_groups.names_in(path) | await self.stored.child_names(path, await self.layouts(path), times, is_other)

    def changed(self, key_or_prefix: str, *, is_prefix: bool) -> NodeChanges:
        """Invalidate what a set or erase at a key or prefix concerns; return the nodes concerned."""
        self._epoch += 1
        return self._prefix_changed(Prefix(key_or_prefix)) if is_prefix else self._key_changed(Key(key_or_prefix))

    def open_below(self, path: NodePath) -> Iterator[NodePath]:
        """Return the paths of arrays at ``path`` and below it that may be open."""
        return (node.path for node in self.live.at_and_below(path))

    def came_or_went(self, prefix: Prefix) -> NodeChanges:
        """Invalidate what the appearance or removal of an empty ``prefix`` concerns; return the nodes concerned."""
        self._epoch += 1
        above = prefix
        while above:
            self._expire_implied(above)
            above = Prefix(above[: above.rstrip("/").rfind("/") + 1])
        return NodeChanges(tuple(NodeChange(path) for path in self.roots.groups_at(prefix)))

    def forget_all(self) -> None:
        """Invalidate all that was learnt of the store."""
        self._epoch += 1
        self.roots.expire()
        self._expire_below(ROOT)
        self._readers.discard_all()

    # --- change -------------------------------------------------------------------------------------------------------------

    def _key_changed(self, key: Key) -> NodeChanges:
        self.roots.expire_for(key)
        nodes = [NodeChange(owner)] if (owner := self.roots.owner_of(key)) is not None else []
        chunks: list[tuple[NodePath, ChunkBox | Sequence[Coords]]] = []
        for layout in list(self.roots.over(key)):
            path = layout.node_of_document(key)
            if path is not None:
                self._expire(path)
                if self.roots.forget(path):
                    self._expire_below(path)
                nodes.append(NodeChange(path))
        # The key of a chunk may be its array's prefix without the slash.
        prefix = Prefix(f"{key}/")
        while True:
            live = self.live.with_chunk_prefix(prefix)
            if live is not None and (metadata := live.metadata) is not None:
                stored = metadata.chunk_key_encoding.decode(key[len(prefix) :], metadata.ndim)
                if stored is not None and not ShardQueue.is_publishing(key):
                    box = chunks_under_key(metadata, stored)
                    self._chunks_changed(live, box)
                    chunks.append((live.path, box))
            if not prefix:
                return NodeChanges(tuple(nodes), tuple(chunks))
            self._expire_implied(prefix)
            prefix = Prefix(prefix[: prefix.rstrip("/").rfind("/") + 1])

    def chunks_changed(self, prefix: Prefix, coords: Sequence[Coords]) -> NodeChanges:
        """Invalidate chunks, of the array with this chunk prefix, that changed without a change of keys; return the nodes concerned."""
        if (live := self.live.with_chunk_prefix(prefix)) is None or live.metadata is None:
            return NodeChanges()
        self._chunks_changed(live, coords)
        return NodeChanges(chunks=((live.path, coords),))

    def _chunks_changed(self, live: LiveArray, box: ChunkBox | Sequence[Coords]) -> None:
        if (known := self._known.get(live.path)) is not None:
            known.chunks_ns = time.time_ns()
        # The kernel may hold names and attributes of chunks of an array that is not kept ready any more.
        if (open_array := live.open_array) is not None:
            for each in [None] if count(box) > _FEW_CHUNKS else box:
                open_array.discard(each)

    def _prefix_changed(self, prefix: Prefix) -> NodeChanges:
        self.roots.expire()
        tops = self.roots.tops_at(prefix)
        # Knowledge of the folder and of those above may depend on entries added or removed in it.
        above = dict.fromkeys(each for top in tops for each in top.ancestors() if each in self._known)
        apart = list(itertools.islice(self._known.index.with_chunks_at(prefix), _FEW_ARRAYS + 1))
        if len(apart) > _FEW_ARRAYS:
            tops = [ROOT]
        for path in (*above, *apart):
            self._expire(path)
            self._discard(path)
        for top in tops:
            self._expire_below(top)
            self._discard_below(top)
        self.roots.forget_below(prefix)
        return NodeChanges(tuple(map(NodeChange, dict.fromkeys((*above, *apart)))), tops=tuple(tops), known=self._known.index.known)

    def _discard_below(self, path: NodePath) -> None:
        """Drop decoded chunks of the arrays there; of all arrays if there are many."""
        some = list(itertools.islice(self.open_below(path), _FEW_ARRAYS + 1))
        if len(some) > _FEW_ARRAYS:
            self._readers.discard_all()
        else:
            for each in some:
                self._discard(each)

    def _discard(self, path: NodePath) -> None:
        """Drop decoded chunks of the array at ``path``, if it was requested."""
        if (live := self.live.at(path)) is not None and (open_array := live.open_array) is not None:
            open_array.discard()

    def _expire(self, path: NodePath) -> None:
        self.forgotten.epoch += 1
        if (known := self._known.get(path)) is not None:
            known.expires = float("-inf")
        if path == ROOT:
            # The root's documents may contain a consolidated copy of all others.
            self.roots.expire()

    def _expire_below(self, path: NodePath) -> None:
        """Invalidate the nodes at ``path`` and below it, in constant time."""
        self.forgotten.add(path)

    def _others_below(self, path: NodePath) -> None:
        """Invalidate nodes at ``path`` and below it, where layouts have changed."""
        self._epoch += 1
        self._expire_below(path)

    def _expire_implied(self, prefix: Prefix) -> None:
        """Invalidate implicit groups at ``prefix``: a key more or less below may create or end a folder without documents."""
        for path in self.roots.groups_at(prefix):
            known = self._known.get(path)
            if known is not None and (known.node is None or (isinstance(known.node, GroupNode) and not known.node.explicit)):
                known.expires = self.forgotten.one()

    # --- learning -----------------------------------------------------------------------------------------------------------

    async def _lookup(self, path: NodePath, above_known: bool = False) -> KnownNode:
        if self._hidden and not {each.path for each in self._hidden}.isdisjoint((path, *path.ancestors())):
            return KnownNode(None, b"", float("-inf"))
        while True:
            if self.roots.in_doubt:
                await self.roots.layouts()
            known = self._known.get(path)
            # `_counts`, inlined: this runs several times for each lookup in the mount.
            if (
                known is not None
                and known.expires > self._now()
                and self.forgotten.counts(path, known.learnt)
                and (known.source.copies_read == self.roots.copies_read or self._reading.is_copied_so(path, known))
                and (not self._store.has_changes_now() or self._reading.is_as_stored(path, known))
            ):
                return known
            if not await self._flights.joined(path):
                break
        with self._flights.started(path):
            return await self._learn(path, above_known)

    def _counts(self, path: NodePath, known: KnownNode) -> bool:
        counts = known.expires > self._now() and self.forgotten.counts(path, known.learnt)
        return counts and not self.roots.in_doubt and self._reading.is_still_so(path, known)

    async def _learn(self, path: NodePath, above_known: bool) -> KnownNode:
        for _ in range(_LOOKS):
            epoch, changes = self._epoch, self.live.changes
            before = self._known.get(path)
            node, digest, documents_ns, document, source = await self._read(path, above_known)
            if changes == self.live.changes:
                break
            # This mount has moved or ended an array: the result may be of its predecessor.
        if self.live.lock.is_underway(path):
            return KnownNode(node, digest, float("-inf"), document=document)
        # After a change during the read, the result is valid for this caller only, and not cached.
        expires = self._now() + self.ttl if epoch == self._epoch else float("-inf")
        live = self.live.at(path)
        is_same = before is not None and before.digest == digest and type(before.node) is type(node)
        # A missing array may be on its way, or gone: that is checked each time.
        if before is not None and is_same and (live is None or isinstance(node, ArrayNode)):
            before.expires, before.learnt = expires, self.forgotten.now
            before.documents_ns, before.document, before.source, before.folder_epoch = documents_ns, document, source, -1
            if live is not None:
                self.live.set_document(live, document)
            return before
        for warning in node.warnings if isinstance(node, ArrayNode) else ():
            log.warning("%s: %s", path, warning)
        chunks_ns = before.chunks_ns if before is not None else None
        open_array = await self.live.learnt(path, node, document, before)
        expires = expires if epoch == self._epoch else float("-inf")
        known = KnownNode(node, digest, expires, self.forgotten.now, open_array, documents_ns, chunks_ns, document, source)
        self._known.put(path, known)
        return known

    async def reread(self, path: NodePath) -> Node | None:
        """Return `node` after invalidating what is known of it."""
        # A read in progress may be older than what the caller has seen.
        await self._flights.joined(path)
        self._expire(path)
        return await self.node(path)

    async def _read(self, path: NodePath, above_known: bool) -> tuple[Node | None, bytes, int | None, DocumentVersion, Source]:
        """Return a `Found`, with None as node if there is none."""
        layouts = await self.roots.layouts_at(path)
        source, was_empty_group = self._reading.source(path), path in self.empty_groups
        found, probe = await self._reading.read(path, layouts, self._expected(path), self._known.get(path), source)
        if found is not None:
            return found
        owner = self.roots.open_layout_at(path) or await probe.implied_by()
        # The store may have an empty group by now that it did not have at the time of the request.
        if await self._is_below_unknown_root(path, probe.read, above_known) or (was_empty_group and path not in self.empty_groups):
            return await self._read(path, above_known)
        group, spelled = None, b""
        # A hierarchy with an entry point has a root group, even without a document.
        if path == ROOT or path in self.empty_groups or owner is not None:
            owner = owner or next((each for each in layouts if each.dialect.name == self._expected(path)), layouts[0])
            group = GroupNode(path=path, dialect=owner.dialect.name, attributes=self.empty_groups.attributes(path), explicit=False)
            spelled = repr((group.dialect, group.attributes)).encode("utf-8", "backslashreplace")  # empty stores get a layout later
        return group, hashlib.blake2b(spelled, digest_size=16).digest(), None, (None, None), source

    async def _is_below_unknown_root(self, path: NodePath, read: Mapping[Key, Document | None], above_known: bool) -> bool:
        """Return True if ``path``, where nothing was found, is in a hierarchy found by this, which only its root shows."""
        found = len(self.roots.known)
        # Each once, the root first (``above_known``): what is not kept would be read again for each node below, twice as often per level.
        for above in path.ancestors() if not above_known else ():
            if isinstance((await self._lookup(above, True)).node, ArrayNode):
                break
        if await self.roots.look_at(path, read):
            # Nodes found in its folders before are of another layout.
            self._expire_below(path)
            return True
        return len(self.roots.known) > found

    def _expected(self, path: NodePath) -> str | None:
        """Return the dialect that a node at ``path`` probably has."""
        parent = known.node if path != ROOT and (known := self._known.get(path.parent)) is not None else None
        return parent.dialect if parent is not None else self.roots.dialect_at(path)
