"""``vlen-utf8``: strings, each behind its length.

Source: zarr-extensions, codec ``vlen-utf8``; numcodecs ``vlen-utf8``. `zarrfs.codecs.vlen` has the format.

    {"name": "vlen-utf8"}
    {"id": "vlen-utf8"}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from zarrfs.codecs.base import Buffer
from zarrfs.codecs.configuration import only, short
from zarrfs.codecs.vlen import ObjectCodec, join, split
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError
from zarrfs.model.codec_spec import CodecSpec


@dataclass(frozen=True, slots=True)
class VlenUtf8(ObjectCodec):
    """Elements are ``str``."""

    names: ClassVar[tuple[str, ...]] = ("vlen-utf8",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("vlen-utf8",)
    holds: ClassVar[tuple[str, ...]] = ("string",)
    codec_name: ClassVar[str] = "vlen-utf8"
    examples: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("vlen-utf8"),)

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec)
        return cls()

    def encoded(self, elements: list[Any], shape: tuple[int, ...]) -> bytes:
        try:
            return join("vlen-utf8", [each.encode() for each in elements])
        except (AttributeError, UnicodeEncodeError) as error:
            bad = next(each for each in elements if not _is_text(each))
            raise ChunkEncodeError(f"vlen-utf8: {short(bad)} is no text") from error

    def decoded(self, data: Buffer, size: int) -> list[Any]:
        try:
            return [str(item, "utf-8") for item in split("vlen-utf8", data, size)]
        except UnicodeDecodeError as error:
            raise ChunkDecodeError(f"vlen-utf8: an element is not UTF-8: {error.reason}") from error


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


PLUGIN = VlenUtf8
