"""Histories: what arrays may consist of after concurrent tasks have changed, saved, renamed and removed them.

An array has parts: its elements, by index, and its attributes; each value that is written is unique. A change may take effect from its
begin to its end, and, if it returned an error, at any time later. So each value has a latest time at which it may have come to a part, by
a change that writes it or by a rename. A value that is found there although a change of that part began later, and succeeded, shows that
this change was lost.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

FOREVER = 1 << 60
ABSENT = None
"""Value of all parts of an array that does not exist, and of the parts that an array does not have."""

Part = Hashable
Value = int | None


@dataclass(eq=False)
class Change:
    """One change: of ``values``, by name of the array and part, or a rename of an array (``renames``: old and new name).

    ``path``: that of the file; if it ``empties`` the file first, changes of other tasks through the file end with that.
    """

    what: str
    begin: int
    values: dict[tuple[str, Part], Value] = field(default_factory=dict)
    renames: tuple[str, str] | None = None
    path: str = ""
    empties: bool = False
    end: int = FOREVER
    result: str = "not ended"

    @property
    def succeeded(self) -> bool:
        """Return True if it was acknowledged."""
        return self.result == "ok"

    def replaces(self, name: str, part: Part) -> bool:
        """Return True if the part has another value afterwards."""
        return (name, part) in self.values or (self.renames is not None and name in self.renames)

    def __str__(self) -> str:
        return f"{self.what}, {self.begin} to {self.end if self.end < FOREVER else '...'}: {self.result}"


class History:
    """The changes of one schedule, in the order of their begin."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self._clock = itertools.count(1)

    @contextmanager
    def change(self, what: str, **more: object) -> Iterator[Change]:
        """Record a change that the body makes; an `OSError` of the body leaves its outcome open."""
        change = Change(what, next(self._clock), **more)  # type: ignore[arg-type]
        self.changes.append(change)
        try:
            yield change
        except OSError as error:
            change.result = errno.errorcode.get(error.errno or 0, str(error))
            raise
        change.end, change.result = next(self._clock), "ok"

    def check(self, name: str, part: Part, value: Value) -> None:
        """Check that ``value`` may be found in this part of the array ``name`` after all tasks have ended."""
        latest = self._latest(part, value)
        assert name in latest, f"{name}[{part}] is {value}, which nobody put there:{self._about()}"
        lost = [
            each
            for each in self.changes
            if each.succeeded and each.begin > latest[name] and each.replaces(name, part) and not self._was_emptied(each)
        ]
        assert not lost, f"{name}[{part}] is {value} as of {latest[name]}; lost: {', '.join(map(str, lost))}:{self._about()}"

    def _latest(self, part: Part, value: Value) -> dict[str, int]:
        """Return the latest time at which ``value`` may have come to this part of arrays, by name."""
        latest: dict[str, int] = {}
        for change in self.changes:
            names = [name for (name, each), put in change.values.items() if (each, put) == (part, value)]
            if value is ABSENT and change.renames is not None:
                names.append(change.renames[0])
            for name in names:
                latest[name] = max(latest.get(name, 0), change.end)
        is_stable = False
        while not is_stable:
            is_stable = True
            for rename in self.changes:
                if rename.renames is None or rename.renames[0] not in latest:
                    continue
                old, new = rename.renames
                if any(
                    each.succeeded and latest[old] < each.begin and each.end < rename.begin and each.replaces(old, part)
                    for each in self.changes
                ):
                    # It was replaced before.
                    continue
                # A file that was open before the rename writes to the array under its new name.
                writers = [each.end for each in self.changes if each.values.get((old, part)) == value and each.begin < rename.end]
                time = max([rename.end, *writers])
                if latest.get(new, 0) < time:
                    latest[new], is_stable = time, False
        return latest

    def _was_emptied(self, change: Change) -> bool:
        """Return True if its file may have been emptied before its end, by a change that was not stored itself."""
        emptied: set[Change] = set()
        for _ in self.changes:
            lost = [each for each in self.changes if each.empties and (not each.succeeded or each in emptied)]
            emptied.update(
                each
                for each in self.changes
                if any(each is not by and each.path == by.path and by.begin < each.end and each.begin < by.end for by in lost)
            )
        return change in emptied

    def _about(self) -> str:
        return "".join(f"\n    {each}" for each in self.changes)
