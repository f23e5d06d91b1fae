"""gzip, zlib, bz2 and lzma: several streams in one value, permitted trailing data, and decoding without igzip."""

from __future__ import annotations

import bz2
import gzip
import lzma
import random
import zlib
from typing import Any

import numpy as np
import pytest

from zarrfs.codecs import deflate, lookup
from zarrfs.codecs.base import BYTE, BytesBytesCodec
from zarrfs.codecs.streams import decode_streams
from zarrfs.errors import ChunkDecodeError, MetadataError
from zarrfs.model.codec_spec import CodecSpec

A, B = b"abc" * 50, bytes(range(200))


def codec(name: str, **configuration: Any) -> BytesBytesCodec:
    _, found = lookup.resolve(CodecSpec(name, configuration), BYTE)
    assert isinstance(found, BytesBytesCodec)
    return found


GZIP, BZ2, LZMA, ZLIB = codec("gzip", level=5), codec("numcodecs.bz2"), codec("numcodecs.lzma"), codec("numcodecs.zlib")


@pytest.mark.parametrize(("decoder", "compress"), [(GZIP, gzip.compress), (BZ2, bz2.compress), (LZMA, lzma.compress)])
def test_several_streams_are_one_value(decoder: BytesBytesCodec, compress: Any) -> None:
    both = compress(A) + compress(B)
    assert decoder.decode(both, len(A + B)) == A + B
    assert decoder.decode(compress(b"") + both + compress(b""), 1000) == A + B
    with pytest.raises(ChunkDecodeError):
        decoder.decode(both, len(A + B) - 1)
    with pytest.raises(ChunkDecodeError):
        decoder.decode(both[:-3], len(A + B))


@pytest.mark.parametrize("decoder", [ZLIB, BZ2, LZMA])
def test_what_follows_is_ignored_as_numcodecs_does(decoder: BytesBytesCodec) -> None:
    assert decoder.decode(bytes(decoder.encode(A)) + b"what is this", len(A)) == A


def test_gzip_is_followed_by_members_or_zeros_alone() -> None:
    encoded = bytes(GZIP.encode(A))
    assert GZIP.decode(encoded + bytes(100), len(A)) == A
    for junk in (b"junk", bytes(5) + b"x", encoded[:-1], b"\x1f"):
        with pytest.raises(ChunkDecodeError, match="gzip"):
            GZIP.decode(encoded + junk, 10 * len(A))


def test_very_many_members_do_not_take_for_ever() -> None:
    # Copying the rest of the value at every end of a member would move 50 GB here.
    assert GZIP.decode(gzip.compress(b"") * 100_000, 10) == b""


@pytest.mark.parametrize(
    ("decoder", "compress", "library"),
    [
        (GZIP, lambda data: zlib.compress(data, 1, 31), lambda: zlib.decompressobj(31)),
        (ZLIB, lambda data: zlib.compress(data, 1), zlib.decompressobj),
        (LZMA, lambda data: lzma.compress(data, preset=0), lzma.LZMADecompressor),
    ],
)
def test_a_piece_of_input_may_end_where_a_piece_of_output_does(decoder: BytesBytesCodec, compress: Any, library: Any) -> None:
    piece, junk = 1 << 20, random.Random(1).randbytes(1 << 21)
    zeros, decoded = 7 * piece, 0
    while decoded != 8 * piece:
        zeros += 8 * piece - decoded if decoded else 0
        encoded = compress(bytes(zeros) + junk)
        decoded = len(library().decompress(encoded[:piece]))
    assert bytes(decoder.decode(encoded, zeros + len(junk))) == bytes(zeros) + junk
    with pytest.raises(ChunkDecodeError, match="ends within"):
        decoder.decode(encoded[:piece], zeros + len(junk))


def test_damaged_checksums_are_noticed() -> None:
    for encoded, decoder in ((gzip.compress(A), GZIP), (zlib.compress(A), ZLIB)):
        damaged = bytearray(encoded)
        damaged[-1 if decoder is ZLIB else -6] ^= 1
        with pytest.raises(ChunkDecodeError):
            decoder.decode(damaged, len(A))


def test_without_igzip() -> None:
    incompressible = np.random.default_rng(0).bytes(200_000)
    for data in (b"", A, incompressible):
        member = gzip.compress(data)

        def decode(encoded: bytes, limit: int) -> bytes:
            return decode_streams("gzip", encoded, limit, lambda: deflate.ZlibDecompressor(31), lambda rest: True)

        assert decode(member + member, 2 * len(data)) == data + data
        with pytest.raises(ChunkDecodeError):
            decode(member[:-1], len(data))
        with pytest.raises(ChunkDecodeError):
            decode(member + gzip.compress(b"x"), len(data))


def test_levels_mean_what_zlib_means() -> None:
    data = np.arange(5000, dtype="<i4").tobytes()
    for level in range(10):
        assert codec("gzip", level=level).encode(data)[10:] == zlib.compress(data, level, 31)[10:]
    assert lookup.from_numcodecs({"id": "gzip", "level": -1}) == CodecSpec("gzip", {"level": 6})


def test_netcdf_c_writes_numbers_as_text() -> None:
    assert lookup.from_numcodecs({"id": "zlib", "level": "4"}) == CodecSpec("numcodecs.zlib", {"level": 4})
    assert lookup.from_numcodecs({"id": "shuffle", "elementsize": "8"}) == CodecSpec("numcodecs.shuffle", {"elementsize": 8})


def test_a_stream_may_not_ask_for_much_more_memory_than_xz_does() -> None:
    largest = lzma.compress(A, format=lzma.FORMAT_XZ, preset=9 | lzma.PRESET_EXTREME)
    assert LZMA.decode(largest, len(A)) == A
    # The header of the old format may declare any dictionary size.
    alone = bytearray(lzma.compress(A, format=lzma.FORMAT_ALONE, preset=1))
    alone[1:5] = (3 << 30).to_bytes(4, "little")
    with pytest.raises(ChunkDecodeError, match=r"(?i)memory"):
        codec("numcodecs.lzma", format=2).decode(alone, len(A))
    with pytest.raises(MetadataError, match="dictionary"):
        codec("numcodecs.lzma", format=3, filters=[{"id": 33, "dict_size": 1 << 30}])
    for wrong in ([], [{}], [{"id": 99}], [{"id": 33, "surprise": 1}], ["x"], [{"id": 33}] * 5):
        with pytest.raises(MetadataError):
            codec("numcodecs.lzma", format=3, filters=wrong)
