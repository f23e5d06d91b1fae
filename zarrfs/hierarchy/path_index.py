"""Index of paths by the paths above them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from zarrfs.errors import NameInvalid
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, Node


class PathIndex:
    """A set of paths. Adding, removing and finding take time proportional to the depth of a path."""

    def __init__(self) -> None:
        self._paths: set[NodePath] = set()
        # Each folder on the way to a path, with its members on the way.
        self._below: dict[NodePath, dict[NodePath, None]] = {}

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, path: NodePath) -> bool:
        return path in self._paths

    def add(self, path: NodePath) -> None:
        """Add ``path`` to the set."""
        self._paths.add(path)
        while path != ROOT:
            parent = path.parent
            siblings = self._below.setdefault(parent, {})
            if path in siblings:
                return
            siblings[path] = None
            path = parent

    def discard(self, path: NodePath) -> None:
        """Remove ``path`` from the set."""
        self._paths.discard(path)
        while path != ROOT and path not in self._paths and path not in self._below:
            parent = path.parent
            siblings = self._below.get(parent, {})
            siblings.pop(path, None)
            if siblings:
                return
            self._below.pop(parent, None)
            path = parent

    def at_and_below(self, path: NodePath) -> Iterator[NodePath]:
        """Yield the members that are ``path`` or lie below it, each after those above it.

        The set may change during iteration: paths added meanwhile may be left out.
        """
        pending = [path]
        while pending:
            path = pending.pop()
            if path in self._paths:
                yield path
            pending.extend(self._below.get(path, ()))

    def directly_below(self, path: NodePath) -> Iterator[NodePath]:
        """Yield the members directly below ``path``."""
        return (each for each in self._below.get(path, ()) if each in self._paths)


class NodeIndex:
    """Index of the nodes that are ``known``."""

    def __init__(self) -> None:
        self.known = PathIndex()
        # Arrays whose chunks lie outside of the folder of their path, by chunk path.
        self._apart: dict[NodePath, NodePath] = {}
        self._chunk_paths = PathIndex()

    def add(self, path: NodePath, node: Node | None) -> None:
        """Add a known node."""
        self.known.add(path)
        if (apart := _chunk_path(path, node)) is not None:
            self._apart[apart] = path
            self._chunk_paths.add(apart)

    def discard(self, path: NodePath, node: Node | None) -> None:
        """Remove a node."""
        self.known.discard(path)
        apart = _chunk_path(path, node)
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
