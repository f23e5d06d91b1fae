"""The array document of the protocol draft of 2019: conversion between its JSON and `ArrayMetadata`.

Source: Zarr core protocol version 3.0, editor's draft of 19 June 2019, sections "Array metadata", "Regular grids", "Chunk memory
layouts", "Chunk encoding".

    {"shape": [10, 7], "data_type": "<f8", "chunk_grid": {"type": "regular", "chunk_shape": [4, 3]}, "chunk_memory_layout": "C",
     "compressor": {"codec": "https://purl.org/zarr/spec/codec/gzip/1.0", "configuration": {"level": 1}},
     "fill_value": 1.5, "extensions": [], "attributes": {}}

Differences between the draft and real stores, and gaps in the draft:

* The URI of a codec has a version and ``https`` (zarrita), or neither (the examples of the draft). A new array gets the form of a
  neighbouring one, else the software's.
* An absent compressor is null (zarrita), or a missing member.
* ``attributes`` is null if there are none (zarrita). A missing member means the same.
* The separator of chunk identifiers is any of the characters that keys may have besides letters and digits.
* The identifier of the only chunk of a 0-dimensional array is empty: see `CHUNK_KEYS`.
* Unknown members are ignored, as the draft requires for any version 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects import documents
from zarrfs.dialects.drafts import check_extensions, codec_from_json, codec_to_json, form_of_uri
from zarrfs.dialects.memory_order import order_codecs, split_order
from zarrfs.dialects.v3_2019.types import fill_from_json, fill_to_json, type_from_json, type_to_json
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid, Shape
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_numpy
from zarrfs.model.metadata import ArrayMetadata, check_chunk_nbytes

CHUNK_KEYS = replace(chunk_key.v2("."), scalar="")
"""``1.2``; empty for a 0-dimensional array. ``data/P/`` with an empty identifier is no key; zarrita's chunk is at ``data/P``."""

_CODECS = ("gzip",)
"""Codecs of new arrays. The draft defines no codec ("Chunk encoding"), its examples and zarrita have this one; others are read."""

CODEC = "https://purl.org/zarr/spec/codec/{}/1.0"

_MEMBERS = (
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_memory_layout",
    "compressor",
    "fill_value",
    "extensions",
    "attributes",
)
_SEPARATORS = ("/", ".", "-", "_")


@dataclass(frozen=True, slots=True)
class ParsedArray:
    """The content of an array's document; ``quirks``, ``warnings`` and ``form`` (of its compressor's URI) as in `ArrayNode`."""

    metadata: ArrayMetadata
    quirks: tuple[str, ...]
    warnings: tuple[str, ...]
    form: str | None


def parse_array(document: Mapping[str, Any], *, fallbacks: bool = True) -> ParsedArray:
    """Return the content of an array's ``document``. ``fallbacks``: an unknown data type may be read as its fallback.

    Raises `MetadataError`, `MetadataUnsupported`.
    """
    quirks: list[str] = []
    warnings: list[str] = []
    if "extensions" in document:
        quirks += check_extensions(document["extensions"], "the array")
    else:
        quirks.append("extensions is missing")
    quirks += [f"unknown member {documents.shortened(name)}, ignored" for name in document if name not in _MEMBERS]
    shape = documents.shape(documents.member(document, "shape"), "shape")
    stored = type_from_json(documents.member(document, "data_type"), quirks, warnings, fallbacks=fallbacks)
    data_type = from_numpy(stored)
    grid, separator = _chunk_grid(documents.member(document, "chunk_grid"), shape)
    check_chunk_nbytes(grid.chunks, data_type)
    codecs = [*_layout(documents.member(document, "chunk_memory_layout"), len(shape)), _bytes(stored.itemsize, stored.str[0])]
    compressor = document.get("compressor")
    if compressor is not None:
        codecs.append(codec_from_json(compressor, "compressor"))
    CodecChain.build(codecs, data_type).check(grid.chunks)
    metadata = ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=grid,
        chunk_key_encoding=replace(CHUNK_KEYS, separator=separator),
        fill_value=fill_from_json(data_type, documents.member(document, "fill_value"), quirks),
        codecs=tuple(codecs),
    )
    form = form_of_uri(compressor["codec"]) if compressor is not None else None
    return ParsedArray(metadata, (*quirks, *_attribute_quirks(document), *warnings), tuple(warnings), form)


def format_array(metadata: ArrayMetadata, attributes: Mapping[str, Any], codec: str = CODEC) -> dict[str, Any]:
    """Return the document of ``metadata``, without its dimension names: this draft has none. Members are in zarrita's order.

    ``codec``: the URI of the compressor, with ``{}`` in place of the name. Raises `NotRepresentable` for other grids and chunk keys, for
    shards, filters, codecs other than gzip, and types that neither the table nor an extension has.
    """
    if not isinstance(metadata.chunk_grid, RegularGrid):
        raise NotRepresentable("the draft of Zarr v3 of 2019 has only regular chunk grids")
    if metadata.shards:
        raise NotRepresentable("the draft of Zarr v3 of 2019 has no shards")
    big_endian, layout, compressor = _split(metadata.codecs, metadata.ndim)
    grid: dict[str, Any] = {"type": "regular", "chunk_shape": list(metadata.chunk_grid.chunks)}
    if (separator := _separator(metadata.chunk_key_encoding, metadata.ndim)) != ".":
        grid["separator"] = separator
    if compressor is not None and compressor.name not in _CODECS:
        raise NotRepresentable(
            f"codec {compressor.name!r} has no URI in the draft of Zarr v3 of 2019, nor in its software, which has only gzip"
        )
    return {
        "shape": list(metadata.shape),
        "data_type": type_to_json(metadata.data_type, big_endian=big_endian),
        "chunk_grid": grid,
        "chunk_memory_layout": layout,
        "compressor": None if compressor is None else codec_to_json(compressor, codec),
        "fill_value": fill_to_json(metadata.data_type, metadata.fill_value),
        "extensions": [],
        "attributes": dict(attributes),
    }


def _attribute_quirks(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return deviations of the member from the draft: it "must be an object"."""
    if document.get("attributes") is not None:
        return ()
    return ("attributes is null: none",) if "attributes" in document else ("attributes is missing",)


def _chunk_grid(value: Any, shape: Shape) -> tuple[RegularGrid, str]:
    """Return the grid, and the separator of its chunk identifiers."""
    members = documents.mapping(value, "chunk_grid")
    if "extension" in members:
        raise MetadataUnsupported(f"chunk grid of extension {documents.shortened(members['extension'])}: unknown")
    kind = documents.member(members, "type")
    if kind != "regular":
        raise MetadataUnsupported(f"chunk grid {documents.shortened(kind)}: unknown")
    separator = members.get("separator", ".")
    if separator not in _SEPARATORS:
        raise MetadataError(f"separator of chunk_grid must be one of {' '.join(_SEPARATORS)}, not {documents.shortened(separator)}")
    return RegularGrid.checked(documents.shape(documents.member(members, "chunk_shape"), "chunk_shape"), shape), separator


def _layout(value: Any, ndim: int) -> tuple[CodecSpec, ...]:
    match value:
        case "C" | "F":
            return order_codecs(value, ndim)
        case dict():
            raise MetadataUnsupported(f"chunk_memory_layout {documents.shortened(value)}: unknown")
    raise MetadataError(f"chunk_memory_layout must be 'C' or 'F', not {documents.shortened(value)}")


def _bytes(itemsize: int, order: str) -> CodecSpec:
    return CodecSpec("bytes", {"endian": "big" if order == ">" else "little"} if itemsize > 1 else {})


def _separator(encoding: ChunkKeyEncoding, ndim: int) -> str:
    if (
        (encoding.scalar if ndim == 0 else encoding.prefix)
        or encoding.suffix
        or encoding.backwards
        or encoding.separator not in _SEPARATORS
    ):
        example = encoding.encode((0,) * ndim)
        raise NotRepresentable(f"the draft of Zarr v3 of 2019 has no chunk keys like {example!r}")
    return encoding.separator


def _split(codecs: tuple[CodecSpec, ...], ndim: int) -> tuple[bool, str, CodecSpec | None]:
    """Return whether elements are big-endian, the memory layout, and the compressor. Raises `NotRepresentable`."""
    big_endian = False
    layout, rest = split_order(codecs, ndim, "the draft of Zarr v3 of 2019")
    if rest and rest[0].name == "bytes":
        configuration = rest.pop(0).configuration
        if "dtype" in configuration:
            raise NotRepresentable("the draft of Zarr v3 of 2019 has no structured types")
        big_endian = configuration.get("endian") == "big"
    if len(rest) > 1 or any(spec.name in ("transpose", "bytes") for spec in rest):
        names = ", ".join(spec.name for spec in rest)
        raise NotRepresentable(f"the draft of Zarr v3 of 2019 has one compressor, and no filters: {names}")
    return big_endian, layout, rest[0] if rest else None
