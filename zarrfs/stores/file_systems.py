"""Which file systems answer from this machine alone."""

from __future__ import annotations

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
            mount_id = next(line.split()[1] for line in lines if line.startswith("mnt_id:"))
        # Any user may mount on a folder whose name is no text.
        with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
            # proc_pid_mountinfo(5): the type is the first word after " - ", and the words before it vary in number.
            kind = next(line.partition(" - ")[2].split()[0] for line in lines if line.split(maxsplit=1)[0] == mount_id)
    except (OSError, StopIteration, IndexError):
        return False
    return kind in _LOCAL
