"""``numcodecs.lzma``: .xz, .lzma and raw LZMA streams.

Source: numcodecs ``lzma``; the members are the arguments of Python's `lzma.compress`.

    {"id": "lzma", "format": 1, "check": -1, "preset": 1, "filters": null}
    {"name": "numcodecs.lzma", "configuration": {"format": 1, "check": -1, "preset": null, "filters": [{"id": 3, "dist": 4}, {"id": 33}]}}

A stream states the dictionary size that its decoder needs, for any length: more than that of the highest preset is refused.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from zarrfs.buffers import Buffer
from zarrfs.codecs import scratch
from zarrfs.codecs.base import BytesBytesCodec, numcodecs_members, translated
from zarrfs.codecs.configuration import given, integer, only, short
from zarrfs.codecs.streams import Decompressor, decode_streams, encode_stream
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError, MetadataError
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec

_FORMATS = (lzma.FORMAT_XZ, lzma.FORMAT_ALONE, lzma.FORMAT_RAW)
_CHECKS = (-1, lzma.CHECK_NONE, lzma.CHECK_CRC32, lzma.CHECK_CRC64, lzma.CHECK_SHA256)
_XZ_MAGIC = b"\xfd7zXZ\0"
# `xz -9` has a dictionary of 64 MiB; its decoder needs a little more. Memory beyond the length of the stream is never touched.
_MEMORY_LIMIT = 72 * 1024 * 1024
_MAX_DICTIONARY = 64 * 1024 * 1024
_FILTER_MEMBERS = frozenset(
    {"id", "preset", "dict_size", "lc", "lp", "pb", "mode", "nice_len", "mf", "depth", "dist", "start_offset"}
)

Filters = tuple[Mapping[str, int], ...]


@dataclass(frozen=True, slots=True)
class Lzma(BytesBytesCodec):
    """The arguments of `lzma.compress`."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.lzma",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("lzma",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("numcodecs.lzma", {"format": 1, "check": -1, "preset": 1, "filters": None}),
        CodecSpec("numcodecs.lzma", {"format": 2, "check": -1, "preset": None, "filters": None}),
        CodecSpec(
            "numcodecs.lzma", {"format": 3, "check": -1, "preset": None, "filters": [{"id": 3, "dist": 4}, {"id": 33, "preset": 1}]}
        ),
    )

    format: int
    check: int
    preset: int | None
    filters: Filters | None

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "format", "check", "preset", "filters")
        codec = cls(
            format=integer(spec, "format", 1, 3, lzma.FORMAT_XZ),
            check=integer(spec, "check", -1, lzma.CHECK_SHA256, -1),
            preset=integer(spec, "preset", 0, 9 | lzma.PRESET_EXTREME) if given(spec, "preset") else None,
            filters=_filters(spec.configuration["filters"]) if given(spec, "filters") else None,
        )
        if codec.format not in _FORMATS or codec.check not in _CHECKS:
            raise MetadataError(f"codec lzma: unknown format or check: {codec.format}, {codec.check}")
        try:
            lzma.LZMACompressor(codec.format, codec.check, codec.preset, codec.filters)
        except (lzma.LZMAError, ValueError, TypeError, OverflowError) as error:
            raise MetadataError(f"codec lzma: {error}") from error
        return codec

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        defaults = {"format": lzma.FORMAT_XZ, "check": -1, "preset": None, "filters": None}
        return CodecSpec(cls.names[0], {**defaults, **numcodecs_members(config)})

    def encode(self, data: Buffer) -> Buffer:
        with translated("lzma", ChunkEncodeError, lzma.LZMAError, ValueError):
            nbytes = memoryview(data).nbytes
            if not spill.is_large(nbytes):
                return lzma.compress(data, self.format, self.check, self.preset, self.filters)
            compressor = lzma.LZMACompressor(self.format, self.check, self.preset, self.filters)
            with scratch.alone(nbytes):
                return encode_stream("lzma", data, self.encoded_limit(nbytes), compressor)

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        with translated("lzma", ChunkDecodeError, lzma.LZMAError, EOFError, ValueError):
            with scratch.alone(limit):
                return decode_streams("lzma", data, limit, self._stream, lambda rest: bytes(rest[:6]) == _XZ_MAGIC, out)

    def _stream(self) -> Decompressor:
        if self.format == lzma.FORMAT_RAW:
            return lzma.LZMADecompressor(self.format, None, self.filters)
        return lzma.LZMADecompressor(self.format, _MEMORY_LIMIT)


def _filters(value: object) -> Filters:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= 4:
        raise MetadataError(f"codec lzma: filters must be a list of one to four filters, not {short(value)}")
    for each in value:
        if (
            not isinstance(each, Mapping)
            or not set(each) <= _FILTER_MEMBERS
            or any(type(part) is not int for part in each.values())
        ):
            raise MetadataError(f"codec lzma: a filter must be an object of integers, not {short(each)}")
        if not 0 <= each.get("dict_size", 0) <= _MAX_DICTIONARY:
            raise MetadataError(f"codec lzma: dictionary of {each['dict_size']} bytes exceeds the limit of {_MAX_DICTIONARY}")
    return tuple(dict(each) for each in value)


PLUGIN = Lzma
