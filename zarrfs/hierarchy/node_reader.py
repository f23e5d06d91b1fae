"""What the documents at a path say that is there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from zarrfs import threads
from zarrfs.arrays.counters import HierarchyCounters
from zarrfs.dialects.base import Layout
from zarrfs.hierarchy.live_nodes import Said
from zarrfs.hierarchy.roots import Roots
from zarrfs.hierarchy.stored_documents import GetDocuments, StoredDocuments, weight, with_stored_scalar
from zarrfs.hierarchy.unforeseen import unusable
from zarrfs.keys import Key, NodePath
from zarrfs.model.metadata import ArrayNode, Node
from zarrfs.stores.base import Store


class NodeReader:
    """Reads the documents of nodes, and has the first layout that knows them say what they are. ``weigh`` is told of what a node was
    made."""

    def __init__(
        self,
        store: Store,
        stored: StoredDocuments,
        roots: Roots,
        counters: HierarchyCounters,
        weigh: Callable[[NodePath, Mapping[Key, bytes]], None],
    ) -> None:
        self._store = store
        self._stored = stored
        self._roots = roots
        self._counters = counters
        self._weigh = weigh

    async def read(
        self,
        path: NodePath,
        layouts: Sequence[Layout],
        read: dict[Key, bytes | None],
        expected: str | None,
        get: GetDocuments,
    ) -> tuple[Node, bytes, int | None, Said] | None:
        """The node at ``path``, a digest of its documents, the newest time of them, and which of them says what it is; None where there
        are none of a node. ``read`` gets what was found; ``expected``: the dialect that is asked first."""
        digest = hashlib.blake2b(digest_size=16)
        newest: int | None = None
        async for layout, documents in self._stored.by_layout(path, layouts, read, expected, get):
            begins = self._roots.begins_at(layout, path)
            # A consolidated copy serves stores that cannot list; elsewhere it may tell of nodes that are gone.
            tells = bool(documents) or not self._store.listable
            if not tells and not begins:
                continue
            said: Said = (None, None)
            for key, value in documents.items():
                digest.update(f"{layout.dialect.name} {len(value)} {key}\0".encode("utf-8", "backslashreplace"))
                await threads.cpu(len(value), digest.update, value)
                if said[0] is None:
                    stat, generation = await self._stored.stat_of(key, value)
                    said = (key, generation) if stat is not None else said
                else:
                    stat = await self._store.stat(key)
                if stat is not None and stat.mtime_ns is not None:
                    newest = max(newest or 0, stat.mtime_ns)
            try:
                if begins:
                    layout.check()
                node = await threads.cpu(weight(documents), layout.parse, path, documents) if tells else None
            except Exception as error:  # noqa: BLE001 - whatever a document does to its reader is its own node's misfortune
                self._counters.nodes_parsed += 1
                return unusable(path, layout.dialect.name, error), digest.digest(), newest, said
            if node is not None:
                self._weigh(path, documents)
                self._counters.nodes_parsed += 1
                node = await with_stored_scalar(self._store, layout, node)
                if isinstance(node, ArrayNode) and not node.metadata.shape:
                    digest.update(node.metadata.chunk_key_encoding.scalar.encode())
                if not documents:
                    # Known from a consolidated copy, which is not among its documents.
                    digest.update(repr(node).encode("utf-8", "backslashreplace"))
                return node, digest.digest(), newest, said
        return None
