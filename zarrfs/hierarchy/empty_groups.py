"""Groups that are in this mount only, because neither their dialect nor the store can say that they are there.

Of a dialect without groups (v0, v1), one is a folder with arrays in it. While there are none, it is an empty folder of the store; where
a store has no such thing, it is kept here. So are attributes of a folder that may yet become an array, whose they will be then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zarrfs.keys import NodePath


class EmptyGroups:
    """See the module's text. ``changed`` is told of each group that comes, goes, or has other attributes."""

    def __init__(self, changed: Callable[[NodePath], None]) -> None:
        self._changed = changed
        self._groups: dict[NodePath, Mapping[str, Any]] = {}

    def __contains__(self, path: NodePath) -> bool:
        return path in self._groups

    def attributes(self, path: NodePath) -> Mapping[str, Any]:
        """Those that wait for the group at ``path`` to become an array."""
        return self._groups.get(path, {})

    @property
    def with_attributes(self) -> list[NodePath]:
        """The groups whose attributes are lost if they do not become arrays."""
        return [path for path, attributes in self._groups.items() if attributes]

    def names_in(self, path: NodePath) -> set[str]:
        """Of the groups directly in that at ``path``."""
        return {each.name for each in self._groups if each.parent == path != each}

    def keep(self, path: NodePath, attributes: Mapping[str, Any] | None = None) -> None:
        """There is a group at ``path``."""
        self._groups[path] = attributes or {}
        self._changed(path)

    def lose(self, path: NodePath) -> None:
        """What is at ``path`` and below it is gone, or is something else now."""
        for each in self._below(path):
            del self._groups[each]
            self._changed(each)

    def move(self, path: NodePath, new_path: NodePath) -> None:
        """What was at ``path`` and below it is at ``new_path`` now."""
        for each in self._below(path):
            attributes = self._groups.pop(each)
            self._changed(each)
            self.keep(NodePath(new_path + each[len(path) :]), attributes)

    def _below(self, path: NodePath) -> list[NodePath]:
        return [each for each in self._groups if each.prefix.startswith(path.prefix)]
