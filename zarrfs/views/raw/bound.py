"""Folders of ``raw/`` that a program has looked up: each stays the folder that it was then.

A program that has one open, or as its working directory, works in it through its inode: by now another program may have put another
folder where it was. Where the store can tell the two apart (`zarrfs.stores.base.Store.anchor`), the first is stale.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from zarrfs.errors import StaleEntry
from zarrfs.keys import Prefix
from zarrfs.stores.base import Store
from zarrfs.stores.presupposing import presupposing


class BoundFolder:
    """One of them. ``prefix``: where it is in the store; this mount's own renames change it."""

    __slots__ = ("__weakref__", "_anchor", "prefix")

    def __init__(self, store: Store, prefix: Prefix) -> None:
        self.prefix = prefix
        self._anchor = store.anchor(prefix, spare=True) if prefix else None

    @property
    def is_outdated(self) -> bool:
        """Whether it is known not to be what is at ``prefix`` now."""
        return self._anchor is not None and not self._anchor.is_at(self.prefix)

    def follow(self, prefix: Prefix) -> None:
        """What was at its ``prefix`` is at this one: it goes along, unless it was outdated."""
        if self._anchor is None or self._anchor.is_at(prefix):
            self.prefix = prefix

    def check(self) -> None:
        """Raise `StaleEntry` where it is outdated."""
        if self.is_outdated:
            raise StaleEntry(f"the folder {self.prefix!r} was moved, replaced or erased: look it up again", key=self.prefix)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within, what lies below ``prefix`` is read and changed in this very folder. Raises `StaleEntry` where it is outdated."""
        self.check()
        with presupposing(self.prefix or None, self._anchor):
            yield


class BoundFolders:
    """Those of a mount."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._all: weakref.WeakSet[BoundFolder] = weakref.WeakSet()

    def at(self, prefix: Prefix) -> BoundFolder:
        """What is at ``prefix`` now."""
        folder = BoundFolder(self._store, prefix)
        if prefix:
            self._all.add(folder)
        return folder

    def moved(self, old: Prefix, new: Prefix) -> None:
        """This mount renamed ``old`` to ``new``."""
        for folder in list(self._all):
            if folder.prefix.startswith(old):
                folder.follow(Prefix(new + folder.prefix[len(old) :]))
