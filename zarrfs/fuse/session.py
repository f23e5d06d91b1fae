"""What the kernel knows of a mount and has open, and the nodes behind it. Knows nothing of pyfuse3."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping

import trio

from zarrfs.errors import IsADirectory, NoSuchEntry, NotADirectory, StaleEntry
from zarrfs.fuse.handles import OpenDirectory, OpenFile
from zarrfs.fuse.inodes import NAMELESS, Inode, InodeTable, stamp_of
from zarrfs.fuse.kernel_cache import KernelCache
from zarrfs.fuse.notice_queue import PATIENCE
from zarrfs.fuse.notifier import MOMENT, Notifier
from zarrfs.fuse.past_the_end import PastTheEnd
from zarrfs.fuse.reads import IsAbandoned, Reads
from zarrfs.fuse.unheard import IsMapped, OnLost, Unheard
from zarrfs.in_flight import InFlight
from zarrfs.vfs.node import Attributes, Directory, File, Handle, Node

# The kernel has the folder locked while a name is looked up.
_RELEASE_PATIENCE = 0.1
_STALE_KEPT = 256

FreeSpace = Callable[[], Awaitable[tuple[int, int] | None]]


async def _nothing_is_left() -> None:
    pass


class Session:
    """Of one mount. Its methods raise `TreeError`, and KeyError for a number that the kernel does not know.

    ``hidden``: folders that are looked up in the root but not listed. ``timeout``: seconds that the kernel may keep names and
    attributes; longer while ``told()`` says that every change is told (`KernelCache`). ``settled()``: returns when all changes so far
    are told to `kernel_cache`. ``on_error(where, error)`` is called with every error that a user may want to look up later.
    ``patience`` and ``is_abandoned``: see `Reads`; ``on_lost`` and ``is_mapped``: see `zarrfs.fuse.unheard`.
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
        on_error: Callable[[str, BaseException], None] | None = None,
        patience: float = math.inf,
        is_abandoned: IsAbandoned | None = None,
        on_lost: OnLost | None = None,
        is_mapped: IsMapped | None = None,
    ) -> None:
        self.inodes = InodeTable(root)
        self.requests = InFlight()
        self.notifier = notifier
        self.kernel_cache = KernelCache(self.inodes, notifier, timeout=timeout, told=told)
        self.reads = Reads(patience, is_abandoned)
        self.unheard = Unheard(on_lost, is_mapped)
        self.past_the_end = PastTheEnd(notifier, self.unheard)
        self.writable = writable
        self.free_space = free_space
        self.files: dict[int, OpenFile] = {}
        self.directories: dict[int, OpenDirectory] = {}
        self._hidden = dict(hidden or {})
        self._settled = settled
        self._on_error = on_error
        self._made: dict[int, int] = {}
        self._stale: dict[int, tuple[Inode | None, str]] = {}
        self._releasing: dict[OpenFile, trio.Event] = {}
        self._last_handle = 0

    @property
    def in_use(self) -> bool:
        """Whether a file or a folder of it is open, or its last RELEASE is still at work."""
        return bool(self.open_handles or self.directories)

    @property
    def open_handles(self) -> int:
        """Files that are open, or whose last RELEASE is still at work."""
        return len(self.files) + len(self._releasing)

    def path_of_inode(self, ino: int) -> str:
        """Where it is in the mount; empty where the number is not known."""
        try:
            return self.inodes[ino].path
        except KeyError:
            return ""

    def path_of_handle(self, number: int, *, directory: bool) -> str:
        """Where that is in the mount which is open under ``number``; empty where nothing is."""
        opened = (self.directories if directory else self.files).get(number)
        return opened.inode.path if opened is not None else ""

    # --- nodes --------------------------------------------------------------------------------------------------------------

    async def lookup(self, parent: Inode, name: str) -> tuple[Node, Attributes]:
        """What is called ``name`` in ``parent``, and its attributes."""
        await self._released(parent, name)
        if parent is self.inodes.root and name in self._hidden:
            node: Node = self._hidden[name]
            return node, await node.attributes()
        return await (await self.directory(parent)).lookup_with_attributes(name)

    async def child(self, parent: Inode, name: str) -> Node:
        """What is called ``name`` in ``parent``."""
        if parent is self.inodes.root and name in self._hidden:
            return self._hidden[name]
        return await (await self.directory(parent)).lookup(name)

    async def node(self, inode: Inode) -> Node:
        """What ``inode`` stands for. Raises `StaleEntry` where another folder is in the place of the one that it lies in."""
        # Folders say so themselves.
        if not inode.is_folder and inode.parent is not None and inode.parent.is_outdated:
            raise StaleEntry(f"the folder of {inode.path!r} was moved, replaced or erased", key=inode.path)
        if inode.node is None:
            if inode.parent is None:
                raise NoSuchEntry("the root is gone")
            if inode.stamp:
                node = await (await self.directory(inode.parent)).listed_file(inode.name)
            else:
                node = await self.child(inode.parent, inode.name)
            if inode.is_folder not in (None, isinstance(node, Directory)):
                # The kernel asks for the name again, and is told of another inode.
                raise StaleEntry(f"{inode.path!r} was replaced by {'a file' if inode.is_folder else 'a folder'}", key=inode.path)
            self.inodes.attach(inode, node)
            return node
        return inode.node

    async def directory(self, inode: Inode) -> Directory:
        """As `node`, which has to be a folder. Raises `StaleEntry` where it is gone, whatever has its name."""
        if inode.is_lost:
            raise StaleEntry(f"the folder {inode.path.replace(NAMELESS, '')!r} is gone", key=inode.path)
        node = await self.node(inode)
        if not isinstance(node, Directory):
            raise NotADirectory(f"{inode.path!r} is a file", key=inode.path)
        return node

    async def file(self, inode: Inode) -> File:
        """As `node`, which has to be a file."""
        node = await self.node(inode)
        if not isinstance(node, File):
            raise IsADirectory(f"{inode.path!r} is a folder", key=inode.path)
        return node

    async def attributes(self, inode: Inode) -> Attributes:
        """Those of ``inode``, as somebody sees them who has it open."""
        while True:
            opened = self.open_file(inode)
            attributes = await (opened.handle if opened is not None else await self.node(inode)).attributes()
            # Else it was opened meanwhile, perhaps with another value.
            if self.open_file(inode) in (opened, None):
                return attributes

    def refer(self, parent: Inode, name: str, node: Node, attributes: Attributes | None = None) -> Inode:
        """The inode of ``node``, which the kernel is told of with these ``attributes``: it refers to it from now on."""
        stamp = stamp_of(attributes) if attributes is not None else 0
        inode = self.inodes.refer(parent, name, is_folder=isinstance(node, Directory), stamp=stamp)
        self.inodes.attach(inode, node)
        inode.size = attributes.size if attributes is not None else -1
        return inode

    def refer_made(self, parent: Inode, name: str, file: File, handle: Handle) -> Inode:
        """As `refer`, for a file that was made, or opened where it was to be made."""
        inode = self.inodes.refer(parent, name, is_folder=False)
        if self.is_another_file(inode, handle.of):
            # Others have the one open that had its name before.
            inode.lookups -= 1
            self.inodes.vanished(inode)
            inode = self.inodes.refer(parent, name, is_folder=False)
        self.inodes.attach(inode, file)
        return inode

    def is_another_file(self, inode: Inode, of: object) -> bool:
        """Whether a file whose `Handle.of` is this is not the one that is open on ``inode``: they would share the kernel's pages."""
        opened = self.open_file(inode)
        return opened is not None and opened.handle.of is not of

    def vanished(self, parent: Inode, name: str) -> Inode | None:
        """Note that this name is gone: the inode that had it, if the kernel knows one."""
        inode = self.inodes.find(below(parent, name))
        if inode is not None:
            self.inodes.vanished(inode)
        return inode

    # --- handles ------------------------------------------------------------------------------------------------------------

    def open_file(self, inode: Inode) -> OpenFile | None:
        """One of the files open on it."""
        if not inode.open_handles:
            return None
        return next((opened for opened in self.files.values() if opened.inode is inode), None)

    def add_file(self, inode: Inode, handle: Handle, opener: int = 0, *, writes: bool = False) -> int:
        """Note that the kernel has ``handle`` open: its number. ``writes``: to write."""
        number = self._new_handle()
        self.files[number] = OpenFile(inode, handle, opener, writes=writes)
        self.inodes.opened(inode)
        return number

    async def add_directory(self, inode: Inode) -> int:
        """Begin to list a folder: the number of the handle."""
        directory = await self.directory(inode)
        if directory.is_outdated:
            # Now the kernel would look it up again, not when it lists it.
            raise StaleEntry(f"the folder {inode.path!r} was moved, replaced or erased", key=inode.path)
        number = self._new_handle()
        self.directories[number] = OpenDirectory(inode, directory.entries(), self.kernel_cache.epoch)
        self.inodes.opened(inode)
        return number

    async def release_file(self, number: int) -> None:
        """The kernel has closed a file."""
        opened = self.files.pop(number)
        released = self._releasing[opened] = trio.Event()
        self.unheard.closed(opened, self.files.values())
        try:
            await opened.handle.release()
        finally:
            del self._releasing[opened]
            released.set()
            self.inodes.closed(opened.inode)

    async def _released(self, parent: Inode, name: str) -> None:
        """Return when the RELEASE of a file of this name has ended that came before, or after a moment: who was told at close(2) that it
        was refused does not find it any more."""
        releasing = [
            released for file, released in self._releasing.items() if file.inode.parent is parent and file.inode.name == name
        ]
        with trio.move_on_after(_RELEASE_PATIENCE):
            for released in releasing:
                await released.wait()

    async def release_directory(self, number: int) -> None:
        """The kernel has closed a folder."""
        listing = self.directories.pop(number)
        self.inodes.closed(listing.inode)
        await listing.restart(None)

    def hold(self, inode: Inode, handle: Handle) -> None:
        """Hold open what mknod(2) made, for whoever opens it to write, or until it is nobody's (`let_go`)."""
        self._made[inode.ino] = self.add_file(inode, handle)

    async def let_go(self, inode: Inode | None) -> None:
        """Close what `hold` holds of ``inode``, if anything."""
        number = self._made.pop(inode.ino, None) if inode is not None else None
        if number is not None:
            await self.release_file(number)

    def _new_handle(self) -> int:
        self._last_handle += 1
        return self._last_handle

    # --- changes ------------------------------------------------------------------------------------------------------------

    async def flush_notices(self, *, has_locked: bool = False) -> None:
        """Return when the kernel was told of all changes so far, or after a while. The caller holds no lock that a handler may need.
        ``has_locked``: see `Notifier.drained`."""
        with trio.move_on_after(PATIENCE):
            await self._settled()
        await self.notifier.drained(has_locked=has_locked)

    async def tell_names(self) -> None:
        """Return when the kernel has forgotten the names, in other folders than those that it has locked, that may be others' now: by
        such a name a program would change what it does not mean. Not much later, whatever keeps the kernel."""
        if self.kernel_cache.names_changed:
            self.kernel_cache.names_changed = False
            with trio.move_on_after(MOMENT):
                await self._settled()
                await self.notifier.drained()

    async def doubt_name(self, inode: Inode) -> None:
        """Have the kernel look the name up again: a new file that was refused has none once it is released."""
        if inode.parent is not None and not inode.nameless:
            self.notifier.entry(inode.parent.ino, inode.name)
            with trio.move_on_after(MOMENT):
                await self.notifier.drained()

    def forget_pages_if_superseded(self, opened: OpenFile) -> None:
        """What a file that was superseded publishes becomes part of the value that is there now; of what it had, only that is right."""
        if opened.written and opened.inode.nameless:
            self.notifier.inode(opened.inode.ino)

    async def forget_attributes(self, inode: Inode) -> None:
        """Have the kernel ask for them again before it reads, and take no answer that is older. The caller holds no lock."""
        self.notifier.inode(inode.ino, attributes_only=True)
        await self.notifier.drained()
        inode.doubtful = False

    def stale_twice(self, opener: int, inode: Inode) -> bool:
        """Note that a thread learns that what it opens is stale; whether it has learnt that of this name just before."""
        place = inode.parent, inode.called
        before = self._stale.pop(opener, None)
        if before is not None and before == place:
            return True
        self._stale[opener] = place
        if len(self._stale) > _STALE_KEPT:
            del self._stale[next(iter(self._stale))]
        return False

    def report(self, where: str, error: BaseException) -> None:
        """Called with a handler's name and every error that a user may want to look up later."""
        if self._on_error is not None:
            self._on_error(where, error)


def below(parent: Inode, name: str) -> str:
    """The path of an entry of a folder."""
    folder = parent.path
    return f"{folder}/{name}" if folder else name
