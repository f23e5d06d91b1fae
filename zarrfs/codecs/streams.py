"""Compressed streams, decoded with a cap: for codecs whose library has an incremental decompressor.

bz2, lzma and igzip share one interface (`Decompressor`): ``decompress(data, max_length)`` never makes more than ``max_length`` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zarrfs.codecs.base import Buffer
from zarrfs.errors import ChunkDecodeError

# Between two streams, a library copies what it has not used. One that is fed all of a value made of very many tiny streams would copy
# for minutes.
_FOLLOWING_NBYTES = 64 * 1024


class Decompressor(Protocol):
    """One stream of one format."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def unused_data(self) -> bytes:
        """What was fed behind the stream's end."""

    def decompress(self, data: memoryview, max_length: int, /) -> bytes:
        """Decode more; as much of ``data`` as makes ``max_length`` bytes."""


def decode_streams(
    codec: str, data: Buffer, limit: int, new: Callable[[], Decompressor], goes_on: Callable[[memoryview], bool]
) -> bytes:
    """What the streams in ``data`` decode to, at most ``limit`` bytes together. Raises `ChunkDecodeError`; what the library raises
    for bad data is the caller's to translate.

    ``goes_on`` is asked about what follows the end of a stream: whether it is another stream, or nothing that matters.
    """
    view = memoryview(data).cast("B")
    pieces: list[bytes] = []
    size = start = 0
    step = view.nbytes
    while True:
        stream = new()
        while not stream.eof:
            if start == view.nbytes:
                raise ChunkDecodeError(f"{codec}: the data ends before the stream does, after {size} decoded bytes")
            feed = view[start : start + step]
            # One byte more than allowed tells a stream that is too long from one that ends here.
            piece = stream.decompress(feed, limit + 1 - size)
            start += feed.nbytes
            size += len(piece)
            if size > limit:
                raise ChunkDecodeError(f"{codec}: decodes to more than the {limit} bytes that a chunk has at most")
            pieces.append(piece)
        start -= len(stream.unused_data)
        step = _FOLLOWING_NBYTES
        if start == view.nbytes or not goes_on(view[start:]):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
