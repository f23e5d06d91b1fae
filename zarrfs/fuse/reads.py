"""READs in progress: each ends by a deadline, or when no process waits for it any more. So do loads before a change.

A READ waits for earlier WRITEs of its bytes. While a WRITE is in progress the kernel can drop the pages that hold its bytes (at another
open, or by a notice) and request them again. Bytes of before would stay in its pages after the WRITE, and a program that has mapped them
would write them back over those of the WRITE.

pyfuse3 does not pass INTERRUPT on: a killed reader is not noticed before its READ is answered, and cannot end before that. So every
second the openers of files with slow reads are checked.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from zarrfs.buffers import Buffer
from zarrfs.errors import StoreTimeout
from zarrfs.fuse.handles import OpenFile
from zarrfs.fuse.inode import Inode
from zarrfs.vfs.loading import Change

_LONG = 1.0
"""Seconds."""

IsAbandoned = Callable[[int, str], Awaitable[bool]]
"""Returns True if no process waits for a READ, from the process that opened the file, and the file's path in the mount."""


class Reads:
    """The READs of a mount. One may take ``patience`` seconds. `watch` runs in the background."""

    def __init__(self, patience: float, is_abandoned: IsAbandoned | None) -> None:
        self._patience = patience
        self._is_abandoned = is_abandoned
        self._underway: dict[trio.CancelScope | Change, tuple[Inode, int, float]] = {}
        self._changes: dict[Inode, list[tuple[int, float, trio.Event]]] = {}
        self._has_ended = False

    async def read(self, open_file: OpenFile, offset: int, size: int) -> Buffer:
        """Return ``size`` bytes at ``offset``. Raises `StoreTimeout` if cancelled."""
        now = trio.current_time()
        with trio.CancelScope(deadline=now + self._patience) as scope:
            self._underway[scope] = open_file.inode, open_file.opener, now
            try:
                if open_file.inode in self._changes:
                    await self._changed(open_file.inode, offset, offset + size)
                return await open_file.handle.read(offset, size)
            finally:
                del self._underway[scope]
        path = open_file.inode.path
        long = trio.current_time() - now
        raise StoreTimeout(f"{path}: read of {size} bytes at {offset} cancelled after {long:.1f} s", key=path)

    @contextmanager
    def changing(self, inode: Inode, opener: int, start: int = 0, stop: float = math.inf) -> Iterator[None]:
        """Register a change of a file by ``opener``, from ``start`` to ``stop``, during the body. Reads there wait for its end.

        Its loads raise `StoreTimeout` once no process waits for it."""
        with Change() as change:
            if self._has_ended:
                change.cancel()
            self._underway[change] = inode, opener, trio.current_time()
            this = start, stop, trio.Event()
            self._changes.setdefault(inode, []).append(this)
            try:
                with inode.changing():
                    yield
            finally:
                del self._underway[change]
                this[2].set()
                self._changes[inode].remove(this)
                if not self._changes[inode]:
                    del self._changes[inode]

    async def _changed(self, inode: Inode, start: int, stop: int) -> None:
        """Wait for the end of the changes in progress between ``start`` and ``stop``."""
        for first, end, ended in list(self._changes[inode]):
            if first < stop and start < end:
                await ended.wait()

    def end(self) -> None:
        """Cancel everything: the mount has ended."""
        self._has_ended = True
        for each in list(self._underway):
            each.cancel()

    async def watch(self) -> None:
        """Cancel requests that no process waits for."""
        while self._is_abandoned is not None:
            await trio.sleep(_LONG)
            before = trio.current_time() - _LONG
            slow = [(each, (inode, opener)) for each, (inode, opener, since) in self._underway.items() if since <= before]
            for whose in dict.fromkeys(whose for _, whose in slow):
                inode, opener = whose
                if await self._is_abandoned(opener, inode.path):
                    for each, other in slow:
                        if other == whose:
                            each.cancel()
