"""Before a mount: everything that can be known of its mountpoint and of FUSE before the store is opened.

A mount of zarrfs whose daemon was killed is no obstacle: nobody can use it. `check` finds it, and `prepare` takes it off at the last
moment, when the store is open: until then programs that write there go on getting errors, rather than to write into the folder below.
"""

from __future__ import annotations

import errno
import logging
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zarrfs import own_files
from zarrfs.errors import FuseUnavailable, MountpointUnusable
from zarrfs.lifecycle import dead_mounts, programs
from zarrfs.lifecycle.dead_mounts import Life, life_of
from zarrfs.lifecycle.detaching import may_detach, user_of
from zarrfs.lifecycle.mount_table import FSTYPE, mount_at, resolved
from zarrfs.options.config import MountConfig

log = logging.getLogger(__name__)


def check(config: MountConfig, store_path: str | None, say: Callable[[str], None] = lambda line: None) -> None:
    """Everything that can be known before the store is opened; ``store_path``: where it lies on this machine, if it does. ``say`` is
    told of a dead mount that will be replaced.

    Raises `MountpointUnusable` and `FuseUnavailable`, which say what to do.
    """
    dead = holds_dead_mount(config.mountpoint)
    if not dead:
        check_mountpoint(config.mountpoint)
    if store_path is not None:
        check_overlap(store_path, config.mountpoint)
    check_fuse(config)
    if dead:
        say(
            f"{config.mountpoint} holds a mount of zarrfs whose daemon died: it is replaced, and what was not stored by then is lost"
        )


def prepare(mountpoint: str) -> None:
    """Just before the mount: take dead mounts of ours off ``mountpoint``, and see whether what is there can be mounted on (still).

    Raises `MountpointUnusable` and `ZarrfsError`.
    """
    if cleared := dead_mounts.clear(resolved(mountpoint)):
        log.warning("%s: took off %d mount(s) of zarrfs whose daemon had died", mountpoint, cleared)
    check_mountpoint(mountpoint)


@contextmanager
def held(mountpoint: str) -> Iterator[str]:
    """A name of ``mountpoint`` that goes on to mean the very folder that was looked at, whatever its owner puts in its place.

    Root mounts in folders of others, who may exchange theirs for a link into one of root's at any time. Everybody else has fusermount3
    mount, which sees to that. Raises `MountpointUnusable`.
    """
    if os.geteuid() != 0:
        yield mountpoint
        return
    try:
        folder = own_files.open_folder(mountpoint)
    except OSError as error:
        raise _unusable(mountpoint, f"cannot be mounted on ({_reason(error)}): choose a folder of your own") from error
    try:
        # /proc/self would be that of whichever program mounts.
        name = f"/proc/{os.getpid()}/fd/{folder}"
        with os.scandir(name) as entries:
            if next(entries, None) is not None:
                raise _unusable(mountpoint, "is not empty: choose an empty folder, since a mount would hide what is in this one")
        yield name
    finally:
        os.close(folder)


def holds_dead_mount(mountpoint: str) -> bool:
    """Whether a mount of ours is on it whose daemon is gone, which we may take off. Raises `MountpointUnusable` for every other mount
    of ours."""
    mounted = mount_at(resolved(mountpoint))
    if mounted is None or mounted.fstype != FSTYPE:
        return False
    umount = f"`zarrfs umount {shlex.quote(mountpoint)}`"
    match life_of(mounted):
        case Life.ALIVE:
            raise _unusable(mountpoint, f"is already mounted by zarrfs: {umount} first, or choose another")
        case Life.SILENT:
            raise _unusable(
                mountpoint,
                f"is already mounted by zarrfs, whose daemon does not answer: end that, then {umount}, or choose another",
            )
        case Life.DEAD if not may_detach(mounted):
            raise _unusable(
                mountpoint, f"holds a mount by {user_of(mounted)} whose daemon died: they or root may remove it with {umount}"
            )
    return True


def check_mountpoint(mountpoint: str) -> None:
    """Raise `MountpointUnusable` unless ``mountpoint`` is an empty folder that we may mount on."""
    quoted = shlex.quote(mountpoint)
    if holds_dead_mount(mountpoint):
        raise _dead(mountpoint)
    try:
        status = os.lstat(mountpoint)
        if stat.S_ISLNK(status.st_mode):
            raise _unusable(mountpoint, f"is a symlink: use the folder it points to, {os.path.realpath(mountpoint)}")
        if not stat.S_ISDIR(status.st_mode):
            raise _unusable(mountpoint, "is not a folder: choose an empty folder")
        with os.scandir(mountpoint) as entries:
            occupied = next(entries, None) is not None
    except FileNotFoundError as error:
        raise _unusable(mountpoint, f"does not exist: make it with `mkdir -p {quoted}`") from error
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise _dead(mountpoint) from error
        raise _unusable(mountpoint, f"cannot be looked at ({_reason(error)}): choose a folder of your own") from error
    if occupied:
        raise _unusable(mountpoint, "is not empty: choose an empty folder, since a mount would hide what is in this one")
    if os.geteuid() == 0:
        # Who may mount need not be able to write there: it may be a file system that nobody can write to.
        return
    # fusermount3 asks for both.
    if not os.access(mountpoint, os.W_OK):
        raise _unusable(mountpoint, "is not writable for you: choose a folder of your own")
    if status.st_mode & stat.S_ISVTX and status.st_uid != os.getuid():
        raise _unusable(mountpoint, "is a sticky folder of somebody else's: choose a folder of your own")


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
    if programs.find("fusermount3") is None:
        raise FuseUnavailable("fusermount3 is not installed: install fuse3 (Debian and Ubuntu: `sudo apt install fuse3`)")
    if config.allow_other and not _lets_users_allow_other(fuse_conf):
        raise FuseUnavailable(f"allow_other is root's choice: have `user_allow_other` put on a line of its own in {fuse_conf}")


def _lets_users_allow_other(fuse_conf: str) -> bool:
    try:
        lines = Path(fuse_conf).read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.partition("#")[0].strip() == "user_allow_other" for line in lines)


def _dead(mountpoint: str) -> MountpointUnusable:
    """What to do where nobody answers any more, on the mountpoint or on the way to it."""
    place = resolved(mountpoint)
    mounted = mount_at(place)
    while mounted is None and place != "/":
        place = os.path.dirname(place)
        mounted = mount_at(place)
    where, fstype = (place, mounted.fstype) if mounted is not None else (mountpoint, "fuse")
    quoted = shlex.quote(where)
    umount = f"`zarrfs umount {quoted}`" if fstype == FSTYPE else f"`fusermount3 -u {quoted}` (`umount {quoted}` as root)"
    lies = "is a mount" if mounted is None or place == resolved(mountpoint) else f"lies in {place}, a mount"
    return _unusable(mountpoint, f"{lies} of type {fstype} whose daemon died: remove it with {umount}")


def _unusable(mountpoint: str, what: str) -> MountpointUnusable:
    return MountpointUnusable(f"mountpoint {mountpoint} {what}", key=mountpoint)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
