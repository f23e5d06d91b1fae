"""Mounts and their mountpoints by the kernel's table; sends no request to mounted file systems."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zarrfs.stores import own_files

FSTYPE = "fuse.zarrfs"
"""File system type of zarrfs mounts."""


class Owner(NamedTuple):
    """User and group who mounted a file system: without ``allow_other`` no other may look into a FUSE mount, not even root."""

    uid: int
    gid: int


class Mount(NamedTuple):
    """One line of the mount table: mountpoint, type, device number (``0:52``, unique among file systems), and for FUSE the owner.

    ``read_only``: of the file system, at any mountpoint. ``root``: the folder of the file system that is at this mountpoint.
    """

    mountpoint: str
    fstype: str
    device: str
    owner: Owner | None = None
    read_only: bool = False
    root: str = "/"


def absolute(path: str) -> str:
    """Return ``path`` absolute, with its symlinks. Raises `UsageError` as `own_files.absolute`."""
    return own_files.absolute(path)


def resolved(path: str) -> str:
    """Return ``path`` absolute and without symlinks on the way, without a request to what may be mounted on it.

    Raises `UsageError` as `absolute`."""
    folder, name = os.path.split(absolute(path))
    # A symlink to a mount is older than the mount, and not a mount itself.
    found = os.path.join(os.path.realpath(folder), name)
    return found if mount_at(found) is not None else os.path.realpath(path)


def mount_at(path: str) -> Mount | None:
    """Return the uppermost mount on ``path`` (absolute, without symlinks); None if there is none."""
    found = _lines_of(path)
    if not found:
        return None
    # During an automounter's mount or unmount, access to its mountpoint waits for the end of that, which may need this process.
    seen = _seen_at(path) if not _has_automounter(found) else None
    # A mount hidden by one on a folder further up has a line too, but is not reachable.
    return found.get(seen) if seen is not None else list(found.values())[-1]


def mount_of(device: str) -> Mount | None:
    """Return a mount of the file system with this ``device`` number, wherever it is now: folders above a mountpoint can be renamed."""
    return next(iter(mounts_of(device)), None)


def mounts_of(device: str) -> list[Mount]:
    """Return all mounts of the file system with this ``device`` number: a bind mount is another one."""
    return [mount for _, mount in _lines() if mount.device == device]


def mounts_around(path: str) -> list[Mount]:
    """Return all mounts on ``path`` (absolute, without symlinks), on folders above it, and below it."""
    inside = path.rstrip("/") + "/"
    return [
        mount
        for _, mount in _lines()
        if inside.startswith(mount.mountpoint.rstrip("/") + "/") or mount.mountpoint.startswith(inside)
    ]


def source_of(path: str) -> tuple[str, str] | None:
    """Return the device number of the file system of ``path`` (absolute, without symlinks), and the path in it; None if unknown.

    Bind mounts give one place several paths."""
    seen = _seen_at(path)
    mount = next((mount for number, mount in _lines() if number == seen), None)
    if mount is None:
        return None
    return mount.device, os.path.normpath(os.path.join(mount.root, os.path.relpath(path, mount.mountpoint)))


def is_automounted(path: str) -> bool:
    """Return True if ``path`` (absolute, without symlinks) is an automounter's mountpoint."""
    return _has_automounter(_lines_of(path))


def _lines_of(path: str) -> dict[bytes, Mount]:
    """Return all mounts on ``path``, in order, by mount number."""
    return {number: mount for number, mount in _lines() if mount.mountpoint == path}


def _lines() -> Iterator[tuple[bytes, Mount]]:
    """Yield all mounts, with their numbers."""
    # Not splitlines: only line feeds are escaped in names, which users choose, and other characters end lines there.
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n")[:-1]:
        fields = line.split(b" ")
        more = fields.index(b"-", 6)
        mountpoint, fstype = os.fsdecode(unescaped(fields[4])), os.fsdecode(fields[more + 1])
        options, root = fields[more + 3], os.fsdecode(unescaped(fields[3]))
        yield fields[0], Mount(mountpoint, fstype, os.fsdecode(fields[2]), _owner(options), b"ro" in options.split(b","), root)


def _has_automounter(found: dict[bytes, Mount]) -> bool:
    return any(mount.fstype == "autofs" for mount in found.values())


def _seen_at(path: str) -> bytes | None:
    """Return the number of the mount reached at ``path``; None if that must not be determined."""
    try:
        # O_PATH opens nothing, and sends requests only to file systems on the way.
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = re.search(rb"^mnt_id:\s*(\d+)$", Path(f"/proc/self/fdinfo/{descriptor}").read_bytes(), re.MULTILINE)
    finally:
        os.close(descriptor)
    return found[1] if found else None


def _owner(options: bytes) -> Owner | None:
    numbers = dict(re.findall(rb"(?:^|,)(user_id|group_id)=(\d+)(?=,|$)", options))
    return Owner(int(numbers[b"user_id"]), int(numbers[b"group_id"])) if len(numbers) == 2 else None


def unescaped(field: bytes) -> bytes:
    """Return a field of a mount table without its escapes (``\\040`` for a space)."""
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field)
