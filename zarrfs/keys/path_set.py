"""Sets and mappings of paths in which those below a folder are found without a look at the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Generic, TypeVar

P = TypeVar("P")
V = TypeVar("V")


class PathSet(Generic[P]):
    """A set of paths. Adding, removing and finding take time proportional to the depth of a path.

    ``folder_of`` returns the path directly above another one; None for the one above all.
    """

    def __init__(self, folder_of: Callable[[P], P | None], paths: Iterable[P] = ()) -> None:
        self._folder_of = folder_of
        self._paths: set[P] = set()
        # Each folder on the way to a path, with its members on the way.
        self._below: dict[P, dict[P, None]] = {}
        for path in paths:
            self.add(path)

    def __len__(self) -> int:
        return len(self._paths)

    def __iter__(self) -> Iterator[P]:
        return iter(self._paths)

    def __contains__(self, path: P) -> bool:
        return path in self._paths

    def add(self, path: P) -> None:
        """Add ``path`` to the set."""
        self._paths.add(path)
        while (folder := self._folder_of(path)) is not None:
            siblings = self._below.setdefault(folder, {})
            if path in siblings:
                return
            siblings[path] = None
            path = folder

    def discard(self, path: P) -> None:
        """Remove ``path`` from the set."""
        self._paths.discard(path)
        while path not in self._paths and path not in self._below and (folder := self._folder_of(path)) is not None:
            siblings = self._below.get(folder, {})
            siblings.pop(path, None)
            if siblings:
                return
            self._below.pop(folder, None)
            path = folder

    def clear(self) -> None:
        """Remove all paths."""
        self._paths.clear()
        self._below.clear()

    def at_and_below(self, path: P) -> Iterator[P]:
        """Yield the members that are ``path`` or lie below it, each after those above it.

        The set may change during iteration: paths added meanwhile may be left out.
        """
        pending = [path]
        while pending:
            path = pending.pop()
            if path in self._paths:
                yield path
            pending.extend(self._below.get(path, ()))

    def directly_below(self, path: P) -> Iterator[P]:
        """Yield the members directly below ``path``. The set must not change during iteration."""
        return (each for each in self._below.get(path, ()) if each in self._paths)

    def pop_below(self, path: P) -> list[P]:
        """Remove and return the members that are ``path`` or lie below it."""
        found = list(self.at_and_below(path)) if self._paths else []
        for each in found:
            self.discard(each)
        return found


class PathDict(MutableMapping[P, V]):
    """A dict with paths as keys. ``folder_of``: as for `PathSet`."""

    def __init__(self, folder_of: Callable[[P], P | None]) -> None:
        self._values: dict[P, V] = {}
        self._paths = PathSet(folder_of)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[P]:
        return iter(self._values)

    def __contains__(self, path: object) -> bool:
        return path in self._values

    def __getitem__(self, path: P) -> V:
        return self._values[path]

    def __setitem__(self, path: P, value: V) -> None:
        self._values[path] = value
        self._paths.add(path)

    def __delitem__(self, path: P) -> None:
        del self._values[path]
        self._paths.discard(path)

    def at_and_below(self, path: P) -> dict[P, V]:
        """Return the members that are ``path`` or lie below it."""
        return {each: self._values[each] for each in self._paths.at_and_below(path)}

    def pop_below(self, path: P) -> dict[P, V]:
        """Remove and return the members that are ``path`` or lie below it."""
        return {each: self._values.pop(each) for each in self._paths.pop_below(path)}


def folder_of_ident(ident: str) -> str | None:
    """Return the folder, with its slash, in which ``view/a/b``, or the folder ``view/a/``, lies; of ``view/`` the empty one."""
    return ident[: ident.rfind("/", 0, -1) + 1] if ident else None
