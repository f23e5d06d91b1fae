"""Mounts whose daemon was killed: they still exist, and every access fails with ENOTCONN.

The state is determined by statfs(2) of the mount, which is always a request: attributes and names are cached by the kernel, and returned
even after the death of the daemon.
"""

from __future__ import annotations

import enum
import errno
import os

from zarrfs.lifecycle import as_owner
from zarrfs.lifecycle.detaching import detach
from zarrfs.lifecycle.mount_table import FSTYPE, Mount, mount_at

PATIENCE = 5.0
"""Seconds without an answer after which a daemon counts as silent."""


class Life(enum.Enum):
    """State of the daemon of a mount."""

    ALIVE = "answers, or must not be asked"
    SILENT = "does not answer"
    DEAD = "has ended"


def life_of(mount: Mount, patience: float = PATIENCE) -> Life:
    """Return the state of the daemon of ``mount``; it has ``patience`` seconds to answer."""
    try:
        asked = as_owner.run(mount, "stat", "--file-system", "--format=", "--", mount.mountpoint, patience=patience)
    except TimeoutError:
        return Life.SILENT
    except OSError:
        return Life.ALIVE
    return Life.DEAD if os.strerror(errno.ENOTCONN).encode() in asked.stderr else Life.ALIVE


def clear(mountpoint: str) -> int:
    """Detach dead zarrfs mounts from ``mountpoint`` (absolute, without symlinks), one after the other; return their number.

    Lazily: processes may have working folders in them, and can do nothing there but leave. Raises as `detach`.
    """
    cleared = 0
    while (mount := mount_at(mountpoint)) is not None and mount.fstype == FSTYPE and life_of(mount) is Life.DEAD:
        # Another process may have been faster, and mounted a live one.
        if mount_at(mountpoint) == mount:
            detach(mount, lazy=True, patience=PATIENCE)
            cleared += 1
    return cleared
