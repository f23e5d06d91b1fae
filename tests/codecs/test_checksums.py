"""Checksum codecs: every changed bit is detected."""

from __future__ import annotations

import pytest

from tests.support.codecs import Example, examples, params
from zarrfs.codecs import lookup
from zarrfs.codecs.base import BYTE
from zarrfs.codecs.checksum import Checksum
from zarrfs.errors import ChecksumMismatch
from zarrfs.model.codec_spec import CodecSpec


@pytest.mark.parametrize(**params(examples(Checksum)))
def test_every_flipped_bit_is_noticed(example: Example) -> None:
    _, codec = lookup.resolve(example.spec, BYTE)
    assert isinstance(codec, Checksum)
    encoded = bytearray(codec.encode(b"The store said something else yesterday."))
    for position in range(8 * len(encoded)):
        encoded[position // 8] ^= 1 << position % 8
        with pytest.raises(ChecksumMismatch, match="checksum"):
            codec.decode(encoded, 1000)
        encoded[position // 8] ^= 1 << position % 8


def test_crc32c_as_the_text_has_it() -> None:
    _, codec = lookup.resolve(CodecSpec("crc32c"), BYTE)
    assert isinstance(codec, Checksum)
    # RFC 3720, B.4: 32 bytes of zeros.
    assert codec.encode(bytes(32)) == bytes(32) + bytes.fromhex("aa36918a")


def test_v2_says_where_the_checksum_is() -> None:
    assert (
        lookup.from_numcodecs({"id": "crc32c"}) == lookup.from_numcodecs({"id": "crc32c", "location": "end"}) == CodecSpec("crc32c")
    )
    at_start = lookup.from_numcodecs({"id": "crc32c", "location": "start"})
    assert at_start == CodecSpec("numcodecs.crc32c", {"location": "start"})
    assert lookup.to_numcodecs(at_start) == {"id": "crc32c", "location": "start"}
