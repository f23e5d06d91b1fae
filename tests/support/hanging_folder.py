"""A FUSE file system independent of zarrfs that stops answering on request.

    python hanging_folder.py MOUNTPOINT FILES    # a JSON object: names and texts of the files in it

Prints ``mounted`` when it is usable, then a line for each line of input: ``hang N`` (N more requests are answered, 0 by default, and
later ones are accepted and never answered), ``answer`` (all continue). The kernel caches nothing of it. Ends when it is unmounted.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import threading
from collections.abc import Sequence

import pyfuse3
import trio


class Folder(pyfuse3.Operations):
    def __init__(self, files: dict[str, str]) -> None:
        super().__init__()
        self._files = [(name.encode(), text.encode()) for name, text in files.items()]
        self.answers = trio.Event()
        self.answers.set()
        self.left = 0

    async def _turn(self) -> None:
        if not self.answers.is_set() and self.left:
            self.left -= 1
            return
        await self.answers.wait()

    def _entry(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        entry.entry_timeout = entry.attr_timeout = 0
        entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
        if inode == pyfuse3.ROOT_INODE:
            entry.st_mode = stat.S_IFDIR | 0o755
        else:
            entry.st_mode, entry.st_size = stat.S_IFREG | 0o644, len(self._files[inode - 2][1])
        return entry

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext | None = None) -> pyfuse3.EntryAttributes:
        await self._turn()
        return self._entry(inode)

    async def lookup(self, parent: int, name: bytes, ctx: pyfuse3.RequestContext | None = None) -> pyfuse3.EntryAttributes:
        await self._turn()
        for inode, (known, _) in enumerate(self._files, 2):
            if name == known:
                return self._entry(inode)
        raise pyfuse3.FUSEError(errno.ENOENT)

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        await self._turn()
        raise pyfuse3.FUSEError(errno.ENOSPC)

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        await self._turn()
        found = pyfuse3.StatvfsData()
        found.f_bsize = found.f_frsize = 4096
        found.f_blocks = found.f_bfree = found.f_bavail = 1 << 20
        found.f_namemax = 255
        return found

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        await self._turn()
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        await self._turn()
        for inode, (name, _) in enumerate(self._files[start_id:], start_id + 2):
            if not pyfuse3.readdir_reply(token, name, self._entry(inode), inode - 1):
                return

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        await self._turn()
        return pyfuse3.FileInfo(fh=inode)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        await self._turn()
        return self._files[fh - 2][1][off : off + size]


def main(arguments: Sequence[str]) -> None:
    mountpoint, files = arguments
    folder = Folder(json.loads(files))
    pyfuse3.init(folder, mountpoint, {"fsname=hanging", "subtype=hanging"})

    def obey(line: str) -> None:
        match line.split():
            case ["hang", *number]:
                folder.answers, folder.left = trio.Event(), int(number[0]) if number else 0
            case ["answer"]:
                folder.answers.set()
        print("done", flush=True)

    def listen(token: trio.lowlevel.TrioToken) -> None:
        for line in sys.stdin:
            token.run_sync_soon(obey, line)

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pyfuse3.main)
            await trio.to_thread.run_sync(os.listdir, mountpoint)
            # The thread ends with the process.
            threading.Thread(target=listen, args=(trio.lowlevel.current_trio_token(),), daemon=True).start()
            print("mounted", flush=True)

    trio.run(serve)


if __name__ == "__main__":
    main(sys.argv[1:])
