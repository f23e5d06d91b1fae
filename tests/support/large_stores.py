"""Stores of a few bytes that declare, or decompress to, a large amount of data."""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np

MIB = 1 << 20


def v3(shape: Sequence[int], chunks: Sequence[int], codecs: Sequence[Any], data_type: str = "uint8") -> str:
    """Return a final v3 array document."""
    return json.dumps(
        {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(shape),
            "data_type": data_type,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": list(codecs),
        }
    )


def v2(shape: Sequence[int], chunks: Sequence[int], compressor: Any, dtype: str = "|u1", filters: Any = None) -> str:
    """Return a v2 array document."""
    return json.dumps(
        {
            "zarr_format": 2,
            "shape": list(shape),
            "chunks": list(chunks),
            "dtype": dtype,
            "compressor": compressor,
            "fill_value": None if dtype == "|O" else 0,
            "order": "C",
            "filters": filters,
        }
    )


def write(folder: Path, document: str, chunks: dict[str, bytes], name: str = "zarr.json") -> None:
    """Write an array with these chunks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(document)
    for key, data in chunks.items():
        place = folder / key
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)


def sparse(place: Path, nbytes: int, pieces: dict[int, bytes] | None = None) -> None:
    """Write a file of that many bytes, zeros except for ``pieces``."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.open("wb") as file:
        file.truncate(nbytes)
        for offset, data in (pieces or {}).items():
            file.seek(offset)
            file.write(data)


def zeros(nbytes: int, compress: Any) -> bytes:
    """Return the output of an incremental compressor for that many zeros."""
    piece = bytes(MIB)
    return b"".join([*(compress.compress(piece) for _ in range(nbytes // MIB)), compress.flush()])


def _zstd_unstated(nbytes: int) -> bytes:
    import zstandard

    return zeros(nbytes, zstandard.ZstdCompressor(level=1).compressobj())


def _numcodec(config: dict[str, Any]) -> Callable[[int], bytes]:
    return lambda nbytes: bytes(numcodecs.get_codec(config).encode(np.zeros(nbytes, np.uint8)))


BOMBS: dict[str, tuple[dict[str, Any], Callable[[int], bytes]]] = {
    "gzip": ({"id": "gzip", "level": 1}, lambda nbytes: zeros(nbytes, zlib.compressobj(1, zlib.DEFLATED, 31))),
    "zlib": ({"id": "zlib", "level": 1}, lambda nbytes: zeros(nbytes, zlib.compressobj(1))),
    "bz2": ({"id": "bz2", "level": 1}, lambda nbytes: zeros(nbytes, bz2.BZ2Compressor(1))),
    "lzma": (
        {"id": "lzma", "format": 1, "check": -1, "preset": 6, "filters": None},
        lambda nbytes: zeros(nbytes, lzma.LZMACompressor(preset=0)),
    ),
    "zstd": ({"id": "zstd", "level": 1}, _numcodec({"id": "zstd", "level": 1})),
    "zstd, of unstated size": ({"id": "zstd", "level": 1}, _zstd_unstated),
    "lz4": ({"id": "lz4", "acceleration": 1}, _numcodec({"id": "lz4", "acceleration": 1})),
    "blosc": (
        {"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 1, "blocksize": 0},
        _numcodec({"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 1, "blocksize": 0}),
    ),
}
"""For each compressor, its configuration, and a function that returns a chunk of that many zeros."""
