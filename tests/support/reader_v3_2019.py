"""An independent reader of the protocol draft of 2019, written from its text and from zarrita's behaviour.

``nodes(folder)`` returns every node of the hierarchy in a folder: path, attributes, and the elements of arrays.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np

SUFFIXES = {".array": "array", ".group": "group"}


@dataclass
class Node:
    """A node. ``elements`` is None for groups; ``stored`` are the chunk identifiers with a value; ``fill`` is as in the document."""

    kind: str
    attributes: dict[str, Any]
    elements: np.ndarray[Any, Any] | None = None
    stored: tuple[str, ...] = ()
    document: dict[str, Any] | None = None


def nodes(folder: Path) -> dict[str, Node]:
    """Return every node by its path. Implied groups are those above others, and of kind ``implied``."""
    entry = json.loads((folder / "zarr.json").read_bytes())
    uri, _, version = entry["zarr_format"].rpartition("/")
    assert uri == "https://purl.org/zarr/spec/protocol/core"
    assert version.split(".")[0] == "3"
    assert entry["metadata_encoding"] == "application/json"
    assert not any(extension["must_understand"] for extension in entry["extensions"])
    found: dict[str, Node] = {}
    for file in sorted((folder / "meta").rglob("*")):
        if file.is_dir():
            continue
        key = "/" + file.relative_to(folder / "meta").as_posix()
        stem, kind = key[: -len(file.suffix)], SUFFIXES[file.suffix]
        assert stem == "/root" or stem.startswith("/root/"), key
        path = stem.removeprefix("/root") or "/"
        assert path not in found, f"an array and a group at {path}"
        document = json.loads(file.read_bytes())
        assert not any(extension["must_understand"] for extension in document["extensions"])
        node = Node(kind, document["attributes"] or {}, document=document)
        if kind == "array":
            node.elements, node.stored = read(folder, path, document)
        found[path] = node
    for path in list(found):
        while path != "/":
            path = path.rpartition("/")[0] or "/"
            found.setdefault(path, Node("implied", {}))
    return found


def read(folder: Path, path: str, document: dict[str, Any]) -> tuple[np.ndarray[Any, Any], tuple[str, ...]]:
    """Return all elements of an array, and the identifiers of the stored chunks."""
    shape, grid = tuple(document["shape"]), document["chunk_grid"]
    assert grid["type"] == "regular"
    chunks, separator = tuple(grid["chunk_shape"]), grid.get("separator", ".")
    fill = document["fill_value"]
    elements = np.zeros(shape, dtype_of(document["data_type"]))
    if fill is not None:
        elements[...] = [float(fill)] if isinstance(fill, str) else fill
    stored = []
    for coords in itertools.product(*(range(math.ceil(n / c)) for n, c in zip(shape, chunks, strict=True))):
        identifier = separator.join(map(str, coords))
        file = folder / f"data{path.rstrip('/')}/{identifier}".rstrip("/")
        if not file.is_file():
            continue
        stored.append(identifier)
        data = decompressed(file.read_bytes(), document.get("compressor"))
        chunk = np.frombuffer(data, elements.dtype).reshape(chunks, order=document["chunk_memory_layout"])
        inside = tuple(slice(i * c, min((i + 1) * c, n)) for i, c, n in zip(coords, chunks, shape, strict=True))
        elements[inside] = chunk[tuple(slice(0, box.stop - box.start) for box in inside)]
    return elements, tuple(stored)


def dtype_of(data_type: Any) -> np.dtype[Any]:
    """Return the type of stored elements: of the table, of the datetime extension, or a fallback."""
    if isinstance(data_type, str):
        return np.dtype(data_type)
    known = "/datetime-dtypes/" in data_type["extension"] or "/complex-dtypes/" in data_type["extension"]
    return np.dtype(data_type["type"] if known else data_type["fallback"])


def decompressed(data: bytes, compressor: dict[str, Any] | None) -> bytes:
    """Return the decompressed bytes of a chunk."""
    if compressor is None:
        return data
    *_, kind, name, version = compressor["codec"].rstrip("/").split("/")
    if kind == "spec":
        name = version
    if name == "gzip":
        return gzip.decompress(data)
    return bytes(numcodecs.get_codec({"id": name, **compressor.get("configuration", {})}).decode(data))
