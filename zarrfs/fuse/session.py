"""What the handlers of a mount share: the inodes and the nodes behind them, and what is open."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping

import pyfuse3
import trio

from zarrfs.errors import IsADirectory, NoSuchEntry, NotADirectory
from zarrfs.fuse.handles import OpenDirectory, OpenFile
from zarrfs.fuse.inodes import Inode, InodeTable, stamp_of
from zarrfs.fuse.kernel_cache import KernelCache
from zarrfs.fuse.notifier import PATIENCE, Notifier
from zarrfs.fuse.reads import IsAbandoned, Reads
from zarrfs.fuse.translation import Attributor, Ownership
from zarrfs.in_flight import InFlight
from zarrfs.vfs.node import Attributes, Directory, File, Handle, Node

FreeSpace = Callable[[], Awaitable[tuple[int, int] | None]]


async def _nothing_is_left() -> None:
    pass


class Session(pyfuse3.Operations):
    """What of one mount its handlers know.

    ``hidden``: folders that are looked up in the root but not listed. ``timeout``: seconds that the kernel may keep names and
    attributes; longer while ``told()`` says that every change is told (`KernelCache`). ``ownership``: by default that of this
    process. ``settled()``: returns when all changes so far are told to `memory`. ``report(where, error)`` is told of every error that a
    user may want to look up later. ``patience`` and ``is_abandoned``: see `Reads`.
    """

    def __init__(
        self,
        root: Directory,
        notifier: Notifier,
        *,
        hidden: Mapping[str, Directory] | None = None,
        timeout: float,
        told: Callable[[], bool] = lambda: False,
        settled: Callable[[], Awaitable[None]] = _nothing_is_left,
        writable: bool,
        free_space: FreeSpace,
        ownership: Ownership | None = None,
        report: Callable[[str, BaseException], None] | None = None,
        patience: float = math.inf,
        is_abandoned: IsAbandoned | None = None,
    ) -> None:
        super().__init__()
        self.inodes = InodeTable(root)
        self.requests = InFlight()
        self.notifier = notifier
        self._hidden = dict(hidden or {})
        self.memory = KernelCache(self.inodes, notifier, timeout=timeout, told=told)
        self._attributor = Attributor(self.memory, ownership or Ownership.of_this_process(), writable=writable)
        self._writable = writable
        self._free_space = free_space
        self._settled = settled
        self._on_error = report
        self.reads = Reads(patience, is_abandoned)
        self._files: dict[int, OpenFile] = {}
        self._directories: dict[int, OpenDirectory] = {}
        self._made: dict[int, int] = {}
        self._releasing = 0
        self._next_handle = 1

    @property
    def in_use(self) -> bool:
        """Whether a file or a folder of it is open, or its last RELEASE is still at work."""
        return bool(self.open_handles or self._directories)

    @property
    def open_handles(self) -> int:
        """Files that are open, or whose last RELEASE is still at work."""
        return len(self._files) + self._releasing

    def path_of_inode(self, ino: int) -> str:
        """Where it is in the mount; empty where the number is not known."""
        try:
            return self.inodes[ino].path
        except KeyError:
            return ""

    def path_of_handle(self, number: int, *, directory: bool) -> str:
        """Where that is in the mount which is open under ``number``; empty where nothing is."""
        opened = (self._directories if directory else self._files).get(number)
        return opened.inode.path if opened is not None else ""

    # --- for the handlers ---------------------------------------------------------------------------------------------------

    async def _told(self) -> None:
        """Return when the kernel was told of all changes so far, or after a while. The caller holds no lock that a handler may need."""
        with trio.move_on_after(PATIENCE):
            await self._settled()
        await self.notifier.drained()

    def _forget_pages_if_superseded(self, opened: OpenFile) -> None:
        """What a file that was superseded publishes becomes part of the value that is there now; of what it had, only that is right."""
        if opened.written and opened.inode.nameless:
            self.notifier.inode(opened.inode.ino)

    async def _child(self, parent: Inode, name: str) -> Node:
        if parent is self.inodes.root and name in self._hidden:
            return self._hidden[name]
        return await (await self._directory(parent)).lookup(name)

    async def _node(self, inode: Inode) -> Node:
        if inode.node is None:
            if inode.parent is None:
                raise NoSuchEntry("the root is gone")
            if inode.stamp:
                node = await (await self._directory(inode.parent)).listed_file(inode.name)
            else:
                node = await self._child(inode.parent, inode.name)
            self.inodes.attach(inode, node)
            return node
        return inode.node

    async def _directory(self, inode: Inode) -> Directory:
        node = await self._node(inode)
        if not isinstance(node, Directory):
            raise NotADirectory(f"{inode.path!r} is a file", key=inode.path)
        return node

    async def _file(self, inode: Inode) -> File:
        node = await self._node(inode)
        if not isinstance(node, File):
            raise IsADirectory(f"{inode.path!r} is a folder", key=inode.path)
        return node

    async def _attributes(self, inode: Inode) -> Attributes:
        opened = self._open_file(inode)
        return await (opened.handle if opened is not None else await self._node(inode)).attributes()

    def _open_file(self, inode: Inode) -> OpenFile | None:
        """One of the files open on it."""
        if not inode.open_handles:
            return None
        return next((opened for opened in self._files.values() if opened.inode is inode), None)

    async def _referred(self, parent: Inode, name: str, node: Node, epoch: int | None = None) -> pyfuse3.EntryAttributes:
        return self._refer(parent, name, node, await node.attributes(), epoch)

    def _refer(self, parent: Inode, name: str, node: Node, attributes: Attributes, epoch: int | None) -> pyfuse3.EntryAttributes:
        inode = self.inodes.refer(parent, name, stamp=stamp_of(attributes))
        self.inodes.attach(inode, node)
        return self._attributor.entry(inode.ino, attributes, epoch)

    def _opened(self, inode: Inode, handle: Handle, *, keep_cache: bool, opener: int = 0) -> pyfuse3.FileInfo:
        number = self._new_handle()
        self._files[number] = OpenFile(inode, handle, opener)
        self.inodes.opened(inode)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(number), direct_io=handle.direct, keep_cache=keep_cache)

    async def _released(self, fh: int) -> None:
        opened = self._files.pop(fh)
        self._releasing += 1
        try:
            await opened.handle.release()
        finally:
            self._releasing -= 1
            self.inodes.closed(opened.inode)

    async def _no_longer_made(self, inode: Inode | None) -> None:
        """What mknod(2) made is held open for whoever opens it to write, or until it is nobody's."""
        fh = self._made.pop(inode.ino, None) if inode is not None else None
        if fh is not None:
            await self._released(fh)

    def _new_handle(self) -> int:
        self._next_handle += 1
        return self._next_handle

    def _vanished(self, parent: Inode, name: str) -> Inode | None:
        inode = self.inodes.find(below(parent, name))
        if inode is not None:
            self.inodes.vanished(inode)
        return inode

    def report(self, where: str, error: BaseException) -> None:
        if self._on_error is not None:
            self._on_error(where, error)


def below(parent: Inode, name: str) -> str:
    """The path of an entry of a folder."""
    folder = parent.path
    return f"{folder}/{name}" if folder else name
