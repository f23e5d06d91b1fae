"""Times at which the elements in files of groups last changed, as reported to this mount."""

from __future__ import annotations

import time

from zarrfs.keys import NodePath

_REMEMBERED = 10_000


class ChangeTimes:
    """Times of changes since the mount, by the path of the group."""

    def __init__(self) -> None:
        self._times: dict[NodePath, int] = {}

    def changed(self, path: NodePath) -> None:
        """Record that the group at ``path``, or a node below it, changed now."""
        self._times.pop(path, None)
        self._times[path] = time.time_ns()
        if len(self._times) > _REMEMBERED:
            del self._times[next(iter(self._times))]

    def at(self, path: NodePath) -> int | None:
        """Return the time of the last change, in nanoseconds; None if none is known."""
        return self._times.get(path)
