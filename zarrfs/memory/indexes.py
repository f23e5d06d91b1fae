"""Memory for the index of an archive, which is held whole as long as the archive is open. Sync.

Its size is the author's choice: a gigabyte of short names would take twenty of memory.
"""

from __future__ import annotations

from zarrfs.errors import StoreUnsupported
from zarrfs.memory.machine import default_limit
from zarrfs.printable import size

NAME_NBYTES = 184
"""Memory of a name in a table of names while it is built, besides the name itself."""

# Half a million entries: the allowance beside ``--memory-limit`` covers it.
_LEAST = 128 << 20

# State of the process, as in `zarrfs.memory.spill`; None: the default of ``--memory-limit``.
_limit: int | None = None


def configure(limit: int) -> None:
    """Set the memory in bytes for one index."""
    global _limit
    _limit = max(limit, _LEAST)


class IndexMemory:
    """Memory for the index of the archive ``path``."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._limit = self._left = default_limit() if _limit is None else _limit

    def take(self, nbytes: int) -> None:
        """Take ``nbytes``. Raises `StoreUnsupported` if the index exceeds the limit."""
        self._left -= nbytes
        if self._left < 0:
            raise StoreUnsupported(
                f"{self._path} has too many entries: their index exceeds {size(self._limit)} of memory: raise --memory-limit",
                key=self._path,
            )
