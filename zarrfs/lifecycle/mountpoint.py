"""Checks before a mount: all that can be known of its mountpoint and of FUSE before the store is opened.

A zarrfs mount whose daemon was killed is no obstacle: it is unusable. `check` detects it, and `prepare` removes it at the last moment,
when the store is open: until then programs that write there still get errors, instead of writing into the folder below.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from zarrfs.errors import FuseUnavailable, MountpointUnusable
from zarrfs.lifecycle import dead_mounts, programs
from zarrfs.lifecycle.dead_mounts import Life, life_of
from zarrfs.lifecycle.detaching import may_detach, user_of
from zarrfs.lifecycle.mount_table import FSTYPE, mount_at, resolved, source_of
from zarrfs.options.config import MountConfig
from zarrfs.stores import own_files

log = logging.getLogger(__name__)

# <linux/capability.h>
_CAP_SYS_ADMIN = 1 << 21


def check(config: MountConfig, store_path: str | None) -> bool:
    """Check all that can be known before the store is opened; ``store_path``: its local path, if any.

    Returns True if there is a dead mount, which `prepare` will remove. Raises `MountpointUnusable` and `FuseUnavailable`, with advice.
    """
    dead = holds_dead_mount(config.mountpoint)
    if not dead:
        check_mountpoint(config.mountpoint)
    if store_path is not None:
        check_overlap(store_path, config.mountpoint)
    for what, path in (("cache folder", config.cache_dir), ("log file", config.log_file)):
        if path is not None and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(config.mountpoint)):
            # Before it is created there.
            raise _unusable(config.mountpoint, f"contains the {what} {path}: choose one outside it")
    check_fuse(config)
    return dead


def prepare(mountpoint: str, print_line: Callable[[str], None]) -> None:
    """Just before the mount: detach dead zarrfs mounts from ``mountpoint``, and check (again) that it is usable.

    ``print_line`` reports that there were any. Raises `MountpointUnusable` and `ZarrfsError`.
    """
    if cleared := dead_mounts.clear(resolved(mountpoint)):
        print_line(removed(mountpoint))
        log.warning("%s: removed %d zarrfs mount(s) whose daemon had died", mountpoint, cleared)
    check_mountpoint(mountpoint)


def removed(mountpoint: str) -> str:
    """Return the message for people whose dead mount was removed."""
    return f"{mountpoint}: removed a zarrfs mount whose daemon died, its unstored data is lost"


@contextmanager
def held(mountpoint: str) -> Iterator[str]:
    """Yield a name of the folder ``mountpoint`` that stays valid if its owner replaces the folder.

    Root mounts in folders of other users, who may replace theirs by a link into one of root's at any time. For other users fusermount3
    mounts, which prevents that. Raises `MountpointUnusable`.
    """
    if os.geteuid() != 0:
        yield mountpoint
        return
    try:
        folder = own_files.open_folder(mountpoint)
    except OSError as error:
        raise _unusable(mountpoint, f"not usable ({_reason(error)}): choose a folder of your own") from error
    try:
        # /proc/self would be that of the program that mounts.
        name = f"/proc/{os.getpid()}/fd/{folder}"
        with os.scandir(name) as entries:
            if next(entries, None) is not None:
                raise _unusable(mountpoint, "not empty: choose an empty folder, since a mount would hide its content")
        yield name
    finally:
        os.close(folder)


def holds_dead_mount(mountpoint: str) -> bool:
    """Return True if ``mountpoint`` has a dead zarrfs mount that this process may remove.

    Raises `MountpointUnusable` for every other zarrfs mount.
    """
    mounted = mount_at(resolved(mountpoint))
    if mounted is None or mounted.fstype != FSTYPE:
        return False
    umount = f"`zarrfs umount {shlex.quote(mountpoint)}`"
    match life_of(mounted):
        case Life.ALIVE:
            raise _unusable(mountpoint, f"already mounted by zarrfs: {umount} first, or choose another")
        case Life.SILENT:
            raise _unusable(
                mountpoint,
                f"already mounted by zarrfs, daemon does not answer: end it, then {umount}, or choose another",
            )
        case Life.DEAD if not may_detach(mounted):
            raise _unusable(mountpoint, f"mount by {user_of(mounted)} whose daemon died: they or root may remove it with {umount}")
    return True


def check_mountpoint(mountpoint: str) -> None:
    """Raise `MountpointUnusable` unless ``mountpoint`` is an empty folder usable for this user."""
    quoted = shlex.quote(mountpoint)
    if holds_dead_mount(mountpoint):
        raise _dead(mountpoint)
    try:
        status = os.lstat(mountpoint)
        if stat.S_ISLNK(status.st_mode):
            raise _unusable(mountpoint, f"is a symlink: use its target {os.path.realpath(mountpoint)}")
        if not stat.S_ISDIR(status.st_mode):
            raise _unusable(mountpoint, "not a folder: choose an empty folder")
        with os.scandir(mountpoint) as entries:
            occupied = next(entries, None) is not None
    except FileNotFoundError as error:
        raise _unusable(mountpoint, f"does not exist: create it with `mkdir -p {quoted}`") from error
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise _dead(mountpoint) from error
        raise _unusable(mountpoint, f"not accessible ({_reason(error)}): choose a folder of your own") from error
    if occupied:
        raise _unusable(mountpoint, "not empty: choose an empty folder, since a mount would hide its content")
    if os.geteuid() == 0:
        # Root may mount without write permission: the file system may be read-only.
        return
    # fusermount3 requires both.
    if not os.access(mountpoint, os.W_OK):
        raise _unusable(mountpoint, "not writable: choose a folder of your own")
    if status.st_mode & stat.S_ISVTX and status.st_uid != os.getuid():
        raise _unusable(mountpoint, "sticky folder of another user: choose a folder of your own")


def check_overlap(store_path: str, mountpoint: str) -> None:
    """Raise `MountpointUnusable` if one lies inside the other: the file system would wait for itself."""
    store, mount = Path(os.path.realpath(store_path)), Path(os.path.realpath(mountpoint))
    if _contains(store, mount):
        raise _unusable(mountpoint, f"lies inside the store {store}: choose a folder outside it")
    if _contains(mount, store):
        raise _unusable(mountpoint, f"contains the store {store}: choose a folder outside it")


def _contains(folder: Path, path: Path) -> bool:
    """Return True if ``path`` is ``folder`` or lies in it, also where a bind mount gives it, or a folder on the way, another name.

    The kernel may repeat a mount below such a name at the other one (mount_namespaces(7), shared mounts).
    """
    if path.is_relative_to(folder):
        return True
    try:
        found, source = os.stat(folder), source_of(str(folder))
    except OSError:
        return False
    for each in (path, *path.parents):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(each), found) or _lies_in(source_of(str(each)), source):
                return True
    return False


def _lies_in(source: tuple[str, str] | None, of: tuple[str, str] | None) -> bool:
    """Return True if ``source`` is that ``of`` a folder, or one in it."""
    return source is not None and of is not None and source[0] == of[0] and Path(source[1]).is_relative_to(of[1])


def check_fuse(config: MountConfig, device: str = "/dev/fuse", fuse_conf: str = "/etc/fuse.conf") -> None:
    """Raise `FuseUnavailable` if mounting cannot work for any store."""
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            advice = "run as root, or `chmod 0666` it; a container needs `--device /dev/fuse --cap-add SYS_ADMIN`"
            raise FuseUnavailable(f"{device}: not accessible ({_reason(error)}): {advice}") from error
        advice = "load it with `modprobe fuse` as root; a container needs `--device /dev/fuse --cap-add SYS_ADMIN`"
        raise FuseUnavailable(f"{device}: not available ({_reason(error)}): {advice}") from error
    if os.geteuid() == 0:
        return
    if programs.find("fusermount3") is None:
        raise FuseUnavailable("fusermount3 not found: install fuse3 (Debian and Ubuntu: `sudo apt install fuse3`)")
    if config.allow_other and not _lets_users_allow_other(fuse_conf):
        raise FuseUnavailable(f"allow_other: not permitted: root must add a line `user_allow_other` to {fuse_conf}")


def hindrance(status: str = "/proc/self/status") -> str:
    """Return what prevents every mount by this process, with advice, to be appended to an error; empty if nothing is known."""
    try:
        text = Path(status).read_text(errors="replace")
    except OSError:
        return ""
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
    effective, bounding = (int(fields.get(name, "-1"), 16) & _CAP_SYS_ADMIN for name in ("CapEff", "CapBnd"))
    if not bounding:
        return ": no process may mount here, for want of CAP_SYS_ADMIN: a container needs `--cap-add SYS_ADMIN`"
    if not effective and fields.get("NoNewPrivs") == "1":
        where = "`NoNewPrivileges=` of a service, `no-new-privileges` of a container"
        return f": fusermount3 cannot mount with no_new_privs: do without {where}"
    return ""


def _lets_users_allow_other(fuse_conf: str) -> bool:
    try:
        lines = Path(fuse_conf).read_text(errors="replace").splitlines()
    except OSError:
        return False
    return any(line.partition("#")[0].strip() == "user_allow_other" for line in lines)


def _dead(mountpoint: str) -> MountpointUnusable:
    """Return the error for a dead mount on the mountpoint or above it."""
    path = resolved(mountpoint)
    mounted = mount_at(path)
    while mounted is None and path != "/":
        path = os.path.dirname(path)
        mounted = mount_at(path)
    where, fstype = (path, mounted.fstype) if mounted is not None else (mountpoint, "fuse")
    quoted = shlex.quote(where)
    umount = f"`zarrfs umount {quoted}`" if fstype == FSTYPE else f"`fusermount3 -u {quoted}` (`umount {quoted}` as root)"
    lies = "is a mount" if mounted is None or path == resolved(mountpoint) else f"lies in {path}, a mount"
    return _unusable(mountpoint, f"{lies} of type {fstype} whose daemon died: remove it with {umount}")


def _unusable(mountpoint: str, what: str) -> MountpointUnusable:
    return MountpointUnusable(f"mountpoint {mountpoint}: {what}", key=mountpoint)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
