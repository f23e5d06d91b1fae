"""Folders of the hierarchy that are open, or in which a document is written: each is one object, at the present path of its node.

Renames and removals by this mount move and end them, in any view. An array in use has a richer identity (`zarrfs.hierarchy.live_nodes`);
a group has no other that distinguishes it from a later one at the same path.
"""

from __future__ import annotations

from zarrfs.errors import NameInvalid, StaleEntry
from zarrfs.hierarchy.weak_paths import WeakPaths
from zarrfs.keys import ROOT, NodePath, Prefix


class BoundPath:
    """The folder of one node. ``path``: its present or last path; ``why_gone``: completes a sentence that begins with the path."""

    __slots__ = ("__weakref__", "path", "why_gone")

    def __init__(self, path: NodePath) -> None:
        self.path = path
        self.why_gone: str | None = None

    def check(self) -> None:
        """Raise `StaleEntry` if the node is gone."""
        if self.why_gone is not None:
            raise StaleEntry(f"{self.path} {self.why_gone}: look it up again", key=self.path)


class BoundPaths:
    """The bound paths of a mount. The root never moves."""

    def __init__(self) -> None:
        self._at = WeakPaths[BoundPath]()

    def at(self, path: NodePath) -> BoundPath:
        """Return the bound path of the node now at ``path``."""
        bound = self._at.get(path)
        if bound is None:
            bound = BoundPath(path)
            self._at.put(path, bound)
        return bound

    def moved(self, old: NodePath, new: NodePath) -> None:
        """Move the bound paths at ``old`` and below it to ``new``, and end those there."""
        moving = self._taken(old)
        self.ended(new, "was replaced")
        for bound in moving:
            bound.path = NodePath(f"{new}{bound.path[len(old) :]}")
            self._at.put(bound.path, bound)

    def ended(self, path: NodePath, why: str) -> None:
        """End the bound paths at ``path`` and below it; a later node there is another."""
        for bound in self._taken(path):
            bound.why_gone = why

    def _taken(self, path: NodePath) -> list[BoundPath]:
        """Remove and return the bound paths at ``path`` and below it."""
        return self._at.remove_below(path) if path != ROOT else []


def paths_of(*prefixes: Prefix) -> list[NodePath] | None:
    """Return the paths of prefixes, for layouts in which each node lies in a folder of its name; None if one is not a path."""
    try:
        return [NodePath(f"/{prefix[:-1]}") for prefix in prefixes]
    except NameInvalid:
        return None


def moved_path(path: NodePath, old: Prefix, new: Prefix) -> NodePath | None:
    """Return the path of the node at ``path`` after ``old`` was renamed to ``new``; None if it is not below, or cannot have that path."""
    if not path.prefix.startswith(old):
        return None
    try:
        return NodePath(f"/{new}{path.prefix[len(old) :]}".rstrip("/") or "/")
    except NameInvalid:
        return None
