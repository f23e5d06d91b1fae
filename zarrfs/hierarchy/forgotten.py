"""Invalidation of all that is known about a path and the nodes below it, in constant time."""

from __future__ import annotations

from zarrfs.keys import ROOT, NodePath

# More paths than these are replaced by one: the root.
_FEW = 1000


class Forgotten:
    """Invalidated paths.

    ``now`` counts invalidations of paths, and erasures of nodes, and is recorded with what is learnt. ``epoch`` counts all invalidations,
    including those of a single node.
    """

    def __init__(self) -> None:
        self.now = self.epoch = 0
        self._below: dict[NodePath, int] = {}
        self._erased: dict[NodePath, int] = {}

    def add(self, path: NodePath) -> None:
        """Invalidate what is known of ``path`` and of nodes below it."""
        self.now += 1
        self.epoch += 1
        if path == ROOT or len(self._below) >= _FEW:
            path = ROOT
            self._below.clear()
        self._below[path] = self.now

    def one(self) -> float:
        """Invalidate one node: return the expiry time to set for it."""
        self.epoch += 1
        return float("-inf")

    def counts(self, path: NodePath, learnt: int) -> bool:
        """Return True if what was learnt of ``path`` when `now` was ``learnt`` is still valid."""
        if not self._below:
            return True
        return learnt >= self._below.get(path, 0) and all(learnt >= self._below.get(each, 0) for each in path.ancestors())

    def erased(self, path: NodePath) -> None:
        """Record that this mount has erased the node at ``path``, with those below it."""
        self.now += 1
        self._erased.pop(path, None)
        if len(self._erased) >= _FEW:
            del self._erased[next(iter(self._erased))]
        self._erased[path] = self.now

    def is_erased(self, path: NodePath, learnt: int) -> bool:
        """Return True if this mount has erased the node at ``path``, or one above it, since `now` was ``learnt``."""
        return any(learnt < self._erased.get(each, 0) for each in (path, *path.ancestors()))
