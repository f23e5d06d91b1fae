"""Values that are held by a descriptor, so that they can be read when their names are other values'.

There are fewer descriptors than files that programs may have open: a part of them alone is used, and who gets none does without.
"""

from __future__ import annotations

import os
import resource
import stat as st
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from zarrfs import threads
from zarrfs.errors import GenerationMismatch
from zarrfs.stores.base import Held, WouldWait
from zarrfs.stores.folder.calls import pread
from zarrfs.stores.folder.inline import InlineTree
from zarrfs.stores.folder.names import Parts, generation_of, path_of
from zarrfs.stores.os_errors import translated
from zarrfs.stores.values import Buffer, KeyStat

_PART = 4
"""Of the descriptors that this process may have; pipes, folders, watches and files that are being written have the others."""
_MOST = 4096
_AT_ONCE = 1 << 20


class HeldFiles:
    """Those of one folder."""

    def __init__(self, inline: InlineTree) -> None:
        self._inline = inline
        self._count = 0

    def hold(self, parts: Parts) -> HeldFile | None:
        """The value ``parts``, if it and a descriptor for it are at hand."""
        if self._count >= min(_MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _PART):
            return None
        with suppress(WouldWait, OSError):
            # Looked at before it is opened: opening a device has effects of its own.
            fd = self._inline.open_value(parts)
            if fd is None:
                return None
            try:
                found = os.fstat(fd)
                if st.S_ISREG(found.st_mode):
                    stat = KeyStat(found.st_size, found.st_mtime_ns, generation_of(found))
                    held, fd = HeldFile(self, self._inline, fd, parts, stat), -1
                    self._count += 1
                    return held
            finally:
                if fd >= 0:
                    os.close(fd)
        return None

    def let_go(self) -> None:
        """One less."""
        self._count -= 1


class HeldFile(Held):
    """One value; whoever has it closes it. The descriptor stays until the reads that are under way have ended: another file would get its
    number."""

    def __init__(self, files: HeldFiles, inline: InlineTree, fd: int, parts: Parts, stat: KeyStat) -> None:
        self._files = files
        self._inline = inline
        self._fd = fd
        self._parts = parts
        self._readers = 0
        self._closed = False
        self.stat = stat

    async def read(self, offset: int, size: int) -> Buffer:
        key = path_of(self._parts)
        assert not self._closed
        with self._reading(), translated("reading", key):
            stop = max(offset, min(offset + size, self.stat.size))
            try:
                if stop - offset > _AT_ONCE:
                    raise WouldWait
                data = self._inline.pread_cached(self._fd, offset, stop)
            except WouldWait:
                data = await threads.io(pread, self._fd, offset, stop, self._parts)
            if generation_of(os.fstat(self._fd)) != self.stat.generation:
                raise GenerationMismatch(f"{key!r} was changed in place by someone else", key=key)
        return data

    def close(self) -> None:
        self._closed = True
        self._close_if_unused()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._closed and not self._readers and self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
            self._files.let_go()
