"""Random operations by several threads, in all views and as external changes, over arrays whose elements identify their writes.

Each array has a life: a unique number. Each element is (life, index, number of the write). A writer learns the life from the elements
in the open file. For every element that is read anywhere, at any time, it is therefore decidable whether a legal order of the
operations explains it:

* its life is that of all elements of its array, and its index is its position: no bytes of another array, no mixtures;
* no other write of that element began and was acknowledged after the end of its own write;
* a fill value occurs only where the array once ended earlier, and it is that array's own.

The store is a folder. External changes move, remove and replace whole arrays, as other programs may at any time. They do not write
elements, since these could not be separated from the mount's own writes.
"""

from __future__ import annotations

import errno
import itertools
import re
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.support.random_layouts import PADDING, Elements, Layout

SHORTEST = 64
_LAST = 60
"""Number of operations in the report of a finding."""

FILL, LENGTH = -1, -1
"""The number of a fill value, and the index under which the length of an array is written."""

# Errors that a program may get at any time while others move, remove and replace arrays. EIO: the documents are missing, or not there
# yet; EFBIG, EINVAL, EPERM: of two writers of one `.npy`, one has truncated it, and the close of the other has determined its content.
EXPECTED = {
    errno.ENOENT,
    errno.ESTALE,
    errno.EEXIST,
    errno.EIO,
    errno.ENOTEMPTY,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EXDEV,
    errno.EBUSY,
    errno.EFBIG,
    errno.EINVAL,
    errno.EPERM,
}


class Illegal(AssertionError):
    """A value was read at a position where no legal order explains it."""


@dataclass
class Write:
    """A write; ``values`` are its numbers by index, ``chunks`` the chunks with them.

    It may take effect from ``begin`` to ``end`` (None: unfinished); with ``is_late``, in the store at any time after that.
    """

    values: Mapping[int, int]
    chunks: frozenset[tuple[int, int]]
    begin: int
    end: int | None = None
    acknowledged: bool = False
    is_late: bool = False

    @property
    def until(self) -> int:
        """The time until which it may take effect."""
        return 1 << 62 if self.is_late or self.end is None else self.end


@dataclass
class Life:
    """An array, independent of its path.

    ``is_marked``: its number is in its attributes; another one is never resized. (An array saved over it keeps them and its fill value,
    and is identified by its length.)
    """

    number: int
    is_marked: bool = False
    writes: list[Write] = field(default_factory=list)
    count: int = 0
    shortest: int = 0
    """The smallest length that it may have had: rows beyond it may be fill value, and may be dropped."""

    @property
    def first_length(self) -> int:
        """An even length that no other array has."""
        return SHORTEST + 2 * self.number

    def values(self, numbers: Mapping[int, int]) -> Elements:
        """Return elements of this life."""
        return np.array([self.number << 40 | index << 20 | number for index, number in numbers.items()], "<i8")


def lives(elements: Elements) -> set[int]:
    """Return the lives of elements. Fill values have none: an array has those of the array that it was saved over."""
    return {each >> 40 for each in elements.tolist() if each > 0}


class Model:
    """The history of operations, and the legal results of reads."""

    def __init__(self, store: Path, aside: Path, seed: int, layout: Layout) -> None:
        self.store, self.aside, self.seed, self.layout = store, aside, seed, layout
        self.geometry = layout.geometry
        self._lock = threading.Lock()
        self._clock = itertools.count(1)
        self._lives: dict[int, Life] = {}
        self._numbers = itertools.count(1)
        self.done: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.illegal: list[str] = []
        self._history: deque[str] = deque(maxlen=20_000)
        self._details: dict[int, str] = {}
        self.demands_news = False
        """True if acknowledged data has to be visible in all views at once, and not only at the end."""
        self.ended = 1 << 62
        self.has_late_writes = False
        """True if what close(2) has acknowledged may be stored after a later write through another mount: it is queued for a shard."""
        self._taken_along = 0
        """Time of the last external rename: chunks queued for a shard then follow, and are visible later."""

    def new_life(self, *, is_marked: bool = False) -> Life:
        with self._lock:
            life = Life(next(self._numbers), is_marked)
            life.shortest = life.first_length
            self._lives[life.number] = life
            values = dict.fromkeys(range(life.first_length * self.geometry.row), 0) | {LENGTH: life.first_length}
            life.writes.append(self._write(values, acknowledged=True))
            life.writes[0].end = next(self._clock)
        return life

    def _write(self, values: Mapping[int, int], *, acknowledged: bool = False) -> Write:
        chunks = frozenset(self.geometry.chunk_of(index) for index in values)
        return Write(values, chunks, begin=next(self._clock), acknowledged=acknowledged)

    def first(self, life: Life) -> Elements:
        """Return the initial elements."""
        return life.values(dict.fromkeys(range(life.first_length * self.geometry.row), 0))

    def inside(self, life: Life, index: int) -> bool:
        """Return True for an element that has been in the array at all times."""
        return index < life.shortest * self.geometry.row

    @contextmanager
    def writing(
        self, life: Life, indices: list[int], besides: Mapping[int, int] | None = None, *, by_fsync: bool = False
    ) -> Iterator[Elements]:
        """Record a write of these elements (and of those written back unchanged) from its first byte to its close, or fsync."""
        with self._lock:
            life.count += 1
            values = dict(besides or {}) | dict.fromkeys(indices, life.count)
            write = self._write(values)
            write.is_late = self.has_late_writes and not by_fsync
            life.writes.append(write)
        self._note("life", life.number, "write", life.count, "of", indices[0], "to", indices[-1], "at", write.begin)
        try:
            yield life.values({index: values[index] for index in sorted(values)})
        except OSError:
            raise
        else:
            write.acknowledged = True
        finally:
            with self._lock:
                write.end = next(self._clock)

    @contextmanager
    def resizing(self, life: Life, length: int, *, behind: bool) -> Iterator[None]:
        """Record a change of the length. With ``behind``, it is by another program and may be visible late."""
        with self._lock:
            life.shortest = min(life.shortest, length)
            write = self._write({LENGTH: length})
            life.writes.append(write)
        self._note("life", life.number, "length", length, "at", write.begin)
        try:
            yield
            write.acknowledged = not behind
        finally:
            with self._lock:
                write.end = next(self._clock)

    def life_of(self, elements: Elements, indices: Iterable[int], what: str, asked: int) -> tuple[Life, dict[int, int]]:
        """Return the life of elements with these indices, read after the time ``asked``, and their write numbers.

        Raises `Illegal`.
        """
        found = lives(elements)
        if len(found) != 1 or not found <= self._lives.keys():
            raise Illegal(f"{what}: {len(elements)} elements of {sorted(found)}: {elements.tolist()[:8]}...")
        life, numbers = self._lives[found.pop()], {}
        fills = {element for element in elements.tolist() if element <= 0}
        if len(fills) > 1 or (life.is_marked and not fills <= {-life.number}):
            raise Illegal(f"{what}: life {life.number} has the fill values {sorted(fills)}: {elements.tolist()[:8]}...")
        with self._lock:
            for index, element in zip(indices, elements.tolist(), strict=True):
                if index == PADDING and element <= 0:
                    continue
                if element > 0 and (element >> 20) & 0xFFFFF != index:
                    raise Illegal(f"{what}: element {index} of life {life.number} lies elsewhere than it belongs: {element}")
                numbers[index] = element & 0xFFFFF if element > 0 else FILL
                self._demand_legal(life, index, numbers[index], what, asked)
        return life, numbers

    def demand_length(self, life: Life, count: int, what: str, asked: int) -> None:
        """Raise `Illegal` if an array cannot have this number of elements now."""
        with self._lock:
            self._demand_legal(life, LENGTH, count // self.geometry.row, f"{what}, its length", asked)

    def _demand_legal(self, life: Life, index: int, number: int, what: str, asked: int) -> None:
        if number == FILL and not self.inside(life, index):
            return
        ends = [write.until for write in life.writes if write.values.get(index) == number]
        if not ends:
            raise Illegal(f"{what}: element {index} of life {life.number} has {number}, which nobody wrote")
        if not self.inside(life, index):
            return
        if not self.demands_news and asked < self.ended:
            return
        chunk = self.geometry.chunk_of(index)
        if any((write.end or 1 << 62) > asked and chunk in write.chunks for write in life.writes):
            # This chunk is open with changes: readers of the same file see the content with which the writer began.
            return
        later = [
            write
            for write in life.writes
            if write.acknowledged
            and index in write.values
            and write.begin > max(max(ends), self._taken_along)
            and (write.end or 1 << 62) < asked
        ]
        if later:
            raise Illegal(
                f"{what}: element {index} of life {life.number} has {number}, of a write that ended at {max(ends)}; "
                f"acknowledged since: {[(write.values[index], write.begin, write.end) for write in later]}; now {asked}"
            )

    def _note(self, *details: object) -> None:
        """Record the current operation of this thread, for reports of findings."""
        self._details[threading.get_ident()] = " ".join(map(str, [self._details.get(threading.get_ident(), ""), *details]))

    def now(self) -> int:
        with self._lock:
            return next(self._clock)

    def demand_all_legal(self) -> None:
        """Raise `Illegal` with all findings."""
        if self.illegal:
            found = "\n".join(self.illegal[:5])
            raise Illegal(f"seed {self.seed}: {found}\n{self.history(found)}")

    def history(self, found: str = "") -> str:
        """Return the last operations, and those on the arrays in ``found``."""
        done = list(self._history)
        lives = [re.compile(rf"\b{life}\b") for life in dict.fromkeys(re.findall(r"life \d+", found))]
        theirs = [each for each in done[:-_LAST] if any(life.search(each) for life in lives)]
        return "\n".join(["what was done to these before:", *theirs, "what ended last:", *done[-_LAST:]])

    def check_store(self) -> int:
        """Check all arrays in the store, and those removed from it, with another program; return the number of elements."""
        count, asked = 0, self.now()
        self.layout.check_copy(self.store)
        self._taken_along, self.ended = 0, asked
        # An array outside of the store keeps the state in which it was removed.
        for store, since in [(self.store, asked), *((each, 0) for each in self.aside.glob("[!g]*"))]:
            for place, elements in self.layout.arrays(store):
                what = f"{place} at the end"
                life, _ = self.life_of(elements, range(len(elements)), what, since)
                self.demand_length(life, len(elements), what, since)
                count += len(elements)
        return count
