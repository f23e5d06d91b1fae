"""``vlen-bytes``: byte strings, each preceded by its length.

Source: zarr-extensions, codec ``vlen-bytes``; numcodecs ``vlen-bytes``. `zarrfs.codecs.vlen` has the format.

    {"name": "vlen-bytes"}
    {"id": "vlen-bytes"}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from zarrfs.buffers import Buffer
from zarrfs.codecs.base import ChunkSpec
from zarrfs.codecs.configuration import only, short
from zarrfs.codecs.streams import Output
from zarrfs.codecs.vlen import ObjectCodec, join, put_items, split
from zarrfs.errors import ChunkEncodeError
from zarrfs.model.codec_spec import CodecSpec


@dataclass(frozen=True, slots=True)
class VlenBytes(ObjectCodec):
    """Elements are ``bytes``."""

    names: ClassVar[tuple[str, ...]] = ("vlen-bytes",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("vlen-bytes",)
    holds: ClassVar[tuple[str, ...]] = ("variable_length_bytes", "bytes")
    exact: ClassVar[bool] = True
    codec_name: ClassVar[str] = "vlen-bytes"
    examples: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("vlen-bytes"),)

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec)
        return cls()

    def encoded(self, elements: list[Any], shape: tuple[int, ...]) -> Buffer:
        for each in elements:
            if not isinstance(each, bytes):
                raise ChunkEncodeError(f"vlen-bytes: {short(each)} is not a byte string")
        return join("vlen-bytes", elements)

    def each(self, data: Buffer, spec: ChunkSpec) -> Iterator[Any]:
        return split("vlen-bytes", data, spec.size)

    def put(self, elements: Iterable[Any], shape: tuple[int, ...], output: Output) -> None:
        put_items(map(_checked, elements), math.prod(shape), output)

    def decoded(self, data: Buffer, size: int) -> list[Any]:
        return [bytes(item) for item in split("vlen-bytes", data, size)]


def _checked(element: Any) -> Buffer:
    if not isinstance(element, bytes | memoryview):
        raise ChunkEncodeError(f"vlen-bytes: {short(element)} is not a byte string")
    return element


PLUGIN = VlenBytes
