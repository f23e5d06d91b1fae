"""Stored bytes compared with zarr-python's, both ways: its final v3 with every example of every codec, its v2 with filters and orders."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore

from tests.support.codecs import SHAPE, Example, examples, same
from zarrfs.codecs.chain import CodecChain
from zarrfs.dialects.v2.array import parse_array

pytestmark = pytest.mark.filterwarnings("ignore")


def _both_can(example: Example) -> bool:
    """Return True if zarr-python supports it: not letters as the order of `transpose`, nor byte orders in a filter's configuration."""
    values = [str(value) for value in example.spec.configuration.values()]
    return example.spec.configuration.get("order") not in ("C", "F") and not any(value.startswith(">") for value in values)


V3 = [each for each in examples() if each.codec_class.in_v3 and _both_can(each)]


@pytest.mark.parametrize("example", V3, ids=[each.id for each in V3])
def test_v3(example: Example) -> None:
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": SHAPE,
        "data_type": example.chain.data_type.v3_name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": SHAPE}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": "" if example.chain.data_type.is_variable else False if example.chain.data_type.name == "bool" else 0,
        "codecs": [{"name": spec.name, "configuration": dict(spec.configuration)} for spec in example.chain.v3_specs()],
    }
    new = default_buffer_prototype().buffer.from_bytes
    ours = bytes(example.chain.encode(example.chunk))
    values = {"zarr.json": new(json.dumps(document).encode()), "c/0/0": new(ours)}
    array = zarr.open_array(MemoryStore(values), mode="r+")
    decoded = example.chain.decode(ours, SHAPE)
    assert same(np.asarray(array[:]).astype(decoded.dtype), decoded)
    del values["c/0/0"]
    array[:] = example.chunk
    theirs = values["c/0/0"].to_bytes()
    assert same(example.chain.decode(theirs, SHAPE), decoded)
    if example.spec.name != "gzip":  # its header contains the time
        assert theirs == ours


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    AUTO = numcodecs.Blosc("lz4", shuffle=numcodecs.Blosc.AUTOSHUFFLE)
    V2: list[tuple[str, str, list[Any], Any]] = [
        ("<i4", "C", [numcodecs.Delta("<i4", "<i2")], AUTO),
        (">i4", "F", [numcodecs.Delta(">i4")], AUTO),
        (">f4", "F", [numcodecs.FixedScaleOffset(1, 10, ">f4", "<u2")], numcodecs.Zstd(3)),
        ("<f4", "F", [numcodecs.BitRound(5)], AUTO),
        ("<f8", "C", [numcodecs.Quantize(2, "<f8", "<f4")], AUTO),
        ("|b1", "F", [numcodecs.PackBits()], AUTO),
        ("<i4", "F", [numcodecs.AsType("<i2", "<i4"), numcodecs.Delta("<i2"), numcodecs.Shuffle(2)], AUTO),
        ("<u2", "C", [numcodecs.Zlib(1)], AUTO),
        ("<u2", "C", [numcodecs.Blosc("zstd"), numcodecs.CRC32()], numcodecs.LZMA()),
        ("<u2", "C", [numcodecs.Zlib(1), numcodecs.Delta("u1")], numcodecs.BZ2()),
        ("|u1", "C", [], AUTO),
        ("<M8[s]", "C", [numcodecs.Delta("<i8")], AUTO),
        ("|S5", "F", [], AUTO),
        ("<U3", "C", [], AUTO),
        (">c16", "F", [], AUTO),
        ("<i8", "C", [numcodecs.Fletcher32()], numcodecs.BZ2()),
        ("<i8", "F", [numcodecs.JenkinsLookup3()], numcodecs.LZ4()),
        ("<f2", "F", [numcodecs.Adler32()], numcodecs.GZip()),
    ]


@pytest.mark.parametrize(("dtype", "order", "filters", "compressor"), V2)
def test_v2(dtype: str, order: Any, filters: list[Any], compressor: Any) -> None:
    values: dict[str, Any] = {}
    array = zarr.create_array(
        MemoryStore(values),
        shape=SHAPE,
        chunks=(4, 4),
        dtype=dtype,
        filters=filters or None,
        compressors=compressor,
        order=order,
        zarr_format=2,
        fill_value=None,
    )
    numbers = np.arange(24).reshape(SHAPE)
    array[:] = numbers % 2 == 0 if dtype == "|b1" else numbers.astype(dtype)
    metadata = parse_array(json.loads(values[".zarray"].to_bytes()))
    chain = CodecChain.build(metadata.codecs, metadata.data_type)
    stored = values["0.0"].to_bytes()
    chunk = chain.decode(stored, (4, 4))
    assert chunk.tobytes() == np.asarray(array[:4]).astype(metadata.data_type.dtype).tobytes()
    if compressor.codec_id != "gzip":
        assert bytes(chain.encode(chunk)) == stored
