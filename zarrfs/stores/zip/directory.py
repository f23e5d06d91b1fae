"""The central directory of a zip file: its entries and their positions.

Source: PKWARE APPNOTE 6.3.10, sections 4.3 (layout), 4.4 (fields), 4.5.3 (ZIP64), 4.6.9 (Unicode path), appendix D (names).

`zipfile` would read it too, but it keeps a kilobyte for each entry, reads the whole directory at once, and refuses the archive for one
name that is not UTF-8. Here an entry takes its name and 52 bytes, and a bad one hides none of its neighbours. Tests compare the result
with `zipfile`.

Of entries with one name the last counts (as in `zipfile`: an archive that was appended to). Bytes before the archive are allowed.
"""

from __future__ import annotations

import struct
import time
import zlib
from array import array
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from zarrfs.errors import StoreError, StoreUnsupported
from zarrfs.memory.indexes import NAME_NBYTES, IndexMemory
from zarrfs.stores.archive import NameIndex
from zarrfs.stores.archive_file import ArchiveFile

MAX_DIRECTORY_NBYTES = 1 << 30
"""Size limit: ten million entries, which take two gigabytes of memory, if `IndexMemory` has as much."""

# Of an entry in the table.
_ROW_NBYTES = 34

LOCAL_MAGIC = b"PK\3\4"
_END_MAGIC = b"PK\5\6"
_ENTRY_MAGIC = b"PK\1\2"
_PIECE = 1 << 20

_END = struct.Struct("<4s4H2IH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
# Flags, method, time, date, CRC, the two sizes, lengths of name, extra fields and comment, disk, attributes, offset.
_ENTRY = struct.Struct("<4s4x4H3I5H2I")

_UTF8 = 0x800
_FULL16 = 0xFFFF
_FULL32 = 0xFFFFFFFF


class Member(NamedTuple):
    """One entry: ``offset`` of its local header in the file, ``stored`` bytes in the file, ``size`` of its value in bytes."""

    offset: int
    stored: int
    size: int
    crc: int
    method: int
    flags: int
    mtime_ns: int | None


class ZipDirectory:
    """The entries of ``file``. Raises `StoreError` if it is no zip file or damaged, `StoreUnsupported` if it is split or too large."""

    def __init__(self, file: ArchiveFile) -> None:
        self._offset, self._stored, self._size = array("Q"), array("Q"), array("Q")
        self._crc, self._time = array("I"), array("I")
        self._method, self._flags = array("H"), array("H")
        memory = IndexMemory(file.path)
        rows: dict[bytes, int] = {}
        for name in self._read(file):
            # An earlier entry of that name has a row, too.
            memory.take(_ROW_NBYTES if name in rows else NAME_NBYTES + len(name))
            rows[name] = len(self._offset) - 1
        self.index = NameIndex(rows, file.path)

    def member(self, row: int) -> Member:
        return Member(
            self._offset[row],
            self._stored[row],
            self._size[row],
            self._crc[row],
            self._method[row],
            self._flags[row],
            _mtime_ns(self._time[row]),
        )

    def size_and_mtime(self, row: int) -> tuple[int, int | None]:
        """Return the size in bytes and mtime_ns of an entry, for listings."""
        return self._size[row], _mtime_ns(self._time[row])

    def _read(self, file: ArchiveFile) -> Iterator[bytes]:
        """Return the name of each entry, after the rest of it is in the table."""
        end = find_end(file)
        if end is None:
            raise StoreError(f"{file.path} is not a whole zip file: it has no end of central directory", key=file.path)
        for name, extra, fields in _entries(file, end.start, end.start + end.nbytes):
            flags, method, clock, date, crc, stored, size, _, _, _, disk, _, _, offset = fields
            if _FULL32 in (size, stored, offset):
                size, stored, offset = _wide((size, stored, offset), extra)
            if disk not in (0, _FULL16):
                raise StoreUnsupported(f"{file.path} is one part of a zip file in several parts: join them first", key=file.path)
            self._offset.append(min(offset + end.before, 2**64 - 1))
            self._stored.append(stored)
            self._size.append(size)
            self._crc.append(crc)
            self._time.append(date << 16 | clock)
            self._method.append(method)
            self._flags.append(flags)
            yield _name(name, flags, extra)


class End(NamedTuple):
    """The position of the central directory: its first byte in the file, its length, and the number of bytes before the archive."""

    start: int
    nbytes: int
    before: int


def find_end(file: ArchiveFile) -> End | None:
    """Return the content of the end of central directory; None if none fits the file.

    Raises `StoreError` if the only one belongs to another zip file than the one that the file begins with.
    """
    begins_with_entry = file.size >= len(LOCAL_MAGIC) and file.read(0, len(LOCAL_MAGIC), file.path) == LOCAL_MAGIC
    of_another = False
    tail_start = max(0, file.size - _END.size - _FULL16)
    tail = file.read(tail_start, file.size, file.path)
    at = tail.rfind(_END_MAGIC)
    while at != -1:
        # The last one whose comment ends within the file: a comment may contain the magic number too.
        if at + _END.size <= len(tail):
            _, disk, _, _, _, nbytes, offset, comment = _END.unpack_from(tail, at)
            if at + _END.size + comment <= len(tail):
                end = _checked(file, tail_start + at, nbytes, offset, disk)
                if end is not None:
                    if not (end.before and begins_with_entry):
                        return end
                    of_another = True
        at = tail.rfind(_END_MAGIC, 0, at)
    if of_another:
        # Cut short behind a zip file that is one of its values, it would show that one's content as its own.
        raise StoreError(
            f"{file.path} begins with entries that the directory at its end does not know: it is cut short, or several zip files "
            "are joined",
            key=file.path,
        )
    return None


def _checked(file: ArchiveFile, at: int, nbytes: int, offset: int, disk: int) -> End | None:
    """Return the directory that the record at ``at`` refers to; None if there is none."""
    last = at
    if at >= _END64_LOCATOR.size:
        magic, _, offset64, _ = _END64_LOCATOR.unpack(file.read(at - _END64_LOCATOR.size, at, file.path))
        for start in (offset64, at - _END64_LOCATOR.size - _END64.size) if magic == b"PK\6\7" else ():
            if 0 <= start <= at - _END64_LOCATOR.size - _END64.size:
                record = _END64.unpack(file.read(start, start + _END64.size, file.path))
                if record[0] == b"PK\6\6":
                    last, disk, nbytes, offset = start, record[4], record[8], record[9]
                    break
    if disk not in (0, _FULL16):
        raise StoreUnsupported(f"{file.path} is one part of a zip file in several parts: join them first", key=file.path)
    # Directly before its end, whatever its stated start: bytes may precede the archive.
    for start in (last - nbytes, offset):
        if 0 <= start <= last - nbytes and (not nbytes or file.read(start, min(start + 4, last), file.path) == _ENTRY_MAGIC):
            if nbytes > MAX_DIRECTORY_NBYTES:
                raise StoreUnsupported(f"{file.path} has a central directory of {nbytes} bytes, which is too many", key=file.path)
            return End(start, nbytes, max(0, start - offset))
    return None


def _entries(file: ArchiveFile, start: int, stop: int) -> Iterator[tuple[bytes, bytes, tuple[int, ...]]]:
    """Return name, extra fields and header of each entry. The directory is read in pieces."""
    piece, at = b"", 0

    def upto(nbytes: int) -> None:
        """Read until ``piece`` has this number of bytes from ``at``."""
        nonlocal piece, at, start
        if len(piece) - at < nbytes:
            more = file.read(start, min(stop, start + _PIECE), file.path)
            start += len(more)
            piece, at = piece[at:] + more, 0
            if len(piece) < nbytes:
                raise StoreError(f"{file.path} has a damaged central directory: it ends within an entry", key=file.path)

    while at < len(piece) or start < stop:
        upto(_ENTRY.size)
        magic, *fields = _ENTRY.unpack_from(piece, at)
        if magic != _ENTRY_MAGIC:
            raise StoreError(f"{file.path} has a damaged central directory: an entry is missing", key=file.path)
        name_length, extra_length, comment_length = fields[7:10]
        upto(_ENTRY.size + name_length + extra_length + comment_length)
        at += _ENTRY.size
        name, extra = piece[at : at + name_length], piece[at + name_length : at + name_length + extra_length]
        at += name_length + extra_length + comment_length
        yield name, extra, tuple(fields)


def _wide(fields: tuple[int, ...], extra: bytes) -> Iterator[int]:
    """Return the fields; one that is all ones is in the ZIP64 extra field instead, in the order of the fields."""
    wide = _field(extra, 1) or b""
    for each in fields:
        if each == _FULL32 and len(wide) >= 8:
            each, wide = int.from_bytes(wide[:8], "little"), wide[8:]
        yield each


def _field(extra: bytes, wanted: int) -> bytes | None:
    """Return the extra field with this number; None if absent, or if it exceeds the end."""
    at = 0
    while at + 4 <= len(extra):
        number, length = struct.unpack_from("<HH", extra, at)
        at += 4
        if number == wanted:
            return extra[at : at + length] if at + length <= len(extra) else None
        at += length
    return None


def _name(name: bytes, flags: int, extra: bytes) -> bytes:
    """Return a name as UTF-8: by its flag, or by the Unicode path that belongs to this very name; else from code page 437."""
    if flags & _UTF8 or name.isascii():
        return name
    path = _field(extra, 0x7075)
    if path is not None and path[:1] == b"\1" and path[1:5] == zlib.crc32(name).to_bytes(4, "little"):
        return path[5:]
    return name.decode("cp437").encode()


@lru_cache(maxsize=4096)
def _mtime_ns(stamp: int) -> int | None:
    """Return local time, as the format has it, in steps of two seconds; None if invalid."""
    date, clock = stamp >> 16, stamp & 0xFFFF
    year, month, day = (date >> 9) + 1980, date >> 5 & 15, date & 31
    hour, minute, second = clock >> 11, clock >> 5 & 63, (clock & 31) * 2
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 60):
        return None
    return int(time.mktime((year, month, day, hour, minute, second, 0, 0, -1))) * 1_000_000_000
