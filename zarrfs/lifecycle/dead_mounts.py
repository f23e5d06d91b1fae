"""Mounts whose daemon was killed: the mount is still there, and gives everybody ENOTCONN.

Whether one is dead is asked of the mount itself, by statfs(2): attributes and names the kernel remembers, and goes on telling after the
death of the daemon; that is always a request.
"""

from __future__ import annotations

import enum
import errno
import os

from zarrfs.lifecycle import as_owner
from zarrfs.lifecycle.detaching import detach
from zarrfs.lifecycle.mount_table import FSTYPE, Mount, mount_at

PATIENCE = 5.0
"""Seconds after which a daemon counts as silent."""


class Life(enum.Enum):
    """What is known of the daemon behind a mount."""

    ALIVE = "answers, or may not be asked"
    SILENT = "does not answer"
    DEAD = "is gone for good"


def life_of(mount: Mount, patience: float = PATIENCE) -> Life:
    """What is known of the daemon of ``mount``; it has ``patience`` seconds to answer."""
    try:
        asked = as_owner.run(mount, "stat", "--file-system", "--format=", "--", mount.mountpoint, patience=patience)
    except TimeoutError:
        return Life.SILENT
    except OSError:
        return Life.ALIVE
    return Life.DEAD if os.strerror(errno.ENOTCONN).encode() in asked.stderr else Life.ALIVE


def clear(place: str) -> int:
    """Take dead mounts of ours off ``place`` (absolute, without symlinks), one after the other; give their number.

    Lazily: processes may still stand in them, who can do nothing there but leave. Raises as `detach`.
    """
    cleared = 0
    while (mount := mount_at(place)) is not None and mount.fstype == FSTYPE and life_of(mount) is Life.DEAD:
        # Another process may have been quicker, and have mounted something that lives.
        if mount_at(place) == mount:
            detach(mount, lazy=True, patience=PATIENCE)
            cleared += 1
    return cleared
