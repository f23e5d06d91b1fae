"""``numcodecs.lz4``: one LZ4 block preceded by its decoded size (4 bytes, little-endian).

Source: numcodecs ``lz4``.

    {"id": "lz4", "acceleration": 1}
    {"name": "numcodecs.lz4", "configuration": {"acceleration": 1}}
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np

from zarrfs.buffers import Buffer
from zarrfs.codecs.base import BytesBytesCodec, numcodecs_members, translated
from zarrfs.codecs.configuration import integer, only
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec

_HEADER = struct.Struct("<I")
_MAX_NBYTES = 0x7E000000


@dataclass(frozen=True, slots=True)
class Lz4(BytesBytesCodec):
    """``acceleration``: larger is faster with less compression; below 1 means 1."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.lz4",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("lz4",)
    examples: ClassVar[tuple[CodecSpec, ...]] = tuple(CodecSpec("numcodecs.lz4", {"acceleration": each}) for each in (1, 100))
    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.lz4",)

    acceleration: int

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "acceleration")
        return cls(integer(spec, "acceleration", -(2**31), 2**31 - 1, 1))

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        return CodecSpec(cls.names[0], {"acceleration": 1, **numcodecs_members(config)})

    def encode(self, data: Buffer) -> Buffer:
        from numcodecs import lz4

        data = memoryview(data)
        if data.nbytes > _MAX_NBYTES:
            raise ChunkEncodeError(f"lz4: {data.nbytes} bytes exceed the limit of one block ({_MAX_NBYTES})")
        with translated("lz4", ChunkEncodeError, ValueError, RuntimeError):
            if spill.is_large(data.nbytes):
                return _encode_large(data, max(1, self.acceleration))
            encoded: bytes = lz4.compress(data, self.acceleration)
            return encoded

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        from numcodecs import lz4

        data = memoryview(data)
        if data.nbytes < _HEADER.size:
            raise ChunkDecodeError(f"lz4: {data.nbytes} bytes are too few for a header")
        (nbytes,) = _HEADER.unpack_from(data)
        if nbytes > limit:
            raise ChunkDecodeError(f"lz4: decoded size of {nbytes} bytes exceeds the limit of {limit}")
        if nbytes == 0:
            # A block that decodes to nothing is legal; numcodecs treats it as an error.
            return b""
        with translated("lz4", ChunkDecodeError, ValueError, RuntimeError):
            if out is None and not spill.is_large(nbytes):
                decoded: bytes = lz4.decompress(data)
                return decoded
            target = spill.buffer(nbytes) if out is None else out[:nbytes]
            lz4.decompress(data, target)
            return target


def _encode_large(data: memoryview, acceleration: int) -> memoryview:
    """Encode as numcodecs does, into a file: numcodecs creates two copies of its input."""
    library = _library()
    bound = library.LZ4_compressBound(ctypes.c_int(data.nbytes))
    source, target = np.frombuffer(data, np.uint8), np.frombuffer(spill.buffer(bound + _HEADER.size), np.uint8)
    nbytes = library.LZ4_compress_fast(
        ctypes.c_void_p(source.ctypes.data),
        ctypes.c_void_p(target.ctypes.data + _HEADER.size),
        ctypes.c_int(source.nbytes),
        ctypes.c_int(bound),
        ctypes.c_int(acceleration),
    )
    if nbytes <= 0:
        raise ChunkEncodeError(f"lz4: error {nbytes} during compression")
    target[: _HEADER.size] = np.frombuffer(_HEADER.pack(source.nbytes), np.uint8)
    return target[: _HEADER.size + nbytes].data


@cache
def _library() -> ctypes.CDLL:
    """Return the LZ4 bundled with numcodecs."""
    from numcodecs import lz4

    return ctypes.CDLL(lz4.__file__)


PLUGIN = Lz4
