"""Reading of the node at a path from its documents."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace

from zarrfs import threads
from zarrfs.arrays.counters import WorkCounters
from zarrfs.dialects.base import Layout
from zarrfs.dialects.json_text import SMALL_NBYTES
from zarrfs.errors import ZarrfsError
from zarrfs.hierarchy.known_nodes import KnownNode, Source
from zarrfs.hierarchy.live_array import DocumentVersion
from zarrfs.hierarchy.live_nodes import LiveNodes
from zarrfs.hierarchy.parsed_documents import ParsedDocuments, content_of
from zarrfs.hierarchy.probe import Document, Probe
from zarrfs.hierarchy.roots import Roots
from zarrfs.hierarchy.stored_documents import LargeDocument, StoredDocuments, contents, weight, with_stored_keys
from zarrfs.hierarchy.unforeseen import unusable
from zarrfs.keys import Key, NodePath
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, Node, UnsupportedNode
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.base import Store

Found = tuple[Node, bytes, int | None, DocumentVersion, Source]
"""A node, a digest of its documents, their newest time, the document that describes it, and its origin."""

_COPIED = "no documents of its own: read from the consolidated copy"


class NodeReader:
    """Reads the documents of nodes; the first layout that recognizes them parses them.

    ``weigh`` is called with the documents of a parsed node.
    """

    def __init__(
        self,
        store: Store,
        stored: StoredDocuments,
        roots: Roots,
        live: LiveNodes,
        counters: WorkCounters,
        weigh: Callable[[NodePath, Mapping[Key, bytes]], None],
    ) -> None:
        self._store = store
        self._stored = stored
        self._roots = roots
        self._live = live
        self._counters = counters
        self._weigh = weigh
        self._parsed = ParsedDocuments()
        self._source = Source()

    def source(self, path: NodePath) -> Source:
        """Return the origin of what is read at ``path`` from now on, if no document describes it."""
        return Source(None, self._roots.copied(path), self._roots.copies_read)

    def is_copied_so(self, path: NodePath, known: KnownNode) -> bool:
        """Return True if the consolidated copies still have the entries for ``path`` with which the node was read."""
        if known.source.copies_read != self._roots.copies_read:
            if known.source.copied != self._roots.copied(path):
                return False
            known.source = known.source._replace(copies_read=self._roots.copies_read)
        return True

    def is_still_so(self, path: NodePath, known: KnownNode) -> bool:
        """Return True if neither the consolidated copies nor changes that wait to be reported give a reason to read a node again."""
        return self.is_copied_so(path, known) and (not self._store.has_changes_now() or self.is_as_stored(path, known))

    def is_as_stored(self, path: NodePath, known: KnownNode) -> bool:
        """Return True if the document that describes a known node is the one in the store, where changes wait to be reported.

        What comes next may be the document of a node that has none: its writer opens it at once."""
        key, generation = known.document
        if key is None or ((live := self._live.at(path)) is not None and live.has_left_its_document):
            return False
        with suppress(WouldWait, ZarrfsError):
            stat = self._store.stat_now(key)
            return stat is not None and stat.generation == generation
        return False

    async def read(
        self, path: NodePath, layouts: Sequence[Layout], expected: str | None, before: KnownNode | None, source: Source
    ) -> tuple[Found | None, Probe]:
        """Return what is found at ``path``, None without documents of a node, and the probe used.

        ``expected``: the dialect to try first. ``before``: the known node, which is not parsed again if its documents are unchanged.
        ``source``: that of the path, from before the first request.
        """
        try:
            probe = self._stored.probe(path, layouts, expected, self._stored.get_small)
            return await self._read(path, probe, before, source), probe
        except LargeDocument:
            async with self._stored.turn:
                probe = self._stored.probe(path, layouts, expected, self._stored.get)
                found = await self._read(path, probe, before, source)
                # Large documents are held by one task at a time: later users read them again.
                for key in [key for key, each in probe.read.items() if each is not None and len(each.content) > SMALL_NBYTES]:
                    del probe.read[key]
                return found, probe

    async def _read(self, path: NodePath, probe: Probe, before: KnownNode | None, source: Source) -> Found | None:
        # A generator that is left to be finalized by trio costs a task.
        async with aclosing(probe.by_layout()) as by_layout, aclosing(self._described(path, by_layout)) as described:
            return await self._first(path, described, before, source)

    async def _described(
        self, path: NodePath, by_layout: AsyncIterable[tuple[Layout, Mapping[Key, Document]]]
    ) -> AsyncGenerator[tuple[Layout, Mapping[Key, Document], bool]]:
        """Yield the layouts that may have a node at ``path``, its documents, and True if these or the consolidated copy describe it.

        Of a store that can list, a copy may be outdated: it counts only if no layout has documents there.
        """
        copied: list[tuple[Layout, Mapping[Key, Document]]] = []
        async for layout, found in by_layout:
            is_copied = not found and await self._stored.copy_counts(path, layout)
            if is_copied and self._store.capabilities.list and not layout.copy_only:
                copied.append((layout, found))
            elif found or is_copied or self._roots.begins_at(layout, path):
                yield layout, found, bool(found) or is_copied
        for layout, found in copied:
            yield layout, found, True

    async def _first(
        self,
        path: NodePath,
        described: AsyncIterable[tuple[Layout, Mapping[Key, Document], bool]],
        before: KnownNode | None,
        source: Source,
    ) -> Found | None:
        digest = hashlib.blake2b(digest_size=16)
        newest: int | None = None
        async for layout, found, is_described in described:
            documents = contents(found)
            document: DocumentVersion = (None, None)
            for key, value in documents.items():
                digest.update(f"{layout.dialect.name} {len(value)} {key}\0".encode("utf-8", "backslashreplace"))
                await threads.cpu(len(value), digest.update, value)
                stat = found[key].stat
                if document[0] is None:
                    document = key, stat.generation
                if newest is None or (stat.mtime_ns is not None and stat.mtime_ns > newest):
                    newest = stat.mtime_ns
            source = self._shared(Source(layout.without_copy(), source.copied, source.copies_read))
            if documents and before is not None and before.digest == digest.digest() and _is_read_alike(before, source):
                assert before.node is not None
                return before.node, before.digest, newest, document, source
            try:
                if self._roots.begins_at(layout, path):
                    layout.check()
                node = await self._parse(layout, path, documents, source) if is_described else None
            except Exception as error:  # noqa: BLE001 - any failure to read a document is confined to its node
                self._counters.nodes_parsed += 1
                return unusable(path, layout.dialect.name, error), digest.digest(), newest, document, source
            if node is not None:
                self._weigh(path, documents)
                self._counters.nodes_parsed += 1
                if isinstance(node, ArrayNode) and len(encodings := layout.chunk_key_encodings(node, documents)) > 1:
                    node = await with_stored_keys(self._store, node, encodings, self._known_at(path, before))
                    digest.update(repr(node.metadata.chunk_key_encoding).encode())
                if not documents:
                    # Read from a consolidated copy, which is not among its documents.
                    digest.update(repr(node).encode("utf-8", "backslashreplace"))
                    if self._store.capabilities.list and not isinstance(node, UnsupportedNode):
                        node = replace(node, quirks=(*node.quirks, _COPIED))
                return node, digest.digest(), newest, document, source
        return None

    def _known_at(self, path: NodePath, before: KnownNode | None) -> ArrayMetadata | None:
        """Return the metadata of the array as it is in use at ``path``, also if it was renamed to it, else as it was read before."""
        live = self._live.at(path)
        if live is not None and live.metadata is not None:
            return live.metadata
        return before.node.metadata if before is not None and isinstance(before.node, ArrayNode) else None

    def _shared(self, source: Source) -> Source:
        """Return the last source if it is equal: nearly all nodes of a store have the same one."""
        if source != self._source:
            self._source = source
        return self._source

    async def _parse(self, layout: Layout, path: NodePath, documents: Mapping[Key, bytes], source: Source) -> Node | None:
        content = content_of(layout, path, documents) if not source.copied else None
        if content is not None and (alike := self._parsed.get(content, path)) is not None:
            return alike
        node = await threads.cpu(weight(documents), layout.parse, path, documents)
        if content is not None:
            self._parsed.keep(content, node)
        return node


def _is_read_alike(before: KnownNode, source: Source) -> bool:
    """Return True if the same documents describe the same node again."""
    return before.source.layout == source.layout and before.source.copied == source.copied
