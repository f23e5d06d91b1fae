"""Small file operations that a folder store is made of. They raise `OSError`."""

from __future__ import annotations

import ctypes
import errno
import os
from contextlib import suppress
from types import TracebackType

from zarrfs import threads
from zarrfs.errors import StoreError
from zarrfs.memory.spill import Buffers, data_extents
from zarrfs.stores.folder.names import Parts, path_of
from zarrfs.stores.os_errors import ABSENT
from zarrfs.stores.values import Buffer

# What is large is read in such pieces.
_PIECE_NBYTES = 8 << 20
_RENAME_EXCHANGE = 1 << 1


def sync_file_system(fd: int) -> None:
    """syncfs(2), for which Python has no name."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Closing:
    """Closes a descriptor at the end of a block. Every lookup and read passes here: a generator costs four times as much."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        os.close(self._fd)


class NothingIfAbsent:
    """Ends a block quietly where a lookup in it found that there is no such file."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        return isinstance(error, OSError) and error.errno in ABSENT


nothing_if_absent = NothingIfAbsent()


def lstat(folder: int, name: str) -> os.stat_result | None:
    """Of what has a name in the folder ``folder`` (a descriptor), not of what a link leads to; None when there is nothing."""
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def unlink(folder: int, name: str) -> None:
    """Remove a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def link_new(folder: int, temporary: str, name: str) -> None:
    """Rename a file to where none is. Raises `FileExistsError`."""
    os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    os.unlink(temporary, dir_fd=folder)


def exchange(folder: int, name: str, other_folder: int, other_name: str) -> None:
    """Exchange two files, or folders, in one step: renameat2(2), for which Python has no name. EINVAL where the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(folder, os.fsencode(name), other_folder, os.fsencode(other_name), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def pread(fd: int, start: int, stop: int, parts: Parts, buffers: Buffers | None = None) -> Buffer:
    """Bytes ``start`` to ``stop`` of a file, in memory or in one of ``buffers``. Raises `StoreError` when it has become shorter."""
    buffers = buffers if buffers is not None else Buffers()
    if buffers.has_memory(stop - start):
        content = os.pread(fd, stop - start, start)
        if len(content) == stop - start:
            return content
    else:
        # A file of zeros, in which holes need not be filled in.
        target = buffers.buffer(stop - start)
        place = start
        while (place := next_data(fd, place)) < stop:
            threads.go_on()
            count = os.preadv(fd, [target[place - start : place - start + _PIECE_NBYTES]], place)
            if not count:
                break
            place += count
        if os.fstat(fd).st_size >= stop:
            return target
    raise StoreError(f"{path_of(parts)!r} was cut short while it was read", key=path_of(parts))


def next_data(fd: int, offset: int) -> int:
    """Where in a file data begins, at ``offset`` or behind it: the size of the file where there is none, ``offset`` if nobody knows."""
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        return os.fstat(fd).st_size if error.errno == errno.ENXIO else offset


def write(fd: int, content: memoryview) -> None:
    """All of ``content`` into an empty file; where it has holes, this has."""
    extents = data_extents(content)
    if extents is None:
        while content:
            content = content[os.write(fd, content) :]
        return
    os.truncate(fd, content.nbytes)
    for start, stop in extents:
        while start < stop:
            start += os.pwrite(fd, content[start:stop], start)
