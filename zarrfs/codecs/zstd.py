"""``zstd``: Zstandard frames, RFC 8878.

Source: zarr-extensions, codec ``zstd``; numcodecs ``zstd``.

    {"name": "zstd", "configuration": {"level": 3, "checksum": false}}
    {"id": "zstd", "level": 3}

A value may be several frames, including skippable ones, and frames of streaming writers do not state their content size. `_content_size`
walks the frames (RFC 8878, section 3.1.1), block by block, before anything is decoded: it detects a value that ends early, trailing bytes
after the last frame, and the total decoded size. If all frames state it, numcodecs decodes them, whose build of the library is a tenth
faster. Other frames are decoded by the package zstandard: numcodecs does that either without a limit or into a buffer of exactly their
size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.codecs import scratch
from zarrfs.codecs.base import BytesBytesCodec, Dtype, numcodecs_members, translated
from zarrfs.codecs.configuration import boolean, integer, only
from zarrfs.codecs.streams import Output, encode_stream
from zarrfs.errors import ChunkDecodeError, ChunkEncodeError
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec

_FRAME = 0xFD2FB528
_SKIPPABLE = 0x184D2A50
_RLE, _RESERVED = 1, 3
_PIECE_NBYTES = 1 << 20
# Frames, or blocks of one, between two checks for cancellation.
_BETWEEN_LOOKS = 4096

_DEFAULTS = {"level": 0, "checksum": False}


@dataclass(frozen=True, slots=True)
class Zstd(BytesBytesCodec):
    """``level``: -131072 to 22, 0 is the library's default; ``checksum``: frames end with one."""

    names: ClassVar[tuple[str, ...]] = ("zstd",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("zstd",)
    examples: ClassVar[tuple[CodecSpec, ...]] = tuple(
        CodecSpec("zstd", {"level": level, "checksum": checksum}) for level in (-5, 0, 3) for checksum in (False, True)
    )
    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.zstd", "zstandard")

    level: int
    checksum: bool

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "level", "checksum")
        return cls(integer(spec, "level", -131072, 22, 0), boolean(spec, "checksum", False))

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        # zarr-python requires a configuration, tensorstore a level.
        return CodecSpec(cls.names[0], {**_DEFAULTS, **spec.configuration})

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        return CodecSpec(cls.names[0], {**_DEFAULTS, **numcodecs_members(config)})

    @classmethod
    def spec_to_numcodecs(cls, spec: CodecSpec) -> dict[str, Any]:
        # As zarr-python writes it: tensorstore and numcodecs before 0.13 have no option `checksum`, and refuse an array that states it.
        return {"id": cls.numcodecs_ids[0], **{name: value for name, value in spec.configuration.items() if value is not False}}

    def encode(self, data: Buffer) -> Buffer:
        import zstandard

        with translated("zstd", ChunkEncodeError, zstandard.ZstdError, ValueError):
            compressor = zstandard.ZstdCompressor(level=self.level, write_checksum=self.checksum)
            nbytes = memoryview(data).nbytes
            if not spill.is_large(nbytes):
                return compressor.compress(data)
            return encode_stream("zstd", data, self.encoded_limit(nbytes), compressor.compressobj(size=nbytes))

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        import zstandard
        from numcodecs import zstd

        view = memoryview(data).cast("B")
        stated = _content_size(view)
        if stated is not None and stated > limit:
            raise ChunkDecodeError(f"zstd: decoded size of {stated} bytes exceeds the limit of {limit}")
        with translated("zstd", ChunkDecodeError, zstandard.ZstdError, RuntimeError, ValueError):
            if stated is not None and stated > 0:
                target = spill.buffer(stated) if out is None else out[:stated]
                zstd.decompress(view, target)
                return target
            size = limit if stated is None else stated
            if not spill.is_large(size):
                return _decode_unstated(view, np.empty(size, np.uint8).data if out is None else out[:size])
            # Its window may be as large.
            with scratch.alone(limit):
                return _decode_in_pieces(view, limit, out)


def _decode_unstated(view: memoryview, target: memoryview) -> memoryview:
    import zstandard

    # Objects of this library must not be shared by threads; creating one costs microseconds.
    reader = zstandard.ZstdDecompressor().stream_reader(view, read_across_frames=True)
    filled = reader.readinto(target) if target.nbytes else 0
    if reader.read(1):
        raise ChunkDecodeError(f"zstd: output exceeds the limit of {target.nbytes} bytes")
    return target[:filled]


def _decode_in_pieces(view: memoryview, limit: int, out: memoryview | None) -> Buffer:
    import zstandard

    output = Output("zstd", limit, out)
    reader = zstandard.ZstdDecompressor().stream_reader(view, read_across_frames=True)
    while piece := reader.read(_PIECE_NBYTES):
        threads.go_on()
        output.add(piece)
    return output.whole()


def _content_size(view: memoryview) -> int | None:
    """Return the total content size stated by the frames in ``view``, in bytes; None if one does not state it.

    Raises `ChunkDecodeError` unless ``view`` consists of whole frames only, at least one.
    """
    total: int | None = 0
    start = 0
    frames = 0
    while start < view.nbytes or start == 0:
        frames += 1
        if not frames % _BETWEEN_LOOKS:
            threads.go_on()
        magic = _integer(view, start, 4)
        if magic & ~0xF == _SKIPPABLE:
            start = start + 8 + _integer(view, start + 4, 4)
            continue
        if magic != _FRAME:
            raise ChunkDecodeError(f"zstd: no frame at byte {start}")
        descriptor = _integer(view, start + 4, 1)
        single_segment = descriptor >> 5 & 1
        start += 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
        width = (single_segment, 2, 4, 8)[descriptor >> 6]
        if width == 0 or total is None:
            total = None
        else:
            total += _integer(view, start, width) + (256 if width == 2 else 0)
        start = _end_of_blocks(view, start + width) + (4 if descriptor & 4 else 0)
    if start > view.nbytes:
        raise ChunkDecodeError("zstd: data ends within a frame")
    return total


def _end_of_blocks(view: memoryview, start: int) -> int:
    last = blocks = 0
    while not last:
        blocks += 1
        if not blocks % _BETWEEN_LOOKS:
            threads.go_on()
        header = _integer(view, start, 3)
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind == _RESERVED:
            raise ChunkDecodeError(f"zstd: block at byte {start}: unknown type")
        start += 3 + (1 if kind == _RLE else size)
    return start


def _integer(view: memoryview, start: int, width: int) -> int:
    if start + width > view.nbytes:
        raise ChunkDecodeError("zstd: data ends within a frame")
    return int.from_bytes(view[start : start + width], "little")


PLUGIN = Zstd
