"""``bytes``: the elements in C order, each in the given byte order.

Source: v3 final, codec ``bytes`` 1.0 (formerly ``endian``); v2 "Data type encoding" for the private form.

    {"name": "bytes", "configuration": {"endian": "little"}}
    {"name": "bytes"}
    {"name": "bytes", "configuration": {"dtype": [["x", "<i4"], ["y", ">f8"]]}}      private to zarrfs

``endian`` is absent for types of one byte; real documents also omit it for longer ones, meaning little, and some state it for types of
one byte. The last form is that of v1 and v2 structured types: the stored NumPy type, which differs from the type in memory only in the
byte order of its fields. No other layout can represent it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from zarrfs.buffers import Buffer, NDArray
from zarrfs.codecs.base import ArrayBytesCodec, ChunkSpec, Dtype
from zarrfs.codecs.configuration import choice, only, short
from zarrfs.errors import ChunkDecodeError, MetadataError, NotRepresentable
from zarrfs.memory import copying, spill
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import little_endian

# NumPy's NPY_USERDEF: types registered by other packages have numbers from here.
_FIRST_FOREIGN = 256


@dataclass(frozen=True, slots=True)
class Bytes(ArrayBytesCodec):
    """``stored``: the private form's type; if None, ``endian`` applies."""

    names: ClassVar[tuple[str, ...]] = ("bytes", "endian")
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("bytes"),
        CodecSpec("bytes", {"endian": "little"}),
        CodecSpec("bytes", {"endian": "big"}),
    )

    endian: str = "little"
    stored: Dtype | None = None

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "endian", "dtype")
        if "dtype" not in spec.configuration:
            return cls(choice(spec, "endian", ("little", "big"), "little"))
        if "endian" in spec.configuration:
            raise MetadataError("codec bytes: endian and dtype exclude each other")
        descr = spec.configuration["dtype"]
        try:
            stored = np.dtype(_fields(descr) if isinstance(descr, list) else str(descr))
        except (TypeError, ValueError, IndexError, SyntaxError) as error:
            raise MetadataError(f"codec bytes: {short(descr)} is not a data type") from error
        return cls(stored=stored)

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        config = spec.configuration
        if dtype.hasobject:
            return CodecSpec(cls.names[0], config)
        if not _has_byte_order(dtype):
            # "endian" is meaningless for single bytes, and zarr-python omits it when it rewrites the document.
            config = {name: value for name, value in config.items() if name != "endian"}
        elif not config:
            config = {"endian": "little"}
        return CodecSpec(cls.names[0], config)

    @classmethod
    def spec_to_numcodecs(cls, spec: CodecSpec) -> dict[str, Any]:
        raise NotRepresentable("codec 'bytes' is the type's byte order in Zarr v2, not a codec")

    def encoded_nbytes(self, spec: ChunkSpec) -> int:
        self.encoded_dtype(spec.dtype)
        return spec.nbytes

    def encoded_dtype(self, dtype: Dtype) -> Dtype:
        if dtype.hasobject:
            raise MetadataError("codec bytes: elements of variable size are not supported")
        if self.stored is None:
            return dtype if self.endian == "little" else _plain(dtype).newbyteorder(">")
        if little_endian(self.stored) != dtype:
            raise MetadataError(f"codec bytes: {short(self.stored)} is not {short(dtype)} in another byte order")
        return self.stored

    def is_memory(self, dtype: Dtype) -> bool:
        return self.encoded_dtype(dtype) == dtype

    def encode(self, array: NDArray) -> Buffer:
        stored = self.encoded_dtype(array.dtype)
        if stored != array.dtype:
            source = array.view(_plain(array.dtype))
            array = spill.array(array.shape, stored)
            copying.copy(array, source)
        return spill.contiguous(array).reshape(-1).view(np.uint8).data

    def decode(self, data: Buffer, spec: ChunkSpec) -> NDArray:
        if memoryview(data).nbytes != spec.nbytes:
            raise ChunkDecodeError(f"bytes: size is {memoryview(data).nbytes} bytes instead of {spec.nbytes}")
        stored = self.encoded_dtype(spec.dtype)
        array: NDArray = np.frombuffer(data, stored) if spec.nbytes else np.empty(0, stored)
        if stored != spec.dtype:
            source, array = array, spill.array(array.shape, little_endian(stored))
            copying.copy(array, source)
            array = array.view(spec.dtype)
        return array.reshape(spec.shape)


def _fields(descr: list[Any]) -> list[tuple[Any, ...]]:
    """Return a list of fields in NumPy's form: tuples, where JSON has lists."""
    return [
        (name, _fields(inner) if isinstance(inner, list) else str(inner), *(tuple(shape) for shape in rest))
        for name, inner, *rest in descr
    ]


def _has_byte_order(dtype: Dtype) -> bool:
    return _plain(dtype).newbyteorder(">") != _plain(dtype)


def _plain(dtype: Dtype) -> Dtype:
    """Return ``dtype`` with unsigned integers in place of ml_dtypes' types, whose bytes NumPy cannot swap."""
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return np.dtype((_plain(base), shape))
    if dtype.names is not None:
        assert dtype.fields is not None
        fields = dtype.fields
        return np.dtype(
            {
                "names": list(dtype.names),
                "formats": [_plain(fields[name][0]) for name in dtype.names],
                "offsets": [fields[name][1] for name in dtype.names],
                "itemsize": dtype.itemsize,
            }
        )
    return np.dtype(f"<u{dtype.itemsize}") if dtype.num >= _FIRST_FOREIGN else dtype


PLUGIN = Bytes
