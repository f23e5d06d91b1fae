"""Values held by a descriptor, readable after their names have become those of other values.

Descriptors are fewer than the files that programs may have open: only a part of them is used here, and further values are not held.
"""

from __future__ import annotations

import os
import resource
import stat as st
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from zarrfs import threads
from zarrfs.buffers import Buffer
from zarrfs.errors import GenerationMismatch
from zarrfs.stores.answers_now import WouldWait
from zarrfs.stores.base import Held
from zarrfs.stores.folder.calls import pread
from zarrfs.stores.folder.inline import InlineTree
from zarrfs.stores.folder.names import Parts, generation_of, key_stat, path_of
from zarrfs.stores.os_errors import translated
from zarrfs.stores.values import KeyStat

_PART = 4
"""Fraction (one in 4) of the descriptors of this process; pipes, folders, watches and files being written use the others."""
_MAX_OPEN = 4096
_AT_ONCE = 1 << 20


class HeldFiles:
    """The held files of one folder."""

    def __init__(self, inline: InlineTree) -> None:
        self._inline = inline
        self._count = 0

    def hold(self, parts: Parts) -> HeldFile | None:
        """Return the value ``parts`` held open; None if it, or a descriptor, is not available without waiting."""
        if self._count >= min(_MAX_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _PART):
            return None
        with suppress(WouldWait, OSError):
            # Checked before it is opened: opening a device has side effects.
            fd = self._inline.open_value(parts)
            if fd is None:
                return None
            try:
                found = os.fstat(fd)
                if st.S_ISREG(found.st_mode):
                    stat = key_stat(found)
                    held, fd = HeldFile(self, self._inline, fd, parts, stat), -1
                    self._count += 1
                    return held
            finally:
                if fd >= 0:
                    os.close(fd)
        return None

    def let_go(self) -> None:
        """Release one descriptor."""
        self._count -= 1


class HeldFile(Held):
    """One held value; its holder closes it. The descriptor stays open until reads in flight end, since its number would be reused."""

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
                raise GenerationMismatch(f"{key!r} was changed in place", key=key)
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
