"""Content of ``.zarrfs/errors.jsonl``: the last errors of a mount. Frequent errors do not displace rare ones."""

from __future__ import annotations

import itertools
import json
import time
from collections import deque

from zarrfs.errors import ZarrfsError
from zarrfs.printable import printable

MAX_LINES = 1000
MAX_LINES_OF_KEY = 20
"""Limit of lines with the same key, operation and error class."""
_LONGEST = 4000


class RecentErrors:
    """At most `MAX_LINES` lines of JSON, in order of arrival.

    ``message`` is `printable`; ``key`` is unmodified. Beyond `MAX_LINES_OF_KEY` lines of one key, operation and error class the oldest of
    them is dropped, and ``left_out`` of the newest counts the dropped ones. Beyond `MAX_LINES` the oldest line of the most frequent
    operation and class is dropped.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], deque[tuple[int, str | None, str]]] = {}
        self._gone: dict[tuple[str, str, str | None], int] = {}
        self._numbers = itertools.count()
        self._count = 0

    def add(self, operation: str, error: BaseException) -> None:
        """Append an error."""
        key = error.key if isinstance(error, ZarrfsError) else None
        kind = operation, type(error).__name__
        lines = self._lines.setdefault(kind, deque())
        same = [line for line in lines if line[1] == key] if key is not None else []
        entry = {"time": time.time(), "operation": operation, "key": key, "error": kind[1], "message": _message(error)}
        if len(same) >= MAX_LINES_OF_KEY:
            lines.remove(same[0])
            self._count -= 1
            self._gone[*kind, key] = entry["left_out"] = self._gone.get((*kind, key), 0) + 1
        lines.append((next(self._numbers), key, json.dumps(entry) + "\n"))
        self._count += 1
        if self._count > MAX_LINES:
            most = max(self._lines.values(), key=len)
            most.popleft()
            self._count -= 1
        if len(self._gone) > MAX_LINES:
            del self._gone[next(iter(self._gone))]

    def text(self) -> bytes:
        """Return the content of the file."""
        lines = sorted(line for kind in self._lines.values() for line in kind)
        return "".join(text for _, _, text in lines).encode("ascii")


def _message(error: BaseException) -> str:
    message = str(error)
    return printable(message if len(message) <= _LONGEST else f"{message[:_LONGEST]} ...")
