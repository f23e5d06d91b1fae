"""The document ``.zarray``: conversion between its JSON and `ArrayMetadata`.

Source: v2 "Arrays" (Metadata, Chunks, Filters). The chain of codecs, in the terms of the final v3 and in the order of encoding:

    transpose (order "F" of two or more dimensions) | bytes (the byte order of the dtype) | each filter | the compressor

so filters work on the chunk's stored memory, as in numcodecs. A filter or compressor that is an array -> bytes codec replaces ``bytes``,
with the filters before it on elements. For objects (dtype ``|O``) the first filter replaces ``bytes``: `zarrfs.dialects.v2.objects`. A
structured type with big-endian fields has no v3 form: then ``bytes`` carries the v2 dtype itself, ``{"dtype": [["x", ">f4"], ...]}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from zarrfs.codecs import lookup
from zarrfs.codecs.base import ArrayBytesCodec
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects import documents
from zarrfs.dialects.gdal_codecs import from_gdal
from zarrfs.dialects.memory_order import order_codecs, split_order
from zarrfs.dialects.quirks import Quirks
from zarrfs.dialects.v2.intended_fill import intended_fill
from zarrfs.dialects.v2.netcdf_codecs import from_netcdf
from zarrfs.dialects.v2.objects import object_codecs, object_fill_from_json, object_fill_to_json, object_filters, object_type
from zarrfs.dialects.v2.types import Stored, byte_orders, dtype_from_json, dtype_to_json, fill_from_json, fill_to_json, stored_type
from zarrfs.errors import MetadataError, MetadataUnsupported, NotRepresentable
from zarrfs.model import chunk_key
from zarrfs.model.chunk_grid import RegularGrid
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType, from_numpy
from zarrfs.model.metadata import ArrayMetadata, check_chunk_nbytes

# Codecs that v2 readers accept as "the primary compressor"; all others go into `filters`.
_COMPRESSORS = frozenset({"blosc", "zlib", "gzip", "zstd", "lz4", "bz2", "lzma", "snappy"})
_SEPARATORS = (".", "/")
# Real chains have three or four; each codec costs a pass over the chunk.
_MAX_CODECS = 32


def check_format(document: Mapping[str, Any], quirks: Quirks) -> None:
    """Raise `MetadataError` unless ``zarr_format`` is the integer 2, or its text (webknossos)."""
    version = documents.member(document, "zarr_format")
    if version == "2":
        quirks.accept("zarr_format", 'zarr_format is the string "2"')
        return
    if type(version) is not int or version != 2:
        raise MetadataError(f"zarr_format must be 2, not {documents.shortened(version)}")


def parse_array(document: Mapping[str, Any], quirks: Quirks | None = None) -> ArrayMetadata:
    """Return the metadata in a ``.zarray``; unknown members are ignored, deviations added to ``quirks``.

    Raises `MetadataError`, `MetadataUnsupported`.
    """
    quirks = Quirks("v2", {}) if quirks is None else quirks
    check_format(document, quirks)
    shape = documents.shape(documents.member(document, "shape"), "shape")
    chunks = documents.shape(documents.member(document, "chunks"), "chunks")
    grid = RegularGrid.checked(chunks, shape)
    filters = _filters(document, quirks)
    stored = dtype_from_json(documents.member(document, "dtype"))
    data_type = object_type(filters) if stored == np.dtype(object) else from_numpy(stored)
    if not data_type.is_variable:
        filters = [from_netcdf(config, data_type.itemsize, quirks) for config in filters]
    check_chunk_nbytes(chunks, data_type)
    listed = map(lookup.from_numcodecs, filters)
    codecs = (*_order(document, len(shape)), *(object_codecs(listed) if data_type.is_variable else stored_codecs(stored, listed)))
    CodecChain.build(codecs, data_type).check(chunks)
    return ArrayMetadata(
        shape=shape,
        data_type=data_type,
        chunk_grid=grid,
        chunk_key_encoding=chunk_key.v2(_separator(document)),
        fill_value=_fill_value(stored, data_type, documents.member(document, "fill_value"), quirks),
        codecs=codecs,
    )


def format_array(metadata: ArrayMetadata) -> dict[str, Any]:
    """Return the ``.zarray`` of ``metadata``, without its dimension names: v2 has none.

    Raises `NotRepresentable` for other grids and chunk key encodings, shards, and types and codecs absent from NumPy or v2.
    """
    if not isinstance(metadata.chunk_grid, RegularGrid):
        raise NotRepresentable("Zarr v2 has only regular chunk grids")
    if metadata.shards:
        raise NotRepresentable("Zarr v2 has no shards")
    if metadata.chunk_key_encoding not in map(chunk_key.v2, _SEPARATORS):
        raise NotRepresentable(f"Zarr v2 has no chunk keys like {metadata.chunk_key_encoding.encode((0,) * metadata.ndim)!r}")
    data_type, fill = metadata.data_type, metadata.fill_value
    order, stored, filters = _split(metadata.codecs, data_type, metadata.ndim)
    compressor = filters.pop() if filters and filters[-1]["id"] in _COMPRESSORS else None
    separator = metadata.chunk_key_encoding.separator
    return {
        "chunks": list(metadata.chunk_grid.chunks),
        "compressor": compressor,
        **({"dimension_separator": separator} if separator != "." else {}),
        "dtype": dtype_to_json(stored),
        "fill_value": object_fill_to_json(data_type, fill) if data_type.is_variable else fill_to_json(stored, fill),
        "filters": filters or None,
        "order": order,
        "shape": list(metadata.shape),
        "zarr_format": 2,
    }


def fill_to_member(document: Mapping[str, Any], fill_value: bytes) -> Any:
    """Return the member ``fill_value`` for the ``.zarray`` ``document``. Raises `MetadataError`."""
    data_type = parse_array(document).data_type
    if data_type.is_variable:
        return object_fill_to_json(data_type, fill_value)
    return fill_to_json(dtype_from_json(documents.member(document, "dtype")), fill_value)


def _filters(document: Mapping[str, Any], quirks: Quirks) -> list[Any]:
    """Return the configurations of the filters and the compressor, in the order of encoding; an absent ``filters`` is null."""
    filters = document.get("filters")
    if "filters" not in document:
        quirks.accept("missing", "filters is missing: none")
    compressor = documents.member(document, "compressor")
    configs = [*([] if filters is None else documents.array(filters, "filters")), *([] if compressor is None else [compressor])]
    if len(configs) > _MAX_CODECS:
        raise MetadataUnsupported(f"chain of {len(configs)} codecs exceeds the limit of {_MAX_CODECS}")
    for config in configs:
        if isinstance(config, dict) and config.get("id") == "pickle":
            raise MetadataUnsupported("filter 'pickle' refused: unpickling runs code from the store")
    return [from_gdal(config, quirks) for config in configs]


def _fill_value(stored: Stored, data_type: DataType, value: Any, quirks: Quirks) -> bytes | None:
    if data_type.is_variable:
        return object_fill_from_json(data_type, value)
    return fill_from_json(stored, intended_fill(stored, value, quirks))


def _order(document: Mapping[str, Any], ndim: int) -> tuple[CodecSpec, ...]:
    match documents.member(document, "order"):
        case "C" | "F" as order:
            return order_codecs(order, ndim)
        case order:
            raise MetadataError(f"order must be 'C' or 'F', not {documents.shortened(order)}")


def _separator(document: Mapping[str, Any]) -> str:
    separator = document.get("dimension_separator", ".")
    if separator not in _SEPARATORS:
        raise MetadataError(f"dimension_separator must be '.' or '/', not {documents.shortened(separator)}")
    return str(separator)


def bytes_codec(stored: Stored) -> CodecSpec:
    """Return the codec `bytes` that stores elements in the byte order, or orders, of ``stored``."""
    orders = byte_orders(stored)
    if not orders:
        return CodecSpec("bytes")
    if stored.names is not None and ">" in orders:
        return CodecSpec("bytes", {"dtype": dtype_to_json(stored)})
    return CodecSpec("bytes", {"endian": "big" if ">" in orders else "little"})


def stored_codecs(stored: Stored, listed: Iterable[CodecSpec]) -> tuple[CodecSpec, ...]:
    """Return the chain for the filters and the compressor of elements of a fixed size.

    `bytes` precedes them, unless one of them is an array -> bytes codec itself. Raises `MetadataUnsupported` if such a codec follows
    elements in big-endian memory, as its interpretation of these is undefined.
    """
    codecs = tuple(listed)
    serializer = next((spec for spec in codecs if issubclass(lookup.class_of(spec), ArrayBytesCodec)), None)
    if serializer is None:
        return (bytes_codec(stored), *codecs)
    if ">" in byte_orders(stored):
        raise MetadataUnsupported(f"codec {serializer.name!r} after big-endian elements is not supported")
    return codecs


def _split(codecs: tuple[CodecSpec, ...], data_type: DataType, ndim: int) -> tuple[str, Stored, list[dict[str, Any]]]:
    """Return ``order``, the stored type, and the filters and compressor of a chain. Raises `NotRepresentable`."""
    order, rest = split_order(codecs, ndim, "Zarr v2")
    stored = data_type.dtype if data_type.is_variable else stored_type(data_type, big_endian=False)
    if data_type.is_variable:
        rest = list(object_filters(rest, data_type))
    elif rest and rest[0].name == "bytes":
        stored = stored_by(rest.pop(0), data_type)
    filters = []
    for spec in rest:
        if spec.name in ("transpose", "bytes"):
            raise NotRepresentable(f"Zarr v2 has codec {spec.name!r} once, before all filters")
        try:
            filters.append(lookup.to_numcodecs(spec))
        except MetadataUnsupported as error:
            raise NotRepresentable(f"codec {spec.name!r} has no Zarr v2 form") from error
    return order, stored, filters


def stored_by(spec: CodecSpec, data_type: DataType) -> Stored:
    """Return the stored type of ``data_type`` if ``spec`` is the codec `bytes`: the inverse of `bytes_codec`.

    Raises `NotRepresentable`.
    """
    if "dtype" not in spec.configuration:
        return stored_type(data_type, big_endian=spec.configuration.get("endian") == "big")
    stored = dtype_from_json(spec.configuration["dtype"])
    if stored.newbyteorder("<") != data_type.dtype:
        raise NotRepresentable(f"codec 'bytes' stores {np.dtype(stored)}, which differs from the type of the array")
    return stored
