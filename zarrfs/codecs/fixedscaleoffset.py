"""``numcodecs.fixedscaleoffset``: ``round((x - offset) * scale)`` as another type. Lossy.

Source: numcodecs ``fixedscaleoffset``; `zarrfs.codecs.numpy_filter` for its positions in a chain.

    {"id": "fixedscaleoffset", "offset": 1000, "scale": 10, "dtype": "<f8", "astype": "|u1"}
    {"name": "numcodecs.fixedscaleoffset", "configuration": {"offset": 1000, "scale": 10, "dtype": "float64", "astype": "uint8"}}
"""

from __future__ import annotations

from typing import ClassVar, Self

from zarrfs.codecs.base import Dtype
from zarrfs.codecs.configuration import given, number, only, plain_dtype
from zarrfs.codecs.numpy_filter import NUMBERS, NumpyFilter, with_types
from zarrfs.model.codec_spec import CodecSpec


class FixedScaleOffset(NumpyFilter):
    """``dtype`` is the type of the elements, by default the array's; ``astype`` that of the stored ones, by default ``dtype``."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.fixedscaleoffset",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("fixedscaleoffset",)
    lossy: ClassVar[bool] = True
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("numcodecs.fixedscaleoffset", {"offset": 0, "scale": 2, "dtype": "<i4", "astype": "<i8"}),
        CodecSpec("numcodecs.fixedscaleoffset", {"offset": -3.0, "scale": 1.0, "dtype": "<i4", "astype": ">f8"}),
    )
    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.fixedscaleoffset",)
    filter_name: ClassVar[str] = "fixedscaleoffset"

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        from numcodecs.fixedscaleoffset import FixedScaleOffset as Library

        only(spec, "offset", "scale", "dtype", "astype")
        dtype = plain_dtype(spec, "dtype", NUMBERS)
        astype = plain_dtype(spec, "astype", NUMBERS) if given(spec, "astype") else dtype
        return cls(Library(number(spec, "offset"), number(spec, "scale"), dtype, astype))

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        return with_types(spec, dtype)

    def types(self, dtype: Dtype) -> tuple[Dtype, Dtype]:
        return self._codec.dtype, self._codec.astype


PLUGIN = FixedScaleOffset
