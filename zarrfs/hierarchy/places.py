"""Folders of the hierarchy that somebody has open, or writes a document into: each is one object, wherever its node is by now.

What this mount renames moves them, and what it erases ends them, whatever view it is done in. An array in use is known by more
(`zarrfs.hierarchy.live_nodes`); of a group there is nothing else by which it could be told from another one at the same path.
"""

from __future__ import annotations

import weakref

from zarrfs.errors import NameInvalid, StaleEntry
from zarrfs.hierarchy.path_index import PathIndex
from zarrfs.keys import ROOT, NodePath, Prefix


class Place:
    """The folder of one node. ``path``: where it is now, or was last; ``why_gone``: completes a sentence that begins with the path."""

    __slots__ = ("__weakref__", "path", "why_gone")

    def __init__(self, path: NodePath) -> None:
        self.path = path
        self.why_gone: str | None = None

    def check(self) -> None:
        """Raise `StaleEntry` where it is gone."""
        if self.why_gone is not None:
            raise StaleEntry(f"{self.path} {self.why_gone}: look it up again", key=self.path)


class Places:
    """Those of a mount, by path. The root stays where it is."""

    def __init__(self) -> None:
        self._at: dict[NodePath, weakref.ref[Place]] = {}
        self._paths = PathIndex()

    def at(self, path: NodePath) -> Place:
        """The place of what is at ``path`` now."""
        found = self._at.get(path)
        place = found() if found is not None else None
        if place is None:
            place = Place(path)
            self._put(place)
        return place

    def moved(self, old: NodePath, new: NodePath) -> None:
        """What was at ``old`` and below it is at ``new``; what was there is gone."""
        moving = self._taken(old)
        self.ended(new, "was replaced")
        for place in moving:
            place.path = NodePath(f"{new}{place.path[len(old) :]}")
            self._put(place)

    def ended(self, path: NodePath, why: str) -> None:
        """What was at ``path`` and below it is gone; what comes to be there is another."""
        for place in self._taken(path):
            place.why_gone = why

    def _taken(self, path: NodePath) -> list[Place]:
        """Those at ``path`` and below it, which are there no longer."""
        if path == ROOT:
            return []
        found = []
        for each in list(self._paths.at_and_below(path)):
            place = self._at.pop(each)()
            self._paths.discard(each)
            if place is not None:
                found.append(place)
        return found

    def _put(self, place: Place) -> None:
        path = place.path

        def dropped(ref: weakref.ref[Place]) -> None:
            if self._at.get(path) is ref:
                del self._at[path]
                self._paths.discard(path)

        self._at[path] = weakref.ref(place, dropped)
        self._paths.add(path)


def paths_of(*prefixes: Prefix) -> list[NodePath] | None:
    """What is called so, where each node lies in a folder of its name."""
    try:
        return [NodePath(f"/{prefix[:-1]}") for prefix in prefixes]
    except NameInvalid:
        return None


def moved_path(path: NodePath, old: Prefix, new: Prefix) -> NodePath | None:
    """Where the node at ``path`` is after ``old`` was renamed to ``new``; None where it is elsewhere, or can have no such path."""
    if not path.prefix.startswith(old):
        return None
    try:
        return NodePath(f"/{new}{path.prefix[len(old) :]}".rstrip("/") or "/")
    except NameInvalid:
        return None
