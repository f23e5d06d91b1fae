"""``numcodecs.zlib``: RFC 1950.

Source: numcodecs ``zlib``.

    {"id": "zlib", "level": 1}
    {"name": "numcodecs.zlib", "configuration": {"level": 1}}

Data after the end of the stream is ignored, as in numcodecs.
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


@dataclass(frozen=True, slots=True)
class Zlib(BytesBytesCodec):
    """``level``: 0 to 9, or -1 for zlib's default."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.zlib",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("zlib",)
    examples: ClassVar[tuple[CodecSpec, ...]] = tuple(CodecSpec("numcodecs.zlib", {"level": level}) for level in (-1, 0, 1, 9))

    level: int

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "level")
        return cls(integer(spec, "level", -1, 9, 1))

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        return CodecSpec(cls.names[0], {"level": 1, **numcodecs_members(config)})

    def encode(self, data: Buffer) -> Buffer:
        with translated("zlib", ChunkEncodeError, zlib.error):
            nbytes = memoryview(data).nbytes
            if not spill.is_large(nbytes):
                return zlib.compress(data, self.level)
            return encode_stream("zlib", data, self.encoded_limit(nbytes), zlib.compressobj(self.level))

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        with translated("zlib", ChunkDecodeError, *deflate.errors()):
            return decode_streams("zlib", data, limit, deflate.zlib_stream, lambda rest: False, out)


PLUGIN = Zlib
