"""Detaching of a FUSE mount from its mountpoint: root by umount2(2), other users by fusermount3. Sends the mount no request.

The kernel does: it writes back the pages that programs wrote through mappings, and waits for the daemon. Only the daemon, or its end,
ends that wait, not even SIGKILL. So a separate process does it, which can be abandoned.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import subprocess
import sys
from pathlib import Path

from zarrfs.errors import FuseUnavailable, MountBusy, ZarrfsError
from zarrfs.lifecycle import programs
from zarrfs.lifecycle.mount_table import Mount, is_automounted, mount_of
from zarrfs.printable import printable

_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_UMOUNT2 = Path(__file__).with_name("umount2.py")
_MESSAGE_NBYTES = 4096


def user_of(mount: Mount) -> str:
    """Return the name of the user who mounted ``mount``."""
    if mount.owner is None:
        return "somebody"
    try:
        return pwd.getpwuid(mount.owner.uid).pw_name
    except KeyError:
        return f"user {mount.owner.uid}"


def may_detach(mount: Mount) -> bool:
    """Return True if this process may detach ``mount``: it is its owner's, or root's."""
    return os.geteuid() == 0 or mount.owner is None or mount.owner.uid == os.getuid()


class Detaching:
    """Detaches ``mount``, the uppermost on its mountpoint, and no other; ``lazy``: even while it is in use.

    Raises `FuseUnavailable` without fusermount3.
    """

    def __init__(self, mount: Mount, *, lazy: bool) -> None:
        self._mountpoint = mountpoint = mount.mountpoint
        self._by_us = os.geteuid() == 0
        if self._by_us:
            # Not umount(8), which runs /sbin/umount.fuse.zarrfs if installed, which would run this again.
            flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
            command = [sys.executable, "-I", "-S", str(_UMOUNT2), mountpoint, str(flags)]
            # During an automounter's unmount, access to its mountpoint waits for the end of that. Its folders belong to root.
            if not is_automounted(mountpoint):
                command.append(mount.device)
        else:
            fusermount = programs.find("fusermount3")
            if fusermount is None:
                raise FuseUnavailable("fusermount3 not found: install fuse3")
            command = [fusermount, "-u", *(["-z"] if lazy else []), "--", mountpoint]
        # Not a pipe, whose other end a process could keep open, nor a file on a disk, which may be full.
        self._output = open(os.memfd_create("zarrfs-umount"), "w+b", buffering=0)  # noqa: SIM115 (closed by `end`)
        try:
            # In this process group, as automount(8) requires (`Parent.ready`).
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, env=os.environ | {"LC_ALL": "C"}
            )
        except BaseException:
            self._output.close()
            raise

    def ended_within(self, seconds: float) -> bool:
        """Return True if the process has ended, or does within ``seconds``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    def end(self) -> None:
        """Check the result, after `ended_within` returned True. Raises `MountBusy` if it is in use, and `ZarrfsError`."""
        with self._output as output:
            code = self._process.returncode
            if code == 0:
                return
            output.seek(0)
            reason = printable(output.read(_MESSAGE_NBYTES).decode(errors="replace").strip())
        # Not anywhere in the text, which names the mountpoint.
        busy = code == errno.EBUSY if self._by_us else reason.endswith(os.strerror(errno.EBUSY))
        if self._by_us and code > 0 and not reason:
            reason = os.strerror(code).lower()
        failure = f"{self._mountpoint}: unmount failed: {reason or f'killed by signal {-code}'}"
        raise (MountBusy if busy else ZarrfsError)(failure, key=self._mountpoint)


def detach(mount: Mount, *, lazy: bool, patience: float) -> None:
    """Detach ``mount`` within ``patience`` seconds, unless another process does it first. Raises as `Detaching` and its `end`."""
    detaching = Detaching(mount, lazy=lazy)
    if not detaching.ended_within(patience):
        raise ZarrfsError(f"{mount.mountpoint}: unmount failed: not done within {patience:g} s", key=mount.mountpoint)
    try:
        detaching.end()
    except ZarrfsError:
        if mount_of(mount.device) is not None:
            raise
