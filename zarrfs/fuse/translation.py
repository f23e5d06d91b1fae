"""The kernel's words and ours: names, flags, attributes."""

from __future__ import annotations

import functools
import os
import stat
import time
from dataclasses import dataclass

import pyfuse3

from zarrfs.errors import NameTooLong
from zarrfs.fuse.kernel_cache import KernelCache
from zarrfs.vfs.names import MAX_NBYTES
from zarrfs.vfs.node import Attributes, OpenFlags

_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Ownership:
    """Whose all files of a mount are, and the permission bits that none of them has."""

    uid: int
    gid: int
    umask: int

    @classmethod
    def of_this_process(cls, uid: int | None = None, gid: int | None = None, umask: int = 0o022) -> Ownership:
        """That of whoever runs the mount, except what is given."""
        return cls(os.getuid() if uid is None else uid, os.getgid() if gid is None else gid, umask)


class Attributor:
    """Makes what stat(2) tells. What cannot be written shows nobody the permission to; where a time is not known, that of the mount
    stands in."""

    def __init__(self, memory: KernelCache, ownership: Ownership, *, writable: bool) -> None:
        self._memory = memory
        self._writable = writable
        self._mounted_ns = time.time_ns()
        self._uid, self._gid = ownership.uid, ownership.gid
        permissions = 0o777 & ~ownership.umask
        # By whether it can be written. Nothing in a store is a program, so that no file may be run.
        self._directory_mode = {can: stat.S_IFDIR | (permissions if can else permissions & 0o555) for can in (False, True)}
        self._file_mode = {can: stat.S_IFREG | (mode & 0o666) for can, mode in self._directory_mode.items()}

    def entry(self, ino: int, attributes: Attributes, epoch: int | None = None) -> pyfuse3.EntryAttributes:
        """The kernel's form of ``attributes``, which were asked for at ``epoch`` of the kernel's memory, if not just now."""
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(ino)
        writable = self._writable and attributes.writable
        if attributes.is_directory:
            entry.st_mode = pyfuse3.ModeT(self._directory_mode[writable])
        else:
            entry.st_mode = pyfuse3.ModeT(self._file_mode[writable])
            # st_size is a signed 64-bit number: an array may be larger.
            entry.st_size = min(attributes.size, 2**63 - 1)
            allocated = attributes.size if attributes.allocated is None else attributes.allocated
            entry.st_blocks = min(-(-allocated // _BLOCK), 2**63 - 1)
        entry.st_nlink = attributes.nlink
        entry.st_uid, entry.st_gid = self._uid, self._gid
        mtime_ns = attributes.mtime_ns if attributes.mtime_ns is not None else self._mounted_ns
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = mtime_ns
        entry.st_blksize = attributes.blksize
        short, long = self._memory.seconds(self._memory.epoch if epoch is None else epoch)
        entry.entry_timeout = long
        entry.attr_timeout = short if attributes.is_directory else long
        return entry


def statvfs(space: tuple[int, int] | None) -> pyfuse3.StatvfsData:
    """What statvfs(3) tells of ``(total, free)`` bytes; where nobody knows, as much as a program may want."""
    total, free = space if space is not None else (2**50, 2**50)
    data = pyfuse3.StatvfsData()
    data.f_bsize = data.f_frsize = 4096
    data.f_blocks, data.f_bfree = total // 4096, free // 4096
    data.f_bavail = data.f_bfree
    data.f_files = data.f_ffree = data.f_favail = 2**40
    data.f_namemax = MAX_NBYTES
    return data


@functools.lru_cache(64)
def open_flags(flags: int) -> OpenFlags:
    """open(2)'s flags. O_TRUNC changes the file, whatever the access mode, as on other file systems of Linux."""
    mode, truncate = flags & os.O_ACCMODE, bool(flags & os.O_TRUNC)
    return OpenFlags(read=mode != os.O_WRONLY, write=mode != os.O_RDONLY or truncate, truncate=truncate)


def text_of(name: bytes) -> str:
    """A name as the tree has it. Raises `NameTooLong`."""
    if len(name) > MAX_NBYTES:
        # The kernel asks for names up to 1024 bytes; statfs(2) says 255, and longer parts of keys have other names.
        raise NameTooLong(f"a name has at most {MAX_NBYTES} bytes, not {len(name)}", key=os.fsdecode(name))
    return os.fsdecode(name)


def name_of(name: str) -> pyfuse3.FileNameT:
    """A name as the kernel has it."""
    return pyfuse3.FileNameT(os.fsencode(name))
