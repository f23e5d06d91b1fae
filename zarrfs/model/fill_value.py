"""Fill values: conversion between their JSON forms and the bytes of one element.

Inside zarrfs a fill value is the bytes of one element, little-endian, so that equality is bit for bit and the payload of a NaN survives;
None is an undefined fill value (v1 and v2: null). This module has the forms of the final v3 (section "Fill value", and zarr-extensions
for the types beyond its core); other dialects use those that they share.

    bool true/false · integers: numbers without fraction · floats: number, "NaN", "Infinity", "-Infinity", "0x7fc00001"
    complex: [re, im] · r<N>: list of bytes · raw_bytes, null_terminated_bytes, structured: base64 · utf32: string · struct: object
    datetime64, timedelta64: integer or "NaT" · string: text · variable_length_bytes: base64, or a list of bytes

For a type of variable size the bytes are those of the text in UTF-8, those of the element, or the JSON text of an object.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.model.data_type import DataType, from_numpy
from zarrfs.model.variable_fill import empty, variable_from_json, variable_to_json

# Hexadecimal digits that are also valid base64; such text means bytes in the types that have no base64 form of their own.
_HEX = re.compile(r"0x(?:[0-9a-fA-F]{2})+")
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
NAT = -(2**63)
_DATE_WITHOUT_UNIT = np.dtype("<M8")


def from_json(data_type: DataType, value: Any) -> bytes:
    """Return the element that the final v3's JSON ``value`` denotes. Raises `MetadataError` if it is not of the type."""
    dtype = data_type.dtype
    if data_type.is_variable:
        return variable_from_json(data_type, value)
    if data_type.name == "bool":
        if not isinstance(value, bool):
            raise _refused(data_type, value)
        return bytes([value])
    if data_type.name.startswith("complex"):
        if not isinstance(value, list) or len(value) != 2:
            raise _refused(data_type, value)
        part = np.dtype(f"<f{dtype.itemsize // 2}")
        return b"".join(float_from_json(part, each, data_type) for each in value)
    if _is_float(dtype):
        return float_from_json(dtype, value, data_type)
    if _is_integer(dtype):
        return integer_from_json(dtype, value, data_type)
    if dtype.kind in "Mm":
        number = NAT if value == "NaT" else value
        return integer_from_json(np.dtype("<i8"), number, data_type)
    if dtype.kind == "U":
        return utf32_from_json(data_type, value)
    if dtype.names is not None and isinstance(value, Mapping):
        return _fields_from_json(data_type, value)
    if dtype.kind == "V" and isinstance(value, list):
        if not all(type(each) is int and 0 <= each < 256 for each in value) or len(value) != dtype.itemsize:
            raise _refused(data_type, value)
        return bytes(value)
    if (_is_raw(data_type) or data_type.name == "struct") and isinstance(value, str) and _HEX.fullmatch(value):
        raise _refused(data_type, value)
    return base64_from_json(data_type, value)


def to_json(data_type: DataType, fill_value: bytes) -> Any:
    """Return the final v3's JSON form of the element ``fill_value``; ``from_json`` inverts it bit for bit.

    Raises `NotRepresentable` for a fixed-length string that is not Unicode, and for array fields of a `struct`.
    """
    dtype = data_type.dtype
    if data_type.is_variable:
        return variable_to_json(data_type, fill_value)
    if data_type.name == "bool":
        return bool(fill_value[0])
    if data_type.name.startswith("complex"):
        half = len(fill_value) // 2
        part = np.dtype(f"<f{half}")
        return [float_to_json(part, fill_value[:half]), float_to_json(part, fill_value[half:])]
    if _is_float(dtype):
        return float_to_json(dtype, fill_value)
    if _is_integer(dtype):
        return int(np.frombuffer(fill_value, dtype)[0])
    if dtype.kind in "Mm":
        number = int.from_bytes(fill_value, "little", signed=True)
        # zarr-python cannot read the integer as a date without a unit, since NumPy cannot.
        return "NaT" if number == NAT and dtype == _DATE_WITHOUT_UNIT else number
    if dtype.kind == "U":
        return utf32_to_json(fill_value)
    if _is_raw(data_type):
        return list(fill_value)
    if data_type.name == "struct":
        return _fields_to_json(dtype, fill_value)
    if dtype.kind == "S":
        # Without the padding, as zarr-python writes it.
        fill_value = fill_value.rstrip(b"\0")
    return base64.standard_b64encode(fill_value).decode("ascii")


def undefined(data_type: DataType) -> bytes:
    """Return one element of a missing chunk with an undefined fill value: zeros, an empty element, or NaT for times.

    zarr-python 3 reads the same. Zero would be a time that was never measured: midnight of 1 January 1970.
    """
    if data_type.is_variable:
        return empty(data_type)
    return NAT.to_bytes(8, "little", signed=True) if data_type.dtype.kind in "mM" else bytes(data_type.itemsize)


def default(data_type: DataType) -> bytes:
    """Return one element of a missing chunk of a new array without a stated fill value: zeros, or an empty element.

    NaT for dates without a unit: no program can read a number as one.
    """
    return undefined(data_type) if data_type.dtype == _DATE_WITHOUT_UNIT or data_type.is_variable else bytes(data_type.itemsize)


def float_from_json(dtype: np.dtype[Any], value: Any, data_type: DataType) -> bytes:
    """Return a floating-point element from a number, one of the three names, or its bit pattern in exactly its hexadecimal width."""
    if isinstance(value, str):
        if value.startswith("0x"):
            return _bits_from_hex(dtype, value, data_type)
        if value not in _SPECIAL:
            raise _refused(data_type, value)
        value = _SPECIAL[value]
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(data_type, value)
    try:
        number = float(value)
    except OverflowError as error:
        raise _refused(data_type, value) from error
    with np.errstate(over="ignore", invalid="ignore"):
        element = np.array(number).astype(dtype)
    if _is_special(number) or np.isnan(element):
        # The small types lack infinity, NaN or both, and NumPy silently substitutes other values.
        kept = float(element)
        if not (kept == number or (kept != kept and number != number)):
            raise _refused(data_type, value)
    return element.tobytes()


def float_to_json(dtype: np.dtype[Any], fill_value: bytes) -> Any:
    """Return the shortest form that `float_from_json` converts back to the same bits."""
    number = float(np.frombuffer(fill_value, dtype)[0])
    if _is_special(number):
        name = "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
        with np.errstate(over="ignore", invalid="ignore"):
            plain = np.array(_SPECIAL[name]).astype(dtype).tobytes()
        return name if plain == fill_value else "0x" + fill_value[::-1].hex()
    return number


def integer_from_json(dtype: np.dtype[Any], value: Any, data_type: DataType) -> bytes:
    """Return an integer element from a JSON number without fraction, in range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise _refused(data_type, value)
    return _packed_integer(dtype, value, data_type)


def base64_from_json(data_type: DataType, value: Any) -> bytes:
    """Return an element from the base64 of its bytes; only null-terminated bytes may be shorter, and are padded with zeros."""
    if not isinstance(value, str):
        raise _refused(data_type, value)
    try:
        raw = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _refused(data_type, value) from error
    size = data_type.itemsize
    if len(raw) > size or (len(raw) < size and data_type.dtype.kind != "S"):
        raise _refused(data_type, value)
    return raw.ljust(size, b"\0")


def utf32_from_json(data_type: DataType, value: Any) -> bytes:
    """Return a fixed-length string element: the text, padded with NUL."""
    if not isinstance(value, str) or len(value) * 4 > data_type.itemsize:
        raise _refused(data_type, value)
    try:
        return value.encode("utf-32-le").ljust(data_type.itemsize, b"\0")
    except UnicodeEncodeError as error:
        raise _refused(data_type, value) from error


def utf32_to_json(fill_value: bytes) -> str:
    """Return the text of a fixed-length string element, without its padding. Raises `NotRepresentable` if it is not Unicode."""
    try:
        return fill_value.decode("utf-32-le").rstrip("\0")
    except UnicodeDecodeError as error:
        raise NotRepresentable(f"fill value: not a Unicode string: {error.reason}") from error


def _fields_from_json(data_type: DataType, value: Mapping[str, Any]) -> bytes:
    dtype = data_type.dtype
    assert dtype.names is not None and dtype.fields is not None
    if set(value) != set(dtype.names):
        raise _refused(data_type, value)
    element = bytearray(dtype.itemsize)
    for name in dtype.names:
        inner, offset = dtype.fields[name][:2]
        if inner.subdtype is not None:
            raise _refused(data_type, value)
        element[offset : offset + inner.itemsize] = from_json(from_numpy(inner), value[name])
    return bytes(element)


def _fields_to_json(dtype: np.dtype[Any], element: bytes) -> dict[str, Any]:
    """Return the form of `struct`; `structured`, its older name, uses base64."""
    assert dtype.names is not None and dtype.fields is not None
    members = {}
    for name in dtype.names:
        inner, offset = dtype.fields[name][:2]
        if inner.subdtype is not None:
            raise NotRepresentable(f"fill value: field {name!r} is an array, for which there is no form")
        part = element[offset : offset + inner.itemsize]
        members[name] = _fields_to_json(inner, part) if inner.names is not None else to_json(from_numpy(inner), part)
    return members


def _packed_integer(dtype: np.dtype[Any], value: int, data_type: DataType) -> bytes:
    if dtype.kind in "iu":
        try:
            return value.to_bytes(dtype.itemsize, "little", signed=dtype.kind == "i")
        except OverflowError as error:
            raise _refused(data_type, value) from error
    # ml_dtypes' int2 to uint4: a byte each in memory; NumPy would wrap silently.
    bits = int(data_type.name.removeprefix("u").removeprefix("int"))
    low, high = (0, 2**bits) if data_type.name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    if not low <= value < high:
        raise _refused(data_type, value)
    return np.array(value).astype(dtype).tobytes()


def _bits_from_hex(dtype: np.dtype[Any], value: str, data_type: DataType) -> bytes:
    digits = value[2:]
    if len(digits) != 2 * dtype.itemsize or not re.fullmatch("[0-9a-fA-F]+", digits):
        raise _refused(data_type, value)
    return bytes.fromhex(digits)[::-1]


def _is_raw(data_type: DataType) -> bool:
    return data_type.name.startswith("r") and data_type.name[1:].isdecimal()


def _is_special(number: float) -> bool:
    return number != number or number in (float("inf"), float("-inf"))


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu" or (dtype.kind == "V" and "int" in dtype.name)


def _refused(data_type: DataType, value: Any) -> MetadataError:
    text = repr(value)
    return MetadataError(f"fill_value {text if len(text) < 80 else text[:77] + '...'} is invalid for type {data_type.name}")
