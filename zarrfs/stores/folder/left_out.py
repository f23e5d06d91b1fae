"""Entries of a folder store that are neither values nor folders: symbolic links and special files, which are not listed nor followed."""

from __future__ import annotations

import logging
import threading

from zarrfs.stores.folder.calls import first_link
from zarrfs.stores.folder.names import Parts, path_of

log = logging.getLogger(__name__)

_MAX_KNOWN = 1000


class LeftOut:
    """Those in the folder ``path``: one warning tells about the first. Threads may call the methods concurrently."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._is_told = False
        self.known: dict[str, None] = {}
        """The paths of those that listings found, at most `_MAX_KNOWN`: the last ones."""
        self._lock = threading.Lock()

    def tell(self, name: str) -> None:
        """Log the warning, unless it was logged before."""
        if not self._is_told:
            self._is_told = True
            log.warning("%s: symbolic links and special files are neither listed nor followed (the first: %r)", self._path, name)

    def is_at(self, folder: int, name: str) -> bool:
        """Return True, and tell, if ``name`` in ``folder`` (a descriptor) is one."""
        if is_one := first_link(folder, (name,)) is not None:
            self.tell(name)
        return is_one

    def listed(self, folder: int, parts: Parts) -> None:
        """Keep ``parts``, found in the listing of ``folder`` (a descriptor), if it is one."""
        if self.is_at(folder, parts[-1]):
            with self._lock:
                self.known.pop(path_of(parts), None)
                self.known[path_of(parts)] = None
                if len(self.known) > _MAX_KNOWN:
                    del self.known[next(iter(self.known))]
