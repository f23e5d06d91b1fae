"""``test.brick``: a codec whose chunks have headers with their own shape, and end at the edge of the array, as in N5.

    {"name": "test.brick"}

Format: ``BRICK``, the number of dimensions, each length (32 bits, big-endian; the last dimension first), then the elements, big-endian.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from zarrfs.buffers import Buffer, NDArray
from zarrfs.codecs.base import BYTE, ArrayBytesCodec, ChunkSpec, Dtype
from zarrfs.codecs.configuration import only
from zarrfs.errors import ChunkDecodeError, MetadataError
from zarrfs.model.codec_spec import CodecSpec

_MAGIC = b"BRICK"


@dataclass(frozen=True)
class Brick(ArrayBytesCodec):
    """The codec; it has no configuration."""

    names: ClassVar[tuple[str, ...]] = ("test.brick",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("test.brick"),)
    cuts: ClassVar[bool] = True

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec)
        return cls()

    def encoded_nbytes(self, spec: ChunkSpec) -> None:
        self.encoded_dtype(spec.dtype)

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        if dtype.kind not in "iuf":
            raise MetadataError(f"codec test.brick: elements are numbers, not {dtype}")
        return BYTE

    def encode(self, array: NDArray) -> Buffer:
        header = _MAGIC + struct.pack(f">{array.ndim + 1}I", array.ndim, *array.shape[::-1])
        return header + array.astype(array.dtype.newbyteorder(">")).tobytes()

    def decode(self, data: Buffer, spec: ChunkSpec) -> NDArray:
        data, ndim = bytes(data), len(spec.shape)
        start = len(_MAGIC) + 4 * (ndim + 1)
        if len(data) < start or data[: len(_MAGIC)] != _MAGIC:
            raise ChunkDecodeError("test.brick: no header")
        count, *lengths = struct.unpack(f">{ndim + 1}I", data[len(_MAGIC) : start])
        shape = tuple(reversed(lengths))
        if count != ndim or any(length > most for length, most in zip(shape, spec.shape, strict=True)):
            raise ChunkDecodeError(f"test.brick: a brick of shape {shape} is none of {spec.shape}")
        if len(data) - start != math.prod(shape) * spec.dtype.itemsize:
            raise ChunkDecodeError(f"test.brick: {len(data) - start} bytes behind the header")
        return np.frombuffer(data, spec.dtype.newbyteorder(">"), offset=start).astype(spec.dtype).reshape(shape)


PLUGIN = Brick
