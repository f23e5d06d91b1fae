"""Metadata as JSON values, for ``zarrfs info`` and for extended attributes: whatever a document holds, what comes out is JSON that any
program reads.

Data types, codecs and fill values are in the final v3's words, whatever the dialect.
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

# A fill value is told up to here. An element may have 16 MiB, all of them zeros that a document of 100 bytes declares.
_MAX_FILL = 64 * 1024
_MAX_FILL_TEXT = 4096


def of_array(metadata: ArrayMetadata) -> dict[str, Any]:
    """What an array is: None for the names of its dimensions where it has none, and for a fill value that is undefined. ``chunk_shape``:
    of the largest chunk, where lengths differ."""
    return {
        "shape": list(metadata.shape),
        "data_type": plain(metadata.data_type.v3_name),
        "chunk_shape": list(metadata.chunk_grid.largest),
        "dimension_names": list(metadata.dimension_names) if metadata.dimension_names is not None else None,
        "codecs": codecs(metadata.codecs),
        "fill_value": fill(metadata)[0],
    }


def plain(value: Any) -> Any:
    """``value`` as JSON has it: the NaN and the infinities that v0 to v2 write bare are the strings that v3 has for them. What is too
    long to be told is ``{"nbytes": how long}``."""
    match value:
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
    """``value``, or None where it is larger than a number of JSON: most readers have doubles for these. A shape of 20 dimensions is
    enough for that."""
    return value if value.bit_length() < 1024 else None


def codecs(specs: Iterable[CodecSpec]) -> list[dict[str, Any]]:
    """A chain, in the order of encoding."""
    return [{"name": spec.name, "configuration": plain(spec.configuration)} for spec in specs]


def fill(metadata: ArrayMetadata) -> tuple[Any, str | None]:
    """The fill value in JSON, and as a person reads it; None and None where it is undefined.

    What the final v3 has no form for is ``{"base64": bytes of the element}``; what is too long to be told, ``{"nbytes": how long}``.
    """
    element, data_type = metadata.fill_value, metadata.data_type
    if element is None:
        return None, None
    try:
        said = fill_value.to_json(data_type, element)
    except NotRepresentable:
        said = {"base64": base64.standard_b64encode(element).decode("ascii")}
    text = _fill_text(data_type, element, said)
    if len(element) > _MAX_FILL and (isinstance(said, dict) or len(said) > _MAX_FILL):
        said = {"nbytes": len(element)}
    return plain(said), text


def _fill_text(data_type: DataType, element: bytes, said: Any) -> str:
    if data_type.dtype.kind == "S":
        element = element.rstrip(b"\0")
    if len(element) > _MAX_FILL_TEXT:
        return f"of {len(element)} bytes"
    if data_type.is_variable:
        return json.dumps(plain(said), ensure_ascii=False)
    return _element_text(data_type.dtype, element)


def _element_text(dtype: np.dtype[Any], element: bytes) -> str:
    """One element as a person reads it. NumPy's own text of a structure fails where a field holds what is no text."""
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
            # A number of no unit, for which NumPy has no text.
            ticks = int.from_bytes(element, "little", signed=True)
            return "NaT" if ticks == fill_value.NAT else str(ticks)
    try:
        data_type = from_numpy(dtype)
        said = fill_value.to_json(data_type, element)
    except MetadataError:
        return f"0x{element.hex()}"
    if data_type.name == "raw_bytes":
        return f"0x{element.hex()}"
    if dtype.kind == "U":
        return json.dumps(said, ensure_ascii=False)
    # NaN, Infinity and bit patterns are strings there.
    return said if isinstance(said, str) else json.dumps(said)


def shards(metadata: ArrayMetadata) -> list[dict[str, Any]]:
    """How chunks are bundled, outermost shards first; nothing where they are not."""
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
