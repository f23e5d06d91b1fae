"""Fill values of types of variable size: conversion between JSON, bytes, and the element itself.

    string                          text        the text in UTF-8           str
    variable_length_bytes, bytes    base64      the bytes themselves        bytes
    object                          any JSON    JSON text, members sorted   any JSON value

Source: zarr-extensions ``data-types/string`` and ``data-types/bytes`` (which also has a list of integers); `OBJECT` is zarrfs' own.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.model.data_type import OBJECT, STRING, DataType


def variable_from_json(data_type: DataType, value: Any) -> bytes:
    """Return the bytes that the JSON ``value`` denotes. Raises `MetadataError` if it is not of the type."""
    try:
        if data_type == OBJECT:
            return element_bytes(data_type, value)
        if data_type == STRING and isinstance(value, str):
            return value.encode()
        if data_type != STRING and isinstance(value, str):
            return base64.b64decode(value, validate=True)
        if data_type != STRING and isinstance(value, list) and all(type(each) is int for each in value):
            return bytes(value)
    except (ValueError, binascii.Error, RecursionError) as error:
        raise _refused(data_type, value) from error
    raise _refused(data_type, value)


def variable_to_json(data_type: DataType, fill_value: bytes) -> Any:
    """Return the JSON form of the fill value with these bytes. Raises `NotRepresentable` for NaN and infinities, absent from JSON."""
    if data_type in (OBJECT, STRING):
        value = element(data_type, fill_value)
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise NotRepresentable(f"fill_value {fill_value[:80]!r} has no JSON form") from error
        return value
    return base64.standard_b64encode(fill_value).decode("ascii")


def element(data_type: DataType, fill_value: bytes) -> Any:
    """Return the element itself: ``str``, ``bytes``, or a JSON value."""
    if data_type == OBJECT:
        return json.loads(fill_value)
    return fill_value.decode() if data_type == STRING else fill_value


def element_bytes(data_type: DataType, value: Any) -> bytes:
    """Return the bytes of an element: the inverse of `element`."""
    if data_type == OBJECT:
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return value.encode() if data_type == STRING else bytes(value)


def empty(data_type: DataType) -> bytes:
    """Return the bytes of an element with an undefined fill value: empty, or null."""
    return b"null" if data_type == OBJECT else b""


def _refused(data_type: DataType, value: Any) -> MetadataError:
    text = repr(value)
    return MetadataError(f"fill_value {text if len(text) < 80 else text[:77] + '...'} is invalid for type {data_type.name}")
