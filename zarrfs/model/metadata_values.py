"""Metadata as JSON values, for ``zarrfs info`` and for extended attributes: always JSON that any program reads.

Data types, codecs and fill values are in the terms of the final v3, for every dialect.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from zarrfs.errors import MetadataError, NotRepresentable
from zarrfs.model import fill_value
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import DataType, from_numpy
from zarrfs.model.metadata import ArrayMetadata
from zarrfs.model.unparsed import Unparsed

# Limit of a reported fill value. An element may have 16 MiB, all zeros, declared by a document of 100 bytes.
_MAX_FILL = 64 * 1024
_MAX_FILL_TEXT = 4096


def of_array(metadata: ArrayMetadata) -> dict[str, Any]:
    """Return the metadata of an array; None for absent dimension names, and for an undefined fill value.

    ``chunk_shape`` is that of the largest chunk, if lengths differ.
    """
    return {
        "shape": list(metadata.shape),
        "data_type": plain(metadata.data_type.v3_name),
        "chunk_shape": list(metadata.chunk_grid.largest),
        "dimension_names": list(metadata.dimension_names) if metadata.dimension_names is not None else None,
        "codecs": codecs(metadata.codecs),
        "fill_value": fill(metadata)[0],
    }


def plain(value: Any) -> Any:
    """Return ``value`` as plain JSON: NaN and infinities, which v0 to v2 write bare, become the strings of v3.

    Unparsed text becomes ``{"nbytes": its size}``.
    """
    match value:
        case str() | int() | None:
            return value
        case Unparsed():
            return {"nbytes": len(value.data)}
        case float() if not math.isfinite(value):
            return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            return {str(name): plain(each) for name, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
    return value


def number(value: int) -> int | None:
    """Return ``value``, or None if it exceeds a JSON number, which most readers hold as a double.

    A shape of 20 dimensions suffices for that.
    """
    return value if value.bit_length() < 1024 else None


def codecs(specs: Iterable[CodecSpec]) -> list[dict[str, Any]]:
    """Return a chain as JSON, in the order of encoding."""
    return [{"name": spec.name, "configuration": plain(spec.configuration)} for spec in specs]


def fill(metadata: ArrayMetadata) -> tuple[Any, str | None]:
    """Return the fill value in JSON, and as readable text; None and None if it is undefined.

    A value without a form in the final v3 is ``{"base64": bytes of the element}``; one that is too long is ``{"nbytes": its size}``.
    """
    element, data_type = metadata.fill_value, metadata.data_type
    if element is None:
        return None, None
    try:
        as_json = fill_value.to_json(data_type, element)
    except NotRepresentable:
        as_json = {"base64": base64.standard_b64encode(element).decode("ascii")}
    text = _fill_text(data_type, element, as_json)
    if len(element) > _MAX_FILL and (isinstance(as_json, dict) or len(as_json) > _MAX_FILL):
        as_json = {"nbytes": len(element)}
    return plain(as_json), text


def _fill_text(data_type: DataType, element: bytes, as_json: Any) -> str:
    if data_type.dtype.kind == "S":
        element = element.rstrip(b"\0")
    if len(element) > _MAX_FILL_TEXT:
        return f"of {len(element)} bytes"
    if data_type.is_variable:
        return json.dumps(plain(as_json), ensure_ascii=False)
    return _element_text(data_type.dtype, element)


def _element_text(dtype: np.dtype[Any], element: bytes) -> str:
    """Return one element as readable text. NumPy's own text of a structure fails on a field that is not valid text."""
    if dtype.subdtype is not None:
        base, _ = dtype.subdtype
        parts = [element[start : start + base.itemsize] for start in range(0, len(element), base.itemsize)]
        return f"[{', '.join(_element_text(base, part) for part in parts)}]"
    if dtype.names is not None:
        assert dtype.fields is not None
        fields = [(name, *dtype.fields[name][:2]) for name in dtype.names]
        return f"({', '.join(_element_text(inner, element[at : at + inner.itemsize]) for _, inner, at in fields)})"
    match dtype.kind:
        case "S":
            return repr(element.rstrip(b"\0"))[1:]
        case "M" | "m" if np.datetime_data(dtype)[0] != "generic":
            return str(np.frombuffer(element, dtype)[0])
        case "M" | "m":
            # A number without a unit, for which NumPy has no text.
            ticks = int.from_bytes(element, "little", signed=True)
            return "NaT" if ticks == fill_value.NAT else str(ticks)
    try:
        data_type = from_numpy(dtype)
        as_json = fill_value.to_json(data_type, element)
    except MetadataError:
        return f"0x{element.hex()}"
    if data_type.name == "raw_bytes":
        return f"0x{element.hex()}"
    if dtype.kind == "U":
        return json.dumps(as_json, ensure_ascii=False)
    # NaN, Infinity and bit patterns are strings there.
    return as_json if isinstance(as_json, str) else json.dumps(as_json)


def shards(metadata: ArrayMetadata) -> list[dict[str, Any]]:
    """Return the bundling of chunks as JSON, outermost shards first; empty if they are not sharded."""
    shape = metadata.chunk_grid.largest
    levels: list[dict[str, Any]] = []
    for spec in reversed(metadata.shards):
        shape = tuple(length * count for length, count in zip(shape, spec.chunks_per_shard, strict=True))
        levels.append(
            {
                "shape": list(shape),
                "chunks_per_shard": list(spec.chunks_per_shard),
                "index_location": spec.index_location,
                "index_codecs": codecs(spec.index_codecs),
                "checksum": any(codec.name == "crc32c" for codec in spec.index_codecs),
                "codecs": codecs(spec.codecs),
            }
        )
    return levels[::-1]
