"""Modification times that were set, where the store keeps none: those of folders, and of values in a store without times.

``cp -a``, ``tar`` and ``rsync -a`` set the time of all that they copy, and rsync looks at it to tell what it need not copy again. What a
store cannot keep is kept here for as long as the mount lasts and the file is not changed. So is when a name came to a folder, or went,
of which the store does not know.
"""

from __future__ import annotations


class KeptTimes:
    """By `File.ident` (folders: with a slash at the end). A time holds for what it was set for: a size in bytes and the time that the
    store tells of it, if any; when one of them is another, the store's counts. The time of a change in a folder holds until the store
    tells a later one: its size is None."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, int | None, int | None]] = {}

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, ident: str, mtime_ns: int, *, size: int, stored_ns: int | None) -> None:
        """From now on ``mtime_ns`` is the time of ``ident``."""
        self._kept[ident] = (mtime_ns, size, stored_ns)

    def touch(self, ident: str, now_ns: int) -> None:
        """The names in a folder changed, perhaps in this mount only."""
        self._kept[ident] = (now_ns, None, None)

    def mtime_ns_of(self, ident: str, *, size: int, stored_ns: int | None) -> int | None:
        """The time to show for ``ident``."""
        kept = self._kept.get(ident)
        if kept is None:
            return stored_ns
        mtime_ns, *of = kept
        is_touched = of[0] is None
        if (is_touched and stored_ns is not None and stored_ns >= mtime_ns) or (not is_touched and of != [size, stored_ns]):
            del self._kept[ident]
            return stored_ns
        return mtime_ns

    def forget(self, ident: str) -> None:
        """It is gone."""
        self._kept.pop(ident, None)

    def forget_below(self, prefix: str) -> None:
        """The folder whose idents begin so is gone."""
        for ident in [ident for ident in self._kept if ident.startswith(prefix)]:
            del self._kept[ident]

    def move(self, old: str, new: str) -> None:
        """The file, or the folder and all below it, is called ``new`` now."""
        self._kept.pop(new, None)
        if (kept := self._kept.pop(old, None)) is not None:
            self._kept[new] = kept
        if old.endswith("/"):
            for ident in [ident for ident in self._kept if ident.startswith(old)]:
                self._kept[new + ident[len(old) :]] = self._kept.pop(ident)
