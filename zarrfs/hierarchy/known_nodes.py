"""Nodes known to a mount, bounded by their number and by the memory of their parsed documents.

Beyond either bound the nodes looked up first are evicted, and read again on demand. An array with open files stays known until they are
closed.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from zarrfs.dialects.base import Layout
from zarrfs.hierarchy.live_array import DocumentVersion, LiveArray, OpenArray
from zarrfs.hierarchy.path_index import NodeIndex
from zarrfs.keys import Key, NodePath
from zarrfs.model import cf_fill_value, chunk_key, data_type
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node
from zarrfs.model.unparsed import are_large, parsed_nbytes

N = TypeVar("N", bound=Node)

MAX_NODES = 50_000
MAX_NBYTES = 32 << 20
"""Limit for parsed documents that are not small."""

_SMALL_NBYTES = 8 << 10
_MAX_PARSED_NBYTES = 8 << 20
_NOTHING = ArrayMetadata(
    shape=(),
    data_type=data_type.from_numpy(np.dtype("u1")),
    chunk_grid=RegularGrid(()),
    chunk_key_encoding=chunk_key.v2(),
    fill_value=None,
    codecs=(),
)


class Source(NamedTuple):
    """Origin of a node: the ``layout`` (without its consolidated copy) that read it, None if no document described it.

    ``copied``: digest of the copies' entries for it, as of ``copies_read`` of `Roots`.
    """

    layout: Layout | None = None
    copied: bytes = b""
    copies_read: int = 0


_UNKNOWN = Source()


class KnownNode:
    """The knowledge of a path, from documents with this ``digest``.

    Valid until ``expires``, and until an invalidation after ``learnt`` (`zarrfs.hierarchy.forgotten`).
    """

    __slots__ = (
        "_open_array",
        "chunks_ns",
        "digest",
        "document",
        "documents_ns",
        "expires",
        "folder_epoch",
        "folder_ns",
        "learnt",
        "node",
        "source",
    )

    def __init__(
        self,
        node: Node | None,
        digest: bytes,
        expires: float,
        learnt: int = 0,
        open_array: OpenArray | None = None,
        documents_ns: int | None = None,
        chunks_ns: int | None = None,
        document: DocumentVersion = (None, None),
        source: Source = _UNKNOWN,
    ) -> None:
        self.node = node
        self.digest = digest
        self.expires = expires
        self.learnt = learnt
        self._open_array: OpenArray | weakref.ref[OpenArray] | None = open_array
        self.documents_ns = documents_ns
        self.chunks_ns = chunks_ns
        self.document = document
        self.folder_ns: int | None = None
        """Time of the last change of names in its folder, as of the store's change counter ``folder_epoch``."""
        self.folder_epoch = -1
        self.source = source

    @property
    def open_array(self) -> OpenArray | None:
        """The array, if it was requested."""
        return self._open_array() if isinstance(self._open_array, weakref.ref) else self._open_array

    @open_array.setter
    def open_array(self, open_array: OpenArray | None) -> None:
        self._open_array = open_array

    def let_go(self) -> None:
        """Keep the array only as long as others do."""
        if isinstance(self._open_array, OpenArray):
            self._open_array = weakref.ref(self._open_array)

    def fade(self) -> None:
        """Drop the content of the documents."""
        if isinstance(self.node, ArrayNode):
            self.node = replace(self.node, attributes={}, metadata=_NOTHING)
        elif isinstance(self.node, GroupNode):
            self.node = replace(self.node, attributes={})
        self.digest, self.expires = b"", float("-inf")
        self.let_go()


class KnownNodes:
    """`KnownNode` by path. ``index``: paths of known nodes, for queries by prefix."""

    def __init__(self) -> None:
        self._known: OrderedDict[NodePath, KnownNode] = OrderedDict()
        self.get = self._known.get
        """Return what is known at a path, or None: called several times for each lookup in the mount."""
        self._large: OrderedDict[NodePath, int] = OrderedDict()
        self._large_nbytes = 0
        self._weights: dict[NodePath, int] = {}
        self.index = NodeIndex()

    def __getitem__(self, path: NodePath) -> KnownNode:
        return self._known[path]

    def __contains__(self, path: object) -> bool:
        return path in self._known

    def ended(self, live: LiveArray) -> None:
        """Let go of an array that has ended: it holds its folder, and decoded chunks."""
        known = self._known.get(live.path)
        if known is not None and (open_array := known.open_array) is not None and open_array.live is live:
            known.let_go()

    def weigh(self, path: NodePath, documents: Mapping[Key, bytes]) -> None:
        """Record the documents of the node that is `put` next at ``path``."""
        # A large document is parsed in part.
        self._weights[path] = sum(min(parsed_nbytes(data), len(data) + _MAX_PARSED_NBYTES) for data in documents.values())

    def put(self, path: NodePath, known: KnownNode) -> None:
        """Remember ``known``, and forget the oldest nodes beyond the bounds."""
        before = self._known.get(path)
        self.index.add(path, known.node, before.node if before is not None else None)
        self._known[path] = known
        self._known.move_to_end(path)
        self._measure(path, self._weights.pop(path, 0))
        while len(self._known) > MAX_NODES:
            dropped, forgotten = self._known.popitem(last=False)
            self._measure(dropped, 0)
            self.index.discard(dropped, forgotten.node)
        while self._large_nbytes > MAX_NBYTES and len(self._large) > 1:
            oldest = next(iter(self._large))
            self._measure(oldest, 0)
            self._known[oldest].fade()

    def _measure(self, path: NodePath, nbytes: int) -> None:
        self._large_nbytes -= self._large.pop(path, 0)
        if nbytes > _SMALL_NBYTES:
            self._large[path] = nbytes
            self._large_nbytes += nbytes


def without_large_attributes(node: N) -> N:
    """Return ``node`` without large attributes, except the one that defines missing data, for holders that do not use attributes."""
    if isinstance(node, ArrayNode | GroupNode) and are_large(node.attributes):
        kept = {name: value for name, value in node.attributes.items() if name == cf_fill_value.NAME}
        return replace(node, attributes={} if are_large(kept) else kept)
    return node
