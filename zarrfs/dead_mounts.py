"""Mounts whose daemon was killed: the mount is still there, and gives everybody ENOTCONN.

Whether one is dead is asked of the mount itself, by statfs(2): attributes and names the kernel remembers, and goes on telling after the
death of the daemon, that is always a request. Since a daemon that hangs does not answer, and a request that it has read cannot be given
up, another process asks, and it is left behind if it has to be. Only who has mounted it may ask (`zarrfs.mount_table.Owner`), so root
asks in that user's name.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import subprocess
from typing import Any

from zarrfs import programs
from zarrfs.detaching import detach
from zarrfs.mount_table import FSTYPE, Mount, mount_at

PATIENCE = 5.0


class Life(enum.Enum):
    """What is known of the daemon behind a mount."""

    ALIVE = "answers, or may not be asked"
    SILENT = "does not answer"
    DEAD = "is gone for good"


def life_of(mount: Mount, patience: float = PATIENCE) -> Life:
    """What is known of the daemon of ``mount``; it has ``patience`` seconds to answer."""
    program = programs.find("stat")
    if program is None:
        return Life.ALIVE
    try:
        asking = subprocess.Popen(
            [program, "--file-system", "--format=", "--", mount.mountpoint],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"LC_ALL": "C"},
            **_in_the_name_of(mount),
        )
    except (OSError, subprocess.SubprocessError):
        return Life.ALIVE
    assert asking.stderr is not None
    with asking.stderr:
        try:
            asking.wait(patience)
        except subprocess.TimeoutExpired:
            asking.kill()
            # If it does not end it will when the daemon does.
            with contextlib.suppress(subprocess.TimeoutExpired):
                asking.wait(0.1)
            return Life.SILENT
        return Life.DEAD if os.strerror(errno.ENOTCONN).encode() in asking.stderr.read() else Life.ALIVE


def clear(place: str) -> int:
    """Take dead mounts of ours off ``place`` (absolute, without symlinks), one after the other; give their number.

    Lazily: processes may still stand in them, who can do nothing there but leave. Raises as `detach`.
    """
    cleared = 0
    while (mount := mount_at(place)) is not None and mount.fstype == FSTYPE and life_of(mount) is Life.DEAD:
        # Another process may have been quicker, and have mounted something that lives.
        if mount_at(place) == mount:
            detach(place, lazy=True)
            cleared += 1
    return cleared


def _in_the_name_of(mount: Mount) -> dict[str, Any]:
    if os.geteuid() != 0 or mount.owner is None or mount.owner.uid == 0:
        return {}
    return {"user": mount.owner.uid, "group": mount.owner.gid, "extra_groups": ()}
