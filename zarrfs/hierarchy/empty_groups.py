"""Groups that exist in this mount only, because neither their dialect nor the store can represent them.

In a dialect without groups (v0, v1), a group is a folder that contains arrays. A group without arrays is an empty folder of the store;
for a store without empty folders, it is kept here. So are the attributes of a folder that may yet become an array, which then receives
them.
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

    def __contains__(self, path: NodePath) -> bool:
        return path in self._groups

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

    def keep(self, path: NodePath, attributes: Mapping[str, Any] | None = None) -> None:
        """Record a group at ``path``."""
        self._groups[path] = attributes or {}
        self._changed(path)

    def lose(self, path: NodePath) -> None:
        """Drop the groups at ``path`` and below it, which are erased or replaced."""
        for each in self._below(path):
            del self._groups[each]
            self._changed(each)

    def move(self, path: NodePath, new_path: NodePath) -> None:
        """Move the groups at ``path`` and below it to ``new_path``."""
        for each in self._below(path):
            attributes = self._groups.pop(each)
            self._changed(each)
            self.keep(NodePath(new_path + each[len(path) :]), attributes)

    def _below(self, path: NodePath) -> list[NodePath]:
        return [each for each in self._groups if each.prefix.startswith(path.prefix)]
