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
# Pages are kept so many together: readers go forward, and the kernel reads ahead.
_BLOCK = 16 * PAGE
_BLOCK_NBYTES = _BLOCK + 200
# One file has no more than this part of the memory.
_SHARE = 2

Mask = np.ndarray[Any, np.dtype[np.bool_]]


class _Block:
    """Some pages in a row: the bytes of all, and of which of them they are known (one bit each)."""

    __slots__ = ("content", "pages")

    def __init__(self) -> None:
        self.content = np.zeros(_BLOCK, np.uint8)
        self.pages = 0


class Given:
    """Of one file. Pages are kept as far as ``budget`` goes; of the others, which were given longest ago, everything that is written is a
    change."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget = budget
        self._blocks: dict[int, _Block] = {}

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return bool(self._blocks)

    def gave(self, offset: int, data: Buffer) -> None:
        """These bytes were read. The kernel asks for whole pages: where fewer came, the file ends."""
        self._keep(offset, data, new=True, at_end=True)

    def wrote(self, offset: int, data: Buffer) -> None:
        """These bytes were written: who only writes is given nothing."""
        if self._blocks:
            self._keep(offset, data, new=len(data) >= PAGE, at_end=False)

    def changed(self, offset: int, data: Buffer) -> Mask | None:
        """Of each byte whether it is another one than was given there; None for all of them."""
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
        """What was given there, or written since; None where that is not known."""
        out = bytearray(nbytes)
        for number, start, stop, begin in _blocks(offset, nbytes):
            block = self._blocks.get(number)
            asked = _bits(start // PAGE, -(-stop // PAGE))
            if block is None or block.pages & asked != asked:
                return None
            out[begin : begin + stop - start] = block.content[start:stop].data
        return out

    def close(self) -> None:
        """Nobody writes to it any more, or it begins anew."""
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
            # A page of which a part was written is known if it was before.
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
    """The blocks that ``nbytes`` from ``offset`` on lie in: number, start and stop within it, and where that begins in the bytes."""
    found = []
    done = 0
    while done < nbytes:
        number, start = divmod(offset + done, _BLOCK)
        stop = min(_BLOCK, start + nbytes - done)
        found.append((number, start, stop, done))
        done += stop - start
    return found
