"""Which file systems answer from this machine alone."""

from __future__ import annotations

import os

_LOCAL = frozenset(
    (
        "bcachefs btrfs erofs exfat ext2 ext3 ext4 f2fs hfsplus iso9660 jfs nilfs2 ntfs3 "
        "overlay ramfs squashfs tmpfs udf vfat xfs zfs"
    ).split()
)


def is_local(fd: int) -> bool:
    """Whether what lies at ``fd`` is on a file system that answers from the page cache and devices of this machine.

    Anything else (nfs, cifs, 9p, ceph, fuse.*, and whatever is not known here) may wait for a server, for ever. The kernel's name of
    the file system is used rather than statfs's f_type: FUSE has one magic number and Python no statfs.
    """
    try:
        with open(f"/proc/self/fdinfo/{fd}") as lines:
            mount_id = next(line.split()[1] for line in lines if line.startswith("mnt_id:")).encode()
        # Bytes: anybody may mount something on a name that is no text, and only blanks and line feeds are escaped in it.
        with open("/proc/self/mountinfo", "rb") as table:
            fields = next(fields for line in table.read().split(b"\n") if (fields := line.split(b" "))[0] == mount_id)
        # proc_pid_mountinfo(5): the type is the first word after "-", and the words before it vary in number.
        kind = os.fsdecode(fields[fields.index(b"-", 6) + 1])
    except (OSError, StopIteration, IndexError, ValueError):
        return False
    return kind in _LOCAL
