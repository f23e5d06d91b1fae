"""Padding beyond the edge of an array, for chunks whose codecs decode an element from its predecessor (`numcodecs.delta`).

The overhang of an edge chunk holds the fill value. After the end of a row, a fill value of NaN or 9.97e36 spoils the following rows of
the encoded chunk: differences to it lose digits, overflow, or do not fit their type. In such a chunk each element of the overhang repeats
its predecessor, in the order of the codec: all differences are zero, and the elements inside decode as if the overhang did not exist.
(zarr-python pads with the fill value, and loses these elements.) Elsewhere a fill value is better: after zeros, a row begins exactly.
"""

from __future__ import annotations

import numpy as np

from zarrfs.buffers import Buffer, NDArray
from zarrfs.codecs.chain import CodecChain
from zarrfs.memory import spill
from zarrfs.model.chunk_plan import Selection

_NOTHING = (0.0, 0)
# Elements compared at once: a chunk may have as many as the memory holds.
_PORTION = 1 << 16


def encode_padded(chain: CodecChain, elements: NDArray, inside: Selection) -> Buffer:
    """Encode ``elements``, a chunk whose part ``inside`` is within the array and whose rest holds the fill value.

    The rest repeats elements instead if the others then decode with a smaller error. Modifies ``elements``. Runs in a thread.
    """
    encoded = chain.encode(elements)
    lost = _lost(chain.decode(encoded, elements.shape)[inside], elements[inside])
    if lost == _NOTHING:
        return encoded
    repeat(chain, elements, inside)
    repeated = chain.encode(elements)
    return repeated if _lost(chain.decode(repeated, elements.shape)[inside], elements[inside]) < lost else encoded


def repeat(chain: CodecChain, elements: NDArray, inside: Selection) -> None:
    """Set each element outside ``inside`` to its predecessor in the element order of ``chain``."""
    order = chain.order(elements.ndim)
    ordered, box = elements.transpose(order), [inside[axis] for axis in order]
    for axis, (part, length) in enumerate(zip(box, ordered.shape, strict=True)):
        if part.stop < length:
            last = tuple(slice(each.stop - 1, each.stop) for each in box[axis:])
            ordered[(*box[:axis], slice(part.stop, None))] = ordered[(*box[:axis], *last)]


def is_padding(chain: CodecChain, elements: NDArray, filled: NDArray, inside: Selection) -> bool:
    """Return True if the elements outside ``inside`` are as `encode_padded` sets them. ``filled``: a chunk of fill values, modified."""
    filled[inside] = elements[inside]
    if _same(filled, elements):
        return True
    repeat(chain, filled, inside)
    return _same(filled, elements)


def _lost(decoded: NDArray, elements: NDArray) -> tuple[float, int]:
    """Return the largest error of a decoded element, and the number of elements that differ."""
    if elements.dtype.kind not in "iufc":
        return _NOTHING if _same(decoded, elements) else (np.inf, elements.size)
    one, other = (spill.contiguous(each).reshape(-1) for each in (decoded, elements))
    if _same(one, other):
        return _NOTHING
    largest, count = 0.0, 0
    wide = np.complex128 if elements.dtype.kind == "c" else np.float64
    for start in range(0, one.size, _PORTION):
        a, b = one[start : start + _PORTION], other[start : start + _PORTION]
        differ = (a != b) & ((a == a) | (b == b))
        with np.errstate(all="ignore"):
            errors = np.abs(a[differ].astype(wide) - b[differ].astype(wide))
        largest = max(largest, float(np.nan_to_num(errors, nan=np.inf, posinf=np.inf).max(initial=0)))
        count += errors.size
    return largest, count


def _same(one: NDArray, other: NDArray) -> bool:
    """Return True if elements are equal bit for bit; objects by Python comparison."""
    if one.dtype.hasobject:
        return bool(one.tolist() == other.tolist())
    a, b = (spill.contiguous(each).reshape(-1).view(np.uint8) for each in (one, other))
    return bool(np.array_equal(a, b))
