"""Buffers that are used again and again: memory that was just allocated is several times slower to write to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from zarrfs.memory import spill

# So many are kept, as many as threads decode at once on a small machine, for as long as the process lasts.
_KEPT = 3

_free: deque[memoryview] = deque(maxlen=_KEPT)
_one_at_a_time = threading.Lock()


@contextmanager
def scratch(nbytes: int) -> Iterator[memoryview]:
    """``nbytes`` writable bytes with arbitrary content, valid inside the block; blocks may be nested."""
    try:
        buffer = _free.pop()
    except IndexError:
        buffer = memoryview(bytearray())
    if buffer.nbytes < nbytes:
        buffer = spill.buffer(nbytes)
    try:
        yield buffer[:nbytes]
    finally:
        if not spill.is_large(buffer.nbytes):
            _free.append(buffer)


@contextmanager
def alone(nbytes: int) -> Iterator[None]:
    """Around work of a library that takes up to ``nbytes`` of memory by itself: where that is much, one thread at a time."""
    if not spill.is_large(nbytes):
        yield
        return
    with _one_at_a_time:
        yield
