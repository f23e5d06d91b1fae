"""An LMDB environment, read-only: zarr-python 2's ``LMDBStore``. Needs the extra ``lmdb``.

Opened by a plain path (a folder with ``data.mdb``, or such a file alone), or ``lmdb:PATH``.

Source: zarr 2.18 ``LMDBStore``: the key's ASCII bytes, the value's bytes, in the unnamed database. LMDB ``lmdb.h`` and ``mdb.c`` for
the magic number, which is in the byte order of the machine that wrote the file.

Locks. Readers and writers of LMDB see each other in its lock file, by which a writer keeps the pages that readers use. The library
opens that file by name, for writing, and creates it. It is therefore used only if it is a plain file of the data file's owner, who is
this process's user, in a folder that no other user can write to; no lock file is created. Else (also on a read-only file system) the
environment is read without locks. So is it where the lock file has no room for another reader: few entries are used, since the other
programs need some too; and once another program has removed or replaced the lock file: writers then use another one, by which they do
not see this reader, nor this reader their commits. Without locks a reader may see pages that a writer reuses. Each commit has a number,
and pages of the state that a transaction sees are not reused before the second commit after it (``mdb.c``, ``mdb_find_oldest``,
``mdb_page_alloc``): a read is valid if that commit has not happened by its end.

The library maps the file into memory and trusts its content. It is used for its locks alone; `zarrfs.stores.lmdb_tree` reads the pages.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from operator import itemgetter
from typing import Any

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreAccessDenied, StoreError, StoreNotFound, StoreUnsupported
from zarrfs.keys import ByteRange
from zarrfs.stores.archive import Archive, Entry, Found, Wanted, archive_plugin, is_key, kept
from zarrfs.stores.archive_file import ArchiveFile, Identity, begins_with
from zarrfs.stores.beside import is_plain
from zarrfs.stores.lmdb_tree import HEAD_NBYTES, Tree, find, is_whole, leaves, newest, part, tree_of
from zarrfs.stores.own_files import open_store, open_store_file
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

_READERS = 8
"""Entries of the lock file that are used at once."""

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
        # Who names a folder does not choose what its `data.mdb` is.
        self._file = file = ArchiveFile(self._data, open_store_file if self._is_folder else open_store)
        self._folder = -1
        self._lock: tuple[str, tuple[int, int]] | None = None
        """Name of the lock file, and its device and inode. The library keeps it open: no other file has these."""
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
        self._full: type[Exception] = lmdb.ReadersFullError
        self._known: tuple[object, dict[int, Any]] = None, {}
        self._room = threading.BoundedSemaphore(_READERS)
        with self._translated(b""):
            self._check_size()
            self._known_of(newest(self._file))
            self._environment: Any = self._open(lmdb)

    def find(self, name: bytes) -> KeyStat | None:
        found = self._read(name, ())
        return None if found is None else found[0]

    def read(self, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        return self._read(name, ranges)

    def read_several(self, wanted: Sequence[Wanted], keep: Callable[[Buffer], Buffer]) -> list[Found]:
        found = self._read_from_one_state(wanted, keep) if len(wanted) > 1 else None
        return found if found is not None else super().read_several(wanted, keep)

    def _read_from_one_state(self, wanted: Sequence[Wanted], keep: Callable[[Buffer], Buffer]) -> list[Found] | None:
        """Return the result of `read_several`; None if no one state can be read, or if the file was changed meanwhile.

        Each value is then read from a state of its own: the file may be another environment now, copied over the other one.
        """
        read: dict[bytes, Found] = {}
        with ExitStack() as pin:
            with self._translated(b""):
                self._check_size()
                number = pin.enter_context(self._pinned())
                tree = None if number is None else tree_of(self._file, number)
                if tree is None or not self._has_locks:
                    return None
                tree, mtime_ns = tree._replace(known=self._known_of(tree)), self._state().st_mtime_ns
            try:
                # In their order each page is read once.
                for name, ranges in sorted(wanted, key=itemgetter(0)):
                    with self._translated(name), self._naming(name, tree):
                        found = self._found(tree, mtime_ns, name, ranges) if is_key(name) else None
                    read[name] = kept(found, keep)
            except StoreError:
                if self._state().st_mtime_ns == mtime_ns:
                    raise
                return None
            is_one = self._state().st_mtime_ns == mtime_ns and self._has_locks
            return [read[name] for name, _ in wanted] if is_one else None

    def _read(self, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        if not is_key(name):
            return None
        for left in reversed(range(_TRIES)):
            try:
                with self._transaction(name) as tree:
                    found = self._found(tree, self._state().st_mtime_ns, name, ranges)
                    self._require_valid(tree)
                    return found
            except _Overtaken:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _found(self, tree: Tree, mtime_ns: int, name: bytes, ranges: Sequence[ByteRange]) -> tuple[KeyStat, list[Buffer]] | None:
        value = find(self._file, tree, name)
        if value is None:
            return None
        cuts = (byte_range.resolve(value.size) for byte_range in ranges)
        # Every commit has a number. Another environment that was copied over this one may have the same, but not the same time.
        stat = KeyStat(value.size, mtime_ns, f"{self._inode[0]}-{self._inode[1]}-{tree.number}-{mtime_ns}")
        return stat, [part(self._file, tree, name, value, start, stop) for start, stop in cuts]

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
        with self._transaction(start) as tree:
            mtime_ns = self._state().st_mtime_ns
            for found in leaves(self._file, tree, start):
                self._require_valid(tree)
                for name, size in found:
                    yield name, size, mtime_ns
            self._require_valid(tree)

    def close(self) -> None:
        if self._environment is not None:
            self._environment.close()

    @property
    def _locked(self) -> bool:
        return self._environment is not None

    @property
    def _has_locks(self) -> bool:
        """True if writers see this reader: the lock file that the library has opened is still the one of the environment."""
        if self._environment is None or self._lock is None:
            return False
        name, inode = self._lock
        try:
            found = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == inode

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
        # Before the library looks at the first pages, which are mapped.
        if self._state().st_size < HEAD_NBYTES:
            raise StoreError(f"{self._data} is cut short: it has no whole head", key=self.path)

    def _known_of(self, tree: Tree) -> dict[int, Any]:
        """Return the pages of a state that were read already. Raises `StoreError` if the file does not have all of its pages.

        The number alone may be that of another environment, copied over this one.
        """
        found = self._file.status()
        state = tree.number, tree.root, found.st_mtime_ns, found.st_size
        known = self._known
        if known[0] != state:
            if not is_whole(self._file, tree, found.st_size):
                raise StoreError(f"{self._data} is cut short: it has {tree.pages} pages of {tree.page_nbytes} bytes", key=self.path)
            self._known = known = state, {}
        return known[1]

    def _open(self, lmdb: Any) -> Any:
        """Return the environment as the library has opened it; None if its locks cannot be used."""
        if not self._lock_is_safe():
            return None
        # Opened through the descriptor: the path may lead to another folder than the checked one by now.
        path = f"/proc/self/fd/{self._folder}" + ("" if self._is_folder else f"/{os.path.basename(self._data)}")
        try:
            return lmdb.open(
                path,
                map_size=_MAP_NBYTES,
                subdir=self._is_folder,
                readonly=True,
                create=False,
                max_spare_txns=_READERS,
                max_readers=126,
            )
        except lmdb.Error:
            # A leftover of another machine or version; or the address space is limited (ulimit -v).
            return None

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
        self._lock = lock, (found.st_dev, found.st_ino)
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
    def _transaction(self, name: bytes) -> Generator[Tree]:
        with self._translated(name):
            self._check_size()
            with self._pinned() as number:
                tree = newest(self._file) if number is None else tree_of(self._file, number)
                if tree is None:
                    raise self._overtaken()
                with self._naming(name, tree):
                    yield tree._replace(known=self._known_of(tree))

    @contextmanager
    def _naming(self, name: bytes, tree: Tree) -> Generator[None]:
        try:
            yield
        except _Overtaken:
            raise
        except StoreError as error:
            # Pages that a writer has reused look damaged.
            self._require_valid(tree)
            if error.key != self._file.path or not name:
                raise
            key = name.decode("utf-8", "surrogateescape")
            raise StoreError(f"reading {key!r}: {error}", key=key) from error

    @contextmanager
    def _pinned(self) -> Generator[int | None]:
        """Yield the number of the newest state, whose pages no writer reuses meanwhile; None without locks."""
        if not self._has_locks or not self._room.acquire(blocking=False):
            yield None
            return
        try:
            transaction = None
            with suppress(self._full):
                transaction = self._environment.begin()
            with transaction or nullcontext():
                yield None if transaction is None else transaction.id()
        finally:
            self._room.release()

    def _require_valid(self, tree: Tree) -> None:
        """Raise `_Overtaken` if pages of ``tree`` that were read may have been reused meanwhile."""
        if not (tree.is_pinned and self._has_locks) and newest(self._file).number > tree.number + 1:
            raise self._overtaken()

    def _overtaken(self) -> _Overtaken:
        return _Overtaken(f"reading the LMDB {self.path}: changed during each attempt", key=self.path)

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


def _data_file(path: str) -> str:
    return os.path.join(path, "data.mdb") if os.path.isdir(path) else path


def _claims(path: str) -> bool:
    try:
        data = _data_file(path)
    except ValueError:
        return False
    open_path = open_store if data == path else open_store_file
    return any(begins_with(data, magic, at, open_path) for magic in (_MAGIC, _FOREIGN) for at in (12, _AT))


PLUGIN = archive_plugin("lmdb", LmdbArchive, _claims, priority=250, suffixes=("lmdb", "mdb"))
