"""Taking a FUSE mount off its mountpoint: root asks the kernel, everybody else has fusermount3 do it. Asks the mount nothing."""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import subprocess

from zarrfs.errors import FuseUnavailable, MountBusy, ZarrfsError
from zarrfs.lifecycle import programs
from zarrfs.lifecycle.mount_table import Mount

_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8


def user_of(mount: Mount) -> str:
    """The name of who made a FUSE mount."""
    if mount.owner is None:
        return "somebody"
    try:
        return pwd.getpwuid(mount.owner.uid).pw_name
    except KeyError:
        return f"user {mount.owner.uid}"


def may_detach(mount: Mount) -> bool:
    """Whether this process may take ``mount`` off: it is its own, or everything is."""
    return os.geteuid() == 0 or mount.owner is None or mount.owner.uid == os.getuid()


def detach(mountpoint: str, *, lazy: bool) -> None:
    """Take what is mounted uppermost on ``mountpoint`` (absolute, without symlinks) off; ``lazy``: even while it is in use.

    Raises `MountBusy` when it is in use, `FuseUnavailable` without fusermount3, and `ZarrfsError`.
    """
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        # Not umount(8), which calls /sbin/umount.fuse.zarrfs where that is installed, which calls us.
        if libc.umount2(os.fsencode(mountpoint), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)) == 0:
            return
        number = ctypes.get_errno()
        busy, reason = number == errno.EBUSY, os.strerror(number).lower()
    else:
        fusermount = programs.find("fusermount3")
        if fusermount is None:
            raise FuseUnavailable("fusermount3 is not installed: install fuse3")
        command = [fusermount, "-u", *(["-z"] if lazy else []), "--", mountpoint]
        environment = os.environ | {"LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, env=environment)
        if done.returncode == 0:
            return
        reason = done.stderr.strip()
        busy = "busy" in reason
    raise (MountBusy if busy else ZarrfsError)(f"unmounting {mountpoint}: {reason}", key=mountpoint)
