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

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.codecs.base import BytesBytesCodec
from zarrfs.codecs.configuration import only
from zarrfs.errors import ChunkDecodeError
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec

# Characters decoded at once in large data, a multiple of four.
_PIECE_NBYTES = 1 << 20
_BINARY_NBYTES = _PIECE_NBYTES // 4 * 3


@dataclass(frozen=True, slots=True)
class Base64(BytesBytesCodec):
    """Characters outside the base64 alphabet are refused; numcodecs skips them."""

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
        view = memoryview(data).cast("B")
        if not spill.is_large(view.nbytes):
            return base64.standard_b64encode(view)
        encoded = spill.buffer(self.encoded_limit(view.nbytes))
        for start in range(0, view.nbytes, _BINARY_NBYTES):
            threads.go_on()
            piece = base64.standard_b64encode(view[start : start + _BINARY_NBYTES])
            encoded[start // 3 * 4 : start // 3 * 4 + len(piece)] = piece
        return encoded

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        nbytes = memoryview(data).nbytes
        if nbytes > self.encoded_limit(limit):
            raise ChunkDecodeError(f"base64: {nbytes} characters exceed those of {limit} bytes")
        try:
            decoded = base64.b64decode(data, validate=True) if not spill.is_large(nbytes) else _decoded(memoryview(data))
        except (binascii.Error, ValueError) as error:
            raise ChunkDecodeError(f"base64: {error}") from error
        if len(decoded) > limit:
            raise ChunkDecodeError(f"base64: decoded size of {len(decoded)} bytes exceeds the limit of {limit}")
        return decoded


def _decoded(data: memoryview) -> memoryview:
    """Run `base64.b64decode` in pieces, into a file."""
    target = spill.buffer(data.nbytes // 4 * 3 + 3)
    end = 0
    for start in range(0, data.nbytes, _PIECE_NBYTES):
        threads.go_on()
        text = data[start : start + _PIECE_NBYTES]
        piece = base64.b64decode(text, validate=True)
        if start + _PIECE_NBYTES < data.nbytes and len(piece) != _PIECE_NBYTES // 4 * 3:
            raise ValueError("padding within the data")
        target[end : end + len(piece)] = piece
        end += len(piece)
    return target[:end]


PLUGIN = Base64
