"""The kernel connection of a mount: its state and its end.

The kernel ends it when the last holder releases the mount: its mountpoint, in any mount namespace, and every open file; or when it is
aborted (``umount -f``, ``/sys/fs/fuse/connections/N/abort``). pyfuse3 notices the end by reading the next request, which it does only
while one of its workers is idle.
"""

from __future__ import annotations

import os
import select
import stat
import struct
from collections.abc import Callable

import trio

_DEV_FUSE = os.makedev(10, 229)

# <linux/fuse.h>: struct fuse_out_header.
_OUT_HEADER = struct.Struct("=IiQ")


class Connection:
    """The connection of ``descriptor``, a /dev/fuse."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Only errors are reported with this mask, and an ended connection is one.
        self._epoll = select.epoll(1)
        self._epoll.register(descriptor, 0)
        self._requests = select.poll()
        self._requests.register(descriptor, select.POLLIN)

    @classmethod
    def opened_by(cls, mount: Callable[[], None]) -> Connection | None:
        """Call ``mount``, which creates a connection, and return it; None if it cannot be found."""
        before = _descriptors()
        mount()
        new = _descriptors() - before
        return cls(new.pop()) if len(new) == 1 else None

    @property
    def is_gone(self) -> bool:
        """True once the connection has ended. Thread-safe."""
        poll = select.poll()
        poll.register(self._descriptor, 0)
        return bool(poll.poll(0))

    def has_request(self) -> bool:
        """Return True if a read of the descriptor returns at once: a request is waiting, or the connection has ended."""
        return bool(self._requests.poll(0))

    def notify(self, code: int, body: bytes) -> None:
        """Send a notice, an answer to no request. Thread-safe; may block. Raises OSError."""
        os.write(self._descriptor, _OUT_HEADER.pack(_OUT_HEADER.size + len(body), code, 0) + body)

    async def gone(self) -> None:
        """Wait until the connection has ended. Requests are not slowed down: the kernel reports only errors here."""
        try:
            while not self._epoll.poll(0):
                await trio.lowlevel.wait_readable(self._epoll.fileno())
        except trio.ClosedResourceError:
            # The state is no longer known.
            await trio.sleep_forever()

    def close(self) -> None:
        """Stop watching; the descriptor belongs to another holder."""
        # The next opened file, such as the watch of a folder, gets the same number, and others may wait for that.
        trio.lowlevel.notify_closing(self._epoll)
        self._epoll.close()


def _descriptors() -> set[int]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if stat.S_ISCHR(status.st_mode) and status.st_rdev == _DEV_FUSE:
            found.add(int(name))
    return found
