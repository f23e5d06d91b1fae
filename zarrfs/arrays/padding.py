"""Elements beyond the edge of an array, in chunks whose codecs decode an element from the one before it (`numcodecs.delta`).

The overhang of an edge chunk holds the fill value. Behind the end of a row, a fill value of NaN or 9.97e36 spoils the rows that follow in
the encoded chunk: the differences to it lose their digits, overflow, or do not fit into their type. There each element of the overhang
repeats the one before it, in the order of the codec: all differences are zero, and the elements inside decode as they would in a chunk of
their own. (zarr-python pads with the fill value, and loses these elements.)
"""

from __future__ import annotations

import numpy as np

from zarrfs.codecs.base import Array as Elements
from zarrfs.codecs.base import Buffer
from zarrfs.codecs.chain import CodecChain
from zarrfs.memory import spill
from zarrfs.model.chunk_plan import Selection


def encode_padded(chain: CodecChain, elements: Elements, inside: Selection) -> Buffer:
    """Encode ``elements``, a chunk of which the part ``inside`` lies within the array and the rest holds the fill value.

    The rest repeats elements instead where that changes what the others decode to. ``elements`` is changed. In a thread.
    """
    encoded = chain.encode(elements)
    decoded = chain.decode(encoded, elements.shape)
    if _same(decoded[inside], elements[inside]):
        return encoded
    repeat(chain, elements, inside)
    repeated = chain.encode(elements)
    return encoded if _same(chain.decode(repeated, elements.shape)[inside], decoded[inside]) else repeated


def repeat(chain: CodecChain, elements: Elements, inside: Selection) -> None:
    """Set each element outside of ``inside`` to the one before it, in the order in which ``chain`` goes through elements."""
    order = chain.order(elements.ndim)
    ordered, box = elements.transpose(order), [inside[axis] for axis in order]
    for axis, (part, length) in enumerate(zip(box, ordered.shape, strict=True)):
        if part.stop < length:
            last = tuple(slice(each.stop - 1, each.stop) for each in box[axis:])
            ordered[(*box[:axis], slice(part.stop, None))] = ordered[(*box[:axis], *last)]


def is_padding(chain: CodecChain, elements: Elements, filled: Elements, inside: Selection) -> bool:
    """Whether the elements outside of ``inside`` are as `encode_padded` sets them; ``filled``, changed, is a chunk of fill values."""
    filled[inside] = elements[inside]
    if _same(filled, elements):
        return True
    repeat(chain, filled, inside)
    return _same(filled, elements)


def _same(one: Elements, other: Elements) -> bool:
    """Whether elements are equal bit for bit; objects as Python compares them."""
    if one.dtype.hasobject:
        return bool(one.tolist() == other.tolist())
    a, b = (spill.contiguous(each).reshape(-1).view(np.uint8) for each in (one, other))
    return bool(np.array_equal(a, b))
