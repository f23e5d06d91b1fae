"""What programs were given of a file that is open for writing, and what they wrote: so what the kernel's pages of it may hold.

A program that writes to a shared mapping changes some bytes, and the kernel writes whole pages, however old the rest of them is: FUSE
does not tell that from pwrite(2). What a page holds beside the change is what was given there last. Bytes that come back as they were
given are no change, so that they take back nothing that others have stored meanwhile (docs/design/020-two-writers.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zarrfs.memory.budget import MemoryBudget
from zarrfs.vfs.node import Buffer

PAGE = 4096
# Of a page that is kept, beside its bytes.
_PAGE_NBYTES = PAGE + 200
# One file has no more than this part of the memory.
_SHARE = 2

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Given:
    """Of one file. Pages are kept as far as ``budget`` goes; of the others, which were given longest ago, everything that is written is a
    change."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._pages: dict[int, bytearray] = {}

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return bool(self._pages)

    def gave(self, offset: int, data: Buffer) -> None:
        """These bytes were read. The kernel asks for whole pages; of others, and of the last one, what there is."""
        self._keep(offset, memoryview(data).cast("B"), new=True)

    def wrote(self, offset: int, data: Buffer) -> None:
        """These bytes were written: who only writes is given nothing."""
        if self._pages:
            view = memoryview(data).cast("B")
            self._keep(offset, view, new=len(view) >= PAGE)

    def changed(self, offset: int, data: Buffer) -> Mask | None:
        """Of each byte whether it is another one than was given there; None for all of them."""
        if not self._pages or not len(data):
            return None
        changed: Mask | None = None
        view = np.frombuffer(data, np.uint8)
        for page, start, stop, begin in _pages(offset, len(view)):
            kept = self._pages.get(page)
            if kept is None:
                continue
            given = np.frombuffer(kept, np.uint8)[start:stop]
            if changed is None:
                changed = np.ones(len(view), bool)
            # A page at the end of a file may have been shorter.
            piece = view[begin : begin + len(given)]
            np.not_equal(piece, given, out=changed[begin : begin + len(given)])
        return changed if changed is not None and not changed.all() else None

    def close(self) -> None:
        """Nobody writes to it any more."""
        self._budget.give(len(self._pages) * _PAGE_NBYTES)
        self._pages.clear()

    def _keep(self, offset: int, view: memoryview, *, new: bool) -> None:
        for page, start, stop, begin in _pages(offset, len(view)):
            piece = view[begin : begin + stop - start]
            kept = self._pages.get(page)
            if kept is not None and start <= len(kept):
                kept[start : start + len(piece)] = piece
            elif new and start == 0 and self._has_room():
                self._pages[page] = bytearray(piece)
            elif kept is not None:
                self._forget(page)

    def _has_room(self) -> bool:
        while len(self._pages) * _PAGE_NBYTES > self._budget.limit // _SHARE or not self._budget.take(_PAGE_NBYTES):
            if not self._pages:
                return False
            self._forget(next(iter(self._pages)))
        return True

    def _forget(self, page: int) -> None:
        del self._pages[page]
        self._budget.give(_PAGE_NBYTES)


def _pages(offset: int, nbytes: int) -> list[tuple[int, int, int, int]]:
    """The pages that ``nbytes`` from ``offset`` on lie in: number, start and stop within it, and where that begins in the bytes."""
    found = []
    done = 0
    while done < nbytes:
        page, start = divmod(offset + done, PAGE)
        stop = min(PAGE, start + nbytes - done)
        found.append((page, start, stop, done))
        done += stop - start
    return found
