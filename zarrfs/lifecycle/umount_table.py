"""Entries for umount(8), which does not find the helper of zarrfs by itself.

``umount /mnt/z`` takes the type of a mount from statfs(2), which says "fuse" of every FUSE mount, and looks for a helper of that type
(util-linux, libmount/src/context_umount.c, lookup_umount_fs_by_statfs). Only if the table of libmount, /run/mount/utab, has an entry
for the mountpoint does it read the mount table of the kernel, which says ``fuse.zarrfs``. mount(8) writes an entry if there are options
for it, such as ``uhelper=``. An entry that is left over costs umount(8) a look at the kernel's table, and has no other effect.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

from zarrfs.lifecycle import programs
from zarrfs.lifecycle.mount_table import FSTYPE, mounts_around, resolved, unescaped

_TABLE = Path("/run/mount/utab")
_HELPER = f"/sbin/umount.{FSTYPE}"
_PATIENCE = 5.0


def add(source: str, mountpoint: str) -> None:
    """Make umount(8) run the helper for a mount, if it is installed. Only root's: for other users umount(8) reads the kernel's table."""
    if not _is_used():
        return
    place = resolved(mountpoint)
    if _has_entry(place):
        # Of a mount whose daemon was killed, or ended by a signal.
        _run("umount", "--", place)
    _run("mount", "-t", FSTYPE, "-o", f"uhelper={FSTYPE}", "--", source, place)


def remove(place: str) -> None:
    """Remove the entry of a mount on ``place`` (absolute, without symlinks), unless something is mounted there."""
    if _is_used() and _has_entry(place) and all(mount.mountpoint != place for mount in mounts_around(place)):
        _run("umount", "--", place)


def _is_used() -> bool:
    return os.geteuid() == 0 and os.path.exists(_HELPER)


def _has_entry(place: str) -> bool:
    """Return True if the table has an entry for zarrfs's helper, and for ``place`` (absolute, without symlinks)."""
    try:
        lines = _TABLE.read_bytes().split(b"\n")
    except OSError:
        return False
    target, helper = b"TARGET=" + os.fsencode(place), f"uhelper={FSTYPE}".encode()
    return any(helper in line and target in map(unescaped, line.split(b" ")) for line in lines)


def _run(program: str, *arguments: str) -> None:
    """Let mount(8) or umount(8) do nothing but update its table."""
    path = programs.find(program)
    if path is None:
        return
    # The program of another package (BusyBox) has neither these options nor the table.
    null = subprocess.DEVNULL
    command = [path, "--fake", "--internal-only", "--no-canonicalize", *arguments]
    with contextlib.suppress(OSError):
        process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null)
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            # It may not end before a file system on the path answers.
            process.kill()
