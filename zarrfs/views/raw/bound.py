"""Looked-up folders of ``raw/``, each bound to one folder of the store.

A program uses an open folder or a working directory by its inode, while another program may replace the folder. A replaced folder is
stale, if the store can distinguish it from its successor (`zarrfs.stores.base.Store.anchor`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager

from zarrfs.errors import StaleEntry
from zarrfs.keys import Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.presupposing import presupposing


class BoundFolder:
    """A looked-up folder, at ``prefix`` in the store. Renames by this mount update ``prefix`` when they end.

    ``is_changing``: see `BoundFolders`."""

    __slots__ = ("__weakref__", "_anchor", "_is_changing", "prefix")

    def __init__(self, store: Store, prefix: Prefix, is_changing: Callable[[Prefix], bool]) -> None:
        self.prefix = prefix
        self._is_changing = is_changing
        # While this mount moves it, another folder may be there already, or none.
        self._anchor = store.anchor(prefix, spare=True) if prefix and not is_changing(prefix) else None

    @property
    def is_outdated(self) -> bool:
        """True if the folder is known to have left ``prefix``, and this mount is neither moving nor erasing it."""
        return self._anchor is not None and not self._anchor.is_at(self.prefix) and not self._is_changing(self.prefix)

    def follow(self, prefix: Prefix) -> None:
        """Set `prefix` after a move of the folder there, unless this folder was outdated."""
        if self._anchor is None or self._anchor.is_at(prefix):
            self.prefix = prefix

    def check(self) -> None:
        """Raise `StaleEntry` if it is outdated."""
        if self.is_outdated:
            raise StaleEntry(f"the folder {self.prefix!r} was moved, replaced or erased: look it up again", key=self.prefix)

    def entered(self) -> AbstractContextManager[None]:
        """Return a context whose operations below ``prefix`` apply to this folder only. Raises `StaleEntry` if it is outdated."""
        self.check()
        return presupposing(self.prefix or None, self._anchor)


class BoundFolders:
    """The looked-up folders of a mount. ``is_changing``: returns True while this mount moves or erases a prefix."""

    def __init__(self, store: Store, is_changing: Callable[[Prefix], bool]) -> None:
        self._store = store
        self._is_changing = is_changing
        self._all: weakref.WeakSet[BoundFolder] = weakref.WeakSet()

    def at(self, prefix: Prefix) -> BoundFolder:
        """Return the folder that is at ``prefix`` now."""
        folder = BoundFolder(self._store, prefix, self._is_changing)
        if prefix:
            self._all.add(folder)
        return folder

    def moved(self, old: Prefix, new: Prefix) -> None:
        """Record a rename of ``old`` to ``new`` by this mount."""
        for folder in list(self._all):
            if folder.prefix.startswith(old):
                folder.follow(Prefix(new + folder.prefix[len(old) :]))
