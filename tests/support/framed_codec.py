"""``test.framed``: an array -> bytes codec in one file, for tests.

    {"name": "test.framed", "configuration": {"level": 1}}
    {"id": "test_framed", "level": 1}

A header of four bytes, the number of dimensions and each length (32 bits, big-endian), then a zlib stream of the elements, big-endian.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from zarrfs.buffers import Buffer, NDArray
from zarrfs.codecs.base import BYTE, ArrayBytesCodec, ChunkSpec, Dtype
from zarrfs.codecs.configuration import integer, only
from zarrfs.errors import ChunkDecodeError, MetadataError
from zarrfs.model.codec_spec import CodecSpec

_MAGIC = b"FRMD"


@dataclass(frozen=True)
class Framed(ArrayBytesCodec):
    """The codec; ``level`` is that of the zlib stream."""

    names: ClassVar[tuple[str, ...]] = ("test.framed",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("test_framed",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("test.framed", {"level": 1}), CodecSpec("test.framed"))

    level: int = 1

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "level")
        return cls(integer(spec, "level", 0, 9, 1))

    def encoded_nbytes(self, spec: ChunkSpec) -> None:
        self.encoded_dtype(spec.dtype)

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        if dtype.kind not in "iuf":
            raise MetadataError(f"codec test.framed: elements are numbers, not {dtype}")
        return BYTE

    def encode(self, array: NDArray) -> Buffer:
        header = _MAGIC + struct.pack(f">{array.ndim + 1}I", array.ndim, *array.shape)
        return header + zlib.compress(array.astype(array.dtype.newbyteorder(">")).tobytes(), self.level)

    def decode(self, data: Buffer, spec: ChunkSpec) -> NDArray:
        header = _MAGIC + struct.pack(f">{len(spec.shape) + 1}I", len(spec.shape), *spec.shape)
        data = bytes(data)
        if data[: len(header)] != header:
            raise ChunkDecodeError(f"test.framed: not a frame of shape {spec.shape}")
        inflate = zlib.decompressobj()
        try:
            elements = inflate.decompress(data[len(header) :], spec.nbytes + 1)
        except zlib.error as error:
            raise ChunkDecodeError(f"test.framed: {error}") from error
        if len(elements) != spec.nbytes or not inflate.eof or inflate.unused_data:
            raise ChunkDecodeError(f"test.framed: not one stream of {spec.nbytes} bytes")
        return np.frombuffer(elements, spec.dtype.newbyteorder(">")).astype(spec.dtype).reshape(spec.shape)


PLUGIN = Framed
