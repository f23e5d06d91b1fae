"""A pyfuse3 file system that passes requests on to a folder and does nothing else: the floor for small operations.

    python benchmarks/bare.py FOLDER MOUNTPOINT [hop]        # until it is unmounted

With ``hop``, what changes the folder runs in a thread, as in a file system that must not block. No file system for data: names are
not followed when others change them, and nothing is checked.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Any

import pyfuse3
import trio

_TIMEOUT_S = 1
_FIELDS = ("st_mode", "st_uid", "st_gid", "st_size", "st_blocks", "st_mtime_ns", "st_atime_ns", "st_ctime_ns")


class Bare(pyfuse3.Operations):
    """The requests that `small.py` causes. ``hop``: changes run in a thread."""

    enable_writeback_cache = False

    def __init__(self, folder: str, *, hop: bool) -> None:
        super().__init__()
        self._hop = hop
        self._paths: dict[int, str] = {pyfuse3.ROOT_INODE: folder}
        self._inodes: dict[str, int] = {folder: pyfuse3.ROOT_INODE}

    async def _change(self, function: Callable[..., Any], *arguments: object) -> Any:
        return await trio.to_thread.run_sync(function, *arguments) if self._hop else function(*arguments)

    def _path(self, parent: int, name: bytes) -> str:
        return os.path.join(self._paths[parent], os.fsdecode(name))

    def _attributes(self, path: str) -> pyfuse3.EntryAttributes:
        try:
            status = os.lstat(path)
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from None
        inode = self._inodes.get(path)
        if inode is None:
            inode = self._inodes[path] = len(self._paths) + 1
            self._paths[inode] = path
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        for field in _FIELDS:
            setattr(entry, field, getattr(status, field))
        entry.st_nlink = entry.entry_timeout = entry.attr_timeout = _TIMEOUT_S
        return entry

    async def lookup(self, parent: int, name: bytes, ctx: Any = None) -> pyfuse3.EntryAttributes:
        return self._attributes(self._path(parent, name))

    async def getattr(self, inode: int, ctx: Any = None) -> pyfuse3.EntryAttributes:
        return self._attributes(self._paths[inode])

    async def setattr(self, inode: int, attr: Any, fields: Any, fh: Any, ctx: Any) -> pyfuse3.EntryAttributes:
        return self._attributes(self._paths[inode])

    async def getxattr(self, inode: int, name: bytes, ctx: Any) -> bytes:
        raise pyfuse3.FUSEError(errno.ENOSYS)

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=os.open(self._paths[inode], flags & ~os.O_CREAT))

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return os.pread(fh, size, off)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        return os.pwrite(fh, buf, off)

    async def flush(self, fh: int) -> None:
        pass

    async def release(self, fh: int) -> None:
        os.close(fh)

    async def forget(self, inode_list: Any) -> None:
        pass

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, ctx: Any
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        path = self._path(parent, name)
        descriptor = await self._change(os.open, path, flags | os.O_CREAT, 0o644)
        return pyfuse3.FileInfo(fh=descriptor), self._attributes(path)

    async def mkdir(self, parent: int, name: bytes, mode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        path = self._path(parent, name)
        await self._change(os.mkdir, path)
        return self._attributes(path)

    async def unlink(self, parent: int, name: bytes, ctx: Any) -> None:
        await self._change(os.unlink, self._path(parent, name))

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int, ctx: Any) -> None:
        old, new = self._path(parent, name), self._path(new_parent, new_name)
        await self._change(os.rename, old, new)
        inode = self._inodes.pop(old, None)
        if inode is not None:
            self._inodes[new], self._paths[inode] = inode, new


def main() -> None:
    pyfuse3.init(Bare(sys.argv[1], hop=sys.argv[3:] == ["hop"]), sys.argv[2], {*pyfuse3.default_options, "fsname=bare"})
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main()
