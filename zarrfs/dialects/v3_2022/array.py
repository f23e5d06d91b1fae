"""The array document of the Zarr v3 core draft of 2022: conversion between its JSON and `ArrayMetadata`.

Source: Zarr v3 core draft of 2022, "Array metadata", "Regular grids", "Chunk memory layouts"; stores of zarr-python 2.13 to 2.16,
GDAL 3.6 and zarrita 2020.

    {"shape": [10, 7], "data_type": "float64", "chunk_grid": {"type": "regular", "chunk_shape": [4, 3], "separator": "/"},
     "chunk_memory_layout": "C", "codecs": [...], "fill_value": "NaN", "extensions": [], "attributes": {}}            the draft
    {"shape": [10, 7], "data_type": "<f8", "compressor": {...}, ...}                                                  the software

The type of objects (``|O``, only in the software's form) follows from the first of the filters hidden in the attributes, as in Zarr v2:
`zarrfs.dialects.v2.objects`.

Accepted deviations of software: `dimension_separator` of zarr-python, in the grid or beside it, is the separator of the grid, and must
equal it. Required members that are missing, but cannot change the elements (separator, extensions, attributes), get the default of the
draft. Both are listed in the node's ``quirks``. Any other unknown member is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects import documents
from zarrfs.dialects.documents import shortened
from zarrfs.dialects.drafts import check_extensions
from zarrfs.dialects.memory_order import order_codecs, split_order
from zarrfs.dialects.quirks import Quirks
from zarrfs.dialects.v2.array import bytes_codec, stored_by
from zarrfs.dialects.v2.intended_fill import cut_to_fit
from zarrfs.dialects.v2.objects import object_codecs, object_fill_from_json, object_fill_to_json, object_filters, object_type
from zarrfs.dialects.v2.types import Stored
from zarrfs.dialects.v3_2022.codecs import (
    FILTERS,
    are_same_filters,
    format_codecs,
    hidden_filters,
    looks_like_filters,
    parse_codecs,
)
from zarrfs.dialects.v3_2022.entry_point import EntryPoint
from zarrfs.dialects.v3_2022.fill_values import format_fill, parse_fill
from zarrfs.dialects.v3_2022.transformers import format_transformers, parse_transformers
from zarrfs.dialects.v3_2022.types import format_type, is_in_type, parse_type, plain_type
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model.chunk_grid import RegularGrid, Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType, from_numpy
from zarrfs.model.metadata import ArrayMetadata, check_chunk_nbytes

_MEMBERS = (
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_memory_layout",
    "fill_value",
    "extensions",
    "attributes",
    "codecs",
    "compressor",
    "storage_transformers",
    "dimension_separator",
)
_SEPARATORS = ("/", ".")
SCALARS = ("c", "c0")
"""Names of the chunk of a 0-dimensional array: in the draft, and in zarr-python."""


def chunk_keys(separator: str, *, software: bool) -> ChunkKeyEncoding:
    """Return the chunk key encoding ("Regular grids"): ``c1/23/45``."""
    return ChunkKeyEncoding(prefix="c", separator=separator, scalar=SCALARS[software])


@dataclass(frozen=True, slots=True)
class ParsedArray:
    """The content of an array's document; ``quirks`` and ``warnings`` as in `ArrayNode`."""

    metadata: ArrayMetadata
    quirks: tuple[str, ...]
    warnings: tuple[str, ...]


def parse_array(
    document: Mapping[str, Any], form: EntryPoint, *, fallbacks: bool, chosen: Mapping[str, str] = MappingProxyType({})
) -> ParsedArray:
    """Return the content of an array's ``document``. Raises `MetadataError`, `MetadataUnsupported`.

    ``fallbacks``: an unknown data type may be read as its fallback; ``chosen``: the deviations that are refused.
    """
    quirks = Quirks("v3_2022", chosen)
    quirks += form.check_members(document, _MEMBERS, "array document")
    quirks += check_extensions(_or(document, "extensions", [], quirks), "the array")
    _or(document, "attributes", {}, quirks)
    shape = documents.shape(documents.member(document, "shape"), "shape")
    chunks, separator = _chunk_grid(document, form, quirks)
    grid = RegularGrid.checked(chunks, shape)
    warnings: list[str] = []
    named = documents.member(document, "data_type")
    if isinstance(named, dict):
        quirks += form.check_members(named, ("extension", "type", "fallback"), "data_type")
    stored = parse_type(named, fallbacks=fallbacks, warnings=warnings)
    quirks += warnings
    if stored.hasobject:
        data_type = object_type(hidden_filters(document, form) or [])
    endian, codecs = parse_codecs(document, form, quirks)
    if not stored.hasobject:
        stored = stored if endian is None else stored.newbyteorder(">" if endian == "big" else "<")
        data_type = from_numpy(stored)
    check_chunk_nbytes(chunks, data_type)
    chain = (
        *_layout(documents.member(document, "chunk_memory_layout"), len(shape)),
        *(object_codecs(codecs) if stored.hasobject else (bytes_codec(stored), *codecs)),
    )
    CodecChain.build(chain, data_type).check(chunks)
    metadata = ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=grid,
        chunk_key_encoding=chunk_keys(separator, software=form.software),
        fill_value=_fill_value(document, stored, data_type, bool(warnings), quirks),
        codecs=chain,
        shards=parse_transformers(document.get("storage_transformers", []), len(shape), form, quirks),
    )
    return ParsedArray(metadata, tuple(quirks), tuple(warnings))


def format_array(metadata: ArrayMetadata, attributes: Mapping[str, Any], form: EntryPoint) -> dict[str, Any]:
    """Return the document of ``metadata``, without its dimension names, for which the draft has no member.

    Raises `NotRepresentable` for other grids and chunk keys, for types absent from NumPy, and for other codecs and shards.
    """
    if not isinstance(metadata.chunk_grid, RegularGrid):
        raise NotRepresentable("Zarr v3 of 2022 has only regular chunk grids")
    encoding = metadata.chunk_key_encoding
    if (encoding.prefix, encoding.suffix, encoding.backwards) != ("c", "", False) or encoding.separator not in _SEPARATORS:
        raise NotRepresentable(f"Zarr v3 of 2022 has no chunk keys like {encoding.encode((0,) * metadata.ndim)!r}")
    layout, stored, codecs = _split(metadata.codecs, metadata.data_type, metadata.ndim)
    software = form.software
    if stored.hasobject and not software:
        raise NotRepresentable("the draft form of Zarr v3 of 2022 has no elements of variable length")
    endian = "big" if stored != stored.newbyteorder("<") and not is_in_type(stored) else None
    named, filters = format_codecs(endian, codecs, software=software)
    transformers = format_transformers(metadata.shards, software=software)
    document = {
        "shape": list(metadata.shape),
        "data_type": format_type(stored, software=software),
        "chunk_grid": {"type": "regular", "chunk_shape": list(metadata.chunk_grid.chunks), "separator": encoding.separator},
        "chunk_memory_layout": layout,
        **named,
        "fill_value": _fill_to_json(metadata, stored, software),
        "extensions": [],
        "attributes": _with_filters(attributes, filters) if software else dict(attributes),
        **({"storage_transformers": transformers} if transformers else {}),
    }
    if not software:
        return document
    if encoding.separator != "/":
        document["dimension_separator"] = encoding.separator
    return dict(sorted(document.items()))


def plain_members(document: Mapping[str, Any], form: EntryPoint) -> dict[str, Any]:
    """Return the members of an array's ``document`` that differ without shards; empty if it has none. Raises `MetadataError`."""
    if not document.get("storage_transformers"):
        return {}
    metadata = parse_array(document, form, fallbacks=True).metadata
    return {"storage_transformers": []} if metadata.can_be_unsharded else {}


def edited_attributes(document: Mapping[str, Any], attributes: Mapping[str, Any], form: EntryPoint) -> dict[str, Any]:
    """Return new attributes for an array with this ``document``, which keep its hidden filters.

    An array without hidden filters gets none: in attributes copied from another array they describe the encoding of its chunks. Raises
    `MetadataError` if the array has some, and the attributes have others.
    """
    hidden, filters = hidden_filters(document, form), attributes.get(FILTERS)
    if hidden is None:
        return _with_filters(attributes, []) if form.software or "compressor" in document else dict(attributes)
    if filters is not None and not (looks_like_filters(filters) and are_same_filters(filters, hidden)):
        raise MetadataError(f"attribute {FILTERS!r} describes how chunks are encoded, and cannot be changed")
    return {FILTERS: hidden, **attributes, **({FILTERS: hidden} if filters is not None else {})}


def _or(document: Mapping[str, Any], name: str, default: Any, quirks: list[str]) -> Any:
    """Return a required member, or ``default``, whose type it must have, if missing."""
    if name not in document:
        quirks.append(f"{name} is missing")
    value = document.get(name, default)
    if value is None and isinstance(default, dict):
        quirks.append(f"{name} is null: none")
        return default
    return documents.mapping(value, name) if isinstance(default, dict) else value


def _chunk_grid(document: Mapping[str, Any], form: EntryPoint, quirks: list[str]) -> tuple[Shape, str]:
    grid = documents.mapping(documents.member(document, "chunk_grid"), "chunk_grid")
    if documents.member(grid, "type") != "regular" or "extension" in grid:
        raise MetadataUnsupported(f"chunk grid {shortened(grid['type'])}: unknown")
    quirks += form.check_members(grid, ("type", "chunk_shape", "separator", "dimension_separator"), "chunk_grid")
    separators = [given["dimension_separator"] for given in (grid, document) if "dimension_separator" in given]
    if separators:
        quirks.append("dimension_separator is not in the specification")
    if "separator" in grid:
        separators.insert(0, grid["separator"])
    else:
        quirks.append("separator of the chunk grid is missing")
    if any(each not in _SEPARATORS for each in separators):
        raise MetadataError(f"separator of chunk keys must be '/' or '.', not {shortened(separators)}")
    if len(set(separators)) > 1:
        raise MetadataError(f"separator and dimension_separator differ: {shortened(separators)}")
    return documents.shape(documents.member(grid, "chunk_shape"), "chunk_shape"), separators[0] if separators else "/"


def _layout(value: Any, ndim: int) -> tuple[CodecSpec, ...]:
    """Return the codecs for a memory layout: F reverses the dimensions, before any codec.

    Section "Determination of encoded representations".
    """
    match value:
        case "C" | "F":
            return order_codecs(value, ndim)
        case dict():
            raise MetadataUnsupported(f"chunk memory layout {shortened(value.get('type'))}: unknown")
    raise MetadataError(f"chunk_memory_layout must be 'C' or 'F', not {shortened(value)}")


def _fill_value(
    document: Mapping[str, Any], stored: Stored, data_type: DataType, is_fallback: bool, quirks: list[str]
) -> bytes | None:
    value, named = documents.member(document, "fill_value"), document["data_type"]
    named = named.get("type") if isinstance(named, dict) else named
    if (text := cut_to_fit(stored, value)) is not None:
        quirks.append(f"fill_value {shortened(value)} is longer than {len(text)} characters")
        value = text
    try:
        if stored.hasobject:
            found = object_fill_from_json(data_type, value)
        else:
            # Fallbacks exist only in the draft, not in the software.
            found = parse_fill(value, stored, as_text=is_fallback or (isinstance(named, str) and named.startswith("S")))
    except MetadataError:
        if not is_fallback:
            raise
        # Only the extension could interpret it.
        quirks.append(f"fill_value {shortened(value)} is invalid for the fallback type: undefined")
        return None
    if found is None:
        quirks.append("fill_value is null: undefined")
    return found


def _fill_to_json(metadata: ArrayMetadata, stored: Stored, software: bool) -> Any:
    if stored.hasobject:
        return object_fill_to_json(metadata.data_type, metadata.fill_value)
    return format_fill(metadata.fill_value, stored, software=software)


def _split(codecs: tuple[CodecSpec, ...], data_type: DataType, ndim: int) -> tuple[str, Stored, list[CodecSpec]]:
    """Return ``chunk_memory_layout``, the stored type, and the codecs after `bytes`. Raises `NotRepresentable`."""
    layout, rest = split_order(codecs, ndim, "Zarr v3 of 2022")
    stored = data_type.dtype if data_type.is_variable else plain_type(data_type, big_endian=False)
    if data_type.is_variable:
        rest = list(object_filters(rest, data_type))
    elif rest and rest[0].name == "bytes":
        stored = stored_by(rest.pop(0), data_type)
    if any(spec.name in ("transpose", "bytes") for spec in rest):
        raise NotRepresentable("Zarr v3 of 2022 cannot represent codecs on elements before those on bytes")
    return layout, stored, rest


def _with_filters(attributes: Mapping[str, Any], filters: list[Any]) -> dict[str, Any]:
    """Return the attributes with exactly these hidden filters: attributes copied from another array may contain its filters."""
    edited = dict(attributes)
    if looks_like_filters(edited.get(FILTERS)) and not are_same_filters(edited[FILTERS], filters):
        del edited[FILTERS]
    return {FILTERS: filters, **edited} if filters else edited
