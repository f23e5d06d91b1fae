"""Content of the kernel's pages of a file open for writing: the bytes last read or written there.

A program that changes some bytes of a shared mapping makes the kernel write whole pages, with other bytes that may be old; FUSE cannot
distinguish that from pwrite(2). Bytes written as they were last read therefore do not count as changes: they would revert what other
programs have stored since then (docs/design/020-two-writers.md).

The kernel drops all pages at each open for writing. So what is written through a handle is compared only with what was read or written
since that was opened: a program that opens the file after a change, and writes what was there before it, reverts it.

An open file can have several page caches: one whose value another program has replaced has another inode for those who open it then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from zarrfs.buffers import Buffer, Mask
from zarrfs.memory.budget import MemoryBudget

PAGE = 4096
# Pages per block: readers advance, and the kernel reads ahead.
_BLOCK = 16 * PAGE
_BLOCK_NBYTES = _BLOCK + 400
# One file uses at most this fraction (one in 2) of the budget.
_SHARE = 2


class _Block:
    """Consecutive pages: the bytes of all, one bit each for those that are known, and the number of opens before each became known."""

    __slots__ = ("content", "opens", "pages")

    def __init__(self) -> None:
        self.content = np.zeros(_BLOCK, np.uint8)
        self.pages = 0
        self.opens = [0] * (_BLOCK // PAGE)

    def keep(self, pages: int, opens: int) -> None:
        self.pages |= pages
        for page in range(pages.bit_length()):
            if pages >> page & 1:
                self.opens[page] = opens

    def known_since(self, opened: int) -> int:
        """Return the bits of pages that have become known since the open with this number."""
        if opened <= min(self.opens):
            return self.pages
        return self.pages & sum(1 << page for page, opens in enumerate(self.opens) if opens >= opened)


@dataclass(slots=True, eq=False)
class Reading:
    """A read in progress of the bytes ``start`` to ``stop``, which began after ``opens`` opens.

    ``is_outdated``: some of them were written since, or all that was known is forgotten."""

    start: int
    stop: int
    opens: int
    is_outdated: bool = False


class KnownPages:
    """The known pages of one file, as far as ``budget`` goes.

    In other pages, those read longest ago, all written bytes count as changes."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._blocks: dict[int, _Block] = {}
        self._opens = 0
        self.writers = 0
        """Number of handles that may write the pages; see `SeenOfFile`."""
        self._readings: set[Reading] = set()

    def __bool__(self) -> bool:
        """True if any page is known."""
        return bool(self._blocks)

    def opened(self) -> int:
        """Record an open for writing, which is not answered yet; return its number, for `SeenPages`."""
        self._opens += 1
        return self._opens

    @contextmanager
    def reading(self, offset: int, size: int) -> Iterator[Reading]:
        """Mark a read in progress, for `add_read` at its end."""
        reading = Reading(offset, offset + size, self._opens)
        self._readings.add(reading)
        try:
            yield reading
        finally:
            self._readings.discard(reading)

    def add_read(self, reading: Reading, data: Buffer, *, at_end: bool) -> None:
        """Record bytes that were read; ``at_end``: they end with the file, in whose last page zeros follow.

        The kernel reads whole pages. A program that does without them, by fcntl(2), reads any bytes: the rest of a page is unknown. The
        kernel drops its pages at an open: who opens the file during the read has not seen them."""
        if not reading.is_outdated:
            self._keep(reading.start, data, reading.opens, new=True, at_end=at_end)

    def add_written(self, offset: int, data: Buffer) -> None:
        """Record bytes that were written: a program that only writes reads nothing."""
        self._outdate(offset, len(data))
        if self._blocks:
            self._keep(offset, data, self._opens, new=len(data) >= PAGE, at_end=False)

    def forget(self, offset: int, nbytes: int) -> None:
        """Forget the pages of these bytes: some of them may have changed."""
        self._outdate(offset, nbytes)
        for number, start, stop, _ in _blocks(offset, nbytes):
            if (block := self._blocks.get(number)) is not None:
                block.pages &= ~_bits(start // PAGE, -(-stop // PAGE))

    def changed(self, offset: int, data: Buffer, opened: int = 0) -> Mask | None:
        """Return for each byte whether it differs from the one read there; None if all count as different.

        ``opened``: see `SeenPages`."""
        if not self._blocks or not len(data):
            return None
        changed: Mask | None = None
        view = np.frombuffer(data, np.uint8)
        for number, start, stop, begin in _blocks(offset, len(view)):
            block = self._blocks.get(number)
            if block is None:
                continue
            if changed is None:
                changed = np.ones(len(view), bool)
            here = changed[begin : begin + stop - start]
            np.not_equal(view[begin : begin + stop - start], block.content[start:stop], out=here)
            asked = _bits(start // PAGE, -(-stop // PAGE))
            known = block.known_since(opened)
            if known & asked != asked:
                for page in range(start // PAGE, -(-stop // PAGE)):
                    if not known >> page & 1:
                        here[max(0, page * PAGE - start) : max(0, (page + 1) * PAGE - start)] = True
        return changed if changed is not None and not changed.all() else None

    def content(self, offset: int, nbytes: int, opened: int = 0) -> Buffer | None:
        """Return what was read there, or written since; None if unknown. ``opened``: see `SeenPages`."""
        out = bytearray(nbytes)
        for number, start, stop, begin in _blocks(offset, nbytes):
            block = self._blocks.get(number)
            asked = _bits(start // PAGE, -(-stop // PAGE))
            if block is None or block.known_since(opened) & asked != asked:
                return None
            out[begin : begin + stop - start] = block.content[start:stop].data
        return out

    def close(self) -> None:
        """Forget all pages: the file has no writers any more, or starts anew."""
        self._budget.give(len(self._blocks) * _BLOCK_NBYTES)
        self._blocks.clear()
        for reading in self._readings:
            reading.is_outdated = True

    def _outdate(self, offset: int, nbytes: int) -> None:
        for reading in self._readings:
            if reading.start < offset + nbytes and offset < reading.stop:
                reading.is_outdated = True

    def _keep(self, offset: int, data: Buffer, opens: int, *, new: bool, at_end: bool) -> None:
        view = np.frombuffer(data, np.uint8)
        for number, start, stop, begin in _blocks(offset, len(view)):
            block = self._blocks.get(number)
            if block is None:
                if not new or not self._has_room():
                    continue
                block = self._blocks[number] = _Block()
            block.content[start:stop] = view[begin : begin + stop - start]
            last = at_end and begin + stop - start == len(view)
            # A partly written page is known if it was known before.
            block.keep(_bits(-(-start // PAGE), -(-stop // PAGE) if last else stop // PAGE), opens)

    def _has_room(self) -> bool:
        while len(self._blocks) * _BLOCK_NBYTES > self._budget.limit // _SHARE or not self._budget.take(_BLOCK_NBYTES):
            if not self._blocks:
                return False
            del self._blocks[next(iter(self._blocks))]
            self._budget.give(_BLOCK_NBYTES)
        return True


class SeenOfFile:
    """What programs have seen of one file: in each page cache that it is open for writing in, and each handle that does without pages."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._in_pages: dict[object, KnownPages] = {}
        self._own: list[KnownPages] = []

    def __bool__(self) -> bool:
        """True if anything is recorded."""
        return bool(self._in_pages or self._own)

    def opened(self, page_cache: object, *, paged: bool) -> SeenPages:
        """Record an open for writing in a page cache, which has no older pages; return what is seen through its handle.

        From now on, what the kernel reads there is recorded. A handle that is not ``paged`` gets known pages of its own: those of others
        hold what was read at another time. Until `closed`."""
        if not paged:
            own = KnownPages(self._budget)
            self._own.append(own)
            return SeenPages(own, 0)
        known = self._in_pages.setdefault(page_cache, KnownPages(self._budget))
        known.writers += 1
        return SeenPages(known, known.opened())

    def closed(self, page_cache: object, seen: SeenPages) -> None:
        """Record the release of a handle. Once none can write its pages, they are forgotten: the next one to open it sees other ones."""
        if seen.pages in self._own:
            self._own.remove(seen.pages)
        else:
            seen.pages.writers -= 1
            if seen.pages.writers:
                return
            del self._in_pages[page_cache]
        seen.pages.close()

    def in_pages(self, page_cache: object) -> KnownPages | None:
        """Return what is known of the kernel's pages there; None if the file is not open for writing there."""
        return self._in_pages.get(page_cache)

    def add_written(self, page_cache: object, offset: int, data: Buffer) -> None:
        """Run `KnownPages.add_written` for all whose pages have changed: other page caches hold what was there before."""
        for each in self._of(page_cache):
            each.add_written(offset, data)

    def forget(self, page_cache: object, offset: int, nbytes: int) -> None:
        """Run `KnownPages.forget` for all whose pages may have changed."""
        for each in self._of(page_cache):
            each.forget(offset, nbytes)

    def forget_all(self) -> None:
        """Forget all pages: the file starts anew."""
        for each in (*self._in_pages.values(), *self._own):
            each.close()

    def _of(self, page_cache: object) -> list[KnownPages]:
        known = self._in_pages.get(page_cache)
        return self._own if known is None else [known, *self._own]


@dataclass(frozen=True, slots=True)
class SeenPages:
    """The known ``pages`` that may have been seen through the handle of the open with the number ``opened``; 0: all of them."""

    pages: KnownPages
    opened: int

    def __bool__(self) -> bool:
        """True if any page is known."""
        return bool(self.pages)

    def changed(self, offset: int, data: Buffer) -> Mask | None:
        """Return `KnownPages.changed`."""
        return self.pages.changed(offset, data, self.opened)

    def content(self, offset: int, nbytes: int) -> Buffer | None:
        """Return `KnownPages.content`."""
        return self.pages.content(offset, nbytes, self.opened)


def _bits(first: int, stop: int) -> int:
    return (1 << stop) - (1 << first) if stop > first else 0


def _blocks(offset: int, nbytes: int) -> list[tuple[int, int, int, int]]:
    """Return the blocks of ``nbytes`` from ``offset``: number, start and stop within each, and the position of that in the bytes."""
    found = []
    done = 0
    while done < nbytes:
        number, start = divmod(offset + done, _BLOCK)
        stop = min(_BLOCK, start + nbytes - done)
        found.append((number, start, stop, done))
        done += stop - start
    return found
