"""The memory that Python allocates."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(nbytes: int) -> Iterator[None]:
    """Fail if more than ``nbytes`` are allocated at once in the body."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < nbytes
    finally:
        tracemalloc.stop()
