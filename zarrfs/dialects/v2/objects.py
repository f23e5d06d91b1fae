"""Object arrays of Zarr v2: dtype ``|O``, and a first filter that determines the objects and their encoding.

Source: numcodecs (``vlen``, ``json2``, ``msgpack2``, ``categorize``, ``pickle``); zarr-python's "Object arrays". The v2 specification
does not mention them.

    "dtype": "|O", "filters": [{"id": "vlen-utf8"}]          text                   fill_value ""  (0 from older software)
                              [{"id": "vlen-bytes"}]         byte strings                      ""  base64
                              [{"id": "categorize", ...}]    text, as small integers
                              [{"id": "json2", ...}]         JSON values                       any JSON
                              [{"id": "msgpack2", ...}]      the same
                              [{"id": "vlen-array", ...}]    lists of numbers

``pickle`` is refused: reading a pickle runs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from zarrfs.codecs import lookup
from zarrfs.dialects import documents
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model import fill_value as fills
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import OBJECT, STRING, VARIABLE_LENGTH_BYTES, DataType

_CATEGORIZE = "numcodecs.categorize"
_TYPES = (STRING, VARIABLE_LENGTH_BYTES, OBJECT)


def object_type(filters: Sequence[Any]) -> DataType:
    """Return the element type of an object array with these ``filters`` (configurations). Raises `MetadataUnsupported`."""
    first = filters[0].get("id") if filters and isinstance(filters[0], dict) else None
    if first == "pickle":
        raise MetadataUnsupported("filter 'pickle' refused: unpickling runs code from the store")
    try:
        found = _type_held_by(lookup.from_numcodecs(filters[0])) if isinstance(first, str) else None
    except MetadataUnsupported:
        found = None
    if found is None:
        raise MetadataUnsupported(f"filter {documents.shortened(first)}: no known encoding of variable-length elements")
    return found


def _type_held_by(spec: CodecSpec) -> DataType | None:
    """Return the element type of a codec (`Codec.holds`); None if it is of a fixed size. Raises `MetadataUnsupported`."""
    holds = lookup.class_of(spec).holds or ()
    return next((data_type for data_type in _TYPES if data_type.name in holds), None)


def object_codecs(listed: Iterable[CodecSpec]) -> tuple[CodecSpec, ...]:
    """Return the chain for the filters and the compressor: labels are converted to integers before these to bytes."""
    first, *rest = listed
    return (first, _bytes_behind(first), *rest) if first.name == _CATEGORIZE else (first, *rest)


def object_filters(specs: Sequence[CodecSpec], data_type: DataType) -> tuple[CodecSpec, ...]:
    """Return the filters and the compressor for a chain: the inverse of `object_codecs`. Raises `NotRepresentable`."""
    if not specs:
        raise NotRepresentable(f"Zarr v2 needs a filter for elements of type {data_type.name}")
    first, *rest = specs
    if first.name == _CATEGORIZE:
        if not rest or rest[0] != _bytes_behind(first):
            raise NotRepresentable("Zarr v2 can represent categories only in the form of its own filter")
        rest = rest[1:]
    elif (found := _type_held_by(first)) is None or (found == STRING) != (data_type == STRING):
        raise NotRepresentable(f"Zarr v2 cannot store elements of type {data_type.name} with codec {first.name!r}")
    return (first, *rest)


def _bytes_behind(categorize: CodecSpec) -> CodecSpec:
    """Return the codec `bytes` for the integers of the filter, in the byte order of its configuration."""
    astype = categorize.configuration.get("astype", "|u1")
    order = str(astype)[:1]
    return CodecSpec("bytes", {"endian": "big" if order == ">" else "little"} if order in "<>" else {})


def object_fill_from_json(data_type: DataType, value: Any) -> bytes | None:
    """Return the fill value; None for null. 0, the default of older software, is an empty text, or no bytes.

    Raises `MetadataError`.
    """
    if value is None:
        return None
    if data_type.name != OBJECT.name and type(value) in (int, float) and value == 0:
        return b""
    if data_type.name == VARIABLE_LENGTH_BYTES.name and not isinstance(value, str):
        raise MetadataError(f"fill_value {documents.shortened(value)}: for type {data_type.name} it must be a base64 string")
    return fills.from_json(data_type, value)


def object_fill_to_json(data_type: DataType, fill_value: bytes | None) -> Any:
    """Return the member ``fill_value``."""
    return None if fill_value is None else fills.to_json(data_type, fill_value)
