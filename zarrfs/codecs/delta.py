"""``numcodecs.delta``: the first element, then differences.

Source: numcodecs ``delta``; `zarrfs.codecs.numpy_filter` for its positions in a chain.

    {"id": "delta", "dtype": "<i4", "astype": "<i2"}
    {"name": "numcodecs.delta", "configuration": {"dtype": "int32", "astype": "int16"}}
"""

from __future__ import annotations

from typing import ClassVar, Self

from zarrfs.codecs.base import Dtype
from zarrfs.codecs.configuration import given, only, plain_dtype
from zarrfs.codecs.numpy_filter import NUMBERS, NumpyFilter, with_types
from zarrfs.model.codec_spec import CodecSpec


class Delta(NumpyFilter):
    """``astype`` is the type of the differences, by default that of the elements."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.delta",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("delta",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("numcodecs.delta", {"dtype": "<i4"}),
        CodecSpec("numcodecs.delta", {"dtype": ">i4", "astype": ">i8"}),
    )
    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.delta",)
    filter_name: ClassVar[str] = "delta"
    after_another: ClassVar[bool] = True

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        return with_types(spec)

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        from numcodecs.delta import Delta as Library

        only(spec, "dtype", "astype")
        dtype = plain_dtype(spec, "dtype", NUMBERS)
        return cls(Library(dtype, plain_dtype(spec, "astype", NUMBERS) if given(spec, "astype") else dtype))

    def types(self, dtype: Dtype) -> tuple[Dtype, Dtype]:
        return self._codec.dtype, self._codec.astype


PLUGIN = Delta
