"""The values of a zip file's entries: stored ones by position, compressed ones by decoding up to the requested part.

Source: PKWARE APPNOTE 6.3.10, sections 4.3.7 (local header), 4.4.5 (methods), 5.8 (LZMA).

A compressed value is decoded from its beginning; only the requested part is kept, and never more bytes than the directory states. A
sequential reader gets its decoder again. The CRC of a value is checked whenever all of it was read in order.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import threading
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from copy import copy as _copy
from typing import Protocol
from weakref import WeakValueDictionary

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.errors import OutOfMemory, StoreAccessDenied, StoreError, TooLarge, ValueUnsupported
from zarrfs.keys import ByteRange
from zarrfs.memory.spill import buffer, is_large
from zarrfs.stores.archive_file import ArchiveFile
from zarrfs.stores.zip.directory import LOCAL_MAGIC, Member

STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14
_NAMES = {
    1: "shrink", 6: "implode", 9: "deflate64", 93: "zstd", 94: "mp3", 95: "xz", 96: "jpeg", 97: "wavpack", 98: "ppmd", 99: "AES",
}  # fmt: skip
_ENCRYPTED = 0x1 | 0x40 | 0x2000

_LOCAL = struct.Struct("<4s2x2H16x2H")
_PIECE = 1 << 16
"""Bytes decoded at once: the most that a decoder may produce beyond the request."""

_MAX_PIECES = 16
_MAX_WINDOW_NBYTES = 64 << 20
"""Limit of an LZMA decoder; the library's highest preset needs no more."""
_SMALL_WINDOW_NBYTES = 1 << 20
"""Of decoders with a larger window, one is kept, and one of values that take long."""

_SLOW_NBYTES = 8 << 20
"""A compressed value of more bytes takes longer to decode than other readers may wait."""

_KEPT = 8
"""Decoders kept for sequential readers; each holds up to 200 KB, one of LZMA its dictionary."""


class _Decoder(Protocol):
    def decompress(self, data: bytes, max_length: int) -> bytes: ...
    @property
    def eof(self) -> bool: ...


class MemberReader:
    """Reads values of ``file``. Thread-safe.

    Threads that decode the same value wait for each other: the kernel reads ahead, and the second of two parts begins where the decoder
    of the first stops. A decoder is therefore used by one thread at a time.
    """

    def __init__(self, file: ArchiveFile) -> None:
        self._file = file
        self._turns: WeakValueDictionary[int, threading.Lock] = WeakValueDictionary()
        self._heavy_turn, self._slow_heavy_turn = threading.Lock(), threading.Lock()
        self._table = threading.Lock()
        self._streams: OrderedDict[tuple[int, int], _Stream] = OrderedDict()

    def read(self, name: bytes, member: Member, ranges: Sequence[ByteRange], key: str) -> list[Buffer]:
        """Return parts of a value. Raises `StoreError` naming ``key`` if damaged, `ValueUnsupported`, `StoreAccessDenied`."""
        start = self.start_of(name, member, key)
        parts: list[Buffer] = []
        for byte_range in ranges:
            first, last = byte_range.resolve(member.size)
            if member.method != STORED:
                parts.append(self._decoded(member, start, first, last, key))
                continue
            part = self._file.read_value(start + first, start + last, key)
            if (first, last) == (0, member.size):
                _check_crc(zlib.crc32(part), member, key)
            parts.append(part)
        return parts

    def is_slow(self, member: Member) -> bool:
        """Return True if a read of a value may take long: of one that is compressed and large, all bytes before it are decoded."""
        return _is_heavy(member) or _is_long(member)

    def start_of(self, name: bytes, member: Member, key: str) -> int:
        """Return the offset of an entry's bytes, from its local header, which has to agree with the directory."""
        if member.flags & _ENCRYPTED:
            raise StoreAccessDenied(f"reading {key!r}: it is encrypted, which zarrfs does not support", key=key)
        if member.method not in (STORED, DEFLATED, BZIP2, LZMA):
            called = _NAMES.get(member.method, "an unknown method")
            raise ValueUnsupported(
                f"reading {key!r}: it is compressed by {called} (method {member.method}) in the zip file", key=key
            )
        if member.method == STORED and member.stored != member.size:
            raise StoreError(f"reading {key!r}: the zip file has two sizes of it, {member.stored} and {member.size}", key=key)
        header = self._file.read(member.offset, min(member.offset + _LOCAL.size, self._file.size), key)
        if len(header) < _LOCAL.size or header[:4] != LOCAL_MAGIC:
            raise StoreError(f"reading {key!r}: no entry at byte {member.offset} of the zip file", key=key)
        flags: int
        method: int
        name_length: int
        extra_length: int
        _, flags, method, name_length, extra_length = _LOCAL.unpack(header)
        name_start = member.offset + _LOCAL.size
        local_name = self._file.read(name_start, min(name_start + name_length, self._file.size), key)
        # Names in other character sets are converted to UTF-8 here; ASCII names are unchanged.
        if method != member.method or (flags ^ member.flags) & 1 or (name.isascii() and local_name != name):
            raise StoreError(f"reading {key!r}: another entry is at byte {member.offset} of the zip file", key=key)
        return name_start + name_length + extra_length

    def _decoded(self, member: Member, start: int, first: int, last: int, key: str) -> Buffer:
        if first == last and member.size:
            return b""
        heavy = _is_heavy(member)
        with self._turn(member):
            stream = self._taken(member, first)
            if stream is None:
                if heavy:
                    self._forget_heavy(_is_long(member))
                stream = _Stream(self._file, member, start, key)
            try:
                stream.skip_to(first)
                part = stream.read(last - first)
            except (zlib.error, lzma.LZMAError, OSError, ValueError, EOFError) as error:
                raise StoreError(f"reading {key!r}: decompressing it: {error}", key=key) from error
            except MemoryError as error:
                raise OutOfMemory(f"reading {key!r}: it does not fit into memory", key=key) from error
            except Exception:
                raise
            except BaseException:
                # The caller gave up; a repeated request continues from here.
                self._keep(member, stream)
                raise
            if last < member.size:
                self._keep(member, stream)
        return part

    def _turn(self, member: Member) -> threading.Lock:
        """Return the lock of a value. It exists as long as a thread has it: readers of other values do not wait.

        Decoders that may need much memory share one lock, and another one where they may take long.
        """
        if _is_heavy(member):
            return self._slow_heavy_turn if _is_long(member) else self._heavy_turn
        with self._table:
            turn = self._turns.get(member.offset)
            if turn is None:
                turn = self._turns[member.offset] = threading.Lock()
            return turn

    def _keep(self, member: Member, stream: _Stream) -> None:
        with self._table:
            self._streams[member.offset, stream.at] = stream
            while len(self._streams) > _KEPT:
                self._streams.popitem(last=False)

    def _forget_heavy(self, long: bool) -> None:
        with self._table:
            for key in [key for key, stream in self._streams.items() if stream.heavy and stream.long == long]:
                del self._streams[key]

    def _taken(self, member: Member, first: int) -> _Stream | None:
        """Return the decoder of this value nearest before ``first``; a copy of it, if possible, where other readers may need it."""
        with self._table:
            offsets = [at for offset, at in self._streams if offset == member.offset and at <= first]
            if not offsets:
                return None
            stream = self._streams.pop((member.offset, max(offsets)))
            if stream.at < first and (copy := stream.copied()) is not None:
                self._streams[member.offset, stream.at] = stream
                return copy
            return stream


class _Stream:
    """One compressed value, decoded in order. ``at`` is the number of bytes returned so far."""

    def __init__(self, file: ArchiveFile, member: Member, start: int, key: str) -> None:
        self._file, self._member, self._key = file, member, key
        self._next, self._stop = start, start + member.stored
        self._decoder = self._make_decoder()
        self._unconsumed = b""
        self._crc = 0
        self.heavy, self.long = _is_heavy(member), _is_long(member)
        self.at = 0

    def copied(self) -> _Stream | None:
        """Return a copy that continues from here; None if the library cannot copy."""
        copy = getattr(self._decoder, "copy", None)
        if copy is None:
            return None
        other: _Stream = _copy(self)
        other._decoder = copy()
        return other

    def skip_to(self, offset: int) -> None:
        while self.at < offset:
            threads.go_on()
            self._piece(min(_PIECE, offset - self.at))

    def read(self, nbytes: int) -> Buffer:
        """Return the next ``nbytes``. Allocation grows with the bytes decoded."""
        pieces: list[bytes] = []
        large: memoryview | None = None
        done = 0
        while done < nbytes:
            threads.go_on()
            piece = self._piece(min(max(_PIECE, min(len(pieces), _MAX_PIECES) * _PIECE), nbytes - done))
            if large is None and is_large(done + len(piece)):
                large = buffer(nbytes)
                large[:done] = b"".join(pieces)
                pieces.clear()
            if large is None:
                pieces.append(piece)
            else:
                large[done : done + len(piece)] = piece
            done += len(piece)
        if self.at == self._member.size:
            self._end()
        if large is not None:
            return large
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _piece(self, most: int) -> bytes:
        """Return at least one more byte, and at most ``most``."""
        while True:
            if self._decoder.eof:
                raise StoreError(f"reading {self._key!r}: it ends after {self.at} of {self._member.size} bytes", key=self._key)
            piece = self._decode(most)
            if piece:
                self._crc = zlib.crc32(piece, self._crc)
                self.at += len(piece)
                return piece

    def _end(self) -> None:
        """Verify that the value ends here, with the right CRC."""
        while not self._decoder.eof and (self._unconsumed or self._next < self._stop):
            if self._decode(1):
                raise StoreError(
                    f"reading {self._key!r}: it is longer than the {self._member.size} bytes it should be", key=self._key
                )
        _check_crc(self._crc, self._member, self._key)

    def _decode(self, most: int) -> bytes:
        if not self._unconsumed and self._next < self._stop and _wants_more(self._decoder):
            threads.go_on()
            self._unconsumed = self._file.read(self._next, min(self._stop, self._next + _PIECE), self._key)
            self._next += len(self._unconsumed)
            exhausted = False
        else:
            exhausted = not self._unconsumed
        piece = self._decoder.decompress(self._unconsumed, most)
        # The decoders of zlib return unused input; the others keep it.
        self._unconsumed = getattr(self._decoder, "unconsumed_tail", b"")
        if not piece and exhausted and not self._decoder.eof and _wants_more(self._decoder):
            raise StoreError(f"reading {self._key!r}: its compressed bytes are cut short", key=self._key)
        return piece

    def _make_decoder(self) -> _Decoder:
        match self._member.method:
            case 8:
                return zlib.decompressobj(-15)
            case 12:
                return bz2.BZ2Decompressor()
        # Section 5.8: version (2 bytes), length of the properties (2 bytes, 5), properties.
        header = self._file.read(self._next, min(self._next + 9, self._stop), self._key)
        self._next += 9
        if len(header) < 9 or header[2:4] != b"\5\0" or header[4] >= 9 * 5 * 5:
            raise StoreError(f"reading {self._key!r}: it has no header as LZMA has one", key=self._key)
        rest, context = divmod(header[4], 9)
        position, literal = divmod(rest, 5)
        # No value refers back further than its length: a header cannot cause the allocation of gigabytes.
        wanted = int.from_bytes(header[5:9], "little")
        window = max(4096, min(wanted, self._member.size))
        if window > _MAX_WINDOW_NBYTES:
            raise TooLarge(
                f"reading {self._key!r}: its LZMA decoder needs {window} bytes: zarrfs has {_MAX_WINDOW_NBYTES} for one",
                key=self._key,
            )
        filters = [{"id": lzma.FILTER_LZMA1, "dict_size": window, "lc": context, "lp": literal, "pb": position}]
        try:
            return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)
        except lzma.LZMAError as error:
            # The format permits properties that the library does not have: literal contexts of more than 4 bits.
            raise StoreError(f"reading {self._key!r}: no LZMA decoder for its header: {error}", key=self._key) from error


def _is_heavy(member: Member) -> bool:
    """Return True if a decoder may need much memory."""
    return member.method == LZMA and member.size > _SMALL_WINDOW_NBYTES


def _is_long(member: Member) -> bool:
    """Return True if all of a value takes longer to decode than other readers may wait."""
    # Compressed bytes may mean nothing: blocks without content.
    return member.method != STORED and max(member.size, member.stored) > _SLOW_NBYTES


def _wants_more(decoder: _Decoder) -> bool:
    """Return True if the decoder has no buffered input left."""
    return bool(getattr(decoder, "needs_input", True))


def _check_crc(found: int, member: Member, key: str) -> None:
    if found != member.crc:
        raise StoreError(f"reading {key!r}: CRC mismatch: the value is damaged", key=key)
