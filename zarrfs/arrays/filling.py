"""Fill values of missing chunks, and views of parts of chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from zarrfs.buffers import NDArray
from zarrfs.memory import spill
from zarrfs.model.chunk_plan import Selection
from zarrfs.model.metadata import ArrayMetadata
from zarrfs.model.variable_fill import element


def part(elements: NDArray, selection: Selection) -> NDArray:
    """Return a view of ``selection``. The ellipsis keeps the element of a 0-dimensional array a writable array."""
    index: Any = (*selection, ...)
    view: NDArray = elements[index]
    return view


def fill(metadata: ArrayMetadata, out: NDArray) -> None:
    """Set every element of ``out`` to the value that a missing chunk reads as, bit for bit."""
    if out.size == 0:
        return
    if metadata.data_type.is_variable:
        # A 0-dimensional array: NumPy would take a list as a sequence of elements.
        one = np.empty((), object)
        one[()] = element(metadata.data_type, metadata.fill_bytes)
        out[...] = one
        return
    # Through bytes, not through the type: assignment of a NaN may lose its payload, and void types have no scalar assignment.
    pattern = np.frombuffer(metadata.fill_bytes, np.uint8)
    if not pattern.any() and out.flags.c_contiguous:
        # Flat first: a 0-dimensional array has no other view.
        out.reshape(-1).view(np.uint8)[...] = 0
        return
    out[...] = np.frombuffer(metadata.fill_bytes, f"|V{pattern.size}").view(out.dtype)[0]


# Bytes per comparison of elements with the fill value.
_COMPARED_NBYTES = 4 * 1024 * 1024


def is_filled(metadata: ArrayMetadata, elements: NDArray) -> bool:
    """Return True if all ``elements`` equal, bit for bit, what a missing chunk reads as. An undefined fill value equals nothing."""
    if metadata.fill_value is None:
        return False
    if elements.size == 0:
        return True
    pattern = np.frombuffer(metadata.fill_bytes, np.uint8)
    corner = elements[(slice(0, 1),) * elements.ndim]
    if not np.array_equal(np.ascontiguousarray(corner).reshape(-1).view(np.uint8), pattern):
        return False
    rows = spill.contiguous(elements).reshape(-1).view(np.uint8).reshape(-1, pattern.size)
    step = max(1, _COMPARED_NBYTES // pattern.size)
    return all((rows[start : start + step] == pattern).all() for start in range(0, len(rows), step))
