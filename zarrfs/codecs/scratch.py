"""Reused buffers: freshly allocated memory is several times slower to write to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from zarrfs.memory import spill

# Number of buffers kept for the life of the process, as many as threads decode concurrently on a small machine.
_KEPT = 3

_free: deque[memoryview] = deque(maxlen=_KEPT)
_one_at_a_time = threading.Lock()


@contextmanager
def scratch(nbytes: int) -> Iterator[memoryview]:
    """Provide ``nbytes`` writable bytes with arbitrary content, valid in the body; bodies may be nested."""
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
    """Run library work that allocates up to ``nbytes`` itself: if that is much, in one thread at a time."""
    if not spill.is_large(nbytes):
        yield
        return
    with _one_at_a_time:
        yield
