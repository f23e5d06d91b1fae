"""Groups that exist in this mount only.

* **Groups that cannot be stored.** In a dialect without groups (v0, v1), a group is a folder that contains arrays. A group without
  arrays is an empty folder of the store; for a store without empty folders, it is kept here, and so are the attributes of a folder that
  may become an array, which then receives them.
* **Unstored groups.** mkdir(2) creates a group that is stored later (`zarrfs.hierarchy.unstored_groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zarrfs.hierarchy.path_index import PathIndex
from zarrfs.keys import ROOT, NodePath


@dataclass(slots=True, eq=False)
class Unstored:
    """A group to be stored later: its present path, the time of the last operation in it, and the latest time, in seconds."""

    path: NodePath
    used: float
    latest: float


class EmptyGroups:
    """Empty groups by path. ``changed`` is called with the path of each group that appears, disappears or gets other attributes."""

    def __init__(self, changed: Callable[[NodePath], None]) -> None:
        self._changed = changed
        self._groups: dict[NodePath, Mapping[str, Any]] = {}
        self._unstored: dict[NodePath, Unstored] = {}
        self._index = PathIndex()
        self.on_stored: list[Callable[[NodePath], None]] = []
        """Called with the path of each unstored group that the store has now."""

    def __contains__(self, path: NodePath) -> bool:
        return path in self._groups

    def is_unstored(self, path: NodePath) -> bool:
        """Return True if the group at ``path`` is to be stored later."""
        return path in self._unstored

    def unstored_at(self, path: NodePath) -> Unstored | None:
        """Return what is recorded of the group at ``path``, if it is to be stored later."""
        return self._unstored.get(path)

    def unstored_below(self, path: NodePath) -> list[NodePath]:
        """Return the groups at ``path`` and below it to be stored later, each after those above it."""
        return [each for each in self._index.at_and_below(path) if each in self._unstored] if self._unstored else []

    def attributes(self, path: NodePath) -> Mapping[str, Any]:
        """Return the attributes kept for the group at ``path``, until it becomes an array."""
        return self._groups.get(path, {})

    @property
    def with_attributes(self) -> list[NodePath]:
        """Return the groups whose attributes are lost unless they become arrays."""
        return [path for path, attributes in self._groups.items() if attributes]

    def any_below(self, path: NodePath) -> bool:
        """Return True if there is one at ``path`` or below it."""
        return next(self._index.at_and_below(path), None) is not None

    def any_kept_below(self, path: NodePath) -> bool:
        """Return True if a group below ``path`` is not to be stored later."""
        if len(self._groups) == len(self._unstored):
            return False
        return any(each not in self._unstored and each != path for each in self._index.at_and_below(path))

    def names_in(self, path: NodePath) -> set[str]:
        """Return the names of the groups directly in the one at ``path``."""
        return {each.name for each in self._index.directly_below(path)}

    def keep(self, path: NodePath, attributes: Mapping[str, Any] | None = None, *, unstored: Unstored | None = None) -> None:
        """Record a group at ``path``; ``unstored``: it is to be stored later."""
        self._groups[path] = attributes or {}
        self._index.add(path)
        self._unstored.pop(path, None)
        if unstored is not None:
            unstored.path = path
            self._unstored[path] = unstored
        self._changed(path)

    def stored(self, path: NodePath) -> None:
        """Drop the group at ``path``, which the store has now."""
        if path in self._unstored:
            del self._unstored[path]
            if not self._groups[path]:
                # Attributes remain here: the dialect has no groups.
                self._discard(path)
            self._changed(path)
            for each in self.on_stored:
                each(path)

    def lose(self, path: NodePath) -> None:
        """Drop the groups at ``path`` and below it, which are erased or replaced."""
        for each in list(self._index.at_and_below(path)):
            self._discard(each)
            self._changed(each)

    def lose_unstored(self, path: NodePath) -> None:
        """Drop the unstored groups at ``path`` and below it, where another node was erased; attributes remain, to be reported."""
        for each in self.unstored_below(path):
            if path != ROOT and not self._groups[each]:
                self._discard(each)
                self._changed(each)

    def move(self, path: NodePath, new_path: NodePath) -> None:
        """Move the groups at ``path`` and below it to ``new_path``."""
        for each in list(self._index.at_and_below(path)):
            attributes, unstored = self._groups[each], self._unstored.get(each)
            self._discard(each)
            self._changed(each)
            self.keep(NodePath(new_path + each[len(path) :]), attributes, unstored=unstored)

    def _discard(self, path: NodePath) -> None:
        del self._groups[path]
        self._unstored.pop(path, None)
        self._index.discard(path)
