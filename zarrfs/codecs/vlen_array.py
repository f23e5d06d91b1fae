"""``numcodecs.vlen-array``: a one-dimensional array of any length for each element, preceded by its number of bytes.

Source: numcodecs ``vlen-array``. `zarrfs.codecs.vlen` has the format.

    {"id": "vlen-array", "dtype": "<i4"}

In memory such an element is a list of numbers, representable in JSON. Types absent from JSON (complex numbers, dates, text of fixed
length) are refused. An element that is null, or 0, from fill values of older software, is stored as an empty array.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from zarrfs.buffers import Buffer
from zarrfs.codecs.base import ChunkSpec, Dtype
from zarrfs.codecs.configuration import only, plain_dtype, short
from zarrfs.codecs.streams import Output
from zarrfs.codecs.vlen import ALONE_NBYTES, ObjectCodec, join, put_items, split
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, TooLarge
from zarrfs.model.codec_spec import CodecSpec

# Memory of a number in a list.
_NUMBER_NBYTES = 40


@dataclass(frozen=True, slots=True)
class VlenArray(ObjectCodec):
    """``dtype``: type of the numbers, with byte order."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.vlen-array",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("vlen-array",)
    holds: ClassVar[tuple[str, ...]] = ("object",)
    codec_name: ClassVar[str] = "vlen-array"
    in_v3: ClassVar[bool] = False
    examples: ClassVar[tuple[CodecSpec, ...]] = tuple(
        CodecSpec("numcodecs.vlen-array", {"dtype": dtype}) for dtype in ("<i4", ">f8", "|b1")
    )

    dtype: Dtype

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "dtype")
        return cls(plain_dtype(spec, "dtype", "biuf"))

    def encoded(self, elements: list[Any], shape: tuple[int, ...]) -> Buffer:
        return join("vlen-array", [self._item(each) for each in elements])

    def each(self, data: Buffer, spec: ChunkSpec) -> Iterator[Any]:
        for item in split("vlen-array", data, spec.size):
            if item.nbytes // self.dtype.itemsize * _NUMBER_NBYTES > ALONE_NBYTES:
                raise TooLarge(f"vlen-array: an element of {item.nbytes} bytes exceeds the memory limit")
            yield self._numbers(item)

    def put(self, elements: Iterable[Any], shape: tuple[int, ...], output: Output) -> None:
        put_items(map(self._item, elements), math.prod(shape), output)

    def decoded(self, data: Buffer, size: int) -> list[Any]:
        return [self._numbers(item) for item in split("vlen-array", data, size)]

    def _item(self, element: Any) -> bytes:
        numbers = [] if element is None or (type(element) is int and element == 0) else element
        if not isinstance(numbers, list) or not all(type(each) in (bool, int, float) for each in numbers):
            raise ChunkEncodeError(f"vlen-array: {short(element)} is not a list of numbers")
        try:
            with np.errstate(all="ignore"):
                stored = np.array(numbers, self.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise ChunkEncodeError(f"vlen-array: {short(element)} is not a list of {self.dtype}: {error}") from error
        if self.dtype.kind in "biu" and stored.tolist() != numbers:
            raise ChunkEncodeError(f"vlen-array: {short(element)} is not a list of {self.dtype}")
        return stored.tobytes()

    def _numbers(self, item: memoryview) -> list[Any]:
        if item.nbytes % self.dtype.itemsize:
            raise ChunkDecodeError(f"vlen-array: element of {item.nbytes} bytes is not a multiple of the size of {self.dtype}")
        numbers: list[Any] = np.frombuffer(item, self.dtype).tolist() if item.nbytes else []
        return numbers


PLUGIN = VlenArray
