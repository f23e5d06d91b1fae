"""Types of bytes, their sizes, and elements in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

Buffer = bytes | bytearray | memoryview
NDArray = np.ndarray[Any, np.dtype[Any]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
"""A selection of elements or bytes: True for those selected."""

_PIECE_NBYTES = 4 << 20
_BLOCK = 4096  # bytes: the usual block of a file system


class HoledSize(int):
    """The size in bytes of a value with holes. ``allocated``: the bytes of storage in use, fewer than the size."""

    allocated: int

    def __new__(cls, size: int, allocated: int) -> HoledSize:
        self = super().__new__(cls, size)
        self.allocated = allocated
        return self


def same_bytes(one: Buffer, other: Buffer) -> bool:
    """Return True if both have the same bytes. Compares in pieces: the result for each byte takes as much memory as the bytes."""
    if len(one) != len(other):
        return False
    a, b = np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)
    return all(np.array_equal(a[at : at + _PIECE_NBYTES], b[at : at + _PIECE_NBYTES]) for at in range(0, a.size, _PIECE_NBYTES))


def size_with_holes(size: int, allocated: int) -> int:
    """Return ``size``; as a `HoledSize` if fewer bytes of storage are in use. One block counts as used whatever a file system says.

    ext4 reports no blocks for a moment while it writes a new file to the disk, and `tar -S` takes a file without blocks for zeros.
    """
    allocated = max(allocated, _BLOCK)
    return size if allocated >= size else HoledSize(size, allocated)


def storage_nbytes(size: int) -> int:
    """Return the bytes of storage that a value of this size takes."""
    return size.allocated if isinstance(size, HoledSize) else size
