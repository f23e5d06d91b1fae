"""``numcodecs.crc32``, ``numcodecs.adler32``, ``numcodecs.fletcher32``, ``numcodecs.jenkins_lookup3``.

Source: numcodecs ``checksum32`` and ``fletcher32``. The last two are HDF5's checksums and follow the bytes.

    {"id": "crc32"}  {"id": "crc32", "location": "end"}  {"id": "adler32"}  {"id": "fletcher32"}
    {"id": "jenkins_lookup3", "initval": 0, "prefix": null}
"""

from __future__ import annotations

import zlib
from typing import ClassVar, Self

import numpy as np

from zarrfs.codecs.checksum import Checksum, LocatedChecksum
from zarrfs.codecs.configuration import given, integer, only
from zarrfs.errors import MetadataUnsupported
from zarrfs.model.codec_spec import CodecSpec


class Crc32(LocatedChecksum):
    """zlib's CRC-32."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.crc32",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("crc32",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("numcodecs.crc32"), CodecSpec("numcodecs.crc32", {"location": "end"}))

    def checksum(self, data: memoryview) -> int:
        return zlib.crc32(data)


class Adler32(LocatedChecksum):
    """zlib's Adler-32."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.adler32",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("adler32",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("numcodecs.adler32"),
        CodecSpec("numcodecs.adler32", {"location": "end"}),
    )

    def checksum(self, data: memoryview) -> int:
        return zlib.adler32(data)


class Fletcher32(Checksum):
    """HDF5's Fletcher checksum."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.fletcher32",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("fletcher32",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("numcodecs.fletcher32"),)
    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.fletcher32",)

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec)
        return cls()

    def checksum(self, data: memoryview) -> int:
        from numcodecs import fletcher32

        # numcodecs has no function for the checksum alone, and cannot encode empty input.
        encoded = fletcher32.Fletcher32().encode(np.frombuffer(data, np.uint8)) if data.nbytes else bytes(4)
        return int.from_bytes(encoded[-4:], "little")


class JenkinsLookup3(Checksum):
    """HDF5's metadata checksum."""

    names: ClassVar[tuple[str, ...]] = ("numcodecs.jenkins_lookup3",)
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("jenkins_lookup3",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (
        CodecSpec("numcodecs.jenkins_lookup3"),
        CodecSpec("numcodecs.jenkins_lookup3", {"initval": 7, "prefix": None}),
    )
    libraries: ClassVar[tuple[str, ...]] = ("numcodecs.jenkins",)

    def __init__(self, initval: int) -> None:
        self._initval = initval

    @classmethod
    def from_spec(cls, spec: CodecSpec) -> Self:
        only(spec, "initval", "prefix")
        if given(spec, "prefix"):
            raise MetadataUnsupported("codec numcodecs.jenkins_lookup3: a prefix consists of bytes, which JSON cannot represent")
        return cls(integer(spec, "initval", 0, 2**32 - 1, 0))

    def checksum(self, data: memoryview) -> int:
        from numcodecs import jenkins

        buffer = np.frombuffer(data, np.uint8) if data.nbytes else np.empty(0, np.uint8)
        return int(jenkins.jenkins_lookup3(buffer, self._initval))


PLUGIN = (Crc32, Adler32, Fletcher32, JenkinsLookup3)
