"""Small file operations for a folder store. They raise `OSError`."""

from __future__ import annotations

import ctypes
import errno
import os
import stat as st
from contextlib import suppress
from types import TracebackType

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.errors import StoreError
from zarrfs.memory.spill import Buffers, data_extents, refuse_lost
from zarrfs.stores.folder.names import Parts, path_of
from zarrfs.stores.os_errors import ABSENT

VALUE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags with which a value is opened."""

# Piece size for reads of large values.
_PIECE_NBYTES = 8 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1 << 0, 1 << 1
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
"""Errors of link(2) on file systems without hard links: FAT, exFAT, many servers."""
_NO_FLAGS = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM})
"""Errors of renameat2(2) where a flag is not supported, or a filter of system calls (seccomp) does not know it."""


def sync_file_system(fd: int) -> None:
    """Run syncfs(2), which Python does not have."""
    if _LIBC.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Closing:
    """Closes a descriptor at the end of a block. A class, because every lookup and read uses it: a generator costs four times as much."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        os.close(self._fd)


class NothingIfAbsent:
    """Ends a block quietly if a lookup in it found no such file."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        return isinstance(error, OSError) and error.errno in ABSENT


nothing_if_absent = NothingIfAbsent()


def lstat(folder: int, name: str) -> os.stat_result | None:
    """Return the status of a name in the folder ``folder`` (a descriptor), links not followed; None if absent."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def first_link(folder: int, names: Parts) -> str | None:
    """Return the first of ``names``, each below the one before, that is a symbolic link or special file; None for a file or absence."""
    above = os.dup(folder)
    try:
        for name in names:
            found = lstat(above, name)
            if found is None or st.S_ISREG(found.st_mode):
                return None
            if not st.S_ISDIR(found.st_mode):
                return name
            last, above = above, os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            os.close(last)
    except OSError as error:
        if error.errno not in ABSENT:
            raise
    finally:
        os.close(above)
    return None


def unlink(folder: int, name: str) -> None:
    """Remove a file, if it exists."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def link_new(folder: int, temporary: str, name: str) -> None:
    """Rename a file to a name that is free, in one step. Raises `FileExistsError`, and that of link(2) if neither call is supported."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            _renameat2(folder, temporary, folder, name, _RENAME_NOREPLACE)
        except FileExistsError:
            raise
        except OSError:
            raise error from None
        return
    # Its writer has closed it: a listing by another mount may have removed it as left behind.
    unlink(folder, temporary)


def rename_new(folder: int, name: str, new_folder: int, new_name: str) -> None:
    """Rename a file in one step to a name that is free, where the file system can; else to one that is free or not. Raises
    `FileExistsError`."""
    try:
        _renameat2(folder, name, new_folder, new_name, _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in _NO_FLAGS:
            raise
        os.rename(name, new_name, src_dir_fd=folder, dst_dir_fd=new_folder)


def exchange(folder: int, name: str, other_folder: int, other_name: str) -> None:
    """Exchange two files or folders in one step. Raises EINVAL or ENOSYS if the system cannot."""
    _renameat2(folder, name, other_folder, other_name, _RENAME_EXCHANGE)


def _renameat2(folder: int, name: str, new_folder: int, new_name: str, flags: int) -> None:
    """Run renameat2(2), which Python does not have. Raises ENOSYS where the C library lacks it, too."""
    call = getattr(_LIBC, "renameat2", None)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if call(folder, os.fsencode(name), new_folder, os.fsencode(new_name), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def pread(fd: int, start: int, stop: int, parts: Parts, buffers: Buffers | None = None) -> Buffer:
    """Return bytes ``start`` to ``stop`` of a file, in memory or in one of ``buffers``. Raises `StoreError` if it was truncated."""
    buffers = buffers if buffers is not None else Buffers()
    if buffers.has_memory(stop - start):
        content = os.pread(fd, stop - start, start)
        if len(content) == stop - start:
            return content
    else:
        # A file of zeros, in which holes need not be filled.
        target = buffers.buffer(stop - start)
        at = start
        while (at := next_data(fd, at)) < stop:
            threads.go_on()
            count = os.preadv(fd, [target[at - start : at - start + _PIECE_NBYTES]], at)
            if not count:
                break
            at += count
        if os.fstat(fd).st_size >= stop:
            return target
    raise StoreError(f"{path_of(parts)!r} was cut short while it was read", key=path_of(parts))


def next_data(fd: int, offset: int) -> int:
    """Return the first offset of data at or after ``offset``: the file size if there is none, ``offset`` if unknown."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        return os.fstat(fd).st_size if error.errno == errno.ENXIO else offset


def write(fd: int, content: memoryview) -> None:
    """Write ``content`` into an empty file, leaving its holes as holes. Raises `StoreError` if it was lost."""
    extents = data_extents(content)
    if extents is None:
        left = content
        while left:
            left = left[os.write(fd, left) :]
    else:
        os.truncate(fd, content.nbytes)
        for start, stop in extents:
            while start < stop:
                start += os.pwrite(fd, content[start:stop], start)
    # A file of the cache folder, of which pages may have been lost while it was read.
    refuse_lost(content)
