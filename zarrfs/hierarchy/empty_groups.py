"""Groups that exist in this mount only.

* **Groups that cannot be stored.** In a dialect without groups (v0, v1), a group is a folder that contains arrays. A group without
  arrays is an empty folder of the store; for a store without empty folders, it is kept here. So are the attributes of a folder that may
  yet become an array, which then receives them.
* **Unstored groups.** mkdir(2) creates a group that is stored later (`zarrfs.hierarchy.unstored_groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zarrfs.keys import NodePath


class EmptyGroups:
    """Empty groups by path. ``changed`` is called with the path of each group that appears, disappears or gets other attributes."""

    def __init__(self, changed: Callable[[NodePath], None]) -> None:
        self._changed = changed
        self._groups: dict[NodePath, Mapping[str, Any]] = {}
        self._unstored: set[NodePath] = set()

    def __contains__(self, path: NodePath) -> bool:
        return path in self._groups

    def is_unstored(self, path: NodePath) -> bool:
        """Return True if the group at ``path`` is to be stored later."""
        return path in self._unstored

    @property
    def unstored(self) -> list[NodePath]:
        """Return the groups to be stored later, each after those above it."""
        return sorted(self._unstored)

    def attributes(self, path: NodePath) -> Mapping[str, Any]:
        """Return the attributes kept for the group at ``path``, until it becomes an array."""
        return self._groups.get(path, {})

    @property
    def with_attributes(self) -> list[NodePath]:
        """Return the groups whose attributes are lost unless they become arrays."""
        return [path for path, attributes in self._groups.items() if attributes]

    def any_below(self, path: NodePath) -> bool:
        """Return True if there is one at ``path`` or below it."""
        return bool(self._below(path))

    def names_in(self, path: NodePath) -> set[str]:
        """Return the names of the groups directly in the one at ``path``."""
        return {each.name for each in self._groups if each.parent == path != each}

    def keep(self, path: NodePath, attributes: Mapping[str, Any] | None = None, *, unstored: bool = False) -> None:
        """Record a group at ``path``."""
        self._groups[path] = attributes or {}
        (self._unstored.add if unstored else self._unstored.discard)(path)
        self._changed(path)

    def stored(self, path: NodePath) -> None:
        """Drop the group at ``path``, which the store has now."""
        if path in self._unstored:
            self._unstored.discard(path)
            if not self._groups[path]:
                # Attributes remain here: the dialect has no groups.
                del self._groups[path]
            self._changed(path)

    def lose(self, path: NodePath) -> None:
        """Drop the groups at ``path`` and below it, which are erased or replaced."""
        for each in self._below(path):
            del self._groups[each]
            self._unstored.discard(each)
            self._changed(each)

    def move(self, path: NodePath, new_path: NodePath) -> None:
        """Move the groups at ``path`` and below it to ``new_path``."""
        for each in self._below(path):
            attributes, is_unstored = self._groups.pop(each), each in self._unstored
            self._unstored.discard(each)
            self._changed(each)
            self.keep(NodePath(new_path + each[len(path) :]), attributes, unstored=is_unstored)

    def _below(self, path: NodePath) -> list[NodePath]:
        return [each for each in self._groups if each.prefix.startswith(path.prefix)]
