"""Indexes of nodes by their paths and by those of their chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from zarrfs.errors import NameInvalid
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.keys.path_set import PathSet
from zarrfs.model.metadata import ArrayNode, Node


class PathIndex(PathSet[NodePath]):
    """A set of node paths."""

    def __init__(self) -> None:
        super().__init__(_group_of)


def _group_of(path: NodePath) -> NodePath | None:
    return path.parent if path != ROOT else None


class NodeIndex:
    """Index of the nodes that are ``known``."""

    def __init__(self) -> None:
        self.known = PathIndex()
        # Arrays whose chunks lie outside of the folder of their path, by chunk path.
        self._apart: dict[NodePath, NodePath] = {}
        self._chunk_paths = PathIndex()

    def add(self, path: NodePath, node: Node | None, before: Node | None = None) -> None:
        """Add a known node; ``before``: the one that was known at its path."""
        self.known.add(path)
        apart = _chunk_path(path, node)
        if before is not None and (left := _chunk_path(path, before)) not in (None, apart):
            self._discard_chunks(path, left)
        if apart is not None:
            self._apart[apart] = path
            self._chunk_paths.add(apart)

    def discard(self, path: NodePath, node: Node | None) -> None:
        """Remove a node."""
        self.known.discard(path)
        self._discard_chunks(path, _chunk_path(path, node))

    def _discard_chunks(self, path: NodePath, apart: NodePath | None) -> None:
        if apart is not None and self._apart.get(apart) == path:
            del self._apart[apart]
            self._chunk_paths.discard(apart)

    def with_chunks_at(self, prefix: Prefix) -> Iterator[NodePath]:
        """Yield arrays outside of ``prefix`` whose chunks are below it, or of which it may be the prefix of a chunk."""
        if not self._apart:
            return
        try:
            path = NodePath(f"/{prefix[:-1]}")
        except NameInvalid:
            return
        for each in itertools.chain(path.ancestors(), self._chunk_paths.at_and_below(path)):
            if each in self._apart:
                yield self._apart[each]


def _chunk_path(path: NodePath, node: Node | None) -> NodePath | None:
    if not isinstance(node, ArrayNode) or node.chunk_prefix == path.prefix:
        return None
    return NodePath(f"/{node.chunk_prefix[:-1]}")
