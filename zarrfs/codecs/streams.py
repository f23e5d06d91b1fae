"""Compressed streams, decoded with a cap: for codecs whose library has an incremental decompressor.

bz2, lzma and igzip share one interface (`Decompressor`): ``decompress(data, max_length)`` never makes more than ``max_length`` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zarrfs import threads
from zarrfs.codecs.base import Buffer
from zarrfs.errors import ChunkDecodeError, ChunkError
from zarrfs.memory import spill

# Between two streams, a library copies what it has not used. One that is fed all of a value made of very many tiny streams would copy
# for minutes.
_FOLLOWING_NBYTES = 64 * 1024
# What may be large is fed and taken in such pieces.
_PIECE_NBYTES = 1024 * 1024
# The first buffer for what is being made, if there is more than pieces.
_FIRST_NBYTES = 256 * 1024 * 1024


class Decompressor(Protocol):
    """One stream of one format."""

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """Whether all that was fed is used up."""

    @property
    def unused_data(self) -> bytes:
        """What was fed behind the stream's end."""

    def decompress(self, data: memoryview, max_length: int, /) -> bytes:
        """Decode more; as much of ``data`` as makes ``max_length`` bytes."""


def decode_streams(
    codec: str,
    data: Buffer,
    limit: int,
    new: Callable[[], Decompressor],
    goes_on: Callable[[memoryview], bool],
    out: memoryview | None = None,
) -> Buffer:
    """What the streams in ``data`` decode to, at most ``limit`` bytes together. Raises `ChunkDecodeError`; what the library raises
    for bad data is the caller's to translate.

    ``goes_on`` is asked about what follows the end of a stream: whether it is another stream, or nothing that matters. What is large is
    decoded piece by piece, into ``out`` if that is there.
    """
    view = memoryview(data).cast("B")
    large = spill.is_large(limit) or spill.is_large(view.nbytes)
    made = Made(codec, limit, out if large else None)
    start = 0
    step = _PIECE_NBYTES if large else view.nbytes
    most = _PIECE_NBYTES if large else limit + 1
    while True:
        stream = new()
        while not stream.eof:
            # What was fed and is not used yet comes first.
            feed = view[start : start + step] if stream.needs_input or not large else view[:0]
            if start == view.nbytes and stream.needs_input:
                raise ChunkDecodeError(f"{codec}: the data ends before the stream does, after {made.nbytes} decoded bytes")
            # One byte more than allowed tells a stream that is too long from one that ends here.
            piece = stream.decompress(feed, min(most, limit + 1 - made.nbytes))
            if not piece and not feed.nbytes and not stream.eof:
                raise ChunkDecodeError(f"{codec}: the data ends before the stream does, after {made.nbytes} decoded bytes")
            start += feed.nbytes
            made.add(piece)
            if large:
                threads.go_on()
        start -= len(stream.unused_data)
        step = _FOLLOWING_NBYTES
        if start == view.nbytes or not goes_on(view[start:]):
            return made.whole()


class Compressor(Protocol):
    """One stream being made."""

    def compress(self, data: memoryview, /) -> bytes:
        """Encode more."""

    def flush(self) -> bytes:
        """The end of the stream."""


def encode_stream(codec: str, data: Buffer, limit: int, compressor: Compressor) -> Buffer:
    """``data``, which is large, piece by piece; at most ``limit`` bytes come of it."""
    view = memoryview(data).cast("B")
    made = Made(codec, limit)
    for start in range(0, view.nbytes, _PIECE_NBYTES):
        threads.go_on()
        made.add(compressor.compress(view[start : start + _PIECE_NBYTES]))
    made.add(compressor.flush())
    return made.whole()


class Made:
    """At most ``limit`` bytes that are being made: pieces, and from where they are many, in ``out`` or a buffer of its own."""

    def __init__(self, codec: str, limit: int, out: memoryview | None = None, kind: type[ChunkError] = ChunkDecodeError) -> None:
        self._kind = kind
        self.nbytes = 0
        self._codec = codec
        self._limit = limit
        self._pieces: list[bytes] = []
        self._buffer = out

    def add(self, piece: bytes) -> None:
        """The next bytes. Raises ``kind`` when they are too many."""
        end = self.nbytes + len(piece)
        if end > self._limit:
            raise self._kind(f"{self._codec}: more than the {self._limit} bytes that a chunk has at most")
        if self._buffer is None and self._pieces and spill.is_large(end):
            self._grow(max(end, _FIRST_NBYTES), b"".join(self._pieces))
            self._pieces.clear()
        elif self._buffer is not None and end > len(self._buffer):
            self._grow(2 * end, self._buffer[: self.nbytes])
        if self._buffer is None:
            self._pieces.append(piece)
        else:
            self._buffer[self.nbytes : end] = piece
        self.nbytes = end

    def _grow(self, nbytes: int, before: Buffer) -> None:
        """The limit may be much more than there is."""
        self._buffer = spill.buffer(max(min(nbytes, self._limit), spill.large_nbytes()))
        self._buffer[: len(before)] = before

    def whole(self) -> Buffer:
        """All of them."""
        if self._buffer is not None:
            return self._buffer[: self.nbytes]
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
