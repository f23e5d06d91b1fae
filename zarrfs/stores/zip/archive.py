"""A zip file, read-only: by zarr-python's ``ZipStore`` or any other program. A plain path with any suffix, or ``zip:PATH``.

Source: PKWARE APPNOTE 6.3.10; zarr-python 2 and 3 ``ZipStore``: the key is the entry's name.

Recognised by its content: a local file header or an empty archive's end at the beginning, else an end of central directory. An entry
whose name ends with a slash is an empty prefix. Names are used as keys unchanged: ``../x`` and ``/abs`` lead nowhere, since nothing
is unpacked. The directory is read once, at opening; if the file changes later, reads fail.

``x.zip|zip:inner.zip|zip:a`` is everything below ``a`` in a zip file that is a value of another one (`zarrfs.stores.zip.inner_file`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreError, StoreNotFound, UsageError
from zarrfs.keys import ByteRange
from zarrfs.stores.archive import Archive, Entry, archive_plugin, is_key
from zarrfs.stores.archive_file import ArchiveFile
from zarrfs.stores.values import KeyStat
from zarrfs.stores.zip.directory import LOCAL_MAGIC, Member, ZipDirectory, find_end
from zarrfs.stores.zip.inner_file import InnerFile
from zarrfs.stores.zip.members import MemberReader


class ZipArchive(Archive):
    """A zip file. A generation consists of the file's identity, the position of the entry, and its CRC."""

    at_hand = True

    def __init__(self, file: ArchiveFile) -> None:
        self._file = file
        self.path = self._file.path
        self._directory = ZipDirectory(self._file)
        self._reader = MemberReader(self._file)

    def find(self, name: bytes) -> KeyStat | None:
        row = self._directory.index.find(name) if is_key(name) else None
        return None if row is None else self._stat(self._directory.member(row))

    def check(self, name: bytes) -> None:
        self._file.check(name.decode("utf-8", "surrogateescape"))

    def read(self, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        row = self._directory.index.find(name) if is_key(name) else None
        if row is None:
            return None
        member = self._directory.member(row)
        key = name.decode("utf-8", "surrogateescape")
        try:
            parts = self._reader.read(name, member, ranges, key)
        except StoreError:
            # If the file was replaced, that is the better reason.
            self._file.check(key)
            raise
        self._file.check(key)
        return self._stat(member), parts

    def is_slow(self, name: bytes) -> bool:
        row = self._directory.index.find(name) if is_key(name) else None
        return row is not None and self._reader.is_slow(self._directory.member(row))

    def inner(self, name: bytes) -> ZipArchive:
        row = self._directory.index.find(name) if is_key(name) else None
        if row is None:
            raise StoreNotFound(f"there is no {name.decode('utf-8', 'backslashreplace')} in {self.path}", key=self.path)
        return ZipArchive(InnerFile(self._file, self._reader, name, self._directory.member(row)))

    def entries(self, start: bytes) -> Generator[Entry]:
        for name, row in self._directory.index.after(start):
            size, mtime_ns = self._directory.size_and_mtime(row)
            yield name, size, mtime_ns

    def close(self) -> None:
        """Do nothing: the file is closed when the last thread releases it."""

    def _stat(self, member: Member) -> KeyStat:
        return KeyStat(member.size, member.mtime_ns, f"{self._file.identity}-{member.offset}-{member.crc:08x}")


def _claims(path: str) -> bool:
    try:
        file = ArchiveFile(path)
        if file.size < 22:
            return False
        return file.read(0, 4, path) in (LOCAL_MAGIC, b"PK\5\6") or find_end(file) is not None
    except (StoreError, UsageError):
        return False


def _archive(path: str) -> ZipArchive:
    return ZipArchive(ArchiveFile(path))


PLUGIN = archive_plugin("zip", _archive, _claims, priority=300, suffixes=("zip", "ozx"))
