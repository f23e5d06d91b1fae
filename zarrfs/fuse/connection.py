"""The connection to the kernel that a mount is: whether it is there, and how it is ended.

It ends when the last that holds the mount lets go: its mountpoint, in whichever mount namespace, and every file that is open; or when
somebody aborts it (``umount -f``, ``/sys/fs/fuse/connections/N/abort``). pyfuse3 learns of it by asking for the next request, which it
does only while one of its workers has nothing else to do.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable

import trio

_DEV_FUSE = os.makedev(10, 229)


class Connection:
    """That of ``descriptor``, a /dev/fuse."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # Errors alone are told then, and a connection that is gone is one.
        self._epoll = select.epoll(1)
        self._epoll.register(descriptor, 0)

    @classmethod
    def made_by(cls, mount: Callable[[], None]) -> Connection | None:
        """Call ``mount``, which makes a connection; None where it cannot be found."""
        before = _descriptors()
        mount()
        new = _descriptors() - before
        return cls(new.pop()) if len(new) == 1 else None

    @property
    def is_gone(self) -> bool:
        """Whether nobody can ask us anything any more. May be asked from any thread."""
        poll = select.poll()
        poll.register(self._descriptor, 0)
        return bool(poll.poll(0))

    async def gone(self) -> None:
        """Return when it is gone. Costs no request anything: the kernel reports errors alone here."""
        try:
            while not self._epoll.poll(0):
                await trio.lowlevel.wait_readable(self._epoll.fileno())
        except trio.ClosedResourceError:
            # Nobody knows any more.
            await trio.sleep_forever()

    def close(self) -> None:
        """Watch it no longer; the descriptor is somebody else's."""
        # Whatever is opened next, the watch of a folder for one, has the same number, and others may wait for that.
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
