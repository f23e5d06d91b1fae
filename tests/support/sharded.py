"""Sharded arrays of final v3, written and read by other libraries, from documents that hypothesis draws."""

from __future__ import annotations

import json
import math
import warnings
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
import zarr
from hypothesis import strategies as st

Elements = np.ndarray[Any, Any]
LIBRARIES = ("zarr-python", "tensorstore", "zarrs")

_INNER: list[list[dict[str, Any]]] = [
    [{"name": "bytes", "configuration": {"endian": "little"}}],
    [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "crc32c"}],
    [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
    ],
    [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "gzip", "configuration": {"level": 1}}],
]


@st.composite
def documents(draw: st.DrawFn, *, levels: int = 2, before: bool = True, behind: bool = True) -> dict[str, Any]:
    """Return documents of sharded arrays of int16.

    ``levels``: maximum nesting of shards; ``before`` and ``behind``: other codecs on these sides of the outermost one.
    """
    ndim = draw(st.integers(1, 3))
    shape = [draw(st.integers(1, 11)) for _ in range(ndim)]
    order = draw(st.permutations(range(ndim))) if before and draw(st.booleans()) else None

    def lengths() -> list[int]:
        # zarr-python compares the shapes of shard and chunk before the transposition as well: these fit both ways.
        return [draw(st.integers(1, 3))] * ndim if order else [draw(st.integers(1, 3)) for _ in range(ndim)]

    codecs = draw(st.sampled_from(_INNER))
    outer = lengths()
    for level in range(depth := draw(st.integers(1, levels))):
        codecs = [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": outer,
                    "codecs": codecs,
                    "index_codecs": draw(st.sampled_from([_INNER[0], [*_INNER[0], {"name": "crc32c"}]])),
                    "index_location": draw(st.sampled_from(["start", "end"])),
                },
            }
        ]
        counts = lengths() if level < depth - 1 else [draw(st.integers(1, 3)) for _ in range(ndim)]
        outer = [length * count for length, count in zip(outer, counts, strict=True)]
    if order:
        codecs = [{"name": "transpose", "configuration": {"order": order}}, *codecs]
        # The chunk shape has the order of the array's axes, the input of the sharding codec that of the transposed ones.
        outer = [outer[order.index(axis)] for axis in range(ndim)]
    if behind and draw(st.integers(0, 3)) == 0:
        codecs = [*codecs, {"name": "crc32c"}]
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": draw(st.sampled_from("/."))}},
        "fill_value": draw(st.sampled_from([0, -7])),
        "codecs": codecs,
        "attributes": {},
    }


@st.composite
def regions(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return parts of an array."""
    parts = []
    for extent in shape:
        start = draw(st.integers(0, extent - 1))
        parts.append(slice(start, draw(st.integers(start + 1, extent))))
    return tuple(parts)


def make(folder: Path, document: dict[str, Any]) -> Elements:
    """Store an array without chunks, and return its elements."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zarr.json").write_text(json.dumps(document))
    return np.full(document["shape"], document["fill_value"], np.int16)


def numbered(shape: tuple[int, ...], start: int) -> Elements:
    """Return elements that differ from one another and from the fill values."""
    return np.arange(start, start + math.prod(shape), dtype=np.int16).reshape(shape)


def store(library: str, folder: Path, region: tuple[slice, ...], elements: Elements) -> None:
    """Write a part of the array in ``folder``."""
    if library == "tensorstore":
        _tensorstore(folder)[region].write(elements).result()
    else:
        with _pipeline(library):
            zarr.open_array(str(folder), mode="r+")[region] = elements


def load(library: str, folder: Path) -> Elements:
    """Return all elements of the array in ``folder``."""
    if library == "tensorstore":
        return np.asarray(_tensorstore(folder).read().result())
    with _pipeline(library):
        return np.asarray(zarr.open_array(str(folder), mode="r")[...])


def _tensorstore(folder: Path) -> Any:
    return tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}, open=True).result()


def _pipeline(library: str) -> AbstractContextManager[Any]:
    """Use zarrs as the codec pipeline of zarr-python."""
    if library == "zarr-python":
        return nullcontext()
    warnings.filterwarnings("ignore", module="zarrs")
    return zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline", "codec_pipeline.strict": False})  # type: ignore[no-any-return]
