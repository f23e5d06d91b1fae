"""Times of the folders in a listing: the listing has them, and a request for each would cost as much as its node."""

from __future__ import annotations

from collections.abc import Callable

import trio

from zarrfs.keys import Prefix
from zarrfs.stores.base import Store

# Part of the time for which nodes are valid: what a listing shows later is not much older.
_PART = 4


class ListedTimes:
    """The times at which names in folders last changed, as of one listing, which is in progress.

    Valid for a part of ``ttl`` seconds, and until anything in the store changes.
    """

    def __init__(self) -> None:
        self._times: dict[Prefix, int] = {}
        self._until = float("-inf")
        self._epoch: Callable[[], int] = lambda: 0
        self._began = 0

    def begin(self, ttl: float, epoch: Callable[[], int]) -> None:
        """Begin the listing. ``epoch()`` counts changes of the store."""
        self._times.clear()
        self._until = trio.current_time() + ttl / _PART
        self._epoch, self._began = epoch, epoch()

    def add(self, store: Store, prefix: Prefix, mtime_ns: int | None) -> None:
        """Record the time of a folder of ``store`` that was listed."""
        # Elsewhere entries of a listing may have times that their prefixes have not, and a mounted file system has times of its own.
        if mtime_ns is not None and store.capabilities.empty_prefixes and not store.part_of(prefix):
            self._times[prefix] = mtime_ns

    def get(self, prefix: Prefix) -> int | None:
        """Return the time of a folder; None if the store has to be asked."""
        is_valid = self._epoch() == self._began and trio.current_time() < self._until
        return self._times.get(prefix) if is_valid else None
