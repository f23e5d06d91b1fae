"""A zip file that is a value of another one, with the interface of an archive file.

A stored value is a range of the outer file. A compressed one is decompressed once, into memory or, if large, into an unlinked file in
the cache folder (`zarrfs.memory.spill`): a zip file is read from its end, and a decoder runs forward only.
"""

from __future__ import annotations

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreError
from zarrfs.keys import WHOLE
from zarrfs.stores.archive_file import ArchiveFile
from zarrfs.stores.zip.directory import Member
from zarrfs.stores.zip.members import STORED, MemberReader


class InnerFile(ArchiveFile):
    """The value ``name`` (the entry ``member``) of the zip file ``outer``. Raises `StoreError` or a subclass as a read of it does."""

    def __init__(self, outer: ArchiveFile, reader: MemberReader, name: bytes, member: Member) -> None:
        key = name.decode("utf-8", "surrogateescape")
        # The descriptor belongs to the outer file.
        self._fd = -1
        self._outer = outer
        self.path = f"{outer.path}|zip:{key}"
        self.identity = outer.identity
        self.size = member.size
        self.mtime_ns = outer.mtime_ns
        self._start = reader.start_of(name, member, key)
        self._decoded = None if member.method == STORED else memoryview(reader.read(name, member, [WHOLE], key)[0])

    def read(self, start: int, stop: int, key: str) -> bytes:
        return bytes(self.read_value(start, stop, key))

    def read_value(self, start: int, stop: int, key: str) -> Buffer:
        if not 0 <= start <= stop <= self.size:
            raise StoreError(f"reading {key!r}: it lies outside of {self.path}, which is damaged", key=key)
        if self._decoded is not None:
            return self._decoded[start:stop]
        return self._outer.read_value(self._start + start, self._start + stop, key)

    def check(self, key: str) -> None:
        self._outer.check(key)
