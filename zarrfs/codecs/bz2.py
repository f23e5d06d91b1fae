"""``numcodecs.bz2``: bzip2.

Source: numcodecs ``bz2``.

    {"id": "bz2", "level": 1}
    {"name": "numcodecs.bz2", "configuration": {"level": 1}}

Several streams form one value; other bytes after the last one are ignored, as in numcodecs.
"""

from __future__ import annotations

import bz2
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from zarrfs.buffers import Buffer
from zarrfs.codecs.base import BytesBytesCodec, numcodecs_members, translated
from zarrfs.codecs.configuration import integer, only
from zarrfs.codecs.streams import decode_streams, encode_stream
from zarrfs.errors import ChunkDecodeError
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec


@dataclass(frozen=True, slots=True)
class Bz2(BytesBytesCodec):
    """``level``: 1 to 9."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.bz2",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("bz2",)
    examples: ClassVar[tuple[CodecSpec, ...]] = tuple(CodecSpec("numcodecs.bz2", {"level": level}) for level in (1, 9))

    level: int

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "level")
        return cls(integer(spec, "level", 1, 9, 1))

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        return CodecSpec(cls.names[0], {"level": 1, **numcodecs_members(config)})

    def encode(self, data: Buffer) -> Buffer:
        nbytes = memoryview(data).nbytes
        if not spill.is_large(nbytes):
            return bz2.compress(data, self.level)
        return encode_stream("bz2", data, self.encoded_limit(nbytes), bz2.BZ2Compressor(self.level))

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        with translated("bz2", ChunkDecodeError, OSError, EOFError, ValueError):
            return decode_streams("bz2", data, limit, bz2.BZ2Decompressor, lambda rest: bytes(rest[:3]) == b"BZh", out)


PLUGIN = Bz2
