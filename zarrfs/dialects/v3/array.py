"""The array document of the final v3: conversion between its JSON and `ArrayMetadata`.

Source: Zarr v3 core, section "Array metadata"; "Regular chunk grid"; "Default chunk key encoding"; "v2 chunk key encoding";
"Permitted fill values"; zarr-extensions (``struct``, ``structured``).

    {"zarr_format": 3, "node_type": "array", "shape": [4, 6], "data_type": "int32",
     "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
     "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
     "fill_value": 0, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
     "dimension_names": ["y", null], "attributes": {}, "storage_transformers": []}

Accepted deviations of real software, listed in the node's ``quirks``:

* zarrita.js writes ``"codecs": []`` by default (the specification: the list cannot be empty). It means C order, little-endian. GDAL 3.8
  omits the member, and zarrita and zarr-js, before the specification was final, the array -> bytes codec of a list: same meaning.
* bioformats2raw writes the fill value of an integer type as a string.
* zarrita.js writes ``"fill_value": null`` by default (no core type permits it). The fill value is then undefined.
* zarrita (Python) writes the order of ``transpose`` as "C" or "F", as in drafts of the specification.
* A fill value like ``3.0`` of an integer type (the specification: no fraction) is that integer, as in zarr-python.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects import documents
from zarrfs.dialects.quirks import Quirks
from zarrfs.dialects.v3.extension import Extension, check_members, extension, extension_to_json
from zarrfs.dialects.v3.grid import grid_to_json, parse_grid
from zarrfs.dialects.v3.sharding import codecs_to_json, parse_codecs
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model import chunk_key, data_type, fill_value
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.chunk_key import ChunkKeyEncoding
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType
from zarrfs.model.metadata import ArrayMetadata, check_chunk_nbytes

_MEMBERS = (
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "attributes",
    "storage_transformers",
    "dimension_names",
)
_ENCODINGS = {"default": (chunk_key.default, "/"), "v2": (chunk_key.v2, ".")}
_SEPARATORS = ("/", ".")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")


def parse_array(
    document: Mapping[str, Any], chosen: Mapping[str, str] = MappingProxyType({})
) -> tuple[ArrayMetadata, tuple[str, ...]]:
    """Return the metadata in an array's ``document``, and its deviations. ``chosen``: the deviations that are refused.

    Raises `MetadataError`, `MetadataUnsupported`.
    """
    quirks = Quirks("v3", chosen)
    check_members(document, _MEMBERS, "array document")
    _check_storage_transformers(document.get("storage_transformers"))
    shape = documents.shape(documents.member(document, "shape"), "shape")
    element = _data_type(extension(documents.member(document, "data_type"), "data_type"))
    grid_extension = extension(documents.member(document, "chunk_grid"), "chunk_grid")
    grid = parse_grid(grid_extension, shape, quirks)
    bundled = parse_codecs(_codecs(document, quirks), element, grid.largest, quirks)
    if bundled.shards and not isinstance(grid, RegularGrid):
        raise MetadataUnsupported(
            f"sharding_indexed on chunk grid {documents.shortened(grid_extension.name)}: shards of unequal shapes are not supported"
        )
    check_chunk_nbytes(bundled.chunks, element)
    CodecChain.build(bundled.codecs, element).check(bundled.chunks)
    metadata = ArrayMetadata(
        shape=shape,
        data_type=element,
        chunk_grid=RegularGrid.checked(bundled.chunks, shape) if bundled.shards else grid,
        chunk_key_encoding=_chunk_key_encoding(extension(documents.member(document, "chunk_key_encoding"), "chunk_key_encoding")),
        fill_value=_fill_value(documents.member(document, "fill_value"), element, bundled.codecs, quirks),
        codecs=bundled.codecs,
        shards=bundled.shards,
        dimension_names=_dimension_names(document.get("dimension_names"), len(shape)),
    )
    return metadata, tuple(quirks)


def format_array(metadata: ArrayMetadata, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of ``metadata``, its members in the order of zarr-python 3.1.

    An undefined fill value becomes the value of missing chunks, as the specification requires one. A chain without an array -> bytes
    codec gets ``bytes``, little-endian.

    ``structured`` keeps this older name of ``struct``, with its form of the fill value: zarr-python 3.1 has no other.
    Raises `NotRepresentable`.
    """
    element = metadata.data_type
    if element == data_type.OBJECT:
        raise NotRepresentable("Zarr v3 has no data type for objects of any kind")
    if _has_subarrays(element.dtype):
        raise NotRepresentable("Zarr v3 cannot represent fields that are arrays")
    grid = metadata.chunk_grid
    chunks = tuple(max(1, length) for length in grid.largest)
    if metadata.shards:
        if not isinstance(grid, RegularGrid):
            raise NotRepresentable("shards of chunks of unequal shapes are not supported")
        grid = RegularGrid(tuple(length * count for length, count in zip(chunks, metadata.chunks_per_key, strict=True)))
    return {
        "shape": list(metadata.shape),
        "data_type": element.v3_name,
        "chunk_grid": grid_to_json(grid),
        "chunk_key_encoding": _encoding_to_json(metadata.chunk_key_encoding, metadata.ndim),
        "fill_value": fill_value.to_json(element, _packed(metadata.fill_bytes, element, metadata.codecs)),
        "codecs": codecs_to_json(metadata, chunks),
        "attributes": dict(attributes),
        **({} if metadata.dimension_names is None else {"dimension_names": list(metadata.dimension_names)}),
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def plain_members(document: Mapping[str, Any], chosen: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Return the members of an array's ``document`` that differ without shards; empty if it has none, or none that can be taken apart.

    Raises `MetadataError`.
    """
    if document.get("node_type") != "array":
        return {}
    metadata, _ = parse_array(document, chosen)
    if not metadata.can_be_unsharded:
        return {}
    chunks = tuple(max(1, length) for length in metadata.chunk_grid.largest)
    return {"chunk_grid": grid_to_json(metadata.chunk_grid), "codecs": codecs_to_json(replace(metadata, shards=()), chunks)}


def _codecs(document: Mapping[str, Any], quirks: Quirks) -> Any:
    if "codecs" not in document:
        quirks.accept("codecs", "codecs is missing: read as C order, little-endian")
        return [{"name": "bytes", "configuration": {"endian": "little"}}]
    return document["codecs"]


def _check_storage_transformers(value: Any) -> None:
    """Check section "storage_transformers": absent and empty mean none; others are accepted only if they may be ignored."""
    for each in [] if value is None else documents.array(value, "storage_transformers"):
        transformer = extension(each, "storage_transformers")
        if transformer.must_understand:
            raise MetadataUnsupported(f"storage transformer {documents.shortened(transformer.name)}: unknown")


def _data_type(named: Extension) -> DataType:
    found = data_type.from_name(named.name, named.configuration)
    if _has_subarrays(found.dtype):
        raise MetadataError(f"{named.name}: a field must be a name and a type, without a shape")
    return found


def _chunk_key_encoding(named: Extension) -> ChunkKeyEncoding:
    if named.name not in _ENCODINGS:
        raise MetadataUnsupported(f"chunk key encoding {documents.shortened(named.name)}: unknown")
    check_members(named.configuration, ("separator",), f"chunk key encoding {named.name!r}")
    make, default = _ENCODINGS[named.name]
    separator = named.configuration.get("separator", default)
    if separator not in _SEPARATORS:
        raise MetadataError(f"separator of chunk keys must be '/' or '.', not {documents.shortened(separator)}")
    return make(separator)


def _encoding_to_json(encoding: ChunkKeyEncoding, ndim: int) -> dict[str, Any]:
    for name, (make, _) in _ENCODINGS.items():
        for separator in _SEPARATORS:
            if make(separator) == encoding:
                return extension_to_json(name, {"separator": separator})
    raise NotRepresentable(f"Zarr v3 has no chunk keys like {encoding.encode((0,) * ndim)!r}")


def _fill_value(value: Any, element: DataType, codecs: tuple[CodecSpec, ...], quirks: Quirks) -> bytes | None:
    if value is None:
        quirks.append("fill_value is null: undefined")
        return None
    if isinstance(value, str) and element.name.startswith(("int", "uint")) and _INTEGER.fullmatch(value):
        quirks.accept("fill_value", f"fill_value {documents.shortened(value)} of an integer type is a string")
        value = int(value)
    if isinstance(value, float) and value.is_integer() and element.name.startswith(("int", "uint")):
        quirks.append(f"fill_value {value!r} of an integer type is written with a fraction")
        value = int(value)
    found = fill_value.from_json(element, value)
    return _packed(found, element, codecs) if isinstance(value, str) else found


def _packed(value: bytes, element: DataType, codecs: tuple[CodecSpec, ...]) -> bytes:
    """Convert an element with fields between memory and its base64 form, which has the byte order of the ``bytes`` codec.

    Source: zarr-extensions ``structured``, "Base64-encoded fill values"; ``struct`` has no such form.
    """
    big = any(spec.name == "bytes" and spec.configuration.get("endian") == "big" for spec in codecs)
    if element.name != "structured" or not big:
        return value
    return np.frombuffer(value, element.dtype).byteswap().tobytes()


def _dimension_names(value: Any, ndim: int) -> tuple[str | None, ...] | None:
    """Return the names of dimensions (section "dimension_names"); null as a whole counts as absent."""
    if value is None:
        return None
    names = documents.array(value, "dimension_names")
    if len(names) != ndim or not all(name is None or isinstance(name, str) for name in names):
        raise MetadataError(
            f"dimension_names must be a string or null for each of {ndim} dimensions, not {documents.shortened(names)}"
        )
    return tuple(names)


def _has_subarrays(dtype: np.dtype[Any]) -> bool:
    if dtype.fields is None:
        return dtype.subdtype is not None
    return any(_has_subarrays(field[0]) for field in dtype.fields.values())
