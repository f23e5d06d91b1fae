"""``numcodecs.bitround``: fewer bits of the mantissa. Lossy when encoding, without effect when decoding.

Source: numcodecs ``bitround``; `zarrfs.codecs.numpy_filter` for its positions in a chain.

    {"id": "bitround", "keepbits": 8}
    {"name": "numcodecs.bitround", "configuration": {"keepbits": 8}}

numcodecs cannot round big-endian elements; zarrfs rounds their values.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np

from zarrfs.buffers import NDArray
from zarrfs.codecs.base import Dtype
from zarrfs.codecs.configuration import integer, only
from zarrfs.codecs.numpy_filter import NumpyFilter
from zarrfs.errors import MetadataError
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import little_endian


class BitRound(NumpyFilter):
    """``keepbits``: number of mantissa bits that are kept."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.bitround",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("bitround",)
    lossy: ClassVar[bool] = True
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("numcodecs.bitround", {"keepbits": 10}),
        CodecSpec("numcodecs.bitround", {"keepbits": 0}),
    )
    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.bitround",)
    filter_name: ClassVar[str] = "bitround"

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        from numcodecs.bitround import BitRound as Library
        from numcodecs.bitround import max_bits

        only(spec, "keepbits")
        return cls(Library(integer(spec, "keepbits", 0, max(max_bits.values()))))

    def types(self, dtype: Dtype) -> tuple[Dtype, Dtype]:
        from numcodecs.bitround import max_bits

        bits = max_bits.get(little_endian(dtype).name) if dtype.kind == "f" else None
        if bits is None:
            raise MetadataError(f"codec {self.names[0]}: {dtype} has no mantissa to round")
        if self._codec.keepbits > bits:
            raise MetadataError(f"codec {self.names[0]}: {dtype} has {bits} bits of mantissa, not {self._codec.keepbits}")
        return dtype, dtype

    def permutation(self, ndim: int) -> tuple[int, ...]:
        return tuple(range(ndim))

    def run_encode(self, flat: NDArray) -> NDArray:
        little = little_endian(flat.dtype)
        rounded = super().run_encode(flat.astype(little, copy=False)).view(little)
        return rounded.astype(flat.dtype, copy=False)

    def run_decode(self, flat: NDArray) -> NDArray:
        return np.asarray(flat)


PLUGIN = BitRound
