"""Common part of checksum codecs: the bytes and, before or after them, 32 bits in little-endian order."""

from __future__ import annotations

import abc
from typing import ClassVar, Self

from zarrfs.buffers import Buffer
from zarrfs.codecs.base import BytesBytesCodec
from zarrfs.codecs.configuration import choice, given, only
from zarrfs.errors import ChecksumMismatch, ChunkDecodeError
from zarrfs.memory import spill
from zarrfs.model.codec_spec import CodecSpec

_WIDTH = 4


class Checksum(BytesBytesCodec):
    """A checksum of 32 bits; ``at_start``: it precedes the bytes."""

    at_start: bool = False

    @abc.abstractmethod
    def checksum(self, data: memoryview) -> int:
        """Return the checksum of ``data``, which may be empty."""

    def encoded_limit(self, nbytes: int) -> int:
        return nbytes + _WIDTH

    def encode(self, data: Buffer) -> Buffer:
        view = memoryview(data).cast("B")
        checksum = self.checksum(view).to_bytes(_WIDTH, "little")
        if spill.is_large(view.nbytes):
            encoded = spill.buffer(view.nbytes + _WIDTH)
            start = _WIDTH if self.at_start else 0
            encoded[start : start + view.nbytes] = view
            offset = 0 if self.at_start else view.nbytes
            encoded[offset : offset + _WIDTH] = checksum
            return encoded
        return b"".join((checksum, view) if self.at_start else (view, checksum))

    def decode(self, data: Buffer, limit: int, out: memoryview | None = None) -> Buffer:
        view = memoryview(data).cast("B")
        name = self.names[0]
        if view.nbytes < _WIDTH:
            raise ChunkDecodeError(f"{name}: {view.nbytes} bytes are too few for a checksum")
        if view.nbytes - _WIDTH > limit:
            raise ChunkDecodeError(f"{name}: decoded size of {view.nbytes - _WIDTH} bytes exceeds the limit of {limit}")
        stored, payload = (view[:_WIDTH], view[_WIDTH:]) if self.at_start else (view[-_WIDTH:], view[:-_WIDTH])
        computed = self.checksum(payload)
        if int.from_bytes(stored, "little") != computed:
            raise ChecksumMismatch(f"{name}: stored checksum {int.from_bytes(stored, 'little'):08x}, computed {computed:08x}")
        return payload


class LocatedChecksum(Checksum):
    """A checksum whose configuration determines its position: ``location``, "start" or "end"."""

    default_location: ClassVar[str] = "start"

    def __init__(self, at_start: bool) -> None:
        self.at_start = at_start

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "location")
        location = choice(spec, "location", ("start", "end")) if given(spec, "location") else cls.default_location
        return cls(location == "start")
