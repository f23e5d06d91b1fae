"""An independent reader of the Zarr v3 core draft of 2022, written from its text and from output of zarr-python 2.16.

It uses only json, numpy and numcodecs. It reads the output of tests, and is strict about it.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import struct
from collections.abc import Mapping
from typing import Any

import numcodecs
import numpy as np

Elements = np.ndarray[Any, Any]
NODE = {"array": {"shape", "data_type", "chunk_grid", "chunk_memory_layout", "fill_value", "extensions", "attributes"}}
OPTIONAL = {"codecs", "compressor", "storage_transformers", "dimension_separator"}
CORE = {"float": "f", "int": "i", "uint": "u", "complex": "c"}


def everything(values: Mapping[str, bytes]) -> dict[str, tuple[Elements | None, dict[str, Any]]]:
    """Return elements (None for a group) and attributes of every node with a document, by path."""
    entry = json.loads(values["zarr.json"])
    encoding = entry["metadata_encoding"]
    software = isinstance(encoding, str)
    assert entry["zarr_format"].endswith("core/3.0")
    suffix = entry["metadata_key_suffix"] if software else encoding["metadata_key_suffix"]
    found: dict[str, tuple[Elements | None, dict[str, Any]]] = {}
    for key in sorted(values):
        match = re.fullmatch(r"meta/(?P<path>.+)\.(?P<kind>array|group)" + re.escape(suffix), key)
        root = re.fullmatch(r"meta/(?P<path>)(?P<kind>array|group)" + re.escape(suffix), key) if not software else None
        match = match or root
        if match is None:
            continue
        path = match["path"].removeprefix("root") if software else f"/{match['path']}"
        document = json.loads(values[key])
        assert path not in found or path == "/", f"{path} is two nodes"
        elements = None
        if match["kind"] == "array":
            assert NODE["array"] <= document.keys() <= NODE["array"] | OPTIONAL
            prefix = "data/root" if software else "data"
            elements = array(values, f"{prefix}{path.rstrip('/')}/", document, "c0" if software else "c")
        else:
            assert document.keys() == {"attributes"}
        found[path or "/"] = elements, document["attributes"]
    return found


def array(values: Mapping[str, bytes], prefix: str, document: dict[str, Any], scalar: str) -> Elements:
    """Return the elements of one array; ``prefix`` is that of its chunks' keys."""
    dtype = data_type(document["data_type"])
    shape, grid = document["shape"], document["chunk_grid"]
    chunk_shape = grid["chunk_shape"]
    codecs = [numcodecs.get_codec(each) for each in document["attributes"].get("filters", []) if scalar == "c0"]
    for each in document.get("codecs", []) + ([document["compressor"]] if "compressor" in document else []):
        name = re.search("/codecs?/([a-z0-9]+)", each["type"] if "type" in each else each["codec"])[1]  # type: ignore[index]
        if name == "endian":
            dtype = dtype.newbyteorder({"big": ">", "little": "<"}[each["configuration"]["endian"]])
        else:
            codecs.append(numcodecs.get_codec({"id": name, **each["configuration"]}))
    out = np.empty(shape, dtype)
    out[...] = fill_value(document["fill_value"], dtype)
    counts = [-(-extent // length) for extent, length in zip(shape, chunk_shape, strict=True)]
    stack = [each["configuration"]["chunks_per_shard"] for each in document.get("storage_transformers", [])]
    for coords in itertools.product(*map(range, counts)):
        data = stored(values, prefix, coords, stack, grid["separator"], scalar)
        if data is None:
            continue
        for codec in reversed(codecs):
            data = codec.decode(data)
        order = document["chunk_memory_layout"]
        elements = np.asarray(data) if dtype.hasobject else np.frombuffer(memoryview(data).cast("B"), dtype)
        chunk = elements.reshape(chunk_shape, order=order)
        place = tuple(slice(index * length, (index + 1) * length) for index, length in zip(coords, chunk_shape, strict=True))
        out[place] = chunk[tuple(slice(0, extent) for extent in out[place].shape)]
    return out


def stored(
    values: Mapping[str, bytes], prefix: str, coords: tuple[int, ...], stack: list[list[int]], separator: str, scalar: str
) -> bytes | None:
    """Return the encoded bytes of a chunk, or of a shard in the rest of the stack."""
    if not stack:
        return values.get(prefix + ("c" + separator.join(map(str, coords)) if coords else scalar))
    per_shard, *outer = stack
    shard = stored(values, prefix, tuple(c // n for c, n in zip(coords, per_shard, strict=True)), outer, separator, scalar)
    if shard is None:
        return None
    place = int(np.ravel_multi_index([c % n for c, n in zip(coords, per_shard, strict=True)], per_shard)) if coords else 0
    start = len(shard) - 16 * int(np.prod(per_shard)) + 16 * place
    offset, nbytes = struct.unpack("<QQ", shard[start : start + 16])
    return None if nbytes == 2**64 - 1 else shard[offset : offset + nbytes]


def data_type(value: Any) -> np.dtype[Any]:
    """Return the stored type."""
    if isinstance(value, dict):
        value = value["type"]
    if isinstance(value, list):
        return np.dtype([(name, data_type(inner), *map(tuple, rest)) for name, inner, *rest in value])
    core = re.fullmatch("(float|u?int|complex)([0-9]+)", value)
    if core is not None:
        return np.dtype(f"<{CORE[core[1]]}{int(core[2]) // 8}")
    raw = re.fullmatch("r([0-9]+)", value)
    return np.dtype(f"V{int(raw[1]) // 8}" if raw is not None else value)


def fill_value(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return one element of fill value."""
    if value is None:
        return np.zeros((), dtype)
    if isinstance(value, str) and value.startswith("0x"):
        digits = bytes.fromhex(value[2:])
        return np.frombuffer(digits, dtype.newbyteorder(">") if dtype.kind in "iuf" else dtype)[0]
    if dtype.kind in "SV" and isinstance(value, str):
        return np.frombuffer(base64.b64decode(value).ljust(dtype.itemsize, b"\0"), dtype)[0]
    if dtype.kind == "c":
        return complex(*map(float, value))
    return float(value) if isinstance(value, str) and dtype.kind == "f" else value
