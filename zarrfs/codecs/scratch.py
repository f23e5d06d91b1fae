"""A buffer of each thread that is used again and again: memory that was just allocated is several times slower to write to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from zarrfs.codecs.base import Array

# Kept until the thread ends. Chunks are rarely larger, and then decoding takes so long that fresh memory does not matter.
KEPT_NBYTES = 64 * 1024 * 1024

_local = threading.local()


@contextmanager
def scratch(nbytes: int) -> Iterator[memoryview]:
    """``nbytes`` writable bytes with arbitrary content, valid inside the block; blocks may be nested."""
    buffer: Array | None = getattr(_local, "buffer", None)
    _local.buffer = None
    if buffer is None or buffer.nbytes < nbytes:
        buffer = np.empty(nbytes, np.uint8)
    try:
        yield buffer.data[:nbytes]
    finally:
        if buffer.nbytes <= KEPT_NBYTES:
            _local.buffer = buffer
