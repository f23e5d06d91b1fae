"""Conversion of names, flags and attributes between the kernel and the tree."""

from __future__ import annotations

import functools
import os
import stat
import time
from dataclasses import dataclass

import pyfuse3

from zarrfs.buffers import storage_nbytes
from zarrfs.errors import NameTooLong
from zarrfs.fuse.kernel_cache import KernelCache
from zarrfs.vfs.names import MAX_NBYTES
from zarrfs.vfs.node import Attributes, OpenFlags

_BLOCK = 512


@dataclass(frozen=True, slots=True)
class Ownership:
    """Owner and group of all files of a mount, and the permission bits removed from their modes."""

    uid: int
    gid: int
    umask: int

    @classmethod
    def of_this_process(cls, uid: int | None = None, gid: int | None = None, umask: int = 0o022) -> Ownership:
        """Return the owner and group of this process, except those given."""
        return cls(os.getuid() if uid is None else uid, os.getgid() if gid is None else gid, umask)


class Attributor:
    """Builds the attributes of stat(2). Files that cannot be written have no write permission; an unknown time is that of the mount."""

    def __init__(self, kernel_cache: KernelCache, ownership: Ownership, *, writable: bool) -> None:
        self._kernel_cache = kernel_cache
        self._writable = writable
        self._mounted_ns = time.time_ns()
        self._uid, self._gid = ownership.uid, ownership.gid
        permissions = 0o777 & ~ownership.umask
        # Keyed by writability. A store contains no programs, so no file is executable.
        self._directory_mode = {can: stat.S_IFDIR | (permissions if can else permissions & 0o555) for can in (False, True)}
        self._file_mode = {can: stat.S_IFREG | (mode & 0o666) for can, mode in self._directory_mode.items()}

    def entry(
        self, ino: int, attributes: Attributes, epoch: int | None = None, path: str | None = None, *, settled: bool = True
    ) -> pyfuse3.EntryAttributes:
        """Return ``attributes`` of ``path`` in the kernel's form, requested at ``epoch`` of the kernel cache, by default now.

        ``settled``: False if a file's may have changed since (`Inode.settled`): the kernel then uses them once.
        """
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(ino)
        writable = self._writable and attributes.writable
        if attributes.is_directory:
            entry.st_mode = pyfuse3.ModeT(self._directory_mode[writable])
        else:
            entry.st_mode = pyfuse3.ModeT(self._file_mode[writable])
            # st_size is a signed 64-bit number: an array may be larger.
            entry.st_size = min(attributes.size, 2**63 - 1)
            entry.st_blocks = min(-(-storage_nbytes(attributes.size) // _BLOCK), 2**63 - 1)
        entry.st_nlink = attributes.nlink
        entry.st_uid, entry.st_gid = self._uid, self._gid
        mtime_ns = attributes.mtime_ns if attributes.mtime_ns is not None else self._mounted_ns
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = mtime_ns
        entry.st_blksize = attributes.blksize
        kernel_cache = self._kernel_cache
        short, long = kernel_cache.seconds(kernel_cache.epoch if epoch is None else epoch, path)
        entry.entry_timeout = long
        entry.attr_timeout = short if attributes.is_directory else long if settled else 0
        return entry


def statvfs(space: tuple[int, int] | None) -> pyfuse3.StatvfsData:
    """Return the result of statvfs(3) for ``(total, free)`` bytes; if unknown, more than any program needs."""
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
    """Return the flags of open(2). O_TRUNC changes the file in any access mode, as on other file systems of Linux."""
    mode, truncate = flags & os.O_ACCMODE, bool(flags & os.O_TRUNC)
    return OpenFlags(
        read=mode != os.O_WRONLY,
        write=mode != os.O_RDONLY or truncate,
        truncate=truncate,
        append=bool(flags & os.O_APPEND),
        direct=bool(flags & os.O_DIRECT),
    )


def text_of(name: bytes) -> str:
    """Return a name as text. Raises `NameTooLong`."""
    if len(name) > MAX_NBYTES:
        # The kernel passes names up to 1024 bytes; statfs(2) states 255, and longer parts of keys have other names.
        raise NameTooLong(f"name of {len(name)} bytes, at most {MAX_NBYTES} are allowed", key=os.fsdecode(name))
    return os.fsdecode(name)


def name_of(name: str) -> pyfuse3.FileNameT:
    """Return a name in the kernel's form."""
    return pyfuse3.FileNameT(os.fsencode(name))
