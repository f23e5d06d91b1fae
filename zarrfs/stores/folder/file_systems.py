"""File systems that answer from this machine alone, and the mountpoints of others in a folder."""

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
"""Age at which the table is read again: a mount that moves with a renamed folder is no change of the table."""


class _Mount(NamedTuple):
    number: bytes
    path: bytes
    is_local: bool


def is_local(fd: int) -> bool:
    """Return True if the file system at ``fd`` answers from the page cache and devices of this machine.

    Any other (nfs, cifs, 9p, ceph, autofs, fuse.*, and all unknown ones) may wait for a server, indefinitely. The kernel's name of the
    file system is used instead of statfs's f_type: FUSE has one magic number and Python no statfs.
    """
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as lines:
            number = next(line.split()[1] for line in lines if line.startswith(b"mnt_id:"))
        with open("/proc/self/mountinfo", "rb") as file:
            return next(mount.is_local for mount in _mounts(file.read()) if mount.number == number)
    except (OSError, StopIteration, IndexError):
        return False


def local_below(root: int) -> list[Parts]:
    """Return the known mountpoints of other local file systems below the folder of the descriptor ``root``."""
    with suppress(OSError):
        return [parts for parts, is_local in _below(root) if is_local]
    return []


class RemoteMounts:
    """The file systems below the folder of the descriptor ``root`` that may wait for a server, by the mount table.

    None: the folder itself is on one, and they make no difference. Cheap enough for the event loop: the state is one second old at most;
    `now` checks whether the table has changed, which takes a third of a microsecond, and reads it if so. Names may be wrong for a second
    when folders around mountpoints are renamed.
    """

    def __init__(self, root: int | None) -> None:
        self._root = root
        self._mountpoints: tuple[Parts, ...] = ()
        self._read_at = float("inf")
        self._table = -1
        if root is not None:
            self._read_at = float("-inf")
            with suppress(OSError):
                self._table = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._changes = select.poll()
        # Threads use this as well as the event loop, and a change of the table is reported to one poll only.
        self._lock = threading.Lock()
        if self._table >= 0:
            # proc_pid_mounts(5): the table is always readable, and a change of it is an exceptional condition.
            self._changes.register(self._table, select.POLLPRI)

    def close(self) -> None:
        """Close the mount table; no method is called afterwards."""
        if self._table >= 0:
            os.close(self._table)

    def recent(self, age: float = _STALE_SECONDS) -> tuple[Parts, ...]:
        """Return the mountpoints, at most ``age`` seconds old."""
        with self._lock:
            self._read_if_older(age)
            return self._mountpoints

    def now(self, age: float = _STALE_SECONDS) -> tuple[Parts, ...]:
        """Return the present mountpoints, by names at most ``age`` seconds old."""
        with self._lock:
            if self._table >= 0 and self._changes.poll(0):
                self._read()
            self._read_if_older(age)
            return self._mountpoints

    def over(self, parts: Parts) -> Parts | None:
        """Return the mountpoint on the way to a name, or at it."""
        # Without the lock if they are recent: `_read` sets the time last.
        mountpoints = self._mountpoints if time.monotonic() - self._read_at <= _STALE_SECONDS else self.recent()
        return (
            next((mountpoint for mountpoint in mountpoints if parts[: len(mountpoint)] == mountpoint), None)
            if mountpoints
            else None
        )

    def local_at(self, *paths: Parts) -> bool:
        """Return True if all these names are on file systems of this machine."""
        return self._root is not None and all(self.over(parts) is None for parts in paths)

    def meet(self, parts: Parts) -> bool:
        """Return True if a mountpoint is on the way to a name, at it, or below it."""
        return self.over(parts) is not None or any(mountpoint[: len(parts)] == parts for mountpoint in self._mountpoints)

    def names_in(self, parts: Parts) -> frozenset[str]:
        """Return the names of the present mountpoints directly in one folder."""
        mountpoints = self.now()
        return frozenset(mountpoint[-1] for mountpoint in mountpoints if mountpoint[:-1] == parts) if mountpoints else frozenset()

    def _read_if_older(self, age: float) -> None:
        if time.monotonic() - self._read_at > age:
            self._read()

    def _read(self) -> None:
        now = time.monotonic()
        with suppress(OSError):
            assert self._root is not None
            self._mountpoints = tuple(parts for parts, is_local in _below(self._root) if not is_local)
        self._read_at = now


def _below(root: int) -> list[tuple[Parts, bool]]:
    # A descriptor of a removed folder has a path that no mount has.
    above = os.readlink(os.fsencode(f"/proc/self/fd/{root}")).rstrip(b"/") + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        table = file.read()
    return [
        (tuple(os.fsdecode(mount.path[len(above) :]).split("/")), mount.is_local)
        for mount in _mounts(table)
        if mount.path.startswith(above) and mount.path != above
    ]


def _mounts(table: bytes) -> Iterator[_Mount]:
    """Return the mounts in the content of proc_pid_mountinfo(5)."""
    # Bytes, split at line feeds only: users may choose mountpoint names, in which only the line feed among line ends is escaped.
    for line in table.split(b"\n"):
        with suppress(IndexError):
            fields = line.split(b" ")
            # The type is the first word after "-"; the number of words before varies.
            kind = fields[fields.index(b"-", 6) + 1] if b"-" in fields[6:] else b""
            yield _Mount(fields[0], _unescaped(fields[4]), kind.decode("ascii", "replace") in _LOCAL)


def _unescaped(path: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), path) if b"\\" in path else path
