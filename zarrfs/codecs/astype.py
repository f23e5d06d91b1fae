"""``numcodecs.astype``: the elements converted to another type.

Source: numcodecs ``astype``; `zarrfs.codecs.numpy_filter` for its positions in a chain.

    {"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<i4"}
    {"name": "numcodecs.astype", "configuration": {"encode_dtype": "int16", "decode_dtype": "int32"}}
"""

from __future__ import annotations

from typing import ClassVar, Self

from zarrfs.codecs.base import Dtype
from zarrfs.codecs.configuration import given, only, plain_dtype
from zarrfs.codecs.numpy_filter import CASTABLE, NumpyFilter
from zarrfs.errors import MetadataUnsupported
from zarrfs.model.codec_spec import CodecSpec


class AsType(NumpyFilter):
    """``decode_dtype`` is the type of the elements, by default the array's."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.astype",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("astype",)
    lossy: ClassVar[bool] = True
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("numcodecs.astype", {"encode_dtype": "<i8", "decode_dtype": "<i4"}),
        CodecSpec("numcodecs.astype", {"encode_dtype": ">f8", "decode_dtype": "int32"}),
    )
    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.astype",)
    filter_name: ClassVar[str] = "astype"

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        from numcodecs.astype import AsType as Library

        only(spec, "encode_dtype", "decode_dtype")
        encoded, decoded = plain_dtype(spec, "encode_dtype", CASTABLE), plain_dtype(spec, "decode_dtype", CASTABLE)
        if encoded.kind == "c" != decoded.kind:
            raise MetadataUnsupported(f"codec {spec.name}: {decoded} as {encoded} cannot be read back")
        return cls(Library(encoded, decoded))

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        return spec if given(spec, "decode_dtype") else CodecSpec(spec.name, {**spec.configuration, "decode_dtype": dtype.str})

    def types(self, dtype: Dtype) -> tuple[Dtype, Dtype]:
        return self._codec.decode_dtype, self._codec.encode_dtype


PLUGIN = AsType
