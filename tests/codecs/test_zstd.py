"""Zstandard: frames of unstated size, several frames, skippable ones, and data that is not a frame."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from zarrfs.codecs import lookup
from zarrfs.codecs.zstd import Zstd
from zarrfs.errors import ChunkDecodeError
from zarrfs.model.codec_spec import CodecSpec

CODEC = Zstd(3, False)
A = np.arange(3000, dtype="<u2").tobytes()
SKIPPABLE = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"


def frame(data: bytes, *, sized: bool = True, checksum: bool = False) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=sized, write_checksum=checksum).compress(data)


def streamed(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return (
        compressor.compress(data[:1000])
        + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        + compressor.compress(data[1000:])
        + compressor.flush()
    )


@given(
    parts=st.lists(st.tuples(st.binary(max_size=400), st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=4),
    slack=st.sampled_from([0, 1, 1000]),
    into=st.booleans(),
)
def test_any_run_of_frames(parts: list[tuple[bytes, bool, bool, bool]], slack: int, into: bool) -> None:
    data = b"".join(part[0] for part in parts)
    encoded = b"".join(
        (SKIPPABLE if skippable else b"") + frame(part, sized=sized, checksum=checksum)
        for part, sized, checksum, skippable in parts
    )
    limit = len(data) + slack
    out = memoryview(bytearray(limit)) if into else None
    assert bytes(CODEC.decode(encoded, limit, out)) == data
    if data:
        with pytest.raises(ChunkDecodeError):
            CODEC.decode(encoded, len(data) - 1)


@pytest.mark.parametrize("encoded", [frame(A), frame(A, checksum=True), frame(A, sized=False, checksum=True), streamed(A)])
def test_the_end_must_be_there(encoded: bytes) -> None:
    assert bytes(CODEC.decode(encoded, len(A))) == A
    for missing in (1, 2, 3, 4, 5, len(encoded) - 3, len(encoded)):
        with pytest.raises(ChunkDecodeError, match="zstd"):
            CODEC.decode(encoded[:-missing], len(A))
    with pytest.raises(ChunkDecodeError, match="zstd"):
        CODEC.decode(encoded + b"junk", len(A))
    with pytest.raises(ChunkDecodeError, match="zstd"):
        CODEC.decode(encoded + encoded[:-1], 2 * len(A))


def test_a_damaged_checksum_is_noticed() -> None:
    encoded = bytearray(frame(A, checksum=True))
    encoded[-1] ^= 1
    with pytest.raises(ChunkDecodeError, match="zstd"):
        CODEC.decode(encoded, len(A))


def test_a_frame_that_needs_a_dictionary_is_an_error() -> None:
    dictionary = zstandard.ZstdCompressionDict(b"\x37\xa4\x30\xec" + A)
    with pytest.raises(zstandard.ZstdError):
        zstandard.ZstdCompressor(dict_data=dictionary).compress(A)
    raw = zstandard.ZstdCompressionDict(A, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    with pytest.raises(ChunkDecodeError):
        CODEC.decode(zstandard.ZstdCompressor(dict_data=raw).compress(A), len(A))


def test_numcodecs_options_have_a_checksum_only_where_frames_have_one() -> None:
    """tensorstore, and numcodecs before 0.13, refuse every array of v2 that states the option."""
    assert lookup.to_numcodecs(CodecSpec("zstd", {"level": 3, "checksum": False})) == {"id": "zstd", "level": 3}
    assert lookup.to_numcodecs(CodecSpec("zstd", {"level": 0, "checksum": True})) == {"id": "zstd", "level": 0, "checksum": True}
