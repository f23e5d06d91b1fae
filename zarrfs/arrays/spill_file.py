"""Mapped files without a name, for what memory has no room for."""

from __future__ import annotations

import mmap

from zarrfs import threads
from zarrfs.memory.spill import reserve

_FILE_NBYTES = 64 * 1024 * 1024


class SpillFile:
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
