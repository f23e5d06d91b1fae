"""``vlen-utf8``: strings, each preceded by its length.

Source: zarr-extensions, codec ``vlen-utf8``; numcodecs ``vlen-utf8``. `zarrfs.codecs.vlen` has the format.

    {"name": "vlen-utf8"}
    {"id": "vlen-utf8"}
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from zarrfs.buffers import Buffer
from zarrfs.codecs.base import ChunkSpec
from zarrfs.codecs.configuration import only, short
from zarrfs.codecs.streams import Output
from zarrfs.codecs.vlen import ObjectCodec, join, joined_nbytes, put_items, split
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec
from zarrfs.model.data_type import MAX_VARIABLE_NBYTES

# A longer text is not converted to a string, which may take four times its bytes.
_LONG_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LongText:
    """A text in its stored bytes."""

    utf8: memoryview

    def __str__(self) -> str:
        return str(self.utf8[:_LONG_NBYTES], "utf-8", "replace")

    def encode(self) -> memoryview:
        """Return the result of `str.encode`."""
        return self.utf8


@dataclass(frozen=True, slots=True)
class VlenUtf8(ObjectCodec):
    """Elements are ``str``."""

    names: ClassVar[tuple[str, ...]] = ("vlen-utf8",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("vlen-utf8",)
    holds: ClassVar[tuple[str, ...]] = ("string",)
    exact: ClassVar[bool] = True
    codec_name: ClassVar[str] = "vlen-utf8"
    examples: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("vlen-utf8"),)

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec)
        return cls()

    def encoded(self, elements: list[Any], shape: tuple[int, ...]) -> Buffer:
        try:
            # At least a byte for each character.
            if spill.is_large(joined_nbytes("vlen-utf8", len(elements), sum(map(len, elements)))):
                # One text may be many elements (a label of `categorize`, a fill value), which have no memory of their own.
                output = Output("vlen-utf8", MAX_VARIABLE_NBYTES, kind=ChunkEncodeError)
                self.put(elements, shape, output)
                return output.whole()
            return join("vlen-utf8", [each.encode() for each in elements])
        except (AttributeError, TypeError, UnicodeEncodeError) as error:
            bad = next(each for each in elements if not _is_text(each))
            raise ChunkEncodeError(f"vlen-utf8: {short(bad)} is not text") from error

    def each(self, data: Buffer, spec: ChunkSpec) -> Iterator[Any]:
        try:
            for item in split("vlen-utf8", data, spec.size):
                if len(item) <= _LONG_NBYTES:
                    yield str(item, "utf-8")
                else:
                    yield _long(item)
        except UnicodeDecodeError as error:
            raise ChunkDecodeError(f"vlen-utf8: an element is not UTF-8: {error.reason}") from error

    def put(self, elements: Iterable[Any], shape: tuple[int, ...], output: Output) -> None:
        put_items(map(_bytes_of, elements), math.prod(shape), output)

    def decoded(self, data: Buffer, size: int) -> list[Any]:
        try:
            return [str(item, "utf-8") for item in split("vlen-utf8", data, size)]
        except UnicodeDecodeError as error:
            raise ChunkDecodeError(f"vlen-utf8: an element is not UTF-8: {error.reason}") from error


def _long(item: memoryview) -> LongText:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(item), _LONG_NBYTES):
        decoder.decode(item[start : start + _LONG_NBYTES])
    decoder.decode(b"", True)
    return LongText(item)


def _bytes_of(element: Any) -> Buffer:
    if isinstance(element, LongText):
        return element.utf8
    try:
        encoded: bytes = element.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise ChunkEncodeError(f"vlen-utf8: {short(element)} is not text") from error
    return encoded


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


PLUGIN = VlenUtf8
