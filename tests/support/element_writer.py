"""A program that changes elements of one array until its mount is gone.

    python element_writer.py WAY WRITER FIRST_VERSION FILE...

WAY is ``chunks`` (FILE... are all chunk files), ``npy`` (FILE is the array), or one of them with ``-mapped``. `WRITERS` of these run at
once, and each has its own elements, at a fixed stride. A value encodes its writer and its version. The program reports on stdout, as
`TOLD`, each value before writing it, and each acknowledgement (by fsync and by close in turn, or by msync).
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import random
import struct
import sys

CHUNK = 64
"""Elements of a chunk."""
CHUNKS = 8
WRITERS = 4
HEADER = 128
"""Bytes before the elements of an ``.npy``."""
TOLD = struct.Struct("<?qq")
"""Acknowledgement flag; index of the element; its version."""


def value_of(writer: int, version: int) -> int:
    return writer << 40 | version


def version_of(value: int, index: int) -> int:
    """Return the version of the value at ``index``, 0 if unwritten. Raises ValueError for a value of another writer."""
    writer, version = divmod(value, 1 << 40)
    if value and writer != index % WRITERS:
        raise ValueError(f"{value:#x} at {index}")
    return version


def is_by_fsync(version: int) -> bool:
    return version % 2 == 0


def main(way: str, writer: int, first_version: int, files: list[str]) -> None:
    moments = random.Random(first_version)
    for version in itertools.count(first_version):
        chunk, place = moments.randrange(CHUNKS), WRITERS * moments.randrange(CHUNK // WRITERS) + writer
        index = CHUNK * chunk + place
        file, offset = (files[0], HEADER + 8 * index) if way.startswith("npy") else (files[chunk], 8 * place)
        os.write(1, TOLD.pack(False, index, version))
        write = _mapped if way.endswith("-mapped") else _written
        write(file, value_of(writer, version).to_bytes(8, "little"), offset, is_by_fsync(version))
        os.write(1, TOLD.pack(True, index, version))


def _written(file: str, data: bytes, offset: int, by_fsync: bool) -> None:
    fd, _ = _opened(file)
    try:
        os.pwrite(fd, data, offset)
        if by_fsync:
            os.fsync(fd)
    finally:
        os.close(fd)


def _mapped(file: str, data: bytes, offset: int, by_fsync: bool) -> None:
    # At the given size: after the mount is gone, mmap would determine size 0 and raise EINVAL.
    fd, size = _opened(file)
    try:
        with mmap.mmap(fd, size) as mapping:
            mapping[offset : offset + len(data)] = data
            mapping.flush()
            if by_fsync:
                os.fsync(fd)
    finally:
        os.close(fd)


def _opened(file: str) -> tuple[int, int]:
    """Return the open file and its size."""
    # open(2) may fail while a value is being replaced, and again if it is replaced again at once: retry with a new lookup.
    while True:
        fd = -1
        try:
            fd = os.open(file, os.O_RDWR)
            return fd, os.fstat(fd).st_size
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            if error.errno != errno.ESTALE:
                raise


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    except OSError as error:
        if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO):
            raise
