"""Files and the reasons why something of them is not stored, in bounded memory."""

from __future__ import annotations

import sys

MOST_NBYTES = 16 << 20
"""Memory for names and reasons: users of a mount can write any number of files that cannot be stored. Some 40,000 files."""

_ENTRY_NBYTES = 100


class Reasons:
    """The last reason by file; of files for which there was no memory is known only that there are some."""

    def __init__(self) -> None:
        self._by_file: dict[str, str] = {}
        self._nbytes = 0
        self._are_more = False

    def add(self, name: str, reason: str) -> None:
        """Record a file, or another reason for it."""
        self.discard(name)
        nbytes = _nbytes(name, reason)
        if self._nbytes + nbytes > MOST_NBYTES:
            # It stays so, also when the file is removed or written anew: better one exit code 7 too many.
            self._are_more = True
            return
        self._nbytes += nbytes
        self._by_file[name] = reason

    def discard(self, name: str) -> None:
        """Forget a file."""
        if (reason := self._by_file.pop(name, None)) is not None:
            self._nbytes -= _nbytes(name, reason)

    def discard_below(self, prefix: str) -> None:
        """Forget all files whose names begin with ``prefix``."""
        for name in [each for each in self._by_file if each.startswith(prefix)]:
            self.discard(name)

    def listed(self) -> list[tuple[str, str]]:
        """Return the files and their reasons; the last one stands for those that are not remembered, if there are any."""
        more = [("other files", "more than can be remembered")] if self._are_more else []
        return [*self._by_file.items(), *more]


def _nbytes(name: str, reason: str) -> int:
    return sys.getsizeof(name) + sys.getsizeof(reason) + _ENTRY_NBYTES
