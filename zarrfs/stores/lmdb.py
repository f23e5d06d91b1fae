"""An LMDB environment, read-only: zarr-python 2's ``LMDBStore``. Needs the extra ``lmdb``.

Opened by a plain path (a folder with ``data.mdb``, or such a file alone), or ``lmdb:PATH``.

Source: zarr 2.18 ``LMDBStore``: the key's ASCII bytes, the value's bytes, in the unnamed database. LMDB ``lmdb.h`` and ``mdb.c`` for
the magic number, which is in the byte order of the machine that wrote the file.

Locks. Readers and writers of LMDB see each other in its lock file, by which a writer keeps the pages that readers use. The library
opens that file by name, for writing, and creates it. It is therefore used only if it is a plain file of the data file's owner, who is
this process's user, in a folder that no other user can write to; no lock file is created. Else (also on a read-only file system) the
environment is opened without locks, and the library gets the data file alone, by its descriptor. Without locks a reader may see pages
that a writer reuses. Each commit has a number, and pages of the state that a transaction sees are not reused before the second commit
after it (``mdb.c``, ``mdb_find_oldest``, ``mdb_page_alloc``): a read is valid if that commit has not happened by its end.

LMDB maps the file into memory and trusts its content. A file shorter than its own header states is refused; one with wrong pages, or
that is truncated while open, can crash this process.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreAccessDenied, StoreError, StoreNotFound, StoreUnsupported
from zarrfs.keys import ByteRange
from zarrfs.memory.spill import buffer, is_large
from zarrfs.stores.archive import Archive, Entry, archive_plugin, is_key
from zarrfs.stores.archive_file import ArchiveFile, Identity, begins_with
from zarrfs.stores.beside import is_plain
from zarrfs.stores.owners import is_ours_alone
from zarrfs.stores.values import KeyStat

log = logging.getLogger(__name__)

_MAGIC = struct.pack("=I", 0xBEEFC0DE)
_FOREIGN = _MAGIC[::-1]
_AT = 16
"""Offset of the magic number: behind the header of the first page. (12 if the machine that wrote it has addresses of 32 bits.)"""


_MAP_NBYTES = 1 << 40
"""Address space for the file: another program may enlarge it, and a smaller mapping is then of no use. It costs no memory."""

_PATIENCE_S = 2.0
_PAUSE_S = 0.01

_TRIES = 8
"""Attempts to read a value while another program writes to the environment."""


class _Overtaken(StoreError):
    """A read without locks may mix several states."""


class LmdbArchive(Archive):
    """The environment at ``path``: its folder, or the file itself."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._is_folder = os.path.isdir(self.path)
        self._data = os.path.join(self.path, "data.mdb") if self._is_folder else self.path
        # Kept open: the library identifies an environment by its path, which is derived from this descriptor.
        self._file = file = ArchiveFile(self._data)
        self._folder = -1
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
        self._locked = False
        self._environment: Any = self._open(lmdb)
        with self._translated(b""):
            self._check_size()

    def find(self, name: bytes) -> KeyStat | None:
        found = self._read(name, ())
        return None if found is None else found[0]

    def read(self, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        return self._read(name, ranges)

    def _read(self, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        if not self._usable(name):
            return None
        for left in reversed(range(_TRIES)):
            try:
                with self._transaction(name) as transaction:
                    value = transaction.get(name)
                    if value is None:
                        self._require_valid(transaction)
                        return None
                    # Copies the requested ranges only: the value lies in the mapped file until the transaction ends.
                    cuts = (byte_range.resolve(len(value)) for byte_range in ranges)
                    parts: list[Buffer] = [_copied(value[start:stop]) for start, stop in cuts]
                    found = self._stat(len(value), transaction)
                    self._require_valid(transaction)
                    return found, parts
            except _Overtaken:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def entries(self, start: bytes) -> Generator[Entry]:
        tries = _TRIES
        while True:
            try:
                for entry in self._entries(start):
                    yield entry
                    start, tries = entry[0] + b"\0", _TRIES
                return
            except _Overtaken:
                tries -= 1
                if not tries:
                    raise

    def _entries(self, start: bytes) -> Generator[Entry]:
        longest = self._environment.max_key_size()
        with self._transaction(start) as transaction:
            mtime_ns = self._state().st_mtime_ns
            with transaction.cursor() as cursor:
                there = cursor.set_range(start[:longest]) if start else cursor.first()
                if there and len(start) > longest and bytes(cursor.key()) == start[:longest]:
                    # Its key precedes the requested one, which is longer than any name.
                    there = cursor.next()
                while there:
                    found = bytes(cursor.key()), len(cursor.value()), mtime_ns
                    self._require_valid(transaction)
                    yield found
                    there = cursor.next()
            self._require_valid(transaction)

    def close(self) -> None:
        self._environment.close()

    def _usable(self, name: bytes) -> bool:
        return is_key(name) and len(name) <= self._environment.max_key_size()

    def _stat(self, size: int, transaction: Any) -> KeyStat:
        # Every commit has a number; a transaction has the number of the commit that it sees.
        return KeyStat(size, self._state().st_mtime_ns, f"{self._inode[0]}-{self._inode[1]}-{transaction.id()}")

    def _state(self) -> os.stat_result:
        """Return the status of the file. Raises `StoreError` if it is not the one that was opened."""
        try:
            found = os.stat(self._data)
        except OSError as error:
            raise StoreError(f"{self._data}: stat failed: {error.strerror}", key=self.path) from error
        if Identity.of(found)[:2] != self._inode:
            raise StoreError(f"{self._data} was replaced since it was opened; mount it again", key=self.path)
        return found

    def _check_size(self) -> None:
        last, page = self._environment.info()["last_pgno"], self._environment.stat()["psize"]
        if self._state().st_size < (last + 1) * page:
            raise StoreError(f"{self._data} is cut short: it has {last + 1} pages of {page} bytes", key=self.path)

    def _open(self, lmdb: Any) -> Any:
        options = {"readonly": True, "create": False, "readahead": False, "max_spare_txns": 8}
        with self._translated(b""):
            if self._lock_is_safe():
                try:
                    # Opened through the descriptor: the path may lead to another folder than the checked one by now.
                    path = f"/proc/self/fd/{self._folder}" + ("" if self._is_folder else f"/{os.path.basename(self._data)}")
                    environment = _opened(lmdb, path, subdir=self._is_folder, lock=True, max_readers=126, **options)
                except lmdb.Error:
                    # A leftover of another machine or version.
                    pass
                else:
                    self._locked = True
                    return environment
            return _opened(lmdb, self._file.descriptor_path, subdir=False, lock=False, **options)

    def _lock_is_safe(self) -> bool:
        folder, data = os.path.split(self._data)
        lock = "lock.mdb" if self._is_folder else f"{data}-lock"
        self._folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Links are not followed: the library's lock file would be beside the target.
            ours = os.stat(data, dir_fd=self._folder, follow_symlinks=False)
            found = os.stat(lock, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return (
            is_ours_alone(self._folder)
            and Identity.of(ours)[:2] == self._inode
            and ours.st_uid == os.geteuid()
            and is_plain(found, ours.st_uid)
            and not found.st_mode & 0o022
            and os.access(lock, os.R_OK | os.W_OK, dir_fd=self._folder, effective_ids=True)
            and self._lock_is_shared(lock)
        )

    def _lock_is_shared(self, lock: str) -> bool:
        """Return False if another process keeps the lock file for itself. Processes do so for a moment when they open the environment.

        The library would wait for that process, which may be stopped.
        """
        try:
            fd = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
        except OSError:
            return False
        until = time.monotonic() + _PATIENCE_S
        try:
            while time.monotonic() < until:
                # The byte that the library locks. Closing the descriptor releases it.
                with suppress(BlockingIOError, PermissionError):
                    fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
                    return True
                time.sleep(_PAUSE_S)
        except OSError:
            return False
        finally:
            os.close(fd)
        log.warning("%s is opened without its locks: another process keeps its lock file for itself", self.path)
        return False

    def __del__(self) -> None:
        if self.__dict__.get("_folder", -1) >= 0:
            os.close(self._folder)

    @contextmanager
    def _transaction(self, name: bytes) -> Generator[Any]:
        with self._translated(name):
            self._check_size()
            with self._environment.begin(buffers=True) as transaction:
                yield transaction

    def _require_valid(self, transaction: Any) -> None:
        """Raise `_Overtaken` if pages that ``transaction`` read may have been reused meanwhile."""
        if not self._locked and self._environment.info()["last_txnid"] > transaction.id() + 1:
            raise _Overtaken(f"reading the LMDB {self.path}: changed during each attempt", key=self.path)

    @contextmanager
    def _translated(self, name: bytes) -> Generator[None]:
        key = name.decode("utf-8", "surrogateescape")
        try:
            yield
        except PermissionError as error:
            raise StoreAccessDenied(f"the LMDB {self.path} may not be read", key=key or self.path) from error
        except (self._error, OSError, MemoryError) as error:
            message = f"reading {key!r}: " if key else ""
            raise StoreError(f"{message}the LMDB {self.path}: {error}", key=key or self.path) from error


def _opened(lmdb: Any, path: str, **options: Any) -> Any:
    try:
        return lmdb.open(path, map_size=_MAP_NBYTES, **options)
    except (lmdb.MemoryError, MemoryError):
        # The address space is limited (ulimit -v): the file can be read until it has grown.
        return lmdb.open(path, **options)


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


PLUGIN = archive_plugin("lmdb", LmdbArchive, _claims, priority=250, suffixes=("lmdb", "mdb"))
