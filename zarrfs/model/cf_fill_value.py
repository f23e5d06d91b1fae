"""The CF attribute ``_FillValue`` of arrays in final Zarr v3: conversion between its JSON forms and one element.

Source: CF conventions 2.5.1; the forms are those that xarray writes into v3 attributes (`FillValueCoder`), and plain numbers, which other
software writes. In v3 the member ``fill_value`` is what missing chunks read as; elements that equal ``_FillValue`` are missing data.

    float      base64 of the little-endian float64 · a number · "NaN", "Infinity", "-Infinity"
    complex    a list of two of these                      integer    a number            bool       true, false, 0, 1
    text       a string                                    bytes      base64, padded with zeros where elements have a fixed size

Other types (dates, structures, raw bytes, small floats) have no ``_FillValue`` here.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from zarrfs.errors import MetadataError
from zarrfs.model import fill_value as fills
from zarrfs.model.data_type import STRING, VARIABLE_LENGTH_BYTES, DataType, is_small
from zarrfs.model.unparsed import Unparsed
from zarrfs.model.variable_fill import variable_from_json, variable_to_json

NAME = "_FillValue"
MISSING_VALUE = "missing_value"
"""The older attribute of CF 2.5.1 with the meaning of ``_FillValue``."""

_NETCDF_DEFAULTS = {
    "i1": -127,
    "u1": 255,
    "i2": -32767,
    "u2": 65535,
    "i4": -2147483647,
    "u4": 4294967295,
    "i8": -9223372036854775806,
    "u8": 18446744073709551614,
    "f4": 9.9692099683868690e36,
    "f8": 9.9692099683868690e36,
}
"""``NC_FILL_BYTE`` and the others in netcdf.h, by type."""

_KINDS = frozenset("biufcSU")
_MAX_TEXT_NBYTES = 1 << 20


def has_form(data_type: DataType) -> bool:
    """True if elements of this type can be named by ``_FillValue``."""
    # The usual types first: comparing types takes longer.
    return _is_usual(data_type.dtype) or data_type in (STRING, VARIABLE_LENGTH_BYTES)


@lru_cache(64)
def _is_usual(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in _KINDS and not is_small(dtype)


def is_read_back(data_type: DataType) -> bool:
    """True if xarray reads the form that it writes: it opens no store with the attribute on text or byte strings."""
    return has_form(data_type) and data_type.dtype.kind in "biufc"


def is_number(data_type: DataType) -> bool:
    """True if a plain JSON number is the form that netCDF programs read."""
    return data_type.dtype.kind in "iuf"


def is_nan(data_type: DataType, element: bytes) -> bool:
    """True if the element is NaN, or complex with a part that is."""
    return data_type.dtype.kind in "fc" and bool(np.isnan(np.frombuffer(element, data_type.dtype)[0]))


def are_equal(data_type: DataType, one: bytes | None, other: bytes | None) -> bool:
    """True for equal bytes, and for two NaNs: only v3 documents distinguish NaNs."""
    if one == other:
        return True
    return one is not None and other is not None and is_nan(data_type, one) and is_nan(data_type, other)


def with_plain_nan(data_type: DataType, element: bytes) -> bytes:
    """Return the element with each NaN, also of a complex number's parts, as the one that documents name "NaN"."""
    dtype = data_type.dtype
    if dtype.kind not in "fc":
        return element
    parts = np.frombuffer(element, np.dtype(f"<f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype)
    return np.where(np.isnan(parts), np.array(np.nan, parts.dtype), parts).tobytes()


def without_nan(data_type: DataType, attributes: Mapping[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``attributes`` without a ``_FillValue`` and a ``missing_value`` of NaN as a number, unless ``stored`` has the same.

    JSON has no such number, and in arrays of floating point NaN is missing data without these attributes (CF 2.5.1; netCDF files of
    xarray have one or both). Those of other types stay: they mark nothing there.
    """
    dropped = {
        name
        for name in (NAME, MISSING_VALUE)
        if is_plain_nan(data_type, attributes.get(name)) and not is_plain_nan(data_type, stored.get(name))
    }
    return {name: value for name, value in attributes.items() if name not in dropped}


def is_plain_nan(data_type: DataType, value: Any) -> bool:
    """True for NaN as a number, of which documents have the bare token, as attribute of an array of floating point."""
    return data_type.dtype.kind == "f" and isinstance(value, float) and math.isnan(value)


def is_netcdf_default(data_type: DataType, element: bytes) -> bool:
    """True if netCDF-C gives this fill value to a variable for which the program states none.

    netCDF-C 4.9 writes it to ``.zarray`` also where the variable has another ``_FillValue``, and floats with six digits.
    """
    default = _NETCDF_DEFAULTS.get(data_type.dtype.str[1:])
    if default is None:
        return False
    number = plain(data_type, element)
    return math.isclose(number, default, rel_tol=1e-6) if data_type.dtype.kind == "f" else number == default


def decode(data_type: DataType, value: Any) -> bytes | None:
    """Return the element that the attribute ``value`` names; None if the type cannot hold it."""
    if isinstance(value, Unparsed):
        if len(value.data) > _MAX_TEXT_NBYTES:
            return None
        value = json.loads(value.data)
    if not has_form(data_type):
        return None
    try:
        return _decoded(data_type, value)
    except (MetadataError, binascii.Error, struct.error, ValueError, OverflowError):
        return None


def encode(data_type: DataType, element: bytes) -> Any:
    """Return the form that xarray reads. `decode` gives the element back, except for the payload of a NaN."""
    dtype = data_type.dtype
    if data_type.is_variable:
        return variable_to_json(data_type, element)
    match dtype.kind:
        case "f":
            return _float_to_base64(np.frombuffer(element, dtype)[0])
        case "c":
            number = np.frombuffer(element, dtype)[0]
            return [_float_to_base64(number.real), _float_to_base64(number.imag)]
        case "S":
            return base64.standard_b64encode(element.rstrip(b"\0")).decode("ascii")
    return fills.to_json(data_type, element)


def plain(data_type: DataType, element: bytes) -> int | float:
    """Return a finite element of an integer or floating-point type as a JSON number."""
    number: int | float = np.frombuffer(element, data_type.dtype)[0].item()
    return number


def from_v2(data_type: DataType, value: Any) -> Any:
    """Return the v3 form of the attribute ``value`` of a Zarr v2 array whose ``fill_value`` is null; None if v2 readers find no element.

    The type is one that `is_read_back`. Readers of v2 compare elements with JSON numbers (and with bare ``NaN`` and ``Infinity``, as in
    old documents); xarray fails on anything else in v3.
    """
    is_plain = type(value) in (int, float)
    match data_type.dtype.kind:
        case "f" if value == "NaN" or (is_plain and _is_double(value)):
            return _float_to_base64(float(value))
        case "c" if is_plain and _is_double(value):
            return [_float_to_base64(value), _float_to_base64(0.0)]
        case "i" | "u" if is_plain and _is_whole(value):
            return int(value)
        case "b" if type(value) in (bool, int) and value in (0, 1):
            return bool(value)
    return None


def to_v2(data_type: DataType, value: Any) -> Any:
    """Return the v2 form of the v3 attribute ``value``, for an array whose ``fill_value`` is null; None if it has no such form.

    A number that the type cannot hold is kept.
    """
    match data_type.dtype.kind:
        case "f":
            number = value
            if isinstance(value, str):
                try:
                    (number,) = struct.unpack("<d", base64.b64decode(value, validate=True))
                except (binascii.Error, struct.error, ValueError):
                    return None
            return number if type(number) in (int, float) and _is_double(number) and math.isfinite(number) else None
        case "c" if (element := decode(data_type, value)) is not None:
            both = np.frombuffer(element, data_type.dtype)[0]
            return float(both.real) if both.imag == 0 and np.isfinite(both.real) else None
        case "i" | "u" if type(value) in (int, float) and _is_whole(value):
            return int(value)
        case "b" if (element := decode(data_type, value)) is not None:
            return bool(element[0])
        case "U" | "T" | "O" if data_type.dtype.kind == "U" or data_type == STRING:
            return value if decode(data_type, value) is not None else None
    return None


def _is_double(number: float) -> bool:
    try:
        float(number)
    except OverflowError:
        return False
    return True


def _is_whole(number: float) -> bool:
    return isinstance(number, int) or number.is_integer()


def _decoded(data_type: DataType, value: Any) -> bytes:
    dtype = data_type.dtype
    if data_type.is_variable:
        return variable_from_json(data_type, value)
    match dtype.kind:
        case "f":
            return _float(dtype, value, data_type)
        case "c":
            real, imaginary = value if isinstance(value, list) and len(value) == 2 else (value, 0)
            part = np.dtype(f"<f{dtype.itemsize // 2}")
            return _float(part, real, data_type) + _float(part, imaginary, data_type)
        case "i" | "u" if isinstance(value, float) and value.is_integer():
            return fills.from_json(data_type, int(value))
        case "b" if type(value) is int and value in (0, 1):
            return bytes([value])
    return fills.from_json(data_type, value)


def _float(dtype: np.dtype[Any], value: Any, data_type: DataType) -> bytes:
    if isinstance(value, str) and value not in ("NaN", "Infinity", "-Infinity"):
        (value,) = struct.unpack("<d", base64.b64decode(value, validate=True))
    if isinstance(value, float) and not np.isfinite(value):
        return np.array(value).astype(dtype).tobytes()
    element = fills.float_from_json(dtype, value, data_type)
    if isinstance(value, int | float) and np.isinf(np.frombuffer(element, dtype)[0]):
        raise MetadataError(f"{value} is out of range of {data_type.name}")
    return element


def _float_to_base64(number: Any) -> str:
    return base64.standard_b64encode(struct.pack("<d", float(number))).decode("ascii")
