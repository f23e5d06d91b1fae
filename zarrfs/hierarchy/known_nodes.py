"""The nodes that a mount knows, bounded by their number and by what their documents take when they are parsed.

Where all of these together are too large, the nodes looked up first are forgotten, and read again when somebody asks for them. Files that
are open over an array go on: of it they alone hold what is needed, and it is known here for as long as they do.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from zarrfs.dialects.base import Layout
from zarrfs.hierarchy.live_array import OpenArray, Said
from zarrfs.hierarchy.path_index import NodeIndex
from zarrfs.keys import Key, NodePath
from zarrfs.model import cf_fill_value, chunk_key, data_type
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node
from zarrfs.model.unparsed import are_large, parsed_nbytes

N = TypeVar("N", bound=Node)

MAX_NODES = 50_000
MAX_NBYTES = 32 << 20
"""Of documents that are not small, parsed."""

_SMALL_NBYTES = 8 << 10
_MOST_PARSED_NBYTES = 8 << 20
_NOTHING = ArrayMetadata(
    shape=(),
    data_type=data_type.from_numpy(np.dtype("u1")),
    chunk_grid=RegularGrid(()),
    chunk_key_encoding=chunk_key.v2(),
    fill_value=None,
    codecs=(),
)


@dataclass(frozen=True, slots=True)
class Source:
    """By which ``layout`` (without its consolidated copy) a node was read, None where no document described it; and a digest of what the
    copies said of it, ``copied``, when ``copies_read`` was that of `Roots`."""

    layout: Layout | None = None
    copied: bytes = b""
    copies_read: int = 0


class KnownNode:
    """What was learnt at a path, of documents with this ``digest``; it counts until ``expires``, and until something is forgotten after
    ``learnt`` (`zarrfs.hierarchy.forgotten`)."""

    __slots__ = (
        "_opened",
        "chunks_ns",
        "digest",
        "documents_ns",
        "expires",
        "folder_epoch",
        "folder_ns",
        "learnt",
        "node",
        "said",
        "source",
    )

    def __init__(
        self,
        node: Node | None,
        digest: bytes,
        expires: float,
        learnt: int = 0,
        opened: OpenArray | None = None,
        documents_ns: int | None = None,
        chunks_ns: int | None = None,
        said: Said = (None, None),
        source: Source = Source(),
    ) -> None:
        self.node = node
        self.digest = digest
        self.expires = expires
        self.learnt = learnt
        self._opened: OpenArray | weakref.ref[OpenArray] | None = opened
        self.documents_ns = documents_ns
        self.chunks_ns = chunks_ns
        self.said = said
        self.folder_ns: int | None = None
        """When the names in its folder last changed, as known when the changes of the store were ``folder_epoch``."""
        self.folder_epoch = -1
        self.source = source

    @property
    def opened(self) -> OpenArray | None:
        """The array, if it was handed out."""
        return self._opened() if isinstance(self._opened, weakref.ref) else self._opened

    @opened.setter
    def opened(self, opened: OpenArray) -> None:
        self._opened = opened

    def fade(self) -> None:
        """Forget what the documents say."""
        if isinstance(self.node, ArrayNode):
            self.node = replace(self.node, attributes={}, metadata=_NOTHING)
        elif isinstance(self.node, GroupNode):
            self.node = replace(self.node, attributes={})
        self.digest, self.expires = b"", float("-inf")
        if isinstance(self._opened, OpenArray):
            self._opened = weakref.ref(self._opened)


class KnownNodes:
    """`KnownNode` by path. ``index``: which of them lie where."""

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

    def weigh(self, path: NodePath, documents: Mapping[Key, bytes]) -> None:
        """The node at ``path`` that is `put` next was made of these."""
        # A large one is parsed in part.
        self._weights[path] = sum(min(parsed_nbytes(data), len(data) + _MOST_PARSED_NBYTES) for data in documents.values())

    def put(self, path: NodePath, known: KnownNode) -> None:
        """Remember ``known``, and forget what there is no more room for."""
        self.index.add(path, known.node)
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
    """Return ``node`` for a holder that has no use for attributes, but for the one that says what missing data is."""
    if isinstance(node, ArrayNode | GroupNode) and are_large(node.attributes):
        kept = {name: value for name, value in node.attributes.items() if name == cf_fill_value.NAME}
        return replace(node, attributes={} if are_large(kept) else kept)
    return node
