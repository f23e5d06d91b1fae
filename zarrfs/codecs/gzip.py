"""``gzip``: RFC 1952.

Source: v3 final, codec ``gzip`` 1.0; numcodecs ``gzip``.

    {"name": "gzip", "configuration": {"level": 5}}
    {"id": "gzip", "level": 5}

Several members form one value, and zeros may follow them, as in the RFC and Python's gzip; anything else after them is an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from zarrfs.buffers import Buffer
from zarrfs.codecs import deflate
from zarrfs.codecs.base import BytesBytesCodec, numcodecs_members, translated
from zarrfs.codecs.configuration import integer, only
from zarrfs.codecs.streams import decode_streams, encode_stream
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec

_DEFAULT_LEVEL = 6


@dataclass(frozen=True, slots=True)
class Gzip(BytesBytesCodec):
    """``level``: zlib's, 0 to 9."""

    names: ClassVar[tuple[str, ...]] = ("gzip",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("gzip",)
    examples: ClassVar[tuple[CodecSpec, ...]] = tuple(CodecSpec("gzip", {"level": level}) for level in (0, 1, 5, 9))

    level: int

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "level")
        return cls(integer(spec, "level", 0, 9))

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        members = {"level": 1, **numcodecs_members(config)}
        # zlib's value for its default level, which v3 lacks.
        return CodecSpec(cls.names[0], {**members, "level": _DEFAULT_LEVEL} if members["level"] == -1 else members)

    def encode(self, data: Buffer) -> Buffer:
        with translated("gzip", ChunkEncodeError, zlib.error):
            nbytes = memoryview(data).nbytes
            if not spill.is_large(nbytes):
                return zlib.compress(data, self.level, 16 + zlib.MAX_WBITS)
            stream = zlib.compressobj(self.level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
            return encode_stream("gzip", data, self.encoded_limit(nbytes), stream)

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        with translated("gzip", ChunkDecodeError, *deflate.errors()):
            return decode_streams("gzip", data, limit, deflate.gzip_stream, _goes_on, out)


def _goes_on(rest: memoryview) -> bool:
    if rest[0] == 0:
        if any(rest):
            raise ChunkDecodeError(f"gzip: {rest.nbytes} bytes after the last member are neither a member nor zeros")
        return False
    return True


PLUGIN = Gzip
