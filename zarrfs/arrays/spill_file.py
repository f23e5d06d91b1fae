"""Unnamed mapped files, for data beyond the memory budget."""

from __future__ import annotations

import mmap
from collections.abc import Iterable

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.memory.spill import is_intact, next_nbytes, reserve_shared

_FILE_NBYTES = 64 * 1024 * 1024


class SpillFile:
    """Byte sequences appended to mapped files, released together."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._files: list[mmap.mmap] = []
        self._free = 0
        self.kept_nbytes = 0
        """Bytes of the sequences in these files, of which some may be needed no more."""

    @property
    def nbytes(self) -> int:
        """Size of the files in bytes."""
        return sum(map(len, self._files))

    @property
    def count(self) -> int:
        """Number of files, each of which takes two descriptors."""
        return len(self._files)

    async def keep(self, data: bytes | bytearray | memoryview) -> memoryview:
        """Return a copy of ``data`` in a file. Raises OSError if there is no room for it."""
        nbytes = len(data)
        # No further bytes into a file that counts as lost.
        if not self._files or nbytes > self._free or not is_intact(self._files[-1]):
            most = next_nbytes(self.nbytes, _FILE_NBYTES)
            self._files.append(await threads.io(reserve_shared, self._directory, nbytes, most))
            self._free = len(self._files[-1])
        start = len(self._files[-1]) - self._free
        self._free -= nbytes
        self.kept_nbytes += nbytes
        view = memoryview(self._files[-1])[start : start + nbytes]
        view[:] = data
        return view.toreadonly()

    @property
    def is_intact(self) -> bool:
        """True unless bytes may have been lost by now, since the disk has not taken them."""
        return all(map(is_intact, self._files))

    def clear(self, needed: Iterable[Buffer] = ()) -> None:
        """Release the files that hold none of the ``needed`` results of `keep`; each is unmapped when its last view is gone."""
        mine = set(map(id, self._files))
        views = [each for each in needed if isinstance(each, memoryview) and id(each.obj) in mine]
        used = {id(each.obj) for each in views}
        if not self._files or id(self._files[-1]) not in used:
            self._free = 0
        self._files[:] = [each for each in self._files if id(each) in used]
        self.kept_nbytes = sum(map(len, views))
