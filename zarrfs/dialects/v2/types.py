"""Data types and fill values of Zarr v2.

Source: v2 "Data type encoding" and "Fill value encoding"; NumPy "The array interface protocol" (typestr, descr).

    "<f8"  "|b1"  "|S12"  "<M8[ns]"  [["x", "<f4"], ["z", ">f4", [2, 2]], ["bar", [["baz", "<i2"]]]]

A v2 type includes the byte order of stored bytes. Here a NumPy type carries both ("stored"); in the model a `DataType` is always
little-endian and the byte order belongs to the codec `bytes`.

Accepted deviations of real stores: an integer fill written as ``3.0`` (z5py), a floating-point fill as ``3``, bare ``NaN`` tokens, ``0``
and ``1`` for booleans, ``[re, im]`` for complex, ``"NaT"`` beside integers; ``<M8`` and ``<m8`` without a unit, which zarr-python writes;
``"bfloat16"``, ``"float8_e5m2"``, ``"int4"`` and similar names, which tensorstore writes, little-endian (read only, not used for new
arrays, as no other software reads them). The specification has one NaN: the payload of another is lost when a fill value is written. Fill
values of another JSON type: `zarrfs.dialects.v2.intended_fill`.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np

from zarrfs.dialects import documents
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model import fill_value as fills
from zarrfs.model.data_type import (
    MAX_FIELDS,
    MAX_ITEMSIZE,
    DataType,
    from_numpy,
    is_small,
    little_endian,
    require_plain,
    small_type,
)

Stored = np.dtype[Any]

_SIMPLE = re.compile(r"([<>|])([biufcSUVO])(0|[1-9][0-9]{0,9})?")
_TIME = re.compile(r"([<>])([mM])8(?:\[([1-9][0-9]{0,8})?(generic|[YMWDhms]|[munpfa]s|μs)\])?")
_WIDTHS = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
# The small type whose fill value tensorstore writes, and reads, in base64.
_IN_BASE64 = "float4_e2m1fn"
_NAMES_OF_FLOATS = ("NaN", "Infinity", "-Infinity")


def dtype_from_json(value: Any) -> Stored:
    """Return the stored type of the member ``dtype``; ``|O`` is NumPy's object type, whose filter the caller checks.

    Raises `MetadataError` for a value that is not a v2 type, `MetadataUnsupported` for one that is too large or unknown.
    """
    if isinstance(value, list):
        return _structured(value)
    if isinstance(value, str) and (small := small_type(value)) is not None:
        return small
    match = _SIMPLE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return _time(value)
    order, kind, digits = match.groups()
    if kind == "O":
        return np.dtype(object)
    size = int(digits or 0)
    if kind in _WIDTHS and size not in _WIDTHS[kind]:
        # `<f16` is x86's 80-bit float with padding: unreadable on other machines.
        error = MetadataUnsupported if (kind, size) in (("f", 16), ("c", 32)) else MetadataError
        raise error(f"dtype {documents.shortened(value)}: no such type in Zarr v2")
    if size == 0:
        raise MetadataError(f"dtype {documents.shortened(value)}: an element must have at least one byte")
    if order == "|" and ((kind in _WIDTHS and size > 1) or kind == "U"):
        raise MetadataError(f"dtype {documents.shortened(value)}: the byte order must be '<' or '>' (v2, 'Data type encoding')")
    if size * (4 if kind == "U" else 1) > MAX_ITEMSIZE:
        raise MetadataUnsupported(f"dtype {documents.shortened(value)}: element size exceeds the limit of {MAX_ITEMSIZE} bytes")
    return np.dtype(f"{order}{kind}{size}")


def dtype_to_json(stored: Stored) -> str | list[Any]:
    """Return the member ``dtype`` for a stored type. Raises `NotRepresentable` for NumPy-only layouts (padding, overlaps)."""
    if stored.names is None:
        text = str(stored.str)
        return f"{text}[generic]" if stored.kind in "mM" and "[" not in text else text
    assert stored.fields is not None
    descr: list[Any] = []
    for name in stored.names:
        inner = stored.fields[name][0]
        base, shape = inner.subdtype or (inner, ())
        descr.append([name, dtype_to_json(base), list(shape)] if shape else [name, dtype_to_json(base)])
    if dtype_from_json(descr) != stored:
        raise NotRepresentable(f"Zarr v2 cannot represent the memory layout of {stored}")
    return descr


def stored_type(data_type: DataType, *, big_endian: bool) -> Stored:
    """Return the v2 stored type of ``data_type``. Raises `NotRepresentable` for types absent from NumPy, and so from v2."""
    require_plain(data_type, "Zarr v2 without an object codec")
    if data_type.npy_dtype != data_type.dtype:
        raise NotRepresentable(f"Zarr v2 has no data type {data_type.name}")
    stored: Stored = data_type.dtype.newbyteorder(">") if big_endian else data_type.dtype
    return stored


def byte_orders(stored: Stored) -> set[str]:
    """Return the byte orders in a stored type: ``<`` and ``>``, both, one or none."""
    if stored.names is not None:
        assert stored.fields is not None
        return set().union(*(byte_orders(stored.fields[name][0]) for name in stored.names))
    base = stored.subdtype[0] if stored.subdtype else stored
    if base.names is not None:
        return byte_orders(base)
    if base.itemsize == 1:
        # NumPy reports a byte order also for small types of other packages.
        return set()
    return {base.str[0]} - {"|"}


def fill_from_json(stored: Stored, value: Any) -> bytes | None:
    """Return the fill value, one element in memory order (little-endian); None for null. Raises `MetadataError` for another type."""
    if value is None:
        return None
    data_type = from_numpy(stored)
    if is_small(stored):
        if isinstance(value, str) and value not in _NAMES_OF_FLOATS:
            # As in `_IN_BASE64`, and as zarrfs itself wrote others.
            return fills.base64_from_json(data_type, value)
        is_whole = isinstance(value, float) and value.is_integer() and data_type.name.startswith(("int", "uint"))
        return fills.from_json(data_type, int(value) if is_whole else value)
    match stored.kind:
        case "b" if not isinstance(value, bool) and isinstance(value, int | float) and value in (0, 1):
            return bytes([int(value)])
        case "i" | "u" | "m" | "M" if isinstance(value, float) and value.is_integer():
            return fills.from_json(data_type, int(value))
        case "f":
            return fills.from_json(data_type, _float(data_type, value))
        case "c" if isinstance(value, list):
            return fills.from_json(data_type, [_float(data_type, part) for part in value])
        case "c":
            return fills.from_json(data_type, [_float(data_type, value), 0.0])
        case "V" if not isinstance(value, str):
            raise MetadataError(f"fill_value {documents.shortened(value)}: for type {data_type.name} it must be a base64 string")
        case "V":
            return _reordered(fills.base64_from_json(data_type, value), stored, little_endian(stored))
    return fills.from_json(data_type, value)


def fill_to_json(stored: Stored, fill_value: bytes | None) -> Any:
    """Return the member ``fill_value``; every NaN is ``"NaN"``."""
    if fill_value is None:
        return None
    data_type = from_numpy(stored)
    if is_small(stored) and data_type.name != _IN_BASE64:
        # tensorstore refuses an array with any other form.
        return _one_nan(fills.to_json(data_type, fill_value))
    match stored.kind:
        case "f" | "c":
            value = fills.to_json(data_type, fill_value)
            return [_one_nan(part) for part in value] if isinstance(value, list) else _one_nan(value)
        case "S":
            return base64.standard_b64encode(fill_value.rstrip(b"\0")).decode("ascii")
        case "V":
            return base64.standard_b64encode(_reordered(fill_value, little_endian(stored), stored)).decode("ascii")
    return fills.to_json(data_type, fill_value)


def _structured(fields: list[Any]) -> Stored:
    if not fields:
        raise MetadataError("dtype: a structured type must have at least one field")
    if len(fields) > MAX_FIELDS:
        raise MetadataUnsupported(f"dtype: {len(fields)} fields exceed the limit of {MAX_FIELDS}")
    pairs: list[Any] = []
    for item in fields:
        if not isinstance(item, list) or len(item) not in (2, 3):
            raise MetadataError(f"dtype: a field must be [name, type] or [name, type, shape], not {documents.shortened(item)}")
        name = _field_name(item[0])
        inner = dtype_from_json(item[1])
        shape = documents.shape(item[2], f"shape of field {name!r}") if len(item) == 3 else ()
        nbytes = inner.itemsize
        for extent in shape:
            nbytes *= extent
        if not 0 < nbytes <= MAX_ITEMSIZE:
            raise MetadataError(f"dtype: field {name!r} has {nbytes} bytes, outside the range 1 to {MAX_ITEMSIZE}")
        pairs.append((name, inner, shape) if shape else (name, inner))
    try:
        dtype = np.dtype(pairs)
    except (ValueError, TypeError) as error:
        raise MetadataError(f"dtype: {error}") from error
    if dtype.itemsize > MAX_ITEMSIZE:
        raise MetadataUnsupported(f"dtype: element size of {dtype.itemsize} bytes exceeds the limit of {MAX_ITEMSIZE}")
    return dtype


def _field_name(value: Any) -> str:
    name = documents.string(value, "field name")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise MetadataError(f"field name is not Unicode text: {documents.shortened(value)}") from error
    return name


def _time(value: Any) -> Stored:
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise MetadataError(
            f"dtype {documents.shortened(value)}: not byte order, kind and size as in '<f8', nor '<M8[ns]', nor a list of fields"
        )
    order, kind, count, unit = match.groups()
    try:
        if unit is None:
            return np.dtype(f"{order}{kind}8")
        return np.dtype(f"{order}{kind}8[{count or ''}{'us' if unit == 'μs' else unit}]")
    except (ValueError, TypeError, OverflowError) as error:
        raise MetadataError(f"dtype {documents.shortened(value)}: {error}") from error


def _float(data_type: DataType, value: Any) -> Any:
    """Return ``value`` if it is a v2 float: not the hexadecimal form, which only v3 has."""
    if isinstance(value, str) and value not in _NAMES_OF_FLOATS:
        raise MetadataError(f"fill_value {documents.shortened(value)} is invalid for type {data_type.name}")
    return value


def _one_nan(value: Any) -> Any:
    return "NaN" if isinstance(value, str) and value.startswith("0x") else value


def _reordered(element: bytes, before: Stored, after: Stored) -> bytes:
    """Return the same element of a structured type with its numbers in the byte order of ``after``."""
    if before == after:
        return element
    return np.frombuffer(element, before).astype(after).tobytes()
