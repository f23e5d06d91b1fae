"""What is mounted where, as the kernel lists it; asks no file system."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

FSTYPE = "fuse.zarrfs"
"""The type of our mounts."""


class Mount(NamedTuple):
    """One line of the mount table: where, the type of file system, and its device number (``0:52``), which no other mounted file
    system has."""

    mountpoint: str
    fstype: str
    device: str


def mount_at(path: str) -> Mount | None:
    """What is mounted on ``path`` (absolute, without symlinks), uppermost; None when nothing is."""
    found = None
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        fields = line.split(b" ")
        if _unescape(fields[4]) == os.fsencode(path):
            found = Mount(path, os.fsdecode(fields[fields.index(b"-", 6) + 1]), os.fsdecode(fields[2]))
    return found


def _unescape(field: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), field)
