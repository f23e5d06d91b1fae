"""Listings between two requests: what all of them may hold together."""

from __future__ import annotations

import resource
from collections import OrderedDict

from zarrfs.fuse.handles import OpenDirectory

# One listing holds two descriptors of a folder store, and entries not yet requested.
_PART = 16
_MAX_IDLE = 256
_MAX_IDLE_ENTRIES = 100_000
# Hashes of names, of all listings: 8 MB.
_MAX_NAMES = 1_000_000


class IdleListings:
    """The listings between two requests, the least recently used first.

    Any user may leave as many folders open, half read, as there are descriptors, and more. Beyond a part of these, and of memory, the
    oldest are suspended: their next request reads the folder again.
    """

    def __init__(self) -> None:
        self._listings: OrderedDict[OpenDirectory, int] = OrderedDict()
        self._nentries = 0
        self._named: OrderedDict[OpenDirectory, int] = OrderedDict()
        self._nnames = 0

    def take(self, listing: OpenDirectory) -> None:
        """Remove ``listing``, for a request."""
        self._nentries -= self._listings.pop(listing, 0)

    def end(self, listing: OpenDirectory) -> None:
        """Remove ``listing``, which is closed."""
        self.take(listing)
        self._nnames -= self._named.pop(listing, 0)

    def put(self, listing: OpenDirectory) -> None:
        """Add ``listing``, after a request, unless that has not resumed it: it holds nothing more to release."""
        self._limit_names(listing)
        if listing.suspended:
            return
        self._listings[listing] = len(listing.entries)
        self._nentries += len(listing.entries)

    async def trim(self) -> None:
        """Suspend the oldest, if there are too many."""
        most = max(1, min(_MAX_IDLE, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _PART))
        while len(self._listings) > most or (self._nentries > _MAX_IDLE_ENTRIES and len(self._listings) > 1):
            oldest = next(iter(self._listings))
            self.take(oldest)
            await oldest.suspend()

    def _limit_names(self, listing: OpenDirectory) -> None:
        self._nnames += listing.nnames - self._named.pop(listing, 0)
        self._named[listing] = listing.nnames
        while self._nnames > _MAX_NAMES:
            oldest, nnames = self._named.popitem(last=False)
            self._nnames -= nnames
            oldest.forget_names()
