"""Minimal Zarr v2 stores as dicts of keys, written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

ELEMENTS = np.arange(30, dtype="<i4").reshape(6, 5)
"""Elements of array ``a`` of `SMALL`: chunks of (2, 3), so that the last column of chunks is padded."""


def array_document(shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "<i4", **more: object) -> bytes:
    document = {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "fill_value": 7, "order": "C"}
    return json.dumps(document | {"compressor": None, "filters": None} | more).encode()


def chunk(row: int, column: int) -> bytes:
    """Return the bytes of a chunk of ``a``."""
    padded = np.full((6, 6), 7, "<i4")
    padded[:, :5] = ELEMENTS
    return padded[2 * row : 2 * row + 2, 3 * column : 3 * column + 3].tobytes()


SMALL: dict[str, bytes] = {
    ".zgroup": b'{"zarr_format":2}',
    "a/.zarray": array_document((6, 5), (2, 3)),
    **{f"a/{row}.{column}": chunk(row, column) for row in range(3) for column in range(2) if (row, column) != (2, 1)},
    "z/.zarray": array_document((6, 5), (2, 3), compressor={"id": "zlib", "level": 1}),
}
"""A group with the uncompressed array ``a``, whose chunk 2.1 is not stored, and the compressed array ``z`` without chunks."""


def write(folder: Path, values: dict[str, bytes]) -> Path:
    """Put ``values`` into the folder store at ``folder``."""
    for key, value in values.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)
    return folder
