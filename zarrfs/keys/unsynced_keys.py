"""The keys that a file has set or erased since it was last synced."""

from __future__ import annotations

from collections.abc import Iterable

from zarrfs.keys import Contents, Key

# A file of a whole array may set millions of keys. Beyond some hundreds, one sync of all that is below their prefix is faster, too.
_MAX_KEYS = 256


class UnsyncedKeys:
    """Targets of a sync: single keys, or `Contents` of the prefix that many of them have in common, below which others may be."""

    def __init__(self) -> None:
        # A new object for each change: what is changed during a sync stays unsynced.
        self._keys: dict[Key | Contents, object] = {}
        self._contents: dict[Key | Contents, object] = {}

    def add(self, targets: Iterable[Key | Contents]) -> None:
        """Add keys that were set or erased."""
        for target in targets:
            above = next((each for each in self._contents if target.startswith(each)), None)
            if above is not None:
                self._contents[above] = object()
            elif isinstance(target, Contents):
                self._contents[target] = object()
            else:
                self._keys[target] = object()
                if len(self._keys) > _MAX_KEYS:
                    self._join()

    def _join(self) -> None:
        first, last = min(self._keys), max(self._keys)
        common = next(index for index, (one, other) in enumerate(zip(first + "\0", last, strict=False)) if one != other)
        self._keys.clear()
        self.add([Contents(first[: first.rfind("/", 0, common) + 1])])

    def versions(self) -> dict[Key | Contents, object]:
        """Return the targets, for `synced`."""
        return {**self._keys, **self._contents}

    def synced(self, versions: dict[Key | Contents, object]) -> None:
        """Remove targets that a sync has covered since `versions`, unless they were added again meanwhile."""
        for target, version in versions.items():
            for known in (self._keys, self._contents):
                if known.get(target) is version:
                    known.pop(target)
