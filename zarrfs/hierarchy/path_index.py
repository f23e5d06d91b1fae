"""Which of many nodes lie below one, without looking at the others."""

from __future__ import annotations

from collections.abc import Iterator

from zarrfs.keys import ROOT, NodePath


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
