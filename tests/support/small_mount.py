"""A minimal daemon: a mount of type fuse.zarrfs (or another) that holds ``.zarrfs/config.json`` and ends in a given way.

    python small_mount.py MOUNTPOINT END [SUBTYPE]   # END: well, badly (something could not be stored) or dead (kill -9 at unmount)

Prints a line when the mount is usable. For tests of the handling of mounts, without a store or a tree.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import sys
from pathlib import Path

import pyfuse3
import trio

# This file is run as a script from any directory, so the checkout is not on the path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from zarrfs.lifecycle import exit_report
from zarrfs.lifecycle.exit_report import Outcome

FOLDER, DOCUMENT = 2, 3


class SmallTree(pyfuse3.Operations):
    def __init__(self, document: bytes) -> None:
        super().__init__()
        self.document = document

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext | None = None) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = stat.S_IFREG | 0o444 if inode == DOCUMENT else stat.S_IFDIR | 0o755
        entry.st_size = len(self.document) if inode == DOCUMENT else 0
        entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
        return entry

    async def lookup(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext | None = None) -> pyfuse3.EntryAttributes:
        inode = {(pyfuse3.ROOT_INODE, b".zarrfs"): FOLDER, (FOLDER, b"config.json"): DOCUMENT}.get((parent, name))
        if inode is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(inode, ctx)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        return

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        return self.document[off : off + size]


def main(mountpoint: str, end: str, subtype: str = "zarrfs") -> None:
    words = exit_report.begin()
    tree = SmallTree(json.dumps({"pid": os.getpid(), "result": str(words)}).encode())
    pyfuse3.init(tree, mountpoint, {"fsname=small", f"subtype={subtype}"})

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pyfuse3.main)
            await trio.to_thread.run_sync(os.listdir, mountpoint)
            print("mounted", flush=True)

    trio.run(serve)
    if end == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    pyfuse3.close(unmount=False)
    if end == "badly":
        exit_report.write(words, Outcome(7, "raw/a could not be stored: no space left"))
    else:
        exit_report.end(words)


if __name__ == "__main__":
    main(*sys.argv[1:])
