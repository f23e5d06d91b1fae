"""The nodes that a mount knows, bounded by their number and by the bytes of their attributes.

Attributes are the only part of a node that may be large (`zarrfs.dialects.json_text`). Where all of them together are too large, the
nodes looked up first lose theirs, and are read again when somebody asks for them; files that are open over an array go on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from zarrfs.hierarchy.arrays import Array
from zarrfs.hierarchy.readers import ArrayReader
from zarrfs.keys import NodePath
from zarrfs.model.metadata import ArrayNode, GroupNode, Node
from zarrfs.model.unparsed import nbytes_of

N = TypeVar("N", bound=Node)

MAX_NODES = 50_000
MAX_ATTRIBUTES_NBYTES = 32 << 20
# Attributes of fewer bytes are not counted: most nodes have some.
_LARGE_NBYTES = 64 << 10


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
    """`KnownNode` by path."""

    def __init__(self) -> None:
        self._known: OrderedDict[NodePath, KnownNode] = OrderedDict()
        self._large: OrderedDict[NodePath, int] = OrderedDict()
        self._large_nbytes = 0

    def get(self, path: NodePath) -> KnownNode | None:
        """What is known at ``path``."""
        return self._known.get(path)

    def __getitem__(self, path: NodePath) -> KnownNode:
        return self._known[path]

    def __contains__(self, path: object) -> bool:
        return path in self._known

    def __iter__(self) -> Iterator[NodePath]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def values(self) -> Iterator[KnownNode]:
        """Everything that is known."""
        return iter(self._known.values())

    def items(self) -> Iterator[tuple[NodePath, KnownNode]]:
        """The same, with paths."""
        return iter(self._known.items())

    def put(self, path: NodePath, known: KnownNode) -> list[tuple[NodePath, KnownNode]]:
        """Remember ``known``; what was forgotten for it."""
        self._known[path] = known
        self._known.move_to_end(path)
        self._measure(path, known.node)
        forgotten = []
        while len(self._known) > MAX_NODES:
            dropped, oldest = self._known.popitem(last=False)
            self._measure(dropped, None)
            forgotten.append((dropped, oldest))
        while self._large_nbytes > MAX_ATTRIBUTES_NBYTES and len(self._large) > 1:
            oldest_path = next(iter(self._large))
            self._measure(oldest_path, None)
            oldest = self._known[oldest_path]
            oldest.node = without_large_attributes(oldest.node) if oldest.node is not None else None
            oldest.digest, oldest.expires = b"", float("-inf")
        return forgotten

    def _measure(self, path: NodePath, node: Node | None) -> None:
        self._large_nbytes -= self._large.pop(path, 0)
        nbytes = nbytes_of(node.attributes) if isinstance(node, ArrayNode | GroupNode) else 0
        if nbytes > _LARGE_NBYTES:
            self._large[path] = nbytes
            self._large_nbytes += nbytes


def without_large_attributes(node: N) -> N:
    """``node`` for somebody who keeps it and has no use for its attributes."""
    if isinstance(node, ArrayNode | GroupNode) and nbytes_of(node.attributes) > _LARGE_NBYTES:
        return replace(node, attributes={})
    return node
