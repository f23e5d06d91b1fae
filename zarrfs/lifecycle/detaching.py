"""Taking a FUSE mount off its mountpoint: root asks the kernel, everybody else has fusermount3 do it. Asks the mount nothing.

The kernel does: it hands over the pages that programs wrote through mappings, and waits for the daemon to take them. Nothing ends that
wait but the daemon, or its end, not even SIGKILL. So this is done by a process of its own, which can be left behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import subprocess
import sys
import tempfile
from pathlib import Path

from zarrfs.errors import FuseUnavailable, MountBusy, ZarrfsError
from zarrfs.lifecycle import programs
from zarrfs.lifecycle.mount_table import Mount, is_automounted
from zarrfs.printable import printable

_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8
_UMOUNT2 = Path(__file__).with_name("umount2.py")
_MESSAGE_NBYTES = 4096


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


class Detaching:
    """``mount``, uppermost on its mountpoint, is being taken off, and no other mount; ``lazy``: even while it is in use.

    Raises `FuseUnavailable` without fusermount3.
    """

    def __init__(self, mount: Mount, *, lazy: bool) -> None:
        self._mountpoint = mountpoint = mount.mountpoint
        self._by_us = os.geteuid() == 0
        if self._by_us:
            # Not umount(8), which calls /sbin/umount.fuse.zarrfs where that is installed, which calls us.
            flags = _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)
            command = [sys.executable, "-I", "-S", str(_UMOUNT2), mountpoint, str(flags)]
            # Whoever looks at an automounter's mountpoint while it unmounts waits for the end of that. Its folders are root's.
            if not is_automounted(mountpoint):
                command.append(mount.device)
        else:
            fusermount = programs.find("fusermount3")
            if fusermount is None:
                raise FuseUnavailable("fusermount3 is not installed: install fuse3")
            command = [fusermount, "-u", *(["-z"] if lazy else []), "--", mountpoint]
        # Not a pipe: whoever holds its other end could have us wait.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `end`)
        try:
            # In our process group, as automount(8) wants it (`Parent.ready`).
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, env=os.environ | {"LC_ALL": "C"}
            )
        except BaseException:
            self._said.close()
            raise

    def ended_within(self, seconds: float) -> bool:
        """Whether it has ended, or does within ``seconds``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            return True
        return False

    def end(self) -> None:
        """Return when it is done, which `ended_within` has said. Raises `MountBusy` when it is in use, and `ZarrfsError`."""
        with self._said as said:
            code = self._process.returncode
            if code == 0:
                return
            said.seek(0)
            reason = printable(said.read(_MESSAGE_NBYTES).decode(errors="replace").strip())
        busy = code == errno.EBUSY if self._by_us else "busy" in reason
        if self._by_us and code > 0 and not reason:
            reason = os.strerror(code).lower()
        failure = f"unmounting {self._mountpoint}: {reason or f'the program that does it was ended by signal {-code}'}"
        raise (MountBusy if busy else ZarrfsError)(failure, key=self._mountpoint)


def detach(mount: Mount, *, lazy: bool, patience: float) -> None:
    """Take ``mount`` off within ``patience`` seconds. Raises as `Detaching` and its `end`."""
    detaching = Detaching(mount, lazy=lazy)
    if not detaching.ended_within(patience):
        raise ZarrfsError(f"unmounting {mount.mountpoint}: not done within {patience:g} s", key=mount.mountpoint)
    detaching.end()
