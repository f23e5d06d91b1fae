"""An LMDB environment, read-only: zarr-python 2's ``LMDBStore``. A plain path (a folder with ``data.mdb``, or such a file alone), or
``lmdb:PATH``. Needs the extra ``lmdb``.

Source: zarr 2.18 ``LMDBStore``: the key's ASCII bytes, the value's bytes, in the unnamed database. LMDB ``lmdb.h`` and ``mdb.c`` for
the magic number, which is in the byte order of the machine that wrote the file.

Locks. Readers and writers of LMDB see each other in its lock file. Where there is one that we may write to, we enter ourselves, so
that a writer keeps the pages that we read; else (a file system that cannot be written, an archive without its lock file) the
environment is opened without locks, as one that nobody writes to.

LMDB maps the file into memory and trusts what it finds there. A file that is shorter than its own header says is refused; one whose
pages are wrong, or that is cut short while it is open, can end this process.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from zarrfs.errors import StoreAccessDenied, StoreError, StoreNotFound, StoreUnsupported
from zarrfs.keys import ByteRange
from zarrfs.spill import buffer, is_large
from zarrfs.stores.archive import Archive, Entry, archive_plugin, is_key
from zarrfs.stores.archive_file import ArchiveFile, Identity, begins_with
from zarrfs.stores.base import Buffer, KeyStat

_MAGIC = struct.pack("=I", 0xBEEFC0DE)
_FOREIGN = _MAGIC[::-1]
_AT = 16
"""Where the magic number is: behind the header of the first page. (12 where the machine that wrote it has addresses of 32 bits.)"""


class LmdbArchive(Archive):
    """The environment at ``path``: the folder, or the file itself."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._data = _data_file(self.path)
        file = ArchiveFile(self._data)
        if not begins_with(self._data, _MAGIC, _AT):
            if any(begins_with(self._data, magic, at) for magic in (_MAGIC, _FOREIGN) for at in (12, _AT)):
                raise StoreUnsupported(
                    f"{path} is an LMDB that another kind of machine wrote: convert it by mdb_dump there", key=path
                )
            raise StoreNotFound(f"{path} is not an LMDB", key=path)
        self._inode = file.identity[:2]
        try:
            import lmdb
        except ModuleNotFoundError as error:
            raise StoreUnsupported(
                f"{path} is an LMDB, and the library is missing: pip install 'zarrfs[lmdb]'", key=path
            ) from error
        self._error: type[Exception] = lmdb.Error
        self._environment: Any = self._open(lmdb)
        with self._translated(b""):
            self._check_size()

    def find(self, name: bytes) -> KeyStat | None:
        if not self._usable(name):
            return None
        with self._transaction(name) as transaction:
            value = transaction.get(name)
            return None if value is None else self._stat(len(value), transaction)

    def read(self, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        if not self._usable(name):
            return None
        with self._transaction(name) as transaction:
            value = transaction.get(name)
            if value is None:
                return None
            # Only what is wanted is copied: the value lies in the mapped file for as long as the transaction lasts.
            cuts = (byte_range.resolve(len(value)) for byte_range in ranges)
            return self._stat(len(value), transaction), [_copied(value[start:stop]) for start, stop in cuts]

    def entries(self, start: bytes) -> Generator[Entry]:
        longest = self._environment.max_key_size()
        with self._transaction(start) as transaction:
            mtime_ns = self._state().st_mtime_ns
            with transaction.cursor() as cursor:
                there = cursor.set_range(start[:longest]) if start else cursor.first()
                if there and len(start) > longest and bytes(cursor.key()) == start[:longest]:
                    # It comes before what was asked for, which is longer than any name.
                    there = cursor.next()
                while there:
                    yield bytes(cursor.key()), len(cursor.value()), mtime_ns
                    there = cursor.next()

    def close(self) -> None:
        self._environment.close()

    def _usable(self, name: bytes) -> bool:
        return is_key(name) and len(name) <= self._environment.max_key_size()

    def _stat(self, size: int, transaction: Any) -> KeyStat:
        # Every commit has a number; a transaction has that of the commit that it sees.
        return KeyStat(size, self._state().st_mtime_ns, f"{self._inode[0]}-{self._inode[1]}-{transaction.id()}")

    def _state(self) -> os.stat_result:
        """Raises `StoreError` when the file is not the one that was opened."""
        try:
            found = os.stat(self._data)
        except OSError as error:
            raise StoreError(f"{self._data} cannot be looked at any more: {error.strerror}", key=self.path) from error
        if Identity.of(found)[:2] != self._inode:
            raise StoreError(f"{self._data} was replaced since it was opened; mount it again", key=self.path)
        return found

    def _check_size(self) -> None:
        last, page = self._environment.info()["last_pgno"], self._environment.stat()["psize"]
        if self._state().st_size < (last + 1) * page:
            raise StoreError(f"{self._data} is cut short: it has {last + 1} pages of {page} bytes", key=self.path)

    def _open(self, lmdb: Any) -> Any:
        folder = os.path.isdir(self.path)
        lock = os.path.join(self.path, "lock.mdb") if folder else self.path + "-lock"
        options = {"subdir": folder, "readonly": True, "create": False, "readahead": False, "max_spare_txns": 8}
        with self._translated(b""):
            if os.access(lock, os.R_OK | os.W_OK):
                try:
                    return lmdb.open(self.path, lock=True, max_readers=126, **options)
                except lmdb.Error:
                    # Someone else's leftover: another machine's, another version's.
                    pass
            return lmdb.open(self.path, lock=False, **options)

    @contextmanager
    def _transaction(self, place: bytes) -> Generator[Any]:
        with self._translated(place):
            self._check_size()
            with self._environment.begin(buffers=True) as transaction:
                yield transaction

    @contextmanager
    def _translated(self, place: bytes) -> Generator[None]:
        key = place.decode("utf-8", "surrogateescape")
        try:
            yield
        except PermissionError as error:
            raise StoreAccessDenied(f"the LMDB {self.path} may not be read", key=key or self.path) from error
        except (self._error, OSError, MemoryError) as error:
            message = f"reading {key!r}: " if key else ""
            raise StoreError(f"{message}the LMDB {self.path}: {error}", key=key or self.path) from error


def _copied(part: memoryview) -> Buffer:
    if not is_large(len(part)):
        return bytes(part)
    copy = buffer(len(part))
    copy[:] = part
    return copy


def _data_file(path: str) -> str:
    return os.path.join(path, "data.mdb") if os.path.isdir(path) else path


def _claims(path: str) -> bool:
    try:
        data = _data_file(path)
    except ValueError:
        return False
    return any(begins_with(data, magic, at) for magic in (_MAGIC, _FOREIGN) for at in (12, _AT))


PLUGIN = archive_plugin("lmdb", LmdbArchive, _claims, priority=250)
