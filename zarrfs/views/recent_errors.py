"""What ``.zarrfs/errors.jsonl`` holds: the last errors of a mount, of which no key and no kind of error displaces all others."""

from __future__ import annotations

import itertools
import json
import time
from collections import deque

from zarrfs.errors import ZarrfsError
from zarrfs.printable import printable

MOST = 1000
OF_A_KEY = 20
"""Lines of one key, operation and class of error; a later one takes the place of the first."""
_LONGEST = 4000


class RecentErrors:
    """At most `MOST` lines of JSON, in the order in which they came.

    ``message`` is for people, and `printable`; ``key`` is the key as it is. Of a key that has `OF_A_KEY` lines already, the oldest goes,
    and ``left_out`` of the newest tells how many have gone. Beyond `MOST`, the oldest line of the operation and class that have most.
    """

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], deque[tuple[int, str | None, str]]] = {}
        self._gone: dict[tuple[str, str, str | None], int] = {}
        self._numbers = itertools.count()
        self._count = 0

    def add(self, operation: str, error: BaseException) -> None:
        """One more."""
        key = error.key if isinstance(error, ZarrfsError) else None
        kind = operation, type(error).__name__
        lines = self._lines.setdefault(kind, deque())
        same = [line for line in lines if line[1] == key] if key is not None else []
        said = {"time": time.time(), "operation": operation, "key": key, "error": kind[1], "message": _message(error)}
        if len(same) >= OF_A_KEY:
            lines.remove(same[0])
            self._count -= 1
            self._gone[*kind, key] = said["left_out"] = self._gone.get((*kind, key), 0) + 1
        lines.append((next(self._numbers), key, json.dumps(said) + "\n"))
        self._count += 1
        if self._count > MOST:
            most = max(self._lines.values(), key=len)
            most.popleft()
            self._count -= 1
        if len(self._gone) > MOST:
            del self._gone[next(iter(self._gone))]

    def text(self) -> bytes:
        """The file."""
        lines = sorted(line for kind in self._lines.values() for line in kind)
        return "".join(text for _, _, text in lines).encode("ascii")


def _message(error: BaseException) -> str:
    message = str(error)
    return printable(message if len(message) <= _LONGEST else f"{message[:_LONGEST]} ...")
