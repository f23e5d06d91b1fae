"""Owners of files, as far as they can be trusted: a FUSE mount is answered by a program of the user who mounted it.

That program may report any owner. Other users are admitted by ``allow_other``, and root is then, too (``user_allow_other`` in fuse.conf):
such a user could present a link that seems to be root's, which leads anywhere.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat as st

UNKNOWN = -1
"""The owner of files in a mount that is not, or no longer, in the mount table."""

_OVERFLOW = 65534
"""The kernel's default number of users who have none in a user namespace."""

# <linux/magic.h>; the first member of struct statfs, which has at most 120 bytes.
_FUSE_SUPER_MAGIC = 0x65735546
_STATFS_NBYTES = 256
_fstatfs = ctypes.CDLL(None, use_errno=True).fstatfs
_USER = re.compile(rb"(?:^|,)user_id=(\d+)(?=,|$)")


def owner_of(fd: int) -> int:
    """Return the owner of an open file: in another user's FUSE mount, that user, whatever is reported. Raises `OSError`."""
    owner = os.fstat(fd).st_uid
    if not _is_in_fuse(fd):
        return owner
    with open(f"/proc/self/fdinfo/{fd}", "rb") as lines:
        number = next(line.split()[1] for line in lines if line.startswith(b"mnt_id:"))
    with open("/proc/self/mountinfo", "rb") as table:
        # Not by lines: names may contain other ends of lines.
        found = next((line for line in table.read().split(b"\n") if line.startswith(number + b" ")), None)
    if found is None:
        return UNKNOWN
    mounter = _USER.search(found.rpartition(b" ")[2])
    return owner if mounter is None or mounter[1] == b"0" else int(mounter[1])


def is_ours(fd: int) -> bool:
    """Return True if an open file belongs to this process's user, or to root. Raises `OSError`."""
    return owner_of(fd) in (0, os.geteuid())


def is_ours_alone(folder: int) -> bool:
    """Return True if only this process's user, and root, can create and exchange files in ``folder``, a descriptor.

    An ACL shows in the group bits. Raises `OSError`.
    """
    return is_ours(folder) and not os.fstat(folder).st_mode & (st.S_IWGRP | st.S_IWOTH)


def trusted_below(folder: int) -> frozenset[int]:
    """Return the users who are no strangers in a store: root, this process's, and the owner of its ``folder``. Raises `OSError`."""
    owner = os.fstat(folder).st_uid
    return frozenset((0, os.geteuid(), *((owner,) if _is_one_user(owner) else ())))


def _is_one_user(uid: int) -> bool:
    """Return False for the number that, in this user namespace, stands for all users who have none in it."""
    try:
        with open("/proc/sys/kernel/overflowuid", "rb") as number:
            if uid != int(number.read()):
                return True
        with open("/proc/self/uid_map", "rb") as table:
            return any(first <= uid < first + count for first, _, count in (map(int, line.split()) for line in table))
    except OSError:  # without /proc
        return uid != _OVERFLOW


def _is_in_fuse(fd: int) -> bool:
    found = (ctypes.c_long * (_STATFS_NBYTES // ctypes.sizeof(ctypes.c_long)))()
    if _fstatfs(fd, found) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return found[0] == _FUSE_SUPER_MAGIC
