"""Data types of the Zarr v3 core draft of 2022, in both of its generations, and of its extensions.

Source: Zarr v3 core draft of 2022, "Core data types", "data_type" (array metadata), extensions datetime, string and struct; stores of
zarr-python 2.13 to 2.16 and GDAL 3.6.

    draft       "int32" "float64" "complex64" "bool" "r24"          the byte order is a codec's
    software    "<i4" ">f8" "i1" "u1" "bool"                        the byte order is the type's
    extensions  {"extension": URI, "type": "<M8[ns]", "fallback": "int64"}
                "<M8[ns]" ">m8[D]" "S4" "|S4" "<U4" "<c8" [["name", "<U4"], ["age", "int32"]] "|O"

Both generations are read in hierarchies of both forms. The ``type`` of a zarr-specs extension is decisive: software wrote several URIs,
none, and some that lead nowhere ("TODO: bytestring array protocol URL"). The ``type`` under any other URI, which may be any JSON value,
is defined by that extension. An unknown type is read as the first known ``fallback``, unless the user chose otherwise
(``v3_2022.fallback=refuse``), and the node reports it.

`Stored` is a NumPy type with the byte order of stored elements; `zarrfs.dialects.v2.types` shares it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from zarrfs.dialects import documents
from zarrfs.dialects.documents import shortened
from zarrfs.dialects.v2.types import Stored, dtype_from_json, dtype_to_json, stored_type
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model.data_type import MAX_ITEMSIZE, DataType

_CORE = {
    "bool": "|b1",
    **{f"int{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{f"complex{bits}": f"<c{bits // 8}" for bits in (64, 128)},
}
_NAME_OF_CORE = {np.dtype(text): name for name, text in _CORE.items()}
# NumPy's names without the byte order, which these may omit.
_ORDERLESS = re.compile(r"[biu]1|S[0-9]+")
# Subset of Zarr v2's names: no types by name, and no times without a unit ("The endianness and units must be given").
_NUMPY = re.compile(r"[<>|][biufcSUVO][0-9]*|[<>][mM]8\[(?!generic\])[^\]]+\]")
_RAW = re.compile(r"r([1-9][0-9]{0,9})")
_MEMBERS = frozenset({"extension", "type", "fallback"})
_MAX_NESTING = 16
# Extensions that are interpreted here, by all their URIs in the draft and in software; empty if there is none.
_URI = re.compile(
    r"(?:https?://(?:purl\.org/zarr/spec|zarr-specs\.readthedocs\.io)/(?:[A-Za-z0-9_.-]+/)*"
    r"(?:datetime|string|struct|complex)(?:-dtypes)?(?:/v?1(?:\.[0-9]+)*(?:\.html)?)?/?|TODO: [a-z]+ array protocol URL)?"
)

# URIs of the extensions in the draft, and those that zarr-python wrote instead.
_TEXT_URI = "https://purl.org/zarr/spec/extensions/data-types/{}/1.0"
_SOFTWARE_URIS = {
    "c": "https://zarr-specs.readthedocs.io/en/core-protocol-v3.0-dev/protocol/extensions/complex-dtypes/v1.0.html",
    "M": "https://zarr-specs.readthedocs.io/en/latest/extensions/data-types/datetime/v1.0.html",
    "m": "https://zarr-specs.readthedocs.io/en/latest/extensions/data-types/datetime/v1.0.html",
    "S": "TODO: bytestring array protocol URL",
    "U": "TODO: unicode array protocol URL",
    "V": "TODO: structured array protocol URL",
    "O": "TODO: object array protocol URL",
}


class _Unknown(Exception):
    """A type that is none of those above: its fallback applies."""


def parse_type(value: Any, *, fallbacks: bool, warnings: list[str]) -> Stored:
    """Return the stored type of the member ``data_type``; `object` for ``|O``, which the caller checks.

    ``fallbacks``: they may be used; ``warnings`` then gets one. Raises `MetadataError` for a value that is not a type,
    `MetadataUnsupported` for an unknown type.
    """
    if not isinstance(value, dict):
        try:
            return _known(value, 0)
        except _Unknown:
            raise MetadataUnsupported(f"data type {shortened(value)}: unknown") from None
    named = documents.member(value, "type")
    text = shortened(named)
    try:
        return _of_extension(value, 0)
    except (_Unknown, MetadataError):
        found = _fallback(value.get("fallback"))
    if not _is_interpreted(value):
        text += f" of extension {shortened(value['extension'])}"
    if found is None:
        raise MetadataUnsupported(f"data type {text}: unknown, without a known fallback")
    name, stored = found
    if not fallbacks:
        raise MetadataUnsupported(f"data type {text}: unknown, and its fallback {shortened(name)} is disabled")
    warnings.append(f"data type {text} is unknown, and read as its fallback {shortened(name)}")
    return stored


def format_type(stored: Stored, *, software: bool) -> Any:
    """Return the member ``data_type`` for a stored type, in one of the forms. Raises `NotRepresentable`."""
    little = stored.newbyteorder("<")
    if little in _NAME_OF_CORE and not (software and stored.kind == "c"):
        return _software_name(stored) if software else _NAME_OF_CORE[little]
    if stored.names is None and stored.kind == "V" and not software:
        return f"r{8 * stored.itemsize}"
    # The software checks the types of fields only when it decodes them, by NumPy.
    for each in (stored,) if software else _of_fields(stored):
        if each.kind in "mM" and np.datetime_data(each)[1] != 1:
            raise NotRepresentable(f"Zarr v3 of 2022 has no multiples of a unit of time: {each}")
    named = _extension_type(stored, software)
    if not _is_named_by(named, stored):
        raise NotRepresentable(f"Zarr v3 of 2022 cannot represent elements of type {stored}")
    return {
        "extension": _SOFTWARE_URIS[stored.kind] if software else _TEXT_URI.format(_extension_of(stored)),
        "type": named,
        "fallback": None if software else "int64" if stored.kind in "mM" else f"r{8 * stored.itemsize}",
    }


def is_in_type(stored: Stored) -> bool:
    """Return True if the draft's name of the type includes its byte order, so that no codec is needed for it."""
    return stored.newbyteorder("<") not in _NAME_OF_CORE


def plain_type(data_type: DataType, *, big_endian: bool) -> Stored:
    """Return the stored type of ``data_type``. Raises `NotRepresentable` for types absent from NumPy."""
    try:
        return stored_type(data_type, big_endian=big_endian)
    except NotRepresentable as error:
        raise NotRepresentable(f"Zarr v3 of 2022 has no data type {data_type.name}") from error


def _is_named_by(named: Any, stored: Stored) -> bool:
    try:
        return _known(named, 0) == stored
    except (_Unknown, MetadataError):
        return False


def _is_interpreted(value: Mapping[str, Any]) -> bool:
    uri = value.get("extension")
    return uri is None or (isinstance(uri, str) and _URI.fullmatch(uri) is not None)


def _of_extension(value: Mapping[str, Any], depth: int) -> Stored:
    """Return the type of an object with the members ``extension`` and ``type``. Raises as `_known`."""
    if not _is_interpreted(value) or (depth and not value.keys() <= _MEMBERS):
        # The caller checks the members of the outermost object; one in a field may change what its type means.
        raise _Unknown
    return _known(documents.member(value, "type"), depth)


def _known(value: Any, depth: int) -> Stored:
    """Return the type of a name. Raises `_Unknown` for an unknown name, `MetadataError` for a value that is not a name."""
    if isinstance(value, list):
        return _structured(value, depth)
    name = documents.string(value, "data type")
    if name in _CORE:
        return np.dtype(_CORE[name])
    raw = _RAW.fullmatch(name)
    if raw is not None:
        bits = int(raw[1])
        if bits % 8:
            raise MetadataError(f"raw type {shortened(name)}: number of bits must be a positive multiple of 8")
        if bits // 8 > MAX_ITEMSIZE:
            raise MetadataUnsupported(f"raw type {shortened(name)}: exceeds the limit of {MAX_ITEMSIZE} bytes")
        return np.dtype(f"|V{bits // 8}")
    ordered = f"|{name}" if _ORDERLESS.fullmatch(name) else name
    if _NUMPY.fullmatch(ordered) is None:
        raise _Unknown
    try:
        return dtype_from_json(ordered)
    except MetadataUnsupported:
        raise
    except MetadataError as error:
        raise _Unknown from error


def _structured(fields: list[Any], depth: int) -> Stored:
    """Return a struct type: names and types, as in NumPy's ``descr``; a type may be of any generation, and a list again."""
    if depth > _MAX_NESTING or not fields:
        raise MetadataError("structured type: no fields, or nested too deeply")
    if len(fields) == 1 and isinstance(fields[0], list) and len(fields[0]) == 2 and fields[0][0] == "":
        # NumPy's description of void, which has no fields.
        return _known(fields[0][1], depth + 1)
    pairs: list[Any] = []
    total = 0
    for item in fields:
        if not isinstance(item, list) or len(item) not in (2, 3):
            raise MetadataError(f"a field must be a name and a type, not {shortened(item)}")
        name = documents.string(item[0], "field name")
        inner = _of_extension(item[1], depth + 1) if isinstance(item[1], dict) else _known(item[1], depth + 1)
        lengths = documents.shape(item[2], "shape of a field") if len(item) == 3 else ()
        nbytes = inner.itemsize
        for length in lengths:
            nbytes *= length
        total += nbytes
        if nbytes == 0 or total > MAX_ITEMSIZE or inner.hasobject:
            raise MetadataUnsupported(f"field {shortened(name)}: variable size, or outside the limit of {MAX_ITEMSIZE} bytes")
        pairs.append((name, inner, lengths) if lengths else (name, inner))
    try:
        for name, *_ in pairs:
            name.encode()
        return np.dtype(pairs)
    except (ValueError, TypeError) as error:
        raise MetadataError(f"structured type: {shortened(str(error))}") from error


def _fallback(value: Any) -> tuple[Any, Stored] | None:
    """Return the first known one of one or several fallbacks."""
    for each in value if isinstance(value, list) else [value]:
        try:
            stored = _of_extension(each, 0) if isinstance(each, dict) else _known(each, 0)
        except (_Unknown, MetadataError):
            continue
        if not stored.hasobject:
            return each["type"] if isinstance(each, dict) else each, stored
    return None


def _software_name(stored: Stored) -> str:
    text = str(stored.str)
    return "bool" if text == "|b1" else text.removeprefix("|")


def _of_fields(stored: Stored) -> Iterator[Stored]:
    """Yield the types without fields in ``stored``."""
    if stored.subdtype is not None:
        yield from _of_fields(stored.subdtype[0])
    elif stored.names is None:
        yield stored
    else:
        for name in stored.names:
            yield from _of_fields(stored[name])


def _extension_of(stored: Stored) -> str:
    return "datetime" if stored.kind in "mM" else "string" if stored.kind in "SU" else "struct"


def _extension_type(stored: Stored, software: bool) -> Any:
    if stored.names is None and stored.kind == "V":
        return [["", str(stored.str)]]
    if stored.kind == "S" and not software:
        return str(stored.str).removeprefix("|")
    return "|O" if stored.hasobject else dtype_to_json(stored)
