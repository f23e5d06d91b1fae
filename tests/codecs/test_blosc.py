"""Blosc: malicious headers, element types that v2 does not state, and snappy."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import numcodecs
import numcodecs.blosc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.length import tries
from zarrfs.codecs import blosc, lookup
from zarrfs.codecs.blosc import Blosc
from zarrfs.codecs.chain import CodecChain
from zarrfs.errors import ChunkDecodeError, MetadataError
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import from_name, from_numpy

CODEC = Blosc("lz4", 5, 1, 0, 4)
DATA = np.arange(2000, dtype="<i4").tobytes()
ENCODED = bytes(CODEC.encode(DATA))


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (4, 2**31 - 1, "decoded size of 2147483647 bytes exceeds the limit of 8000"),
        (4, 8001, "decoded size of 8001 bytes exceeds the limit of 8000"),
        (8, 0, "damaged header"),
        (12, 2**31 - 1, "size in the header is 2147483647 bytes"),
        (12, len(ENCODED) - 1, "stored are"),
    ],
)
def test_a_header_that_lies(offset: int, value: int, reason: str) -> None:
    lie = bytearray(ENCODED)
    struct.pack_into("<I", lie, offset, value)
    tracemalloc.start()
    try:
        with pytest.raises(ChunkDecodeError, match=reason):
            CODEC.decode(lie, 8000)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@tries(300)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(ENCODED) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    cname=st.sampled_from(["lz4", "zstd", "blosclz", "zlib"]),
)
def test_c_blosc_survives_any_damage(changes: list[tuple[int, int]], cname: str) -> None:
    damaged = bytearray(Blosc(cname, 5, 1, 512, 4).encode(DATA))
    for offset, value in changes:
        damaged[offset % len(damaged)] = value
    struct.pack_into("<I", damaged, 12, len(damaged))
    # Canaries on both sides of the permitted output.
    memory = bytearray(b"\xaa" * 64 + bytes(8000) + b"\xaa" * 64)
    with contextlib.suppress(ChunkDecodeError):
        CODEC.decode(bytes(damaged), 8000, memoryview(memory)[64:-64])
    assert memory[:64] == memory[-64:] == b"\xaa" * 64


@pytest.mark.parametrize(
    ("dtype", "shuffle"),
    [("u1", "bitshuffle"), ("bool", "bitshuffle"), ("<i2", "shuffle"), ("S5", "shuffle"), ("M8[s]", "shuffle")],
)
def test_automatic_shuffle_depends_on_the_elements(dtype: str, shuffle: str) -> None:
    elements = np.arange(600).astype(dtype)
    config = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": -1, "blocksize": 0}
    spec = lookup.from_numcodecs(config)
    assert lookup.to_numcodecs(spec) == config
    chain = CodecChain.build((spec,), from_numpy(elements.dtype))
    assert chain.specs[-1].configuration["shuffle"] == shuffle
    assert chain.specs[-1].configuration["typesize"] == elements.dtype.itemsize
    assert bytes(chain.encode(elements)) == numcodecs.get_codec(config).encode(elements)


def test_v2_may_leave_members_out() -> None:
    spec = lookup.from_numcodecs({"id": "blosc", "cname": "zstd"})
    assert spec == CodecSpec("blosc", {"cname": "zstd", "clevel": 5, "shuffle": "shuffle", "blocksize": 0})
    with pytest.raises(MetadataError, match="shuffle"):
        lookup.from_numcodecs({"id": "blosc", "shuffle": 3})


def test_the_name_that_zarr_python_gives_to_numcodecs() -> None:
    chain = CodecChain.build((CodecSpec("numcodecs.blosc", {"cname": "lz4", "clevel": 5, "shuffle": 2}),), from_name("int32"))
    assert chain.specs[-1].name == "blosc"
    assert chain.specs[-1].configuration["shuffle"] == "bitshuffle"


def test_the_decoder_does_not_start_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numcodecs.blosc, "use_threads", None)
    blosc._numcodecs.cache_clear()
    assert bytes(CODEC.decode(CODEC.encode(DATA), len(DATA))) == DATA
    assert numcodecs.blosc.use_threads is False


def test_snappy() -> None:
    pytest.importorskip("imagecodecs")
    spec = CodecSpec("blosc", {"cname": "snappy", "clevel": 5, "shuffle": "shuffle"})
    chain = CodecChain.build((spec,), from_name("int32"))
    elements = (np.arange(100_000) // 7).astype("<i4")
    encoded = bytes(chain.encode(elements))
    assert encoded[2] >> 5 == 2 and len(encoded) < elements.nbytes // 2
    assert chain.decode(encoded, elements.shape).tobytes() == elements.tobytes()
    out = np.zeros_like(elements)
    chain.decode_into(encoded, elements.shape, out)
    assert out.tobytes() == elements.tobytes()
    for damage in range(16, 400):
        damaged = bytearray(encoded)
        damaged[damage] ^= 0xFF
        try:
            chain.decode(bytes(damaged), elements.shape)
        except ChunkDecodeError:
            continue
