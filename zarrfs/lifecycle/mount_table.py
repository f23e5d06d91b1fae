"""What is mounted where, as the kernel lists it; asks no file system that is mounted there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

FSTYPE = "fuse.zarrfs"
"""The type of our mounts."""


class Owner(NamedTuple):
    """Who mounted something, by number: without ``allow_other`` nobody else may look into a FUSE mount, not even root."""

    uid: int
    gid: int


class Mount(NamedTuple):
    """One line of the mount table: where, the type of file system, its device number (``0:52``), which no other mounted file system
    has, and for FUSE whose it is."""

    mountpoint: str
    fstype: str
    device: str
    owner: Owner | None = None


def resolved(path: str) -> str:
    """``path`` absolute and without symlinks on the way, without a question to what may be mounted on it."""
    folder, name = os.path.split(os.path.abspath(path))
    # A symlink that leads to a mount is one that was made before, and no mount itself.
    place = os.path.join(os.path.realpath(folder), name)
    return place if mount_at(place) is not None else os.path.realpath(path)


def mount_at(path: str) -> Mount | None:
    """What is mounted on ``path`` (absolute, without symlinks), uppermost; None when nothing is."""
    found = _lines_of(path)
    if not found:
        return None
    # Whoever looks at an automounter's mountpoint while it mounts or unmounts waits for the end of that, and may be what has to end.
    seen = _seen_at(path) if not _has_automounter(found) else None
    # What lies under a mount that was made on a folder further up has a line, too, and nobody comes to it.
    return found.get(seen) if seen is not None else list(found.values())[-1]


def is_automounted(path: str) -> bool:
    """Whether ``path`` (absolute, without symlinks) is a mountpoint of an automounter's."""
    return _has_automounter(_lines_of(path))


def _lines_of(path: str) -> dict[bytes, Mount]:
    """Everything that is mounted on ``path``, in its order, by its number."""
    found = {}
    # Not splitlines: of the characters that end a line somewhere only line feeds are escaped, and names are anybody's to choose.
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n")[:-1]:
        fields = line.split(b" ")
        if _unescape(fields[4]) == os.fsencode(path):
            more = fields.index(b"-", 6)
            mount = Mount(path, os.fsdecode(fields[more + 1]), os.fsdecode(fields[2]), _owner(fields[more + 3]))
            found[fields[0]] = mount
    return found


def _has_automounter(found: dict[bytes, Mount]) -> bool:
    return any(mount.fstype == "autofs" for mount in found.values())


def _seen_at(path: str) -> bytes | None:
    """The number of the mount that one comes to at ``path``; None where that may not be known."""
    try:
        # This opens nothing, and is no request to any file system but those on the way.
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        told = re.search(rb"^mnt_id:\s*(\d+)$", Path(f"/proc/self/fdinfo/{descriptor}").read_bytes(), re.MULTILINE)
    finally:
        os.close(descriptor)
    return told[1] if told else None


def _owner(options: bytes) -> Owner | None:
    numbers = dict(re.findall(rb"(?:^|,)(user_id|group_id)=(\d+)(?=,|$)", options))
    return Owner(int(numbers[b"user_id"]), int(numbers[b"group_id"])) if len(numbers) == 2 else None


def _unescape(field: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field)
