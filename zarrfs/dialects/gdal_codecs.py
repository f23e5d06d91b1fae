"""Members of codecs that GDAL's Zarr driver stores as its creation options have them, and no other program reads.

Source: numcodecs ``blosc`` (0 none, 1 bytes, 2 bits), ``lzma`` and ``zstd``; GDAL's options ``BLOSC_SHUFFLE``, ``LZMA_PRESET``,
``LZMA_DELTA`` (by default, each array compressed with LZMA has a ``delta``) and ``ZSTD_CHECKSUM`` (GDAL 3.12 writes it in every array
compressed with ZSTD):

    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": "BIT", "blocksize": 0}
    {"id": "lzma", "preset": 6, "delta": 1}
    {"id": "zstd", "level": 13, "checksum": "NO"}

``delta`` is the distance of a filter that the encoder applies before LZMA2. A chunk is a .xz stream, whose header names its filters:
decoding needs no ``delta``, and GDAL decodes chunks without the filter.
"""

from __future__ import annotations

from typing import Any

from zarrfs.dialects.documents import shortened
from zarrfs.dialects.quirks import Quirks

_SHUFFLES = {
    "none": 0,
    "noshuffle": 0,
    "0": 0,
    "byte": 1,
    "shuffle": 1,
    "1": 1,
    "bit": 2,
    "bitshuffle": 2,
    "2": 2,
}
# GDAL's CPLTestBool takes all other words for true.
_CHECKSUMS = {"no": False, "false": False, "off": False, "0": False, "yes": True, "true": True, "on": True, "1": True}
_MAX_DELTA = 256


def from_gdal(config: Any, quirks: Quirks) -> Any:
    """Return the numcodecs configuration ``config`` without members in GDAL's own form."""
    match config:
        case {"id": "blosc", "shuffle": str(shuffle)} if shuffle.lower() in _SHUFFLES:
            number = _SHUFFLES[shuffle.lower()]
            quirks.accept("shuffle", f"shuffle of blosc is {shortened(shuffle)} instead of {number}")
            return {**config, "shuffle": number}
        case {"id": "lzma", "delta": delta, **others} if (
            type(delta) is int and 0 < delta <= _MAX_DELTA and others.get("format", 1) == 1 and others.get("filters") is None
        ):
            quirks.accept("lzma", f"lzma has the member delta ({delta})")
            return {"id": "lzma", **others}
        case {"id": "zstd", "checksum": str(checksum)} if checksum.lower() in _CHECKSUMS:
            boolean = _CHECKSUMS[checksum.lower()]
            quirks.accept("zstd", f"checksum of zstd is {shortened(checksum)} instead of {str(boolean).lower()}")
            return {**config, "checksum": boolean}
    return config
