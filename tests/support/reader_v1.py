"""An independent reader of Zarr v1, written from the specification and DEVIATIONS only.

Like zarr 1.1, it requires the eight members, ASCII, and ``attrs``; only Blosc chunks are in order F where ``order`` declares it.
"""

from __future__ import annotations

import bz2
import itertools
import json
import lzma
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import blosc

_MEMBERS = {"zarr_format", "shape", "chunks", "dtype", "compression", "compression_opts", "fill_value", "order"}


def read_attributes(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "attrs").read_bytes().decode("ascii")))


def read_meta(folder: Path) -> dict[str, Any]:
    meta = dict(json.loads((folder / "meta").read_bytes().decode("ascii")))
    assert set(meta) == _MEMBERS and meta["zarr_format"] == 1, meta
    assert (folder / "attrs").exists()
    return meta


def read_array(folder: Path, *, order_as_text: bool = False) -> np.ndarray[Any, Any]:
    meta = read_meta(folder)
    shape, chunks = meta["shape"], meta["chunks"]
    dtype = np.dtype(_fields(meta["dtype"]))
    order = meta["order"] if order_as_text or meta["compression"] == "blosc" else "C"
    whole = np.zeros(shape, dtype)
    if meta["fill_value"] is not None:
        whole.fill(meta["fill_value"])
    grid = [range(-(-extent // length)) for extent, length in zip(shape, chunks, strict=True)]
    files = {path.name for path in folder.iterdir()} - {"meta", "attrs"}
    for index in itertools.product(*grid):
        name = ".".join(map(str, index))
        if name not in files:
            continue
        files.discard(name)
        chunk = np.frombuffer(_decompress(meta, (folder / name).read_bytes()), dtype).reshape(chunks, order=order)
        place = tuple(slice(i * length, (i + 1) * length) for i, length in zip(index, chunks, strict=True))
        inside = tuple(slice(0, part) for part in whole[place].shape)
        whole[place] = chunk[inside]
    assert not files, f"no chunks of the grid: {files}"
    return whole


def _decompress(meta: dict[str, Any], data: bytes) -> bytes:
    options = meta["compression_opts"]
    match meta["compression"]:
        case "blosc":
            assert set(options) == {"cname", "clevel", "shuffle"}, options
            return bytes(blosc.decompress(data))
        case "zlib":
            assert 0 <= options <= 9
            return zlib.decompress(data)
        case "bz2":
            assert 1 <= options <= 9
            return bz2.decompress(data)
        case "lzma":
            filters = options["filters"] if options["format"] == lzma.FORMAT_RAW else None
            return lzma.decompress(data, format=options["format"], filters=filters)
        case "none" | None:
            assert options is None
            return data
    raise AssertionError(meta["compression"])


def _fields(dtype: Any) -> Any:
    return dtype if isinstance(dtype, str) else [(name, _fields(each)) for name, each in dtype]
