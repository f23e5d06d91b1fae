"""That nothing counts any more which was learnt of a place and what lies below it, without touching any of it."""

from __future__ import annotations

from zarrfs.keys import ROOT, NodePath

# More places than these are one: the root.
_FEW = 1000


class Forgotten:
    """``now``: counts the times that places were forgotten; to be kept beside what is learnt. ``epoch``: counts the times that anything
    was, a single node too."""

    def __init__(self) -> None:
        self.now = self.epoch = 0
        self._below: dict[NodePath, int] = {}

    def add(self, path: NodePath) -> None:
        """Forget what was learnt of ``path`` and of what lies below it."""
        self.now += 1
        self.epoch += 1
        if path == ROOT or len(self._below) >= _FEW:
            path = ROOT
            self._below.clear()
        self._below[path] = self.now

    def one(self) -> float:
        """Forget one node: the time from which what was learnt of it does not count."""
        self.epoch += 1
        return float("-inf")

    def counts(self, path: NodePath, learnt: int) -> bool:
        """Whether what was learnt of ``path`` when `now` was ``learnt`` still counts."""
        if not self._below:
            return True
        return learnt >= self._below.get(path, 0) and all(learnt >= self._below.get(each, 0) for each in path.ancestors())
