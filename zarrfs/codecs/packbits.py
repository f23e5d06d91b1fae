"""``numcodecs.packbits``: eight booleans in a byte, after one byte with the number of padding bits in the last one.

Source: numcodecs ``packbits``; `zarrfs.codecs.numpy_filter` for its positions in a chain.

    {"id": "packbits"}
    {"name": "numcodecs.packbits"}

An encoded chunk of n elements has the shape ``(1 + ceil(n / 8),)`` and bytes for elements.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

import numpy as np

from zarrfs.buffers import NDArray
from zarrfs.codecs.base import BYTE, Dtype
from zarrfs.codecs.configuration import only
from zarrfs.codecs.numpy_filter import NumpyFilter
from zarrfs.errors import ChunkDecodeError, MetadataError
from zarrfs.model.chunk_grid import Shape
from zarrfs.model.codec_spec import CodecSpec

_BOOL = np.dtype(bool)


class PackBits(NumpyFilter):
    """No configuration."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.packbits",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("packbits",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("numcodecs.packbits"),)
    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.packbits",)
    filter_name: ClassVar[str] = "packbits"
    bits_to_a_byte: ClassVar[bool] = True

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        from numcodecs.packbits import PackBits as Library

        only(spec)
        return cls(Library())

    def types(self, dtype: Dtype) -> tuple[Dtype, Dtype]:
        if dtype != _BOOL:
            raise MetadataError(f"codec {self.names[0]}: elements must be bool, not {dtype}")
        return _BOOL, BYTE

    def encoded_size(self, size: int) -> int:
        return 1 + -(-size // 8)

    def encoded_shape(self, shape: Shape) -> Shape:
        return (self.encoded_size(math.prod(shape)),)

    def run_decode(self, flat: NDArray) -> NDArray:
        if flat.size == 0 or flat[0] > 7 or (flat.size == 1 and flat[0]):
            raise ChunkDecodeError("packbits: invalid number of padding bits in the first byte")
        return super().run_decode(flat)


PLUGIN = PackBits
