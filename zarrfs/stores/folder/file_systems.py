"""Which file systems answer from this machine alone, and where in a folder others are mounted."""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from zarrfs.stores.folder.names import Parts

_LOCAL = frozenset(
    (
        "bcachefs btrfs erofs exfat ext2 ext3 ext4 f2fs hfsplus iso9660 jfs nilfs2 ntfs3 "
        "overlay ramfs squashfs tmpfs udf vfat xfs zfs"
    ).split()
)

_STALE_SECONDS = 1.0
"""The table is read again after this time: a mount that comes along with a folder that is renamed is no change of the table."""


class _Mount(NamedTuple):
    number: bytes
    path: bytes
    is_local: bool


def is_local(fd: int) -> bool:
    """Whether what lies at ``fd`` is on a file system that answers from the page cache and devices of this machine.

    Anything else (nfs, cifs, 9p, ceph, autofs, fuse.*, and whatever is not known here) may wait for a server, for ever. The kernel's name
    of the file system is used rather than statfs's f_type: FUSE has one magic number and Python no statfs.
    """
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as lines:
            number = next(line.split()[1] for line in lines if line.startswith(b"mnt_id:"))
        with open("/proc/self/mountinfo", "rb") as file:
            return next(mount.is_local for mount in _mounts(file.read()) if mount.number == number)
    except (OSError, StopIteration, IndexError):
        return False


def local_below(root: int) -> list[Parts]:
    """Where other file systems of this machine are mounted below the folder of the descriptor ``root``, as far as can be known."""
    with suppress(OSError):
        return [parts for parts, is_local in _below(root) if is_local]
    return []


class RemoteMounts:
    """The file systems below the folder of the descriptor ``root`` that may wait for a server, as the mount table has them. None: the
    folder itself is on one, and they make no difference.

    Cheap enough for the event loop: what is known is one second old at most, and `now` looks whether the table has changed, which takes a
    third of a microsecond, and reads it if so. Names may be wrong for a second when folders around mountpoints are renamed.
    """

    def __init__(self, root: int | None) -> None:
        self._root = root
        self._places: tuple[Parts, ...] = ()
        self._read_at = float("inf")
        self._table = -1
        if root is not None:
            self._read_at = float("-inf")
            with suppress(OSError):
                self._table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        # Threads ask as well as the event loop, and who has asked whether the table has changed is the only one who learns it.
        self._lock = threading.Lock()
        if self._table >= 0:
            # proc_pid_mounts(5): the table is readable all the time, and a change of it is an exceptional condition.
            self._changes.register(self._table, select.POLLPRI)

    def close(self) -> None:
        """Nothing is called afterwards."""
        if self._table >= 0:
            os.close(self._table)

    def recent(self, age: float = _STALE_SECONDS) -> tuple[Parts, ...]:
        """Where they are, or were so many seconds ago."""
        with self._lock:
            self._read_if_older(age)
            return self._places

    def now(self, age: float = _STALE_SECONDS) -> tuple[Parts, ...]:
        """Where they are, by names that are at most so many seconds old."""
        with self._lock:
            if self._table >= 0 and self._changes.poll(0):
                self._read()
            self._read_if_older(age)
            return self._places

    def over(self, parts: Parts) -> Parts | None:
        """The one on the way to a name, or on it."""
        places = self.recent()
        return next((place for place in places if parts[: len(place)] == place), None) if places else None

    def meet(self, parts: Parts) -> bool:
        """Whether there is one on the way to a name, on it, or anywhere below."""
        return self.over(parts) is not None or any(place[: len(parts)] == parts for place in self._places)

    def names_in(self, parts: Parts) -> frozenset[str]:
        """What they are mounted on in one folder, now."""
        places = self.now()
        return frozenset(place[-1] for place in places if place[:-1] == parts) if places else frozenset()

    def _read_if_older(self, age: float) -> None:
        if time.monotonic() - self._read_at > age:
            self._read()

    def _read(self) -> None:
        self._read_at = time.monotonic()
        with suppress(OSError):
            assert self._root is not None
            self._places = tuple(parts for parts, is_local in _below(self._root) if not is_local)


def _below(root: int) -> list[tuple[Parts, bool]]:
    # A descriptor of a removed folder leads to a name that no mount has.
    above = os.readlink(os.fsencode(f"/proc/self/fd/{root}")).rstrip(b"/") + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        table = file.read()
    return [
        (tuple(os.fsdecode(mount.path[len(above) :]).split("/")), mount.is_local)
        for mount in _mounts(table)
        if mount.path.startswith(above) and mount.path != above
    ]


def _mounts(table: bytes) -> Iterator[_Mount]:
    """What proc_pid_mountinfo(5) says."""
    # Bytes, and lines that a line feed ends: any user may mount something on any name, and of what ends a line only that is escaped.
    for line in table.split(b"\n"):
        with suppress(IndexError):
            fields = line.split(b" ")
            # The type is the first word after "-", and the words before it vary in number.
            kind = fields[fields.index(b"-", 6) + 1] if b"-" in fields[6:] else b""
            yield _Mount(fields[0], _unescaped(fields[4]), kind.decode("ascii", "replace") in _LOCAL)


def _unescaped(path: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), path) if b"\\" in path else path
