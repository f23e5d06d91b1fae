"""Objects by path, each for as long as something else holds it."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from zarrfs.hierarchy.path_index import PathIndex
from zarrfs.keys import NodePath

T = TypeVar("T")


class WeakPaths(Generic[T]):
    """At most one object for each path. Belongs to one event loop.

    The last reference to an object may be dropped at any time, and in any thread: a thread holds the context of its caller for a moment
    after the caller went on, and the garbage collector runs anywhere. So only its end is recorded then, and its entry is removed later.
    """

    def __init__(self) -> None:
        self._at: dict[NodePath, weakref.KeyedRef[NodePath, T]] = {}
        self._paths = PathIndex()
        self._ended: deque[weakref.KeyedRef[NodePath, T]] = deque()
        self._on_end = self._ended.append

    def __len__(self) -> int:
        self._remove_ended()
        return len(self._at)

    def get(self, path: NodePath) -> T | None:
        """Return the object at ``path``."""
        found = self._at.get(path)
        return found() if found is not None else None

    def put(self, path: NodePath, value: T) -> None:
        """Set the object at ``path``."""
        self._remove_ended()
        self._at[path] = weakref.KeyedRef(value, self._on_end, path)
        self._paths.add(path)

    def remove(self, path: NodePath) -> T | None:
        """Remove and return the object at ``path``."""
        found = self._at.pop(path, None)
        self._paths.discard(path)
        return found() if found is not None else None

    def at_and_below(self, path: NodePath) -> Iterator[T]:
        """Yield the objects at ``path`` and below it, each after those above it. They may change during iteration."""
        for each in self._paths.at_and_below(path):
            if (value := self.get(each)) is not None:
                yield value

    def remove_below(self, path: NodePath) -> list[T]:
        """Remove and return the objects at ``path`` and below it."""
        return [value for each in list(self._paths.at_and_below(path)) if (value := self.remove(each)) is not None]

    def _remove_ended(self) -> None:
        while self._ended:
            ref = self._ended.popleft()
            if self._at.get(ref.key) is ref:
                self.remove(ref.key)
