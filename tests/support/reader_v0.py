"""An independent reader of the layout before Zarr 1.0, written from "zarr - Persistence" and DEVIATIONS only.

It has the requirements of zarr 0.4 on a folder: exactly the seven members, ``__zdata__``, and Blosc in every chunk.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import blosc

_MEMBERS = {"shape", "chunks", "dtype", "fill_value", "cname", "clevel", "shuffle"}


def read_attributes(folder: Path) -> dict[str, Any]:
    path = folder / "__zattr__"
    return dict(json.loads(path.read_bytes().decode("ascii"))) if path.exists() else {}


def read_meta(folder: Path) -> dict[str, Any]:
    meta = dict(json.loads((folder / "__zmeta__").read_bytes().decode("ascii")))
    assert set(meta) == _MEMBERS, meta
    assert meta["cname"] in blosc.list_compressors() or meta["cname"] == "snappy", meta
    assert 0 <= meta["clevel"] <= 9 and meta["shuffle"] in (0, 1, 2), meta
    return meta


def read_array(folder: Path) -> np.ndarray[Any, Any]:
    meta = read_meta(folder)
    shape, chunks = meta["shape"], meta["chunks"]
    dtype = np.dtype(_fields(meta["dtype"]))
    whole = np.zeros(shape, dtype)
    if meta["fill_value"] is not None:
        whole.fill(meta["fill_value"])
    grid = [range(-(-extent // length)) for extent, length in zip(shape, chunks, strict=True)]
    # If no chunk is stored the folder may be missing: archives do not keep empty ones.
    files = {path.name for path in (folder / "__zdata__").glob("*.blosc")}
    for index in itertools.product(*grid):
        name = ".".join(map(str, index)) + ".blosc"
        if name not in files:
            continue
        files.discard(name)
        chunk = np.frombuffer(_decompress((folder / "__zdata__" / name).read_bytes(), dtype), dtype).reshape(chunks)
        place = tuple(slice(i * length, (i + 1) * length) for i, length in zip(index, chunks, strict=True))
        inside = tuple(slice(0, part) for part in whole[place].shape)
        whole[place] = chunk[inside]
    assert not files, f"no chunks of the grid: {files}"
    return whole


def _decompress(data: bytes, dtype: np.dtype[Any]) -> bytes:
    assert data[0] in (1, 2), "a container of Blosc 1"
    assert data[3] == min(dtype.itemsize, 255) or dtype.itemsize > 255, "typesize is the size of an element"
    if data[2] >> 5 == 2:
        import imagecodecs

        return bytes(imagecodecs.blosc_decode(data))
    return bytes(blosc.decompress(data))


def _fields(dtype: Any) -> Any:
    return dtype if isinstance(dtype, str) else [(name, _fields(each)) for name, each in dtype]
