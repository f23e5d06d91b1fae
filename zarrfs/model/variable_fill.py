"""Fill values of types without a fixed size: between JSON, bytes, and the element itself.

    string                          text        the text in UTF-8           str
    variable_length_bytes, bytes    base64      the bytes themselves        bytes
    object                          any JSON    JSON text, members sorted   what JSON has

Source: zarr-extensions ``data-types/string`` and ``data-types/bytes`` (which has a list of integers, too); `OBJECT` is zarrfs' own.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.model.data_type import OBJECT, STRING, DataType


def variable_from_json(data_type: DataType, value: Any) -> bytes:
    """The bytes that the JSON ``value`` stands for. Raises `MetadataError` when it is none of the type."""
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
    """The JSON form of the fill value whose bytes these are. Raises `NotRepresentable` for NaN and the infinities, which JSON has not."""
    if data_type in (OBJECT, STRING):
        value = element(data_type, fill_value)
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise NotRepresentable(f"fill_value {fill_value[:80]!r} has no JSON form") from error
        return value
    return base64.standard_b64encode(fill_value).decode("ascii")


def element(data_type: DataType, fill_value: bytes) -> Any:
    """The element itself: ``str``, ``bytes``, or what JSON has."""
    if data_type == OBJECT:
        return json.loads(fill_value)
    return fill_value.decode() if data_type == STRING else fill_value


def element_bytes(data_type: DataType, value: Any) -> bytes:
    """The bytes of an element: the inverse of `element`."""
    if data_type == OBJECT:
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return value.encode() if data_type == STRING else bytes(value)


def empty(data_type: DataType) -> bytes:
    """The bytes of what elements are where the fill value is undefined: empty, or null."""
    return b"null" if data_type == OBJECT else b""


def _refused(data_type: DataType, value: Any) -> MetadataError:
    text = repr(value)
    return MetadataError(f"fill_value {text if len(text) < 80 else text[:77] + '...'} is none of type {data_type.name}")
