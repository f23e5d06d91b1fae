"""``crc32c``: the bytes, then their CRC-32C (4 bytes, little-endian).

Source: v3 final, codec ``crc32c`` 1.0; numcodecs ``crc32c``, which can also put the checksum first.

    {"name": "crc32c"}
    {"id": "crc32c"}  {"id": "crc32c", "location": "end"}
    {"id": "crc32c", "location": "start"}  {"name": "numcodecs.crc32c", "configuration": {"location": "start"}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from zarrfs.codecs.base import Dtype, numcodecs_members
from zarrfs.codecs.checksum import LocatedChecksum
from zarrfs.model.codec_spec import CodecSpec

_AT_END: tuple[dict[str, Any], ...] = ({}, {"location": "end"}, {"location": None})


class Crc32c(LocatedChecksum):
    """The checksum of the final v3."""

    names: ClassVar[tuple[str, ...]] = ("crc32c", "numcodecs.crc32c")
    numcodecs_ids: ClassVar[tuple[str, ...]] = ("crc32c",)
    examples: ClassVar[tuple[CodecSpec, ...]] = (CodecSpec("crc32c"), CodecSpec("numcodecs.crc32c", {"location": "start"}))
    libraries: ClassVar[tuple[str, ...]] = ("google_crc32c",)
    default_location: ClassVar[str] = "end"

    @classmethod
    def complete(cls, spec: CodecSpec, dtype: Dtype) -> CodecSpec:
        # tensorstore knows only the final v3's name.
        return CodecSpec("crc32c") if spec.name != "crc32c" and spec.configuration in _AT_END else spec

    @classmethod
    def spec_from_numcodecs(cls, config: Mapping[str, Any]) -> CodecSpec:
        members = numcodecs_members(config)
        return CodecSpec("crc32c") if members in _AT_END else CodecSpec("numcodecs.crc32c", members)

    def checksum(self, data: memoryview) -> int:
        import google_crc32c

        # The library accepts arrays and bytes, but no memoryview.
        return int(google_crc32c.value(np.frombuffer(data, np.uint8))) if data.nbytes else 0


def extended(checksum: int, data: memoryview) -> int:
    """Return the checksum of bytes with ``checksum`` (0: none) followed by ``data``."""
    import google_crc32c

    return int(google_crc32c.extend(checksum, np.frombuffer(data, np.uint8)))


PLUGIN = Crc32c
