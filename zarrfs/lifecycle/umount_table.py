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

from zarrfs.lifecycle import programs
from zarrfs.lifecycle.mount_table import FSTYPE, mount_at, resolved

_HELPER = f"/sbin/umount.{FSTYPE}"
_PATIENCE = 5.0


def add(source: str, mountpoint: str) -> None:
    """Make umount(8) run the helper for a mount, if it is installed. Only root's: for other users umount(8) reads the kernel's table."""
    _run("mount", "-t", FSTYPE, "-o", f"uhelper={FSTYPE}", "--", source, resolved(mountpoint))


def remove(mountpoint: str) -> None:
    """Remove the entry of a mount that umount(8) has not unmounted, unless another one is there."""
    if mount_at(place := resolved(mountpoint)) is None:
        _run("umount", "--", place)


def _run(program: str, *arguments: str) -> None:
    """Let mount(8) or umount(8) do nothing but update its table."""
    if os.geteuid() != 0 or not os.path.exists(_HELPER) or (path := programs.find(program)) is None:
        return
    # The program of another package (BusyBox) has neither these options nor the table.
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            [path, "--fake", "--internal-only", "--no-canonicalize", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
        )
