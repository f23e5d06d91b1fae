"""Mapped files without a name, for what memory has no room for."""

from __future__ import annotations

import mmap
import os
import tempfile

from zarrfs import threads

_FILE_NBYTES = 64 * 1024 * 1024


def reserve(directory: str | None, nbytes: int) -> mmap.mmap:
    """An unlinked, mapped file whose blocks are there: writing into a mapping on a full disk is a signal that ends the process.

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
        return mmap.mmap(file.fileno(), nbytes)


class MappedBytes:
    """Pieces of bytes in mapped files, one behind the other, which are given up together."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._files: list[mmap.mmap] = []
        self._free = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        return sum(map(len, self._files))

    async def keep(self, data: bytes | bytearray | memoryview) -> memoryview:
        """A copy of ``data``. Raises OSError when there is no room for it."""
        nbytes = len(data)
        if nbytes > self._free:
            self._files.append(await threads.io(reserve, self._directory, max(_FILE_NBYTES, nbytes)))
            self._free = len(self._files[-1])
        start = len(self._files[-1]) - self._free
        self._free -= nbytes
        view = memoryview(self._files[-1])[start : start + nbytes]
        view[:] = data
        return view.toreadonly()

    def clear(self) -> None:
        """Let go of all of them; the files go when nobody has any piece any more."""
        self._files.clear()
        self._free = 0
