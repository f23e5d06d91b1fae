"""Sets and dicts of paths in which those below a folder are found without a look at the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn, TypeVar

P = TypeVar("P")
V = TypeVar("V")


class PathDict(dict[P, V]):
    """A dict with paths as keys. Finding what is below a path takes time proportional to its number, and a change to the path's depth.

    ``folder_of`` returns the path directly above another one; None for the one above all. Of the methods of a dict that change it, those
    missing here are refused.
    """

    __slots__ = ("_below", "_folder_of")

    def __init__(self, folder_of: Callable[[P], P | None]) -> None:
        super().__init__()
        self._folder_of = folder_of
        # Each folder on the way to a path, with its members on the way.
        self._below: dict[P, dict[P, None]] = {}

    def __setitem__(self, path: P, value: V) -> None:
        super().__setitem__(path, value)
        while (folder := self._folder_of(path)) is not None:
            siblings = self._below.setdefault(folder, {})
            if path in siblings:
                return
            siblings[path] = None
            path = folder

    def __delitem__(self, path: P) -> None:
        super().__delitem__(path)
        while path not in self and path not in self._below and (folder := self._folder_of(path)) is not None:
            siblings = self._below[folder]
            del siblings[path]
            if siblings:
                return
            del self._below[folder]
            path = folder

    def take(self, path: P) -> V | None:
        """Remove a path, if present, and return its value."""
        value = self.get(path)
        if path in self:
            del self[path]
        return value

    def _refused(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("not a method of a PathDict")

    pop = popitem = clear = update = setdefault = __ior__ = _refused

    def at_and_below(self, path: P) -> Iterator[P]:
        """Yield the paths in the dict that are ``path`` or lie below it, each after those above it.

        The dict may change during iteration: paths added meanwhile may be left out.
        """
        pending = [path]
        while pending:
            path = pending.pop()
            if path in self:
                yield path
            pending.extend(self._below.get(path, ()))

    def directly_below(self, path: P) -> list[P]:
        """Return the paths in the dict directly below ``path``."""
        return [each for each in self._below.get(path, ()) if each in self]

    def take_below(self, path: P) -> dict[P, V]:
        """Remove ``path`` and all paths below it; return them with their values."""
        found = {each: self[each] for each in self.at_and_below(path)} if self else {}
        for each in found:
            del self[each]
        return found


class PathSet(PathDict[P, None]):
    """A set of paths: see `PathDict`."""

    __slots__ = ()

    def __init__(self, folder_of: Callable[[P], P | None], paths: Iterable[P] = ()) -> None:
        super().__init__(folder_of)
        for path in paths:
            self.add(path)

    def add(self, path: P) -> None:
        """Add ``path`` to the set."""
        self[path] = None

    def discard(self, path: P) -> None:
        """Remove ``path`` from the set."""
        if path in self:
            del self[path]


def folder_of_ident(ident: str) -> str | None:
    """Return the folder, with its slash, in which ``view/a/b``, or the folder ``view/a/``, lies; of ``view/`` the empty one."""
    return ident[: ident.rfind("/", 0, -1) + 1] if ident else None
