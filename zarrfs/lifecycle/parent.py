"""A mount in the background, from inside: what the daemon gets from the process that started it, and what it says to that.

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
    """The process that waits for this one, the daemon; each instance says one thing."""

    def __init__(self, fd: int) -> None:
        # Nobody whom the daemon starts (fusermount3) may keep the pipe open.
        os.set_inheritable(fd, False)
        self._fd: int | None = fd

    def ready(self) -> None:
        """The mount is usable: the parent may return."""
        # Not earlier: an automounter lets the process group that mounts for it come to the mountpoint, and everybody else wait.
        os.setsid()
        self._say(READY)

    def failed(self, outcome: Outcome) -> bool:
        """There will be no mount. False when the parent has already been told that there is one."""
        return self._say(json.dumps(outcome._asdict()).encode())

    def _say(self, message: bytes) -> bool:
        if self._fd is None:
            return False
        # A parent that was killed does not listen any more; the mount goes on without it.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._fd, message)
        os.close(self._fd)
        self._fd = None
        return True

    @classmethod
    def adopt(cls) -> tuple[MountConfig, Self] | None:
        """The configuration from the parent that waits for this process, and the parent; None when nobody waits."""
        fd, config = os.environ.pop(READY_FD, None), os.environ.pop(READY_CONFIG, None)
        if fd is None or config is None:
            return None
        return MountConfig.from_json(config), cls(int(fd))
