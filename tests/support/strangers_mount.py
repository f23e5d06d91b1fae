"""Another user's FUSE mount that is independent of zarrfs and claims to be zarrfs.

    python strangers_mount.py MOUNTPOINT PLAN

PLAN is a JSON object:

* ``config``: the text of ``.zarrfs/config.json`` (``PID`` in it is this process);
* ``hangs``: requests that are never answered (statfs, open, read, write);
* ``swaps``: ``[FOLDER, OTHER]``: at the first request, a link to OTHER replaces FOLDER on the path to the mountpoint;
* ``stays``: whether the process continues after the unmount;
* ``seen``: a file that gets a line of JSON for each process that requests statfs: its terminal, its session, its open descriptors.

Prints its number when the mount is usable. A file ``file`` of 4096 bytes serves for pages that the kernel has to provide.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any

import pyfuse3
import trio

FOLDER, CONFIG, FILE = 2, 3, 4
NAMES = {(pyfuse3.ROOT_INODE, b".zarrfs"): FOLDER, (FOLDER, b"config.json"): CONFIG, (pyfuse3.ROOT_INODE, b"file"): FILE}


class Strange(pyfuse3.Operations):
    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__()
        self._config = plan["config"].replace("PID", str(os.getpid())).encode()
        self._hangs = plan.get("hangs", [])
        self._seen = plan.get("seen")
        self._swaps = plan.get("swaps")
        self.answers = False

    async def _asked(self, what: str) -> None:
        if self.answers and what in self._hangs:
            await trio.sleep_forever()

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext | None = None) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.st_mode = stat.S_IFREG | 0o644 if inode in (CONFIG, FILE) else stat.S_IFDIR | 0o755
        entry.st_size = {CONFIG: len(self._config), FILE: 4096}.get(inode, 0)
        entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
        return entry

    async def lookup(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext | None = None) -> pyfuse3.EntryAttributes:
        if (parent, name) not in NAMES:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(NAMES[parent, name], ctx)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        return

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        await self._asked("open")
        return pyfuse3.FileInfo(fh=inode)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        await self._asked("read")
        return (self._config if fh == CONFIG else bytes(4096))[off : off + size]

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        await self._asked("write")
        return len(buf)

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        if self._seen:
            note(self._seen, about(ctx.pid))
        if self.answers and self._swaps:
            (folder, other), self._swaps = self._swaps, None
            os.rename(folder, folder + ".aside")
            os.symlink(other, folder)
        await self._asked("statfs")
        return pyfuse3.StatvfsData()


def note(path: str, what: object) -> None:
    with open(path, "a") as file:
        print(json.dumps(what), file=file)


def about(pid: int) -> dict[str, Any]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    folder = Path(f"/proc/{pid}/fd")
    return {
        "pid": pid,
        "session": int(fields[3]),
        "terminal": int(fields[4]),
        "descriptors": sorted(os.readlink(each).partition(":")[0] for each in folder.iterdir()),
        "environment": Path(f"/proc/{pid}/environ").read_text().split("\0")[:-1],
    }


def main(mountpoint: str, plan_json: str) -> None:
    plan = json.loads(plan_json)
    tree = Strange(plan)
    pyfuse3.init(tree, mountpoint, {"fsname=strange", "subtype=zarrfs"})

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pyfuse3.main)
            await trio.to_thread.run_sync(os.listdir, mountpoint)
            tree.answers = True
            print(os.getpid(), flush=True)

    trio.run(serve)
    while plan.get("stays"):
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
