"""Before a mount: everything that can be known of its mountpoint and of FUSE before the store is opened."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import stat
from pathlib import Path

from zarrfs.config import MountConfig
from zarrfs.errors import FuseUnavailable, MountpointUnusable
from zarrfs.mount_table import FSTYPE, mount_at


def check(config: MountConfig, store_path: str | None) -> None:
    """Everything that can be known before the store is opened; ``store_path``: where it lies on this machine, if it does.

    Raises `MountpointUnusable` and `FuseUnavailable`, which say what to do.
    """
    check_mountpoint(config.mountpoint)
    if store_path is not None:
        check_overlap(store_path, config.mountpoint)
    check_fuse(config)


def check_mountpoint(mountpoint: str) -> None:
    """Raise `MountpointUnusable` unless ``mountpoint`` is an empty folder that we may mount on."""
    quoted = shlex.quote(mountpoint)
    try:
        mode = os.lstat(mountpoint).st_mode
    except FileNotFoundError as error:
        raise _unusable(mountpoint, f"does not exist: make it with `mkdir -p {quoted}`") from error
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise _unusable(
                mountpoint,
                f"is a mount whose daemon died: remove it with `zarrfs umount {quoted}` (or `fusermount3 -u {quoted}`)",
            ) from error
        raise _unusable(mountpoint, f"{_reason(error)}: choose another") from error
    if stat.S_ISLNK(mode):
        raise _unusable(mountpoint, f"is a symlink: use the folder it points to, {os.path.realpath(mountpoint)}")
    if not stat.S_ISDIR(mode):
        raise _unusable(mountpoint, "is not a folder: choose an empty folder")
    mounted = mount_at(os.path.realpath(mountpoint))
    if mounted is not None and mounted.fstype == FSTYPE:
        raise _unusable(mountpoint, f"is already mounted by zarrfs: `zarrfs umount {quoted}` first, or choose another")
    try:
        with os.scandir(mountpoint) as entries:
            occupied = next(entries, None) is not None
    except OSError as error:
        raise _unusable(mountpoint, f"{_reason(error)}: choose a folder of your own") from error
    if occupied:
        raise _unusable(mountpoint, "is not empty: choose an empty folder, since a mount would hide what is in this one")
    if not os.access(mountpoint, os.W_OK):
        raise _unusable(mountpoint, "is not writable for you: choose a folder of your own")


def check_overlap(store_path: str, mountpoint: str) -> None:
    """Raise `MountpointUnusable` when one lies inside the other: the file system would wait for itself."""
    store, mount = Path(os.path.realpath(store_path)), Path(os.path.realpath(mountpoint))
    if mount.is_relative_to(store):
        raise _unusable(mountpoint, f"lies inside the store {store}: choose a folder outside it")
    if store.is_relative_to(mount):
        raise _unusable(mountpoint, f"holds the store {store}: choose a folder outside it")


def check_fuse(config: MountConfig, device: str = "/dev/fuse", fuse_conf: str = "/etc/fuse.conf") -> None:
    """Raise `FuseUnavailable` when mounting cannot work, whatever the store."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            advice = "run as root, or `chmod 0666` it; a container needs `--device /dev/fuse --cap-add SYS_ADMIN`"
            raise FuseUnavailable(f"{device} may not be used ({_reason(error)}): {advice}") from error
        advice = "load it with `modprobe fuse` as root; a container needs `--device /dev/fuse --cap-add SYS_ADMIN`"
        raise FuseUnavailable(f"the kernel offers no {device} ({_reason(error)}): {advice}") from error
    if os.geteuid() == 0:
        return
    if shutil.which("fusermount3") is None:
        raise FuseUnavailable("fusermount3 is not installed: install fuse3 (Debian and Ubuntu: `sudo apt install fuse3`)")
    if config.allow_other and not _lets_users_allow_other(fuse_conf):
        raise FuseUnavailable(f"allow_other is root's choice: have `user_allow_other` put on a line of its own in {fuse_conf}")


def _lets_users_allow_other(fuse_conf: str) -> bool:
    try:
        return "user_allow_other" in (line.strip() for line in Path(fuse_conf).read_text().splitlines())
    except OSError:
        return False


def _unusable(mountpoint: str, what: str) -> MountpointUnusable:
    return MountpointUnusable(f"mountpoint {mountpoint} {what}", key=mountpoint)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
