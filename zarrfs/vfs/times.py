"""Modification times that the store does not keep: those of folders, and of values in a store without times.

``cp -a``, ``tar`` and ``rsync -a`` set the time of all that they copy, and rsync skips files by it. A time that a store cannot keep is
kept here until unmount or until the file changes. So is the time at which a name in a folder appeared or disappeared, if the store does
not record it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from zarrfs.keys.path_set import PathDict, folder_of_ident

ANY = -1
"""Stands for the stored time of a folder whose names the store does not have: the time that was set remains, whatever the store has."""


class KeptTimes:
    """Times by `File.ident` (folders: with a slash at the end).

    A time is valid for the size in bytes and the stored time (if any) that it was set for; if one of them differs, the stored time
    counts. The time of a change in a folder is valid until the store has a later one: its size is None."""

    def __init__(self) -> None:
        self._kept = PathDict[str, tuple[int, int | None, int | None]](folder_of_ident)
        self._steady: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, ident: str, mtime_ns: int, *, size: int, stored_ns: int | None) -> None:
        """Set the time of ``ident`` to ``mtime_ns``."""
        self._kept[ident] = (mtime_ns, size, stored_ns)

    def touch(self, ident: str, now_ns: int) -> None:
        """Record that the names in a folder changed, perhaps in this mount only."""
        self._kept[ident] = (now_ns, None, None)

    def mtime_ns_of(self, ident: str, *, size: int, stored_ns: int | None) -> int | None:
        """Return the time of ``ident``."""
        kept = self._kept.get(ident)
        if kept is None:
            return stored_ns
        mtime_ns, *of = kept
        if of[0] == 0 and (of[1] == ANY or ident in self._steady):
            return mtime_ns
        if of == [0, None] and size == 0 and stored_ns is not None and ident.endswith("/"):
            # The store has the folder only now, with a time of its own.
            self.keep(ident, mtime_ns, size=0, stored_ns=stored_ns)
            return mtime_ns
        is_touched = of[0] is None
        if (is_touched and stored_ns is not None and stored_ns >= mtime_ns) or (not is_touched and of != [size, stored_ns]):
            del self._kept[ident]
            return stored_ns
        return mtime_ns

    def rebase(self, ident: str) -> None:
        """Keep the time that was set for a folder although the store gets a name that the folder had before."""
        if (kept := self._kept.get(ident)) is not None and kept[1] == 0 and kept[2] != ANY:
            self.keep(ident, kept[0], size=0, stored_ns=None)

    def is_set(self, ident: str) -> bool:
        """Return True if the time of a folder was set, and not changed since in this mount."""
        return (kept := self._kept.get(ident)) is not None and kept[1] == 0

    @contextmanager
    def steady(self, idents: Iterable[str]) -> Iterator[None]:
        """Keep the times that were set for folders although the store gets or loses, in the body, names that they keep."""
        folders = list(idents)
        self._steady.update(folders)
        try:
            yield
        finally:
            for each in folders:
                self._steady[each] -= 1
                if not self._steady[each]:
                    del self._steady[each]
                self.rebase(each)

    def forget(self, ident: str) -> None:
        """Remove the time of a file that is gone."""
        self._kept.take(ident)

    def forget_below(self, prefix: str) -> None:
        """Remove the times of a folder that is gone, and below it: of idents with this prefix."""
        self._kept.take_below(prefix)

    def move(self, old: str, new: str) -> None:
        """Move the times of a file, or of a folder and all below it, to ``new``."""
        self._kept.take(new)
        if (kept := self._kept.take(old)) is not None:
            self._kept[new] = kept
        if old.endswith("/"):
            for ident, kept in self._kept.take_below(old).items():
                self._kept[new + ident[len(old) :]] = kept
