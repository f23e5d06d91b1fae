"""Large buffers in mapped files of the cache folder, so that they belong to the page cache instead of the process.

Data whose size a store or a writer determines may exceed any memory. A buffer of at least `large_nbytes` is an unlinked, mapped file,
whose pages the kernel writes out under memory pressure. Smaller ones are ordinary memory, which callers take from the budget
(`zarrfs.memory.budget`). Sync; any thread may call.
"""

from __future__ import annotations

import errno
import io
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from zarrfs.errors import OutOfMemory, StoreError, StoreFull, StoreQuotaExceeded, TooLarge
from zarrfs.memory import copying, disposal
from zarrfs.memory.disposal import DisposedMapping
from zarrfs.memory.written_out import WrittenOut

MAX_NBYTES = 1 << 36
"""Maximum size of one buffer; stated in docs/SEMANTICS.md. Half of the free space in the cache folder is a further limit."""

_LARGE_NBYTES = 8 << 20
# Small buffers that get no memory share files of this size.
_FILE_NBYTES = 32 << 20
# The first of several files that grow with what is in them.
_FIRST_NBYTES = 4 << 20
# Of a full disk, and `reserve` itself; other errors, except of a quota, are no lack of room.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EFBIG, None})

# State of the process: a daemon serves one mount, and codecs have no configuration.
_directory: str | None = None
_large_nbytes = _LARGE_NBYTES
_make_folder: Callable[[str], None] | None = None


def configure(directory: str | None, large_nbytes: int, make_folder: Callable[[str], None] | None = None) -> None:
    """Set the folder of files (None: the system's temporary folder), and the size from which a buffer is a file.

    ``make_folder`` creates a folder of files that was removed; it raises `OSError`."""
    global _directory, _large_nbytes, _make_folder
    _directory, _large_nbytes, _make_folder = directory, large_nbytes, make_folder


def large_nbytes() -> int:
    """Return the size in bytes from which a buffer is a file."""
    return _large_nbytes


def is_large(nbytes: int) -> bool:
    """Return True if a buffer of this size is a file."""
    return nbytes >= _large_nbytes


def in_memory(nbytes: int) -> int:
    """Return the memory in bytes of a buffer of this size."""
    return 0 if nbytes >= _large_nbytes else nbytes


def buffer(nbytes: int) -> memoryview:
    """Return a writable buffer with arbitrary content. Raises `TooLarge` if there is no room for it."""
    if nbytes < _large_nbytes or not nbytes:
        return np.empty(nbytes, np.uint8).data
    return memoryview(mapped(nbytes))


def array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the result of `numpy.empty`, in a file if large."""
    size = 1
    for extent in shape:
        size *= extent
    if dtype.hasobject or size * dtype.itemsize < _large_nbytes:
        # NumPy makes an empty array of times without a unit little-endian, whatever ``dtype`` is.
        return np.empty(shape, dtype) if dtype.kind not in "mM" else np.empty(shape, "<i8").view(dtype)
    return np.frombuffer(mapped(size * dtype.itemsize), dtype, size).reshape(shape)


def zeros(size: int, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the result of `numpy.zeros`, but times without a unit in the byte order of ``dtype``."""
    return np.zeros(size * dtype.itemsize, np.uint8).view(dtype)


def contiguous(elements: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    """Return the result of `numpy.ascontiguousarray`, in a file if large."""
    if elements.flags.c_contiguous:
        return elements
    copied = array(elements.shape, elements.dtype)
    copying.copy(copied, elements)
    return copied


def is_mapped(value: object) -> bool:
    """Return True if a buffer or an array is in a file."""
    return _mapping_of(value) is not None


def require_intact(value: object) -> None:
    """Raise `OSError` if bytes of a buffer or an array in a file, or of the file of a `WrittenOut`, may be lost."""
    if (written_out := _written_out_of(value)) is not None:
        written_out.require()


def is_intact(value: object) -> bool:
    """Return True unless `require_intact` raises."""
    try:
        require_intact(value)
    except OSError:
        return False
    return True


def refuse_lost(*values: object, key: str | None = None) -> None:
    """Run `require_intact` for what was read from these. Raises `StoreError`, for ``key``, and no kind of it that is about the store."""
    files = [written_out for value in values if (written_out := _written_out_of(value)) is not None]
    for each in dict.fromkeys(files):
        try:
            each.require()
        except OSError as error:
            raise refusal_of(error)(error.strerror or str(error), key=key) from error


def _written_out_of(value: object) -> WrittenOut | None:
    if isinstance(value, WrittenOut):
        return value
    mapping = _mapping_of(value)
    return mapping.written_out if isinstance(mapping, (FileMapping, DisposedMapping)) else None


def _mapping_of(value: object) -> mmap.mmap | None:
    while value is not None:
        if isinstance(value, mmap.mmap):
            return value
        value = value.obj if isinstance(value, memoryview) else getattr(value, "base", None)
    return None


def copied(data: bytes | bytearray | memoryview) -> bytes | memoryview:
    """Return a copy of ``data``."""
    if not is_large(len(data)):
        return bytes(data)
    copy = buffer(len(data))
    copy[:] = data
    return copy


class Buffers:
    """Buffers held together: in memory up to `large_nbytes` in total, or ``in_memory`` bytes, else in files."""

    def __init__(self, in_memory: int | None = None) -> None:
        self._left = _large_nbytes if in_memory is None else in_memory
        self._file: memoryview = memoryview(b"")

    def has_memory(self, nbytes: int) -> bool:
        """Count ``nbytes`` as memory if they fit; return True on success."""
        if nbytes > self._left:
            return False
        self._left -= nbytes
        return True

    def buffer(self, nbytes: int) -> memoryview:
        """Return the result of `zarrfs.memory.spill.buffer`."""
        if self.has_memory(nbytes):
            return np.empty(nbytes, np.uint8).data
        if nbytes > len(self._file):
            if is_large(nbytes):
                return memoryview(mapped(nbytes))
            self._file = memoryview(mapped(nbytes, most=_FILE_NBYTES))
        piece, self._file = self._file[:nbytes], self._file[nbytes:]
        return piece

    def kept(self, data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
        """Return ``data``, or a copy in a file."""
        if is_mapped(data) or self.has_memory(len(data)):
            return data
        copy = self.buffer(len(data))
        copy[:] = data
        return copy


class FileMapping(mmap.mmap):
    """A file mapped for reading, and its descriptor, by which its holes are found."""

    fd: int
    written_out: WrittenOut

    @classmethod
    def of(cls, fd: int, nbytes: int, written_out: WrittenOut | None = None) -> FileMapping:
        """Return a mapping of the first ``nbytes`` of an open file. Raises OSError, OverflowError."""
        mapping = cls(fd, nbytes, prot=mmap.PROT_READ)
        mapping.fd = os.dup(fd)
        mapping.written_out = WrittenOut(mapping.fd, written_out)
        return mapping

    def __del__(self) -> None:
        disposal.close(self.fd)


def data_extents(content: memoryview) -> Iterator[tuple[int, int]] | None:
    """Yield the data extents of ``content``, which is a whole file: the rest is holes. None if they are unknown."""
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


def mapped(nbytes: int, directory: str | None = None, *, most: int = 0) -> mmap.mmap:
    """Return an unlinked, mapped file of zeros, of up to ``most`` bytes if there is room for more than ``nbytes``.

    Raises `TooLarge` if there is no room for it, `StoreError` if the cache folder fails."""
    if nbytes > MAX_NBYTES:
        raise TooLarge(f"{nbytes} bytes exceed the limit of one buffer ({MAX_NBYTES})")
    try:
        return reserve_shared(directory if directory is not None else _directory, nbytes, most)
    except OSError as error:
        kind = refusal_of(error)
        if issubclass(kind, StoreFull):
            raise TooLarge(f"{nbytes} bytes exceed the memory, and the room in the cache folder: {error}") from error
        raise kind(f"a file of {nbytes} bytes in the cache folder cannot be made: {error}") from error


def refusal_of(error: OSError) -> type[StoreError]:
    """Return the error for a file in the cache folder that could not be made: the disk is full, or the address space, or it fails."""
    if error.errno == errno.ENOMEM:
        return OutOfMemory
    if error.errno == errno.EDQUOT:
        return StoreQuotaExceeded
    return StoreFull if error.errno in _NO_ROOM else StoreError


def unnamed_file(directory: str | None) -> io.FileIO:
    """Return a new file without a name in ``directory``, which is created again if it was removed. Raises `OSError`."""
    try:
        return _unnamed_file(directory)
    except FileNotFoundError:
        # People empty their cache folder, whatever is running.
        if directory is None or _make_folder is None:
            raise
        _make_folder(directory)
        return _unnamed_file(directory)


def _unnamed_file(directory: str | None) -> io.FileIO:
    file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115 (the caller closes it)
    assert isinstance(file, io.FileIO)
    return file


def next_nbytes(present: int, most: int) -> int:
    """Return the size of a further file for buffers whose files have ``present`` bytes: as many again, of up to ``most`` bytes.

    Many shards or open files may have few bytes each, and all of the room that they reserve is counted."""
    return min(most, max(_FIRST_NBYTES, present))


def reserve_shared(directory: str | None, nbytes: int, most: int) -> mmap.mmap:
    """Return `reserve` of ``most`` bytes, for several buffers; where there is no room for them, of fewer, but at least of ``nbytes``."""
    least = max(1, nbytes)
    size = max(least, most)
    while True:
        try:
            return reserve(directory, size)
        except OSError as error:
            if size == least or not issubclass(refusal_of(error), (StoreFull, OutOfMemory)):
                raise
            size = max(least, size // 4)


def reserve(directory: str | None, nbytes: int) -> mmap.mmap:
    """Return the result of `mapped`, with all blocks allocated: a write to a mapping on a full disk is a fatal signal.

    Raises OSError rather than take more than half of the free space: the declaration of a huge array must not fill the disk.
    """
    with unnamed_file(directory) as file:
        status = os.fstatvfs(file.fileno())
        free = status.f_bavail * status.f_frsize
        if nbytes > free // 2:
            raise OSError(f"{nbytes} bytes exceed half of the free space in {directory or tempfile.gettempdir()} ({free} bytes)")
        os.posix_fallocate(file.fileno(), 0, nbytes)
        mapping = DisposedMapping(file.fileno(), nbytes)
        mapping.descriptor = os.dup(file.fileno())
        mapping.written_out = WrittenOut(mapping.descriptor)
        return mapping
