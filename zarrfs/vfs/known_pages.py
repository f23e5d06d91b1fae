"""Content of the kernel's pages of a file open for writing: the bytes last read or written there.

A program that changes some bytes of a shared mapping makes the kernel write whole pages, with other bytes that may be old; FUSE cannot
distinguish that from pwrite(2). Bytes written as they were last read therefore do not count as changes: they would revert what other
programs have stored since then (docs/design/020-two-writers.md).
"""

from __future__ import annotations

import numpy as np

from zarrfs.buffers import Buffer, Mask
from zarrfs.memory.budget import MemoryBudget

PAGE = 4096
# Pages per block: readers advance, and the kernel reads ahead.
_BLOCK = 16 * PAGE
_BLOCK_NBYTES = _BLOCK + 200
# One file uses at most this fraction (one in 2) of the budget.
_SHARE = 2


class _Block:
    """Consecutive pages: the bytes of all, and one bit each for those that are known."""

    __slots__ = ("content", "pages")

    def __init__(self) -> None:
        self.content = np.zeros(_BLOCK, np.uint8)
        self.pages = 0


class KnownPages:
    """The known pages of one file, as far as ``budget`` goes.

    In other pages, those read longest ago, all written bytes count as changes."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._blocks: dict[int, _Block] = {}

    def __bool__(self) -> bool:
        """True if any page is known."""
        return bool(self._blocks)

    def add_read(self, offset: int, data: Buffer) -> None:
        """Record bytes that were read. The kernel reads whole pages: a short result means the end of the file."""
        self._keep(offset, data, new=True, at_end=True)

    def add_written(self, offset: int, data: Buffer) -> None:
        """Record bytes that were written: a program that only writes reads nothing."""
        if self._blocks:
            self._keep(offset, data, new=len(data) >= PAGE, at_end=False)

    def changed(self, offset: int, data: Buffer) -> Mask | None:
        """Return for each byte whether it differs from the one read there; None if all count as different."""
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
            if block.pages & asked != asked:
                for page in range(start // PAGE, -(-stop // PAGE)):
                    if not block.pages >> page & 1:
                        here[max(0, page * PAGE - start) : max(0, (page + 1) * PAGE - start)] = True
        return changed if changed is not None and not changed.all() else None

    def content(self, offset: int, nbytes: int) -> Buffer | None:
        """Return what was read there, or written since; None if unknown."""
        out = bytearray(nbytes)
        for number, start, stop, begin in _blocks(offset, nbytes):
            block = self._blocks.get(number)
            asked = _bits(start // PAGE, -(-stop // PAGE))
            if block is None or block.pages & asked != asked:
                return None
            out[begin : begin + stop - start] = block.content[start:stop].data
        return out

    def close(self) -> None:
        """Forget all pages: the file has no writers any more, or starts anew."""
        self._budget.give(len(self._blocks) * _BLOCK_NBYTES)
        self._blocks.clear()

    def _keep(self, offset: int, data: Buffer, *, new: bool, at_end: bool) -> None:
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
            block.pages |= _bits(-(-start // PAGE), -(-stop // PAGE) if last else stop // PAGE)

    def _has_room(self) -> bool:
        while len(self._blocks) * _BLOCK_NBYTES > self._budget.limit // _SHARE or not self._budget.take(_BLOCK_NBYTES):
            if not self._blocks:
                return False
            del self._blocks[next(iter(self._blocks))]
            self._budget.give(_BLOCK_NBYTES)
        return True


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
