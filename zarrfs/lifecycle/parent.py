"""Start of a mount in the background, from the daemon: its side of the protocol with the process that started it.

See `zarrfs.lifecycle.background` for the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Self

from zarrfs.lifecycle.exit_report import Outcome
from zarrfs.options.config import MountConfig

READY_FD = "ZARRFS_READY_FD"
READY_CONFIG = "ZARRFS_READY_CONFIG"
READY = b"ready"


class Parent:
    """The process that waits for this one, the daemon; each instance sends one message."""

    def __init__(self, fd: int) -> None:
        # Children of the daemon (fusermount3) must not keep the pipe open.
        os.set_inheritable(fd, False)
        self._fd: int | None = fd

    def ready(self) -> None:
        """Report that the mount is usable: the parent may return."""
        # Not earlier: an automounter admits only the process group that mounts for it, and blocks all others.
        os.setsid()
        self._send(READY)

    def failed(self, outcome: Outcome) -> bool:
        """Report that there will be no mount. Returns False if `ready` was sent already."""
        return self._send(json.dumps(outcome._asdict()).encode())

    def _send(self, message: bytes) -> bool:
        if self._fd is None:
            return False
        # A killed parent does not read any more; the mount continues without it.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._fd, message)
        os.close(self._fd)
        self._fd = None
        return True

    @classmethod
    def adopt(cls) -> tuple[MountConfig, Self] | None:
        """Return the configuration from the waiting parent, and the parent; None without a parent."""
        fd, config = os.environ.pop(READY_FD, None), os.environ.pop(READY_CONFIG, None)
        if fd is None or config is None:
            return None
        return MountConfig.from_json(config), cls(int(fd))
