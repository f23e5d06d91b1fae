"""Compressed streams, decoded with a limit: for codecs whose library has an incremental decompressor.

bz2, lzma and igzip share one interface (`Decompressor`): ``decompress(data, max_length)`` never returns more than ``max_length`` bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.errors import ChunkDecodeError, ChunkError
from zarrfs.memory import spill

# Between two streams, a library copies its unused input. With all of a value of very many tiny streams as input it would copy for
# minutes.
_FOLLOWING_NBYTES = 64 * 1024
# Piece size of input and output of large data.
_PIECE_NBYTES = 1024 * 1024
# First buffer of large output.
_FIRST_NBYTES = 256 * 1024 * 1024


class Decompressor(Protocol):
    """Decompressor of one stream of one format."""

    @property
    def eof(self) -> bool:
        """True if the stream has ended."""

    @property
    def needs_input(self) -> bool:
        """True if all input is consumed."""

    @property
    def unused_data(self) -> bytes:
        """Input after the end of the stream."""

    def decompress(self, data: memoryview, max_length: int, /) -> bytes:
        """Decode more: as much of ``data`` as gives ``max_length`` bytes."""


def decode_streams(
    codec: str,
    data: Buffer,
    limit: int,
    new: Callable[[], Decompressor],
    goes_on: Callable[[memoryview], bool],
    out: memoryview | None = None,
) -> Buffer:
    """Return the decoded streams in ``data``, at most ``limit`` bytes together.

    Raises `ChunkDecodeError`; the caller translates the library's exceptions for bad data. ``goes_on`` returns True if the data after the
    end of a stream is another stream, False if it can be ignored. Large data is decoded piece by piece, into ``out`` if given.
    """
    view = memoryview(data).cast("B")
    large = spill.is_large(limit) or spill.is_large(view.nbytes)
    output = Output(codec, limit, out if large else None)
    start = 0
    step = _PIECE_NBYTES if large else view.nbytes
    most = _PIECE_NBYTES if large else limit + 1
    while True:
        stream = new()
        while not stream.eof:
            # Unused input comes first.
            feed = view[start : start + step] if stream.needs_input or not large else view[:0]
            if start == view.nbytes and stream.needs_input:
                raise ChunkDecodeError(f"{codec}: data ends within the stream, after {output.nbytes} decoded bytes")
            # One byte more than the limit distinguishes a stream that is too long from one that ends here.
            piece = stream.decompress(feed, min(most, limit + 1 - output.nbytes))
            # Libraries ask for input only after a call without output, if the input ended where the output was full.
            if not piece and not feed.nbytes and not stream.eof and (start == view.nbytes or not stream.needs_input):
                raise ChunkDecodeError(f"{codec}: data ends within the stream, after {output.nbytes} decoded bytes")
            start += feed.nbytes
            output.add(piece)
            if large:
                threads.go_on()
        start -= len(stream.unused_data)
        step = _FOLLOWING_NBYTES
        if start == view.nbytes or not goes_on(view[start:]):
            return output.whole()


class Compressor(Protocol):
    """Compressor of one stream."""

    def compress(self, data: memoryview, /) -> bytes:
        """Encode more data."""

    def flush(self) -> bytes:
        """Return the end of the stream."""


def encode_stream(codec: str, data: Buffer, limit: int, compressor: Compressor) -> Buffer:
    """Return ``data``, which is large, encoded piece by piece, to at most ``limit`` bytes."""
    view = memoryview(data).cast("B")
    output = Output(codec, limit)
    for start in range(0, view.nbytes, _PIECE_NBYTES):
        threads.go_on()
        output.add(compressor.compress(view[start : start + _PIECE_NBYTES]))
    output.add(compressor.flush())
    return output.whole()


class Output:
    """Output of at most ``limit`` bytes under construction: pieces, then, once large, ``out`` or a buffer of its own."""

    def __init__(self, codec: str, limit: int, out: memoryview | None = None, kind: type[ChunkError] = ChunkDecodeError) -> None:
        self._kind = kind
        self.nbytes = 0
        self._codec = codec
        self._limit = limit
        self._pieces: list[bytes] = []
        self._buffer = out

    def add(self, piece: bytes) -> None:
        """Append bytes. Raises ``kind`` if they exceed the limit."""
        end = self.nbytes + len(piece)
        if end > self._limit:
            raise self._kind(f"{self._codec}: output exceeds the limit of {self._limit} bytes")
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
        """Replace the buffer by a larger one, not of the size of the limit, which may be far above the actual output."""
        self._buffer = spill.buffer(max(min(nbytes, self._limit), spill.large_nbytes()))
        self._buffer[: len(before)] = before

    def whole(self) -> Buffer:
        """Return all bytes."""
        if self._buffer is not None:
            return self._buffer[: self.nbytes]
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
