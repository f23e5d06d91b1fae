"""Small buffers in files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zarrfs.memory import spill


@contextmanager
def large_from(nbytes: int, directory: Path) -> Iterator[None]:
    """Place buffers of at least ``nbytes`` bytes in files of ``directory`` during the block. Blocks may be nested."""
    before = spill._directory, spill.large_nbytes()
    spill.configure(str(directory), nbytes)
    try:
        yield
    finally:
        spill.configure(*before)
