"""Which of many nodes lie below one, without looking at the others."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from zarrfs.errors import NameInvalid
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, Node


class PathIndex:
    """A set of paths. Adding, removing and finding cost as much as a path is deep."""

    def __init__(self) -> None:
        self._paths: set[NodePath] = set()
        # Every folder on the way to a path, and what of it leads further.
        self._below: dict[NodePath, dict[NodePath, None]] = {}

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, path: NodePath) -> bool:
        return path in self._paths

    def add(self, path: NodePath) -> None:
        """Have ``path`` in the set."""
        self._paths.add(path)
        while path != ROOT:
            parent = path.parent
            siblings = self._below.setdefault(parent, {})
            if path in siblings:
                return
            siblings[path] = None
            path = parent

    def discard(self, path: NodePath) -> None:
        """Have it in the set no longer."""
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
        """Those of the set that are ``path`` or lie below it, each after what it lies in. To be gone on with whenever there is time:
        what comes meanwhile may be left out."""
        pending = [path]
        while pending:
            path = pending.pop()
            if path in self._paths:
                yield path
            pending.extend(self._below.get(path, ()))


class NodeIndex:
    """The nodes that are ``known``."""

    def __init__(self) -> None:
        self.known = PathIndex()
        # Arrays whose chunks lie elsewhere than the node, by where these are.
        self._apart: dict[NodePath, NodePath] = {}
        self._chunk_places = PathIndex()

    def add(self, path: NodePath, node: Node | None) -> None:
        """``node`` is known to be at ``path``."""
        self.known.add(path)
        if (place := _place_apart(path, node)) is not None:
            self._apart[place] = path
            self._chunk_places.add(place)

    def discard(self, path: NodePath, node: Node | None) -> None:
        """It is known no longer."""
        self.known.discard(path)
        place = _place_apart(path, node)
        if place is not None and self._apart.get(place) == path:
            del self._apart[place]
            self._chunk_places.discard(place)

    def with_chunks_at(self, prefix: Prefix) -> Iterator[NodePath]:
        """Arrays with chunks below ``prefix``, or for which it may be that of a chunk, where that does not show by their paths."""
        if not self._apart:
            return
        try:
            place = NodePath(f"/{prefix[:-1]}")
        except NameInvalid:
            return
        for each in itertools.chain(place.ancestors(), self._chunk_places.at_and_below(place)):
            if each in self._apart:
                yield self._apart[each]


def _place_apart(path: NodePath, node: Node | None) -> NodePath | None:
    if not isinstance(node, ArrayNode) or node.chunk_prefix == path.prefix:
        return None
    return NodePath(f"/{node.chunk_prefix[:-1]}")
