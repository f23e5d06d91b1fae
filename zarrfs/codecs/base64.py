"""``numcodecs.base64``: the bytes as text, four characters for three bytes.

Source: numcodecs ``base64``; RFC 4648, section 4.

    {"id": "base64"}
    {"name": "numcodecs.base64"}
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import ClassVar, Self

from zarrfs.codecs.base import Buffer, BytesBytesCodec
from zarrfs.codecs.configuration import only
from zarrfs.errors import ChunkDecodeError
from zarrfs.model.codec_spec import CodecSpec


@dataclass(frozen=True, slots=True)
class Base64(BytesBytesCodec):
    """Characters that are none of base64's are refused; numcodecs passes over them."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.base64",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("base64",)
    in_v3: ClassVar[bool] = False
    examples: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("numcodecs.base64"),)

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec)
        return cls()

    def encoded_limit(self, nbytes: int) -> int:
        return -(-nbytes // 3) * 4

    def encode(self, data: Buffer) -> Buffer:
        return base64.standard_b64encode(data)

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        nbytes = memoryview(data).nbytes
        if nbytes > self.encoded_limit(limit):
            raise ChunkDecodeError(f"base64: {nbytes} characters are more than {limit} bytes make")
        try:
            decoded = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ChunkDecodeError(f"base64: {error}") from error
        if len(decoded) > limit:
            raise ChunkDecodeError(f"base64: decodes to {len(decoded)} bytes instead of the {limit} that a chunk has at most")
        return decoded


PLUGIN = Base64
