"""Large buffers: in mapped files of the cache folder, so that they are the page cache's and not the process's.

What a store or a writer chooses the size of may be larger than any memory. A buffer of at least `large_nbytes` lies in an unlinked,
mapped file; the kernel writes its pages out when memory is short. Smaller ones are ordinary memory, which callers take from the budget
(`zarrfs.memory.budget`). Sync; any thread may call.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from zarrfs.errors import TooLarge
from zarrfs.memory import copying, disposal
from zarrfs.memory.disposal import DisposedMapping

MAX_NBYTES = 1 << 36
"""The most bytes of one buffer; stated in docs/SEMANTICS.md. Half of what is free in the cache folder is a limit too."""

_LARGE_NBYTES = 8 << 20
# Small buffers that find no memory share files of this size.
_FILE_NBYTES = 32 << 20

# Of the process: a daemon serves one mount, and codecs are given no configuration.
_directory: str | None = None
_large_nbytes = _LARGE_NBYTES


def configure(directory: str | None, large_nbytes: int) -> None:
    """Where files go (None: the system's temporary folder), and from how many bytes on a buffer is one."""
    global _directory, _large_nbytes
    _directory, _large_nbytes = directory, large_nbytes


def large_nbytes() -> int:
    """From how many bytes on a buffer lies in a file."""
    return _large_nbytes


def is_large(nbytes: int) -> bool:
    """Whether a buffer of so many bytes lies in a file."""
    return nbytes >= _large_nbytes


def in_memory(nbytes: int) -> int:
    """Bytes of memory that a buffer of so many bytes takes."""
    return 0 if nbytes >= _large_nbytes else nbytes


def buffer(nbytes: int) -> memoryview:
    """A writable buffer with arbitrary content. Raises `TooLarge` where there is no room for it."""
    if nbytes < _large_nbytes or not nbytes:
        return np.empty(nbytes, np.uint8).data
    return memoryview(mapped(nbytes))


def array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """As `numpy.empty`."""
    size = 1
    for extent in shape:
        size *= extent
    if dtype.hasobject or size * dtype.itemsize < _large_nbytes:
        return np.empty(shape, dtype)
    return np.frombuffer(mapped(size * dtype.itemsize), dtype, size).reshape(shape)


def contiguous(elements: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """As `numpy.ascontiguousarray`."""
    if elements.flags.c_contiguous:
        return elements
    made = array(elements.shape, elements.dtype)
    copying.copy(made, elements)
    return made


def is_mapped(value: object) -> bool:
    """Whether a buffer or an array lies in a file."""
    while value is not None:
        if isinstance(value, mmap.mmap):
            return True
        value = value.obj if isinstance(value, memoryview) else getattr(value, "base", None)
    return False


def copied(data: bytes | bytearray | memoryview) -> bytes | memoryview:
    """A copy of ``data``."""
    if not is_large(len(data)):
        return bytes(data)
    copy = buffer(len(data))
    copy[:] = data
    return copy


class Buffers:
    """Buffers that somebody holds together: in memory up to `large_nbytes` in all, else in files."""

    def __init__(self) -> None:
        self._left = _large_nbytes
        self._file: memoryview = memoryview(b"")

    def has_memory(self, nbytes: int) -> bool:
        """Whether so many bytes more may lie in memory: then they count as there."""
        if nbytes > self._left:
            return False
        self._left -= nbytes
        return True

    def buffer(self, nbytes: int) -> memoryview:
        """As `zarrfs.memory.spill.buffer`."""
        if self.has_memory(nbytes):
            return np.empty(nbytes, np.uint8).data
        if nbytes > len(self._file):
            if is_large(nbytes):
                return memoryview(mapped(nbytes))
            self._file = memoryview(mapped(_FILE_NBYTES))
        piece, self._file = self._file[:nbytes], self._file[nbytes:]
        return piece

    def kept(self, data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
        """``data``, or a copy in a file."""
        if is_mapped(data) or self.has_memory(len(data)):
            return data
        copy = self.buffer(len(data))
        copy[:] = data
        return copy


class FileMapping(mmap.mmap):
    """A file that is mapped to be read, and its descriptor, by which holes in it are found."""

    fd: int

    @classmethod
    def of(cls, fd: int, nbytes: int) -> FileMapping:
        """The first ``nbytes`` of an open file. Raises OSError, OverflowError."""
        mapping = cls(fd, nbytes, prot=mmap.PROT_READ)
        mapping.fd = os.dup(fd)
        return mapping

    def __del__(self) -> None:
        disposal.close(self.fd)


def data_extents(content: memoryview) -> Iterator[tuple[int, int]] | None:
    """Where in ``content``, which is a whole file, data lies: all else is holes. None where that is not known."""
    mapping = content.obj
    if not isinstance(mapping, FileMapping) or content.nbytes != len(mapping):
        return None
    return _extents(mapping.fd, content.nbytes)


def _extents(fd: int, nbytes: int) -> Iterator[tuple[int, int]]:
    stop = 0
    while stop < nbytes:
        try:
            start = os.lseek(fd, stop, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        stop = min(nbytes, os.lseek(fd, start, os.SEEK_HOLE))
        if start < stop:
            yield start, stop


def mapped(nbytes: int, directory: str | None = None) -> mmap.mmap:
    """An unlinked, mapped file, which reads as zeros. Raises `TooLarge` where there is no room for it."""
    if nbytes > MAX_NBYTES:
        raise TooLarge(f"{nbytes} bytes are more than zarrfs handles at once ({MAX_NBYTES})")
    try:
        return reserve(directory if directory is not None else _directory, nbytes)
    except OSError as error:
        raise TooLarge(f"{nbytes} bytes do not fit into memory, and find no room in the cache folder: {error}") from error


def reserve(directory: str | None, nbytes: int) -> mmap.mmap:
    """As `mapped`. Its blocks are there: writing into a mapping on a full disk is a signal that ends the process.

    Raises OSError rather than take more than half of what is free: whoever declares a huge array must not fill the disk.
    """
    with tempfile.TemporaryFile(dir=directory) as file:
        status = os.fstatvfs(file.fileno())
        free = status.f_bavail * status.f_frsize
        if nbytes > free // 2:
            raise OSError(
                f"{nbytes} bytes are more than half of what is free in {directory or tempfile.gettempdir()} ({free} bytes)"
            )
        os.posix_fallocate(file.fileno(), 0, nbytes)
        mapping = DisposedMapping(file.fileno(), nbytes)
        mapping.descriptor = os.dup(file.fileno())
        return mapping
