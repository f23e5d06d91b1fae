"""Data types and fill values of the protocol draft of 2019.

Source: Zarr core protocol version 3.0, editor's draft of 19 June 2019, sections "Core data types" and "Array metadata"
(``data_type``, ``fill_value``).

    "bool"  "i1"  "<i2"  ">f8"     {"extension": ".../extensions/datetime-dtypes/1.0", "type": "<M8[ns]", "fallback": "<i8"}

Points that the draft leaves open:

* The table has no big-endian unsigned integers, and calls ``u1`` signed. zarrita wrote ``>u2`` to ``>u8``, and ``u1`` is unsigned.
* ``|b1``, ``|i1`` and ``|u1`` are NumPy's spelling of ``bool``, ``i1`` and ``u1``. They are read, and no others of that kind.
* An extension type whose ``type`` is NumPy's name of a time or complex number has that type, whatever its URI: the draft has the URI of
  datetimes only in an example. Any other type is read as its ``fallback``, with a warning; one without a fallback is refused.
* Fill values of floating point types are open in the draft ("TODO"), whose example has ``"NaN"``: "NaN", "Infinity", "-Infinity" and
  "+Infinity" are read, and so are the bare tokens. Complex numbers are ``[re, im]``, times integers or "NaT".
* Booleans may be 0 or 1, and integers ``3.0``, as some programs write NumPy scalars.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from zarrfs.dialects import documents
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model import fill_value as fills
from zarrfs.model.data_type import DataType

DATETIME = "http://purl.org/zarr/spec/protocol/extensions/datetime-dtypes/1.0"
COMPLEX = "http://purl.org/zarr/spec/protocol/extensions/complex-dtypes/1.0"

Stored = np.dtype[Any]

_CORE = re.compile(r"bool|[iu]1|[<>][iu][248]|[<>]f[248]")
_NUMPY_SPELLING = {"|b1": "bool", "|i1": "i1", "|u1": "u1"}
_EXTENDED = re.compile(r"[<>](?:c(?:8|16)|[mM]8(?:\[(?:[1-9][0-9]{0,8})?(?:generic|[YMWDhms]|[munpfa]s)\])?)")
_FLOATS = ("NaN", "Infinity", "-Infinity")


def type_from_json(value: Any, quirks: list[str], warnings: list[str], *, fallbacks: bool) -> Stored:
    """Return the NumPy type of stored elements, including byte order.

    ``fallbacks``: an unknown type may be read as its fallback, which is added to ``warnings``. Raises `MetadataError`,
    `MetadataUnsupported`.
    """
    if isinstance(value, dict):
        return _extension_type(value, quirks, warnings, fallbacks=fallbacks)
    text = documents.string(value, "data_type")
    if text in _NUMPY_SPELLING:
        quirks.append(f"data_type {text!r} is in NumPy's spelling")
        text = _NUMPY_SPELLING[text]
    if _CORE.fullmatch(text) is None:
        raise MetadataUnsupported(f"data_type {documents.shortened(text)} is not in the table of the draft of 2019")
    return np.dtype(text)


def type_to_json(data_type: DataType, *, big_endian: bool) -> str | dict[str, Any]:
    """Return the member ``data_type``. Raises `NotRepresentable` for types in neither the table nor a known extension."""
    dtype = data_type.dtype
    if data_type.name == "bool":
        return "bool"
    text = str((dtype.newbyteorder(">") if big_endian else dtype).str).replace("|", "")
    if _CORE.fullmatch(text) is not None:
        return text
    if dtype.kind in "mM":
        text = text if "[" in text else f"{text}[generic]"
        return {"extension": DATETIME, "type": text, "fallback": f"{text[0]}i8"}
    if dtype.kind == "c":
        return {"extension": COMPLEX, "type": text}
    raise NotRepresentable(f"the draft of Zarr v3 of 2019 has no data type {data_type.name}")


def fill_from_json(data_type: DataType, value: Any, quirks: list[str]) -> bytes | None:
    """Return the fill value, one element in memory; None for null: undefined. Raises `MetadataError`."""
    kind = data_type.dtype.kind
    if value is None:
        return None
    if kind == "b" and not isinstance(value, bool) and isinstance(value, int | float) and value in (0, 1):
        quirks.append(f"fill_value {value!r} of type bool is a number")
        return bytes([int(value)])
    if kind in "iumM" and isinstance(value, float) and value.is_integer():
        quirks.append(f"fill_value {value!r} of an integer type has a fraction")
        value = int(value)
    if kind == "f":
        value = _float(data_type, value)
    if kind == "c":
        parts = value if isinstance(value, list) else [value, 0.0]
        value = [_float(data_type, part) for part in parts]
    return fills.from_json(data_type, value)


def fill_to_json(data_type: DataType, fill_value: bytes | None) -> Any:
    """Return the member ``fill_value``; every NaN is ``"NaN"``."""
    if fill_value is None:
        return None
    value = fills.to_json(data_type, fill_value)
    return [_one_nan(part) for part in value] if isinstance(value, list) else _one_nan(value)


def _extension_type(value: Mapping[str, Any], quirks: list[str], warnings: list[str], *, fallbacks: bool) -> Stored:
    """Return an extension type (section "Array metadata"): extension and type are required, fallback is optional, from the table."""
    uri = documents.string(documents.member(value, "extension"), "extension of data_type")
    name = documents.member(value, "type")
    if isinstance(name, str) and _EXTENDED.fullmatch(name):
        try:
            return np.dtype(name)
        except (ValueError, TypeError, OverflowError) as error:
            raise MetadataError(f"data_type {documents.shortened(name)}: {error}") from error
    fallback = value.get("fallback")
    if fallback is None or not fallbacks:
        raise MetadataUnsupported(f"data_type {documents.shortened(name)} of extension {documents.shortened(uri)}: unknown")
    stored = type_from_json(documents.string(fallback, "fallback of data_type"), quirks, warnings, fallbacks=False)
    warnings.append(
        f"data_type {documents.shortened(name)} of extension {documents.shortened(uri)} is unknown: "
        f"read as its fallback {documents.shortened(fallback)}"
    )
    return stored


def _float(data_type: DataType, value: Any) -> Any:
    """Return a form accepted by `fill_value`: a number, or one of three names. Hexadecimal forms came later."""
    if value == "+Infinity":
        return "Infinity"
    if isinstance(value, str) and value not in _FLOATS:
        raise MetadataError(f"fill_value {documents.shortened(value)} is invalid for type {data_type.name}")
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _one_nan(value: Any) -> Any:
    return "NaN" if isinstance(value, str) and value.startswith("0x") else value
