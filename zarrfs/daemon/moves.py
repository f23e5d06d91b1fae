"""Effects of a rename, or of the end of a node, on the names in other views."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from zarrfs.keys import Prefix
from zarrfs.vfs.changed_entry import ChangedEntry, MovedEntry
from zarrfs.vfs.staging import StagingArea
from zarrfs.views.base import View

Moved = Callable[[Iterable[MovedEntry]], None]
"""Called with renamed entries."""


class Moves:
    """Renames of one mount. ``path_of``: path in the mount of the file with an ident; ``is_inside``: see `Roots.is_inside`."""

    def __init__(
        self, views: Mapping[str, View], staging: StagingArea, path_of: Callable[[str], str], is_inside: Callable[[Prefix], bool]
    ) -> None:
        self._views = views
        self._staging = staging
        self._path_of = path_of
        self._is_inside = is_inside

    def follow(self, old: Prefix, new: Prefix, parts: Sequence[tuple[Prefix, Prefix]] | None = None) -> list[MovedEntry]:
        """Apply a rename of the prefix ``old`` to ``new`` in every view; return the entries that it renames.

        ``parts``: the renamed prefixes of a node whose documents and chunks are apart, and which is named ``old``.
        """
        self._staging.follow()
        moved: list[MovedEntry] = []
        # Of chunks alone: the node with that path has others.
        keys_only = parts is None and self._is_inside(old)
        for name, view in self._views.items():
            if keys_only and not view.shows_keys:
                continue
            for pair in [(old, new)] if parts is None or not view.shows_keys else parts:
                moved += self._follow(name, view, *pair)
        return moved

    def _follow(self, name: str, view: View, old: Prefix, new: Prefix) -> Iterator[MovedEntry]:
        view.follow(old, new)
        there = {is_folder: names for names, is_folder in view.names_of(new)}
        for names, is_folder in view.names_of(old):
            was = self._ident(name, names)
            if is_folder in there and self._is_free(was, is_folder):
                now = self._path_of(self._ident(name, there[is_folder]))
                yield MovedEntry(old=self._path_of(was), new=now, is_folder=is_folder)

    def lost(self, prefix: Prefix) -> list[ChangedEntry]:
        """End the node whose folder ``prefix`` was; return the entries whose names become free, or another file's."""
        gone = []
        for name, view in self._views.items():
            for names, is_folder in view.lost(prefix):
                ident = self._ident(name, names)
                if self._is_free(ident, is_folder):
                    gone.append(ChangedEntry(path=self._path_of(ident), gone=True, superseded=True))
        return gone

    def left_below(self, prefix: Prefix) -> list[str]:
        """Return the idents of written files in the folder ``prefix``, in every view, that exist in this mount only."""
        folders = self.folders(prefix)
        return [ident for view in self._views.values() for ident, _ in view.left() if ident.startswith(folders)]

    def folders(self, prefix: Prefix) -> tuple[str, ...]:
        """Return, for every view in which the node at ``prefix`` is a folder, that with which idents of its files begin."""
        named = ((name, *each) for name, view in self._views.items() for each in view.names_of(prefix))
        return tuple(f"{self._ident(name, names)}/" for name, names, is_folder in named if is_folder)

    def _is_free(self, ident: str, is_folder: bool) -> bool:
        """Return True if no file continues under this name: an array that is replaced by its writer keeps its file."""
        return is_folder or self._staging.get(ident) is None

    @staticmethod
    def _ident(view: str, names: tuple[str, ...]) -> str:
        return "/".join((view, *names))
