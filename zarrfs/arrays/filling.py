"""Fill values of missing chunks, and views of parts of chunks."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from zarrfs.buffers import Buffer, NDArray
from zarrfs.codecs.chain import CodecChain
from zarrfs.codecs.vlen import is_much
from zarrfs.errors import ChunkEncodeError
from zarrfs.memory import spill
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.chunk_plan import Selection
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES, OBJECT
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


def encode_filled(metadata: ArrayMetadata, plain: CodecChain, shape: Shape, value: bytes | None, inside: Selection) -> Buffer:
    """Return the encoding by ``plain`` of a missing chunk of elements of variable size; with ``value`` in the part ``inside``."""
    filled = metadata if value is None else replace(metadata, fill_value=value)
    count, lengths = math.prod(shape), (len(metadata.fill_bytes), len(filled.fill_bytes))
    if is_much(count, count * max(lengths)):
        # A number precedes each of them, or a comma. Else this would be known only after as many bytes as are permitted.
        least = count * (min(lengths) + (1 if metadata.data_type == OBJECT else 4))
        if least > MAX_VARIABLE_NBYTES:
            raise ChunkEncodeError(
                f"{count} fill values of {least} bytes exceed the limit of a chunk of variable length ({MAX_VARIABLE_NBYTES})"
            )
        # Even as references to one object they take 16 bytes each.
        one, other = (element(each.data_type, each.fill_bytes) for each in (metadata, filled))
        if value is None:
            return plain.encode_each(itertools.repeat(one, count), shape)
        is_inside = np.zeros(shape, bool)
        part(is_inside, inside)[...] = True
        return plain.encode_each((other if each else one for each in is_inside.flat), shape)
    elements = np.empty(shape, object)
    fill(metadata, elements)
    fill(filled, part(elements, inside))
    return plain.encode(elements)


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
