"""Fill values of v0 and v1: bare JSON scalars.

Source: v0 and v1, ``fill_value`` ("a scalar value"), without further detail; zarr 0.4 to 1.1 pass the scalar to NumPy's
``ndarray.fill``, and write the given value with Python's ``json``. Differences to v2:

    NaN  Infinity  -Infinity   bare tokens, not strings (the strings of v2 are read as well)
    "abc"                      a fixed-length string as text, ASCII, not base64; a longer text is cut, as by NumPy
    0                          of a string type the text "0"; of a structured type each field set to 0; of a complex one 0+0j;
                               of raw bytes zeros
    null                       undefined

Values without such a scalar (other complex values, other elements with fields) raise `NotRepresentable`, and so do raw bytes: zeros of
them are read, and not written, since NumPy 2 fills no raw bytes with a number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from zarrfs.dialects.documents import shortened
from zarrfs.dialects.v2 import types
from zarrfs.dialects.v2.intended_fill import filled
from zarrfs.dialects.v2.types import Stored
from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.model import fill_value as fills
from zarrfs.model.data_type import from_numpy, is_small, little_endian


def fill_from_json(stored: Stored, value: Any) -> bytes | None:
    """Return the fill value, one element in memory order (little-endian); None for null. Raises `MetadataError`."""
    if value is None:
        return None
    match stored.kind:
        case "S" | "U":
            return _string(stored, value)
        case "V" if not is_small(stored):
            return _fields(stored, value)
    return types.fill_from_json(stored, value)


def fill_to_json(stored: Stored, fill_value: bytes | None) -> Any:
    """Return the member ``fill_value``; the payload of a NaN is lost. Raises `NotRepresentable`."""
    if fill_value is None:
        return None
    value = _scalar(stored, fill_value)
    try:
        says_it = fill_from_json(stored, value) == fill_value or value != value
    except MetadataError:
        says_it = False
    if not says_it:
        raise NotRepresentable(
            f"fill value {fill_value[:16].hex()} of type {from_numpy(stored).name}: no JSON scalar represents it"
        )
    return value


def _scalar(stored: Stored, fill_value: bytes) -> Any:
    data_type = from_numpy(stored)
    match stored.kind:
        case "S":
            return fill_value.rstrip(b"\0").decode("ascii", "replace")
        case "V" if not is_small(stored):
            if not _is_filled_by_numpy(stored):
                raise NotRepresentable(
                    f"raw bytes of type {data_type.name}: NumPy 2, with which readers fill arrays, takes no number for them"
                )
            return 0
        case "f":
            return float(np.frombuffer(fill_value, data_type.dtype)[0])
        case "c":
            number = np.frombuffer(fill_value, data_type.dtype)[0]
            if number.imag != 0 or np.signbit(number.imag):
                raise NotRepresentable(f"fill value {number}: no JSON scalar represents it before Zarr v2")
            return float(number.real)
    return fills.to_json(data_type, fill_value)


def _string(stored: Stored, value: Any) -> bytes:
    if type(value) in (int, float):
        value = str(value)
    if not isinstance(value, str) or (stored.kind == "S" and not value.isascii()):
        raise _refused(stored, value)
    if stored.kind == "S":
        return value.encode("ascii")[: stored.itemsize].ljust(stored.itemsize, b"\0")
    return fills.from_json(from_numpy(stored), value[: stored.itemsize // 4])


def _fields(stored: Stored, value: Any) -> bytes:
    element = filled(stored, value) if type(value) in (int, float) else None
    if element is None:
        raise _refused(stored, value)
    return np.frombuffer(element, stored).astype(little_endian(stored)).tobytes()


def _is_filled_by_numpy(stored: Stored) -> bool:
    try:
        np.zeros((), stored).fill(0)
    except TypeError:
        return False
    return True


def _refused(stored: Stored, value: Any) -> MetadataError:
    return MetadataError(f"fill_value {shortened(value)} is invalid for type {from_numpy(stored).name}")
