"""``test.lines``: a codec in one file for text of any length, for tests: each element is a line, percent-encoded.

{"name": "test.lines"}
{"id": "test_lines"}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self
from urllib.parse import quote, unquote

from zarrfs.buffers import Buffer
from zarrfs.codecs.configuration import only
from zarrfs.codecs.vlen import ObjectCodec
from zarrfs.errors import ChunkDecodeError
from zarrfs.model.codec_spec import CodecSpec


@dataclass(frozen=True)
class Lines(ObjectCodec):
    """The codec; it has no configuration."""

    names: ClassVar[tuple[str, ...]] = ("test.lines",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("test_lines",)
    holds: ClassVar[tuple[str, ...]] = ("string",)
    codec_name: ClassVar[str] = "test.lines"
    examples: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("test.lines"),)

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec)
        return cls()

    def encoded(self, elements: list[Any], shape: tuple[int, ...]) -> bytes:
        return "".join(f"{quote(each)}\n" for each in elements).encode()

    def decoded(self, data: Buffer, size: int) -> list[Any]:
        try:
            *lines, rest = bytes(data).decode("ascii").split("\n")
            if rest or len(lines) != size:
                raise ChunkDecodeError(f"test.lines: {len(lines)} lines instead of {size}")
            return [unquote(line, errors="strict") for line in lines]
        except UnicodeDecodeError as error:
            raise ChunkDecodeError(f"test.lines: {error}") from error


PLUGIN = Lines
