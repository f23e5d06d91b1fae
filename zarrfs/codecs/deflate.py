"""Deflate streams for `gzip` and `zlib`: decoded by ISA-L's igzip if installed, else by zlib.

igzip decodes twice as fast as zlib and checks the same checksums. zlib encodes: igzip has four levels, and a level in a document should
have the same meaning everywhere.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

from zarrfs.codecs.streams import Decompressor


@cache
def igzip() -> Any:
    """Return the library; None if it is not installed."""
    try:
        from isal import igzip_lib
    except ImportError:
        return None
    return igzip_lib


def errors() -> tuple[type[Exception], ...]:
    """Return the exceptions for bad data."""
    library = igzip()
    return (zlib.error,) if library is None else (zlib.error, library.IsalError)


def gzip_stream() -> Decompressor:
    """Return a decompressor for one gzip member (RFC 1952)."""
    library = igzip()
    if library is None:
        return ZlibDecompressor(16 + zlib.MAX_WBITS)
    stream: Decompressor = library.IgzipDecompressor(flag=library.DECOMP_GZIP)
    return stream


def zlib_stream() -> Decompressor:
    """Return a decompressor for one zlib stream (RFC 1950)."""
    library = igzip()
    if library is None:
        return ZlibDecompressor(zlib.MAX_WBITS)
    stream: Decompressor = library.IgzipDecompressor(flag=library.DECOMP_ZLIB)
    return stream


class ZlibDecompressor:
    """zlib's own decompressor with the interface shared by bz2, lzma and igzip."""

    def __init__(self, wbits: int) -> None:
        self._stream = zlib.decompressobj(wbits)
        self._left: bytes = b""

    @property
    def eof(self) -> bool:
        """True if the stream has ended."""
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        """True if all input is consumed."""
        return not self._left

    @property
    def unused_data(self) -> bytes:
        """Input after the end of the stream."""
        return self._stream.unused_data

    def decompress(self, data: memoryview, max_length: int, /) -> bytes:
        """Decode more data."""
        piece = self._stream.decompress(self._left + data if self._left else data, max_length)
        self._left = self._stream.unconsumed_tail
        return piece
