"""Fill values that are not in the form that the specification has for the data type of the array.

"0"      of a number (bioformats2raw, n5-zarr)            the number; "1.5" of a floating-point type, too
0        of |S and <U (zarr-python)                       its digits: zarr-python 2 reads the text "0"
0        of fields and |V (the default of 2.0 and 2.1)    each field filled with the number, as NumPy does
"n/a"    of |S (2.0 and 2.1)                              the text, if it is not base64
"abcd"   of <U3 (2.0 to 2.18)                             as much of the text as fits
"2000-01-01" of <M8[D] (zarr-python 3.0)                  the date, as NumPy prints it in the unit of the type
"""

from __future__ import annotations

import math
import re
from base64 import b64decode, standard_b64encode
from typing import Any

import numpy as np

from zarrfs.dialects.documents import shortened
from zarrfs.dialects.quirks import Quirks
from zarrfs.dialects.v2.types import Stored
from zarrfs.errors import MetadataError
from zarrfs.model import fill_value as fills
from zarrfs.model.data_type import from_numpy, is_small

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
_DATE = re.compile(r"-?[0-9]{3,19}(?:-[0-9]{2}){0,2}(?:T[0-9]{2}(?::[0-9]{2}){0,2}(?:\.[0-9]{1,18})?)?")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]{0,308})(?:\.[0-9]{1,340})?(?:[eE][+-]?[0-9]{1,3})?")


def intended_fill(stored: Stored, value: Any, quirks: Quirks) -> Any:
    """Return the fill value meant by ``value``, in the JSON type for ``stored``; ``value`` itself if it has it, or is invalid."""
    kind = stored.kind
    if kind in "iuf" and isinstance(value, str) and (_DECIMAL if kind == "f" else _INTEGER).fullmatch(value):
        quirks.accept("fill_value", f"fill_value {shortened(value)} of a number is a string")
        return float(value) if kind == "f" else int(value)
    if kind in "SU" and type(value) in (int, float):
        quirks.accept("fill_value", f"fill_value {shortened(value)} of a string is a number")
        # As NumPy converts it: a bare NaN is "nan".
        digits = str(value)
        return _base64(digits.encode("ascii")) if kind == "S" else digits
    if kind == "S" and isinstance(value, str) and len(value) <= stored.itemsize and value.isascii() and not _may_be_base64(value):
        quirks.accept("fill_value", f"fill_value {shortened(value)} of a byte string is text, not base64")
        return _base64(value.encode("ascii"))
    if (text := cut_to_fit(stored, value)) is not None:
        quirks.accept("fill_value", f"fill_value {shortened(value)} is longer than {len(text)} characters")
        return text
    if kind == "M" and isinstance(value, str) and (number := _date(stored, value)) is not None:
        quirks.accept("fill_value", f"fill_value {shortened(value)} of a date is text, not a number")
        return number
    # The small types of ml_dtypes, which NumPy considers void, have a number as their fill value.
    if kind == "V" and not is_small(stored) and type(value) in (int, float) and (element := filled(stored, value)) is not None:
        quirks.accept("fill_value", f"fill_value {shortened(value)} of a structured or raw type is a number")
        return _base64(element)
    return value


def cut_to_fit(stored: Stored, value: Any) -> str | None:
    """Return as much as fits of a text that is longer than its ``<U`` type, as zarr-python writes and reads it; None for all else."""
    length = stored.itemsize // 4
    return value[:length] if stored.kind == "U" and isinstance(value, str) and len(value) > length else None


def filled(stored: Stored, number: float) -> bytes | None:
    """Return one element of a structured or raw type, as stored, with every field filled with ``number``; None if one cannot hold it.

    Only zero fills raw bytes: NumPy 2 refuses all numbers, and older versions took the number's bytes in memory.
    """
    if stored.names is None:
        return bytes(stored.itemsize) if number == 0 else None
    assert stored.fields is not None
    element = bytearray(stored.itemsize)
    for name in stored.names:
        inner, offset = stored.fields[name][:2]
        base, shape = inner.subdtype or (inner, ())
        if is_small(base):
            part = _filled_small(base, number)
        else:
            part = filled(base, number) if base.kind == "V" else _filled_plainly(base, number)
        if part is None:
            return None
        element[offset : offset + inner.itemsize] = part * math.prod(shape)
    return bytes(element)


def _filled_plainly(stored: Stored, number: float) -> bytes | None:
    # `numpy.zeros` makes times without a unit little-endian.
    element = np.frombuffer(bytearray(stored.itemsize), stored)
    try:
        if stored.kind in "iu" and not np.iinfo(stored).min <= int(number) <= np.iinfo(stored).max:
            # NumPy 1 wraps it, with a warning only.
            return None
        element.fill(number)
    except (ValueError, TypeError, OverflowError):
        return None
    return element.tobytes()


def _filled_small(stored: Stored, number: float) -> bytes | None:
    try:
        return fills.from_json(from_numpy(stored), number)
    except MetadataError:
        return None


def _date(stored: Stored, text: str) -> int | None:
    """Return the number of units that NumPy prints as ``text``; None if there is none."""
    if not _DATE.fullmatch(text):
        return None
    try:
        date = np.array(text, stored)
    except (ValueError, TypeError, OverflowError):
        return None
    # A type without a unit takes that of the text, in which no element of the array is.
    is_stored = np.datetime_data(date.dtype) == np.datetime_data(stored)
    return int(date.astype("<i8")) if is_stored and str(date) == text else None


def _base64(element: bytes) -> str:
    return standard_b64encode(element).decode("ascii")


def _may_be_base64(text: str) -> bool:
    """Return True also if some readers, which skip other characters, find base64 in ``text``."""
    try:
        b64decode(text)
    except ValueError:
        return False
    return True
