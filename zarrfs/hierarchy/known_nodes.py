"""The nodes that a mount knows, bounded by their number and by the bytes of their attributes.

Attributes are the only part of a node that may be large (`zarrfs.dialects.json_text`). Where all of them together are too large, the
nodes looked up first lose theirs, and are read again when somebody asks for them; files that are open over an array go on.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TypeVar

from zarrfs.hierarchy.arrays import Array
from zarrfs.hierarchy.path_index import NodeIndex
from zarrfs.hierarchy.readers import ArrayReader
from zarrfs.keys import NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode, Node
from zarrfs.model.unparsed import are_large, nbytes_of

N = TypeVar("N", bound=Node)

MAX_NODES = 50_000
MAX_ATTRIBUTES_NBYTES = 32 << 20


@dataclass(slots=True)
class OpenArray:
    """An array and its reader. ``superseded`` once its documents say something else: what was read of it is another array's."""

    array: Array
    reader: ArrayReader
    superseded: bool = False


@dataclass(slots=True)
class KnownNode:
    """What was learnt at a path, of documents with this ``digest``; it counts until ``expires``, and until something is forgotten after
    ``learnt`` (`zarrfs.hierarchy.forgotten`)."""

    node: Node | None
    digest: bytes
    expires: float
    learnt: int = 0
    opened: OpenArray | None = None
    documents_ns: int | None = None
    chunks_ns: int | None = None


class KnownNodes:
    """`KnownNode` by path. ``index``: which of them lie where."""

    def __init__(self) -> None:
        self._known: OrderedDict[NodePath, KnownNode] = OrderedDict()
        self._large: OrderedDict[NodePath, int] = OrderedDict()
        self._large_nbytes = 0
        self._by_chunk_prefix: dict[Prefix, NodePath] = {}
        self.index = NodeIndex()

    def get(self, path: NodePath) -> KnownNode | None:
        """What is known at ``path``."""
        return self._known.get(path)

    def __getitem__(self, path: NodePath) -> KnownNode:
        return self._known[path]

    def __contains__(self, path: object) -> bool:
        return path in self._known

    def put(self, path: NodePath, known: KnownNode) -> None:
        """Remember ``known``, and forget what there is no more room for."""
        self.index.add(path, known.node, is_open=known.opened is not None)
        self._known[path] = known
        self._known.move_to_end(path)
        self._measure(path, known.node)
        while len(self._known) > MAX_NODES:
            dropped, forgotten = self._known.popitem(last=False)
            self._measure(dropped, None)
            self.index.discard(dropped, forgotten.node)
            if isinstance(forgotten.node, ArrayNode):
                self._by_chunk_prefix.pop(forgotten.node.chunk_prefix, None)
        while self._large_nbytes > MAX_ATTRIBUTES_NBYTES and len(self._large) > 1:
            oldest_path = next(iter(self._large))
            self._measure(oldest_path, None)
            oldest = self._known[oldest_path]
            oldest.node = without_large_attributes(oldest.node) if oldest.node is not None else None
            oldest.digest, oldest.expires = b"", float("-inf")

    def opened(self, path: NodePath, chunk_prefix: Prefix) -> None:
        """The array at ``path`` was handed out."""
        self.index.opened.add(path)
        self._by_chunk_prefix[chunk_prefix] = path

    def is_open(self, path: NodePath) -> bool:
        """Whether the array at ``path`` was handed out, and may be open."""
        known = self._known.get(path)
        return known is not None and known.opened is not None

    def discard(self, path: NodePath) -> None:
        """Forget what was decoded of the array at ``path``, if it was handed out."""
        known = self._known.get(path)
        if known is not None and known.opened is not None:
            known.opened.reader.discard()

    def with_chunk_prefix(self, prefix: Prefix) -> NodePath | None:
        """The array, of those that were handed out, whose chunks lie there."""
        return self._by_chunk_prefix.get(prefix)

    def _measure(self, path: NodePath, node: Node | None) -> None:
        self._large_nbytes -= self._large.pop(path, 0)
        if isinstance(node, ArrayNode | GroupNode) and are_large(node.attributes):
            self._large[path] = nbytes_of(node.attributes)
            self._large_nbytes += self._large[path]


def without_large_attributes(node: N) -> N:
    """``node`` for somebody who keeps it and has no use for its attributes."""
    if isinstance(node, ArrayNode | GroupNode) and are_large(node.attributes):
        return replace(node, attributes={})
    return node
