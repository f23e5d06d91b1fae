"""Object arrays of Zarr v2: dtype ``|O``, and a first filter that says what the objects are and how they become bytes.

Source: numcodecs (``vlen``, ``json2``, ``msgpack2``, ``categorize``, ``pickle``); zarr-python's "Object arrays". The text of v2 has no
word of them.

    "dtype": "|O", "filters": [{"id": "vlen-utf8"}]          text                   fill_value ""  (0 from older software)
                              [{"id": "vlen-bytes"}]         byte strings                      ""  base64
                              [{"id": "categorize", ...}]    text, as small integers
                              [{"id": "json2", ...}]         what JSON has                     any JSON
                              [{"id": "msgpack2", ...}]      the same
                              [{"id": "vlen-array", ...}]    lists of numbers

``pickle`` is refused: to read a pickle is to run it.
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
    """The type of elements of an array of objects with these ``filters`` (the configurations). Raises `MetadataUnsupported`."""
    first = filters[0].get("id") if filters and isinstance(filters[0], dict) else None
    if first == "pickle":
        raise MetadataUnsupported("filter 'pickle' is refused: unpickling runs code that the store brings along")
    try:
        found = _type_held_by(lookup.from_numcodecs(filters[0])) if isinstance(first, str) else None
    except MetadataUnsupported:
        found = None
    if found is None:
        raise MetadataUnsupported(f"filter {documents.shortened(first)} does not tell how variable-length elements are stored")
    return found


def _type_held_by(spec: CodecSpec) -> DataType | None:
    """The type of the elements that a codec takes (`Codec.holds`); None where they are of a fixed size. Raises `MetadataUnsupported`."""
    holds = lookup.class_of(spec).holds or ()
    return next((data_type for data_type in _TYPES if data_type.name in holds), None)


def object_codecs(listed: Iterable[CodecSpec]) -> tuple[CodecSpec, ...]:
    """The chain for the filters and the compressor: labels become integers before these become bytes."""
    first, *rest = listed
    return (first, _bytes_behind(first), *rest) if first.name == _CATEGORIZE else (first, *rest)


def object_filters(specs: Sequence[CodecSpec], data_type: DataType) -> tuple[CodecSpec, ...]:
    """The filters and the compressor for a chain: the inverse of `object_codecs`. Raises `NotRepresentable`."""
    if not specs:
        raise NotRepresentable(f"Zarr v2 stores elements of type {data_type.name} by a filter")
    first, *rest = specs
    if first.name == _CATEGORIZE:
        if not rest or rest[0] != _bytes_behind(first):
            raise NotRepresentable("Zarr v2 stores categories as its filter makes them")
        rest = rest[1:]
    elif (found := _type_held_by(first)) is None or (found == STRING) != (data_type == STRING):
        raise NotRepresentable(f"Zarr v2 does not store elements of type {data_type.name} by codec {first.name!r}")
    return (first, *rest)


def _bytes_behind(categorize: CodecSpec) -> CodecSpec:
    """The codec `bytes` for the integers that the filter makes, in the byte order that it says."""
    astype = categorize.configuration.get("astype", "|u1")
    order = str(astype)[:1]
    return CodecSpec("bytes", {"endian": "big" if order == ">" else "little"} if order in "<>" else {})


def object_fill_from_json(data_type: DataType, value: Any) -> bytes | None:
    """The fill value; None for null. 0, the default of software that knew no better, is an empty text, or no bytes.

    Raises `MetadataError`.
    """
    if value is None:
        return None
    if data_type.name != OBJECT.name and type(value) in (int, float) and value == 0:
        return b""
    if data_type.name == VARIABLE_LENGTH_BYTES.name and not isinstance(value, str):
        raise MetadataError(f"fill_value {documents.shortened(value)}: of type {data_type.name} it is a base64 string")
    return fills.from_json(data_type, value)


def object_fill_to_json(data_type: DataType, fill_value: bytes | None) -> Any:
    """The member ``fill_value``."""
    return None if fill_value is None else fills.to_json(data_type, fill_value)
