"""Validation of bool elements in chunks: a byte 0 or 1, and nothing else (v2 and v3, "Data types").

NumPy takes any other byte as true in one operation and as a number in the next. Such a byte is therefore refused at a write, reported
by ``zarrfs check``, and returned unchanged at a read: neither value is invented.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zarrfs.buffers import Mask, NDArray


def has_booleans(dtype: np.dtype[Any]) -> bool:
    """Return True if elements of ``dtype`` are bool, or have bool fields."""
    if dtype.fields is not None:
        return any(has_booleans(field[0]) for field in dtype.fields.values())
    return dtype.base.kind == "b" if dtype.base.fields is None else has_booleans(dtype.base)


def invalid_boolean(elements: NDArray, mask: Mask | None = None) -> str | None:
    """Return the defect of the elements (those of ``mask``, of the same shape); None if each is a byte 0 or 1. Runs in a thread."""
    if not has_booleans(elements.dtype):
        return None
    if elements.dtype.names is not None:
        parts = (elements[name] for name in elements.dtype.names)
        return next((why for part in parts if (why := invalid_boolean(part, mask)) is not None), None)
    other = elements.view(np.uint8) > 1
    if mask is not None:
        # A field may be an array of booleans.
        other = other & mask.reshape(mask.shape + (1,) * (other.ndim - mask.ndim))
    if not other.any():
        return None
    return f"invalid boolean: byte {int(elements.view(np.uint8)[other][0])} instead of 0 or 1"
