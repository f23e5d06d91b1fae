"""Dirty chunks whose storing has failed: what others store in them before the next attempt is later, and stays.

The program that wrote them got the error, and may be gone; the next attempt may be the close of another one, hours later. Without this,
that stored the old elements over all that others had stored with success in between (docs/design/020-two-writers.md).
"""

from __future__ import annotations

import numpy as np

from zarrfs.buffers import Buffer, Mask, same_bytes
from zarrfs.memory import spill
from zarrfs.model.spans import Spans

# A write of more scattered elements is recorded in a mask.
_FEW_SPANS = 64
# Bytes of memory that a span takes; a mask takes a byte for each element.
_SPAN_NBYTES = 80


class FailedChunk:
    """The chunk ``base`` that was stored (encoded; None: none) when an attempt to store dirty elements of it failed.

    ``nbytes``: taken from the budget.
    """

    __slots__ = ("_mask", "_size", "_spans", "base", "nbytes")

    def __init__(self, base: Buffer | None, nbytes: int) -> None:
        self.base = base
        self.nbytes = nbytes
        self._size = 0
        # A mask of each chunk that is written again from first to last would be as large as all chunks, which may be in files.
        self._spans: Spans | None = None
        self._mask: Mask | None = None

    @property
    def is_rewritten(self) -> bool:
        """True if elements were written since."""
        return self._spans is not None or self._mask is not None

    def rewritten(self) -> Mask | None:
        """Return a mask of the elements written since, in the order of the written file; None if none are."""
        if not self.is_rewritten:
            return None
        mask = self._empty_mask()
        if self._mask is not None:
            mask[...] = self._mask
        if self._spans is not None:
            self._spans.mask(0, self._size, mask)
        return mask

    def wrote(self, size: int, start: int, stop: int, selected: Mask | None = None) -> None:
        """Record a write of elements ``start`` to ``stop`` of ``size``, or of the ``selected`` ones of them."""
        self._size = size
        edges = (0, stop - start) if selected is None else np.flatnonzero(np.diff(selected, prepend=False, append=False)).tolist()
        if self._mask is None and len(edges) <= 2 * _FEW_SPANS:
            if self._spans is None:
                self._spans = Spans()
            for begin, end in zip(edges[::2], edges[1::2], strict=True):
                self._spans.add(start + begin, start + end)
            if len(self._spans) > max(_FEW_SPANS, size // _SPAN_NBYTES):
                self._in_mask()
            return
        self._in_mask()[start:stop] |= True if selected is None else selected

    def _in_mask(self) -> Mask:
        if self._mask is None:
            rewritten = self.rewritten()
            self._mask = rewritten if rewritten is not None else self._empty_mask()
            self._spans = None
        return self._mask

    def _empty_mask(self) -> Mask:
        mask: Mask = spill.array((self._size,), np.dtype(bool))
        mask[...] = False
        return mask

    def is_stored(self, stored: Buffer | None) -> bool:
        """Return True if ``stored`` is still the chunk of then."""
        if stored is None or self.base is None:
            return stored is self.base
        return same_bytes(stored, self.base)

    def failed_again(self, stored: Buffer | None) -> None:
        """Record another failure, at which ``stored`` is the chunk.

        If it is another one, what was written since the first failure stays later than what others have stored."""
        if self.is_stored(stored):
            self._spans = self._mask = None
