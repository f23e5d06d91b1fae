"""Fill values of the Zarr v3 core draft of 2022.

Source: Zarr v3 core draft of 2022, "fill_value" (array metadata); stores of zarr-python 2.13 to 2.16.

    booleans true, false · integers 7, "0xfffe", "0b10100101" · floats 0.5, "NaN", "+Infinity", "-Infinity", "0x7fc00001"
    complex [3.0, "NaN"] · raw "0x010203" · datetime 5 · strings "ab" · software: "Infinity", base64 for |S and struct, null

* Hexadecimal and binary digits have exactly the width of the type: a number for booleans and integers (two's complement), the bit pattern
  for floats (the payload of a NaN is kept), real then imaginary part for complex, bytes from left to right for all others.
* An integer has no fraction and no exponent, and is in range.
* Digits of another width are refused, also if they are valid base64 of a raw or structured element.
* The draft does not define the fill values of its extensions. The software wrote base64 for its ``|S4``; the draft's ``S4`` has its fill
  value as text. 0 means zeros in a struct, and "0" in ``|S4``, as the software reads it.
* null means undefined. The draft does not permit it, the software wrote it.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np

from zarrfs.dialects.documents import shortened
from zarrfs.dialects.v2.types import Stored
from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.model import fill_value as fills
from zarrfs.model.data_type import DataType, from_numpy, little_endian

_HEX = re.compile(r"0x((?:[0-9a-fA-F]{2})+)")
_BINARY = re.compile(r"0b((?:[01]{8})+)")
_DIGITS = ("0x", "0b")


def parse_fill(value: Any, stored: Stored, *, as_text: bool) -> bytes | None:
    """Return one element, little-endian, of elements stored as ``stored``; None for null.

    ``as_text``: a byte string has its fill value as text, else as base64. Raises `MetadataError` for an invalid value.
    """
    if value is None:
        return None
    data_type = from_numpy(stored)
    if isinstance(value, str) and value.startswith(_DIGITS) and stored.kind != "U":
        digits = _digits(value)
        if len(digits) == stored.itemsize:
            return _from_digits(digits, stored, data_type, value)
        if stored.kind not in "SV" or (digits and not (as_text and stored.kind == "S")):
            # Too few digits, or too many. They might also be base64, which is always shorter than the digits of all bytes.
            raise _refused(data_type, value)
    match stored.kind:
        case "f":
            return fills.from_json(data_type, _special(value))
        case "c":
            parts = value if isinstance(value, list) and len(value) == 2 else [value, 0.0]
            part = np.dtype(f"<f{stored.itemsize // 2}")
            return b"".join(_part(part, each, data_type) for each in parts)
        case "S" if as_text:
            return _from_text(data_type, value)
        case "S" if type(value) is int and value == 0:
            return b"0".ljust(stored.itemsize, b"\0")
        case "V" if type(value) is int and value == 0:
            return bytes(stored.itemsize)
        case "V":
            return _reordered(fills.base64_from_json(data_type, value), stored, little_endian(stored))
    return fills.from_json(data_type, value)


def format_fill(fill_value: bytes | None, stored: Stored, *, software: bool) -> Any:
    """Return the member ``fill_value`` in one of the forms. The software has one NaN, and null; the draft has neither limit nor null.

    Raises `NotRepresentable` for an element whose base64 would be read as digits.
    """
    if fill_value is None:
        if software:
            return None
        fill_value = fills.undefined(from_numpy(stored))
    data_type = from_numpy(stored)
    match stored.kind:
        case "f":
            return _float(fills.to_json(data_type, fill_value), software)
        case "c":
            return [_float(part, software) for part in fills.to_json(data_type, fill_value)]
        case "S" if software:
            return _base64(fill_value.rstrip(b"\0"), data_type)
        case "S":
            return "0x" + fill_value.hex() if fill_value.strip(b"\0") else ""
        case "V" if software:
            return _base64(_reordered(fill_value, little_endian(stored), stored), data_type)
        case "V":
            return "0x" + _reordered(fill_value, little_endian(stored), stored).hex()
        case "m" | "M":
            # An integer, also for a date without a unit: an element of the fallback int64.
            return int.from_bytes(fill_value, "little", signed=True)
    return fills.to_json(data_type, fill_value)


def _base64(element: bytes, data_type: DataType) -> str:
    text = base64.standard_b64encode(element).decode("ascii")
    if _digits(text):
        raise NotRepresentable(f"fill value {element.hex()} of type {data_type.name}: its base64 would be read as digits")
    return text


def _special(value: Any) -> Any:
    return "Infinity" if value == "+Infinity" else value


def _float(value: Any, software: bool) -> Any:
    if software and isinstance(value, str) and value.startswith("0x"):
        return "NaN"
    return "+Infinity" if value == "Infinity" and not software else value


def _part(part: Stored, value: Any, data_type: DataType) -> bytes:
    if isinstance(value, str) and value.startswith(_DIGITS):
        digits = _digits(value)
        if len(digits) != part.itemsize:
            raise _refused(data_type, value)
        return digits[::-1]
    return fills.float_from_json(part, _special(value), data_type)


def _from_digits(digits: bytes, stored: Stored, data_type: DataType, value: str) -> bytes:
    match stored.kind:
        case "b" if digits not in (b"\0", b"\1"):
            raise _refused(data_type, value)
        case "b" | "i" | "u" | "f" | "m" | "M":
            return digits[::-1]
        case "c":
            half = len(digits) // 2
            return digits[:half][::-1] + digits[half:][::-1]
    return _reordered(digits, stored, little_endian(stored))


def _digits(value: str) -> bytes:
    """Return the bytes of digits, from left to right; empty if they are not digits of whole bytes."""
    if (match := _HEX.fullmatch(value)) is not None:
        return bytes.fromhex(match[1])
    if (match := _BINARY.fullmatch(value)) is not None:
        return int(match[1], 2).to_bytes(len(match[1]) // 8, "big")
    return b""


def _from_text(data_type: DataType, value: Any) -> bytes:
    if type(value) is int and value == 0:
        return bytes(data_type.itemsize)
    try:
        text = value.encode("utf-8") if isinstance(value, str) else None
    except UnicodeEncodeError:
        text = None
    if text is None or len(text) > data_type.itemsize:
        raise _refused(data_type, value)
    return bytes(text.ljust(data_type.itemsize, b"\0"))


def _reordered(element: bytes, before: Stored, after: Stored) -> bytes:
    """Return the same element with its numbers in the byte order of ``after``."""
    return element if before == after else np.frombuffer(element, before).astype(after).tobytes()


def _refused(data_type: DataType, value: Any) -> MetadataError:
    return MetadataError(f"fill_value {shortened(value)} is invalid for type {data_type.name}")
