"""``numcodecs.quantize``: rounding to a number of decimal digits. Lossy when encoding, without effect when decoding.

Source: numcodecs ``quantize``; `zarrfs.codecs.numpy_filter` for its positions in a chain.

    {"id": "quantize", "digits": 2, "dtype": "<f8", "astype": "<f4"}
    {"name": "numcodecs.quantize", "configuration": {"digits": 2, "dtype": "float64", "astype": "float32"}}
"""

from __future__ import annotations

from typing import ClassVar, Self

from zarrfs.codecs.base import Dtype
from zarrfs.codecs.configuration import given, integer, only, plain_dtype
from zarrfs.codecs.numpy_filter import NumpyFilter, with_types
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import little_endian

# 10 ** 300 is near the maximum of a float64.
_MAX_DIGITS = 300


class Quantize(NumpyFilter):
    """``dtype`` is the type of the elements, by default the array's; ``astype`` that of the stored ones, by default ``dtype``."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.quantize",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("quantize",)
    lossy: ClassVar[bool] = True
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("numcodecs.quantize", {"digits": 4, "dtype": "<f8"}),
        CodecSpec("numcodecs.quantize", {"digits": -1, "dtype": "<f8", "astype": ">f4"}),
    )
    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.quantize",)
    filter_name: ClassVar[str] = "quantize"

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        from numcodecs.quantize import Quantize as Library

        only(spec, "digits", "dtype", "astype")
        dtype = plain_dtype(spec, "dtype", "f")
        astype = plain_dtype(spec, "astype", "f") if given(spec, "astype") else dtype
        return cls(Library(integer(spec, "digits", -_MAX_DIGITS, _MAX_DIGITS), dtype, astype))

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        return with_types(spec, dtype)

    def types(self, dtype: Dtype) -> tuple[Dtype, Dtype]:
        return self._codec.dtype, self._codec.astype

    def permutation(self, ndim: int) -> tuple[int, ...] | None:
        # Decoding swaps a byte order other than that of memory.
        dtype, astype = self.types(self._codec.dtype)
        return tuple(range(ndim)) if dtype == astype == little_endian(dtype) else None


PLUGIN = Quantize
