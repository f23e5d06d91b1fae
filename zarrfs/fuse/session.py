"""Kernel state of a mount: its inodes, its open files and folders, and their nodes. Independent of pyfuse3."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Mapping

import trio

from zarrfs.errors import EntryExists, IsADirectory, NoSuchEntry, NotADirectory, NotPermitted, StaleEntry, ZarrfsError
from zarrfs.fuse.handles import OpenDirectory, OpenFile
from zarrfs.fuse.idle_listings import IdleListings
from zarrfs.fuse.inode import NAMELESS, NOW, Inode
from zarrfs.fuse.inodes import InodeTable
from zarrfs.fuse.kernel_cache import KernelCache
from zarrfs.fuse.notice_queue import PATIENCE
from zarrfs.fuse.notifier import MOMENT, Notifier
from zarrfs.fuse.past_the_end import PastTheEnd
from zarrfs.fuse.reads import IsAbandoned, Reads
from zarrfs.fuse.stamps import stamp_of
from zarrfs.fuse.unheard import IsMapped, OnLost, Unheard
from zarrfs.in_flight import InFlight
from zarrfs.vfs.node import Attributes, Directory, File, Handle, VfsNode

# The kernel has the folder locked during a lookup.
_RELEASE_PATIENCE = 0.1
_STALE_KEPT = 256

FreeSpace = Callable[[], Awaitable[tuple[int, int] | None]]


async def _nothing_is_left() -> None:
    pass


class Session:
    """Kernel state of one mount. Its methods raise `TreeError`, and KeyError for an unknown number.

    ``hidden``: folders that are found in the root but not listed. ``timeout``: seconds that the kernel may keep names and attributes;
    longer while ``is_watched()`` returns True, as every change is reported (`KernelCache`). ``changes_reported()`` waits until all
    changes so far are reported to `kernel_cache`. ``on_error(where, error)`` is called with every error that a user may want to look up
    later. ``patience`` and ``is_abandoned``: see `Reads`; ``on_lost`` and ``is_mapped``: see `zarrfs.fuse.unheard`.
    """

    def __init__(
        self,
        root: Directory,
        notifier: Notifier,
        *,
        hidden: Mapping[str, Directory] | None = None,
        timeout: float,
        is_watched: Callable[[], bool] = lambda: False,
        changes_reported: Callable[[], Awaitable[None]] = _nothing_is_left,
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
        self.kernel_cache = KernelCache(self.inodes, notifier, timeout=timeout, is_watched=is_watched)
        self.reads = Reads(patience, is_abandoned)
        self.unheard = Unheard(on_lost, is_mapped)
        self.past_the_end = PastTheEnd(notifier, self.unheard)
        self.writable = writable
        self.free_space = free_space
        self.files: dict[int, OpenFile] = {}
        self.directories: dict[int, OpenDirectory] = {}
        self.idle_listings = IdleListings()
        self.read_requests = 0
        """Number of READ requests so far."""
        self._hidden = dict(hidden or {})
        self._changes_reported = changes_reported
        self._on_error = on_error
        self._held: dict[int, int] = {}
        self._stale: dict[int, tuple[str, int]] = {}
        self._releasing: dict[OpenFile, trio.Event] = {}
        self._last_handle = 0

    @property
    def in_use(self) -> bool:
        """True if a file or folder is open, or a last RELEASE is in progress."""
        return bool(self.open_handles or self.directories)

    @property
    def open_handles(self) -> int:
        """Number of files that are open, or whose last RELEASE is in progress."""
        return len(self.files) + len(self._releasing)

    def path_of_inode(self, ino: int) -> str:
        """Return the path of an inode in the mount; empty for an unknown number."""
        try:
            return self.inodes[ino].path
        except KeyError:
            return ""

    def path_of_handle(self, number: int, *, directory: bool) -> str:
        """Return the path in the mount of a handle; empty for an unknown number."""
        open_file = (self.directories if directory else self.files).get(number)
        return open_file.inode.path if open_file is not None else ""

    # --- nodes --------------------------------------------------------------------------------------------------------------

    async def lookup(self, parent: Inode, name: str) -> tuple[VfsNode, Attributes]:
        """Return the node ``name`` in ``parent``, and its attributes."""
        await self._released(parent, name)
        if parent is self.inodes.root and name in self._hidden:
            return self._hidden[name], await self._hidden[name].attributes()
        return await (await self.directory(parent)).lookup_with_attributes(name)

    async def child(self, parent: Inode, name: str) -> VfsNode:
        """Return the node ``name`` in ``parent``."""
        if parent is self.inodes.root and name in self._hidden:
            return self._hidden[name]
        return await (await self.directory(parent)).lookup(name)

    def require_listed(self, parent: Inode, name: str) -> None:
        """Raise `NotPermitted` for a folder that is found and not listed: nothing else can have its name."""
        if parent is self.inodes.root and name in self._hidden:
            raise NotPermitted(f"{name!r} cannot be renamed, removed or replaced", key=name)

    async def existing_file(self, parent: Inode, name: str, error: EntryExists) -> File:
        """Return the file ``name``, whose creation failed with ``error``; raises that if what has the name is not shown."""
        try:
            node = await self.child(parent, name)
        except NoSuchEntry:
            raise error from None
        if not isinstance(node, File):
            raise IsADirectory(f"{name!r}: is a folder", key=name) from None
        return node

    async def node(self, inode: Inode) -> VfsNode:
        """Return the node of ``inode``. Raises `StaleEntry` if its folder was replaced by another one."""
        # Folders check that themselves.
        if not inode.is_folder and inode.parent is not None and inode.parent.is_outdated:
            raise StaleEntry(f"{inode.path!r}: its folder was moved, replaced or erased", key=inode.path)
        while (found := inode.node) is None:
            if inode.parent is None:
                raise NoSuchEntry("the root is gone")
            since_ns = time.monotonic_ns()
            try:
                if inode.stamp:
                    node = await (await self.directory(inode.parent)).listed_file(inode.name)
                else:
                    node = await self.child(inode.parent, inode.name)
            except NoSuchEntry:
                if inode.nameless or not inode.has_moved(since_ns):
                    raise
                continue
            if inode.has_moved(since_ns):
                # What was found at its old name may be another node.
                continue
            if inode.is_folder not in (None, isinstance(node, Directory)):
                # The kernel looks the name up again, and gets another inode.
                raise StaleEntry(f"{inode.path!r}: replaced by {'a file' if inode.is_folder else 'a folder'}", key=inode.path)
            self.inodes.attach(inode, node)
            return node
        return found

    async def directory(self, inode: Inode) -> Directory:
        """Return `node`, which must be a folder. Raises `StaleEntry` if it is gone, even if its name is in use."""
        if inode.is_lost:
            path = inode.path.replace(NAMELESS, "")
            raise StaleEntry(f"{path!r}: folder is gone", key=path)
        node = await self.node(inode)
        if not isinstance(node, Directory):
            raise NotADirectory(f"{inode.path!r}: is a file", key=inode.path)
        return node

    async def file(self, inode: Inode) -> File:
        """Return `node`, which must be a file."""
        node = await self.node(inode)
        if not isinstance(node, File):
            raise IsADirectory(f"{inode.path!r}: is a folder", key=inode.path)
        return node

    async def to_change(self, inode: Inode) -> VfsNode:
        """Return `node` for a change that the kernel makes without a handle. Raises `StaleEntry` for a file whose name is another's."""
        return await (self.file_to_change(inode) if inode.is_folder is False else self.node(inode))

    async def file_to_change(self, inode: Inode) -> File:
        """Return `file`, whose name is not changing at that moment. Raises `StaleEntry` if it is another's, or none.

        An open or a change of the file then acquires it before anything else happens: it does not concern the file that took its name.
        """
        while not inode.nameless:
            try:
                file = await self.file(inode)
            except NoSuchEntry as error:
                raise StaleEntry(f"{inode.path!r}: is gone", key=inode.path) from error
            if not await file.until_moved() and not inode.nameless:
                self.part_from_another(inode, file.of)
                return file
        raise StaleEntry(f"{inode.path!r}: was replaced", key=inode.path)

    async def attributes(self, inode: Inode) -> Attributes:
        """Return the attributes of ``inode``, as through an open handle if there is one."""
        while True:
            open_file, since_ns = self.open_file(inode), time.monotonic_ns()
            try:
                attributes = await (open_file.handle if open_file is not None else await self.node(inode)).attributes()
            except NoSuchEntry:
                if inode.nameless or not inode.has_moved(since_ns):
                    raise
                # It was looked for at its old path.
                continue
            # Else it was opened meanwhile, perhaps with another value.
            if self.open_file(inode) in (open_file, None):
                return attributes

    def refer(self, parent: Inode, name: str, node: VfsNode, attributes: Attributes | None = None, since_ns: int = NOW) -> Inode:
        """Return the inode of ``node``, with a reference by the kernel, which gets these ``attributes``, requested at ``since_ns``."""
        stamp = stamp_of(attributes) if attributes is not None else 0
        inode = self.inodes.refer(parent, name, is_folder=isinstance(node, Directory), stamp=stamp, since_ns=since_ns)
        if inode.open_handles and isinstance(node, File):
            inode = self._parted(inode, parent, name, node.of, stamp)
        self.inodes.attach(inode, node, since_ns)
        inode.size = attributes.size if attributes is not None else -1
        return inode

    def refer_created(self, parent: Inode, name: str, file: File, handle: Handle, since_ns: int) -> Inode:
        """Return `refer` for a file that was created, or opened instead of created."""
        self.kernel_cache.names_changed(parent)
        inode = self._parted(self.inodes.refer(parent, name, is_folder=False), parent, name, handle.of)
        self.inodes.attach(inode, file, since_ns)
        return inode

    def _parted(self, inode: Inode, parent: Inode, name: str, of: object, stamp: int = 0) -> Inode:
        """Return ``inode``, referred to by the kernel, or a new one if it is open with another file of its name."""
        if not self.is_another_file(inode, of):
            return inode
        # The pages and the size of the previous file are not those of this one.
        inode.lookups -= 1
        self.inodes.displaced(inode)
        return self.inodes.refer(parent, name, is_folder=False, stamp=stamp)

    def is_another_file(self, inode: Inode, of: object) -> bool:
        """Return True if ``inode`` is open with a file of another `Handle.of`, with which the file would share the kernel's pages."""
        open_file = self.open_file(inode)
        return open_file is not None and open_file.handle.of is not of

    def part_from_another(self, inode: Inode, of: object) -> None:
        """Raise `StaleEntry` if ``inode`` is open with another file than ``of``, which the kernel then finds under another number."""
        if self.is_another_file(inode, of):
            self.inodes.displaced(inode)
            raise StaleEntry(f"{inode.path!r}: was replaced", key=inode.path)

    def vanished(self, parent: Inode, name: str) -> None:
        """Record the removal of a name."""
        if (inode := self.inodes.find(below(parent, name))) is not None:
            self.inodes.vanished(inode)

    def unlist(self, parent: Inode, name: str, *others: Inode) -> None:
        """Omit a removed name from the rest of listings in progress: the kernel would take it for a new one.

        ``others``: folders that the same request has changed.
        """
        self.kernel_cache.names_changed(parent, *others)
        for listing in self.directories.values():
            if listing.inode is parent:
                listing.removed.add(name)

    # --- handles ------------------------------------------------------------------------------------------------------------

    def open_file(self, inode: Inode) -> OpenFile | None:
        """Return one of the files open on ``inode``, an outdated one only if all are."""
        if not inode.open_handles:
            return None
        found: OpenFile | None = None
        for open_file in self.files.values():
            if open_file.inode is inode:
                if not open_file.handle.is_outdated:
                    return open_file
                found = found or open_file
        return found

    def add_file(
        self, inode: Inode, handle: Handle, opener: int = 0, *, writes: bool = False, appends: bool = False, direct: bool = False
    ) -> int:
        """Register an open ``handle``, as `OpenFile`, and return its number."""
        number = self._new_handle()
        self.files[number] = OpenFile(inode, handle, opener, writes=writes, appends=appends, direct=direct)
        self.inodes.add_open(inode)
        return number

    async def add_directory(self, inode: Inode) -> int:
        """Start a listing of a folder and return the number of its handle."""
        directory = await self.directory(inode)
        if directory.is_outdated:
            # At this point the kernel looks it up again; at readdir it would not.
            raise StaleEntry(f"{inode.path!r}: folder was moved, replaced or erased", key=inode.path)
        await self._released(inode)
        number = self._new_handle()
        self.directories[number] = OpenDirectory(inode, directory.entries(), self.kernel_cache.epoch)
        self.inodes.add_open(inode)
        return number

    async def release_file(self, number: int) -> None:
        """Release a file that the kernel has closed."""
        open_file = self.files.pop(number)
        released = self._releasing[open_file] = trio.Event()
        self.unheard.closed(open_file, self.files.values())
        try:
            with open_file.changing():
                await open_file.handle.release()
        finally:
            del self._releasing[open_file]
            released.set()
            self.inodes.closed(open_file.inode)

    async def _released(self, parent: Inode, name: str | None = None) -> None:
        """Wait, for a moment at most, for earlier RELEASEs of a file of this name; without one, of any file in the folder.

        A file that was refused at close(2) must not be found by its program afterwards.
        """
        releasing = [
            released
            for file, released in self._releasing.items()
            if file.inode.parent is parent and name in (None, file.inode.name)
        ]
        if not releasing:
            return
        with trio.move_on_after(_RELEASE_PATIENCE):
            for released in releasing:
                await released.wait()

    async def release_directory(self, number: int) -> None:
        """Release a folder that the kernel has closed."""
        listing = self.directories.pop(number)
        self.idle_listings.end(listing)
        self.inodes.closed(listing.inode)
        await listing.restart(None)

    def hold(self, inode: Inode, handle: Handle) -> None:
        """Hold open a file created by mknod(2), until it is opened for writing, or removed (`let_go`)."""
        self._held[inode.ino] = self.add_file(inode, handle)

    async def let_go(self, inode: Inode | None) -> None:
        """Close the handle that `hold` keeps of ``inode``, if any."""
        number = self._held.pop(inode.ino, None) if inode is not None else None
        if number is not None:
            await self.release_file(number)

    def _new_handle(self) -> int:
        self._last_handle += 1
        return self._last_handle

    # --- changes ------------------------------------------------------------------------------------------------------------

    async def flush_notices(self, *, has_locked: bool = False) -> None:
        """Wait until the kernel has taken the notices of all changes so far, or `PATIENCE` is over.

        The caller holds no lock that a handler may need. ``has_locked``: see `Notifier.drained`.
        """
        with trio.move_on_after(PATIENCE):
            await self._changes_reported()
        await self.notifier.drained(has_locked=has_locked)

    async def drain_names(self, *known: Inode | None) -> None:
        """Wait, for a moment at most, until the kernel has taken the notices so far, except those in folders it has locked.

        Through a stale name a program would change the wrong file. Notices of the files ``known``, whose names the request changes, need
        no wait: their content is as before, and an open of one waits by itself (`Inode.doubtful`).
        """
        with trio.move_on_after(MOMENT):
            await self._changes_reported()
            if not self.notifier.is_only_of(numbers_of(*known)):
                await self.notifier.drained()

    async def doubt_name(self, inode: Inode) -> None:
        """Invalidate the name of an inode: a new file that was refused loses it at its release."""
        if inode.parent is not None and not inode.nameless:
            self.notifier.entry(inode.parent.ino, inode.name)
            with trio.move_on_after(MOMENT):
                await self.notifier.drained()

    async def end_of(self, inode: Inode) -> int:
        """Return the larger of a file's size and the kernel's idea of it: all before that is data."""
        try:
            return max(inode.size, (await self.attributes(inode)).size)
        except ZarrfsError:
            return max(inode.size, 0)

    def forget_pages_if_superseded(self, open_file: OpenFile) -> None:
        """Invalidate the pages of a superseded file after a publish: the bytes become part of the present value, only which is right."""
        if open_file.written and open_file.inode.nameless:
            self.notifier.inode(open_file.inode.ino)

    async def forget_attributes(self, inode: Inode) -> None:
        """Make the kernel request the attributes again before it reads, and drop older answers. The caller holds no lock."""
        self.notifier.inode(inode.ino, attributes_only=True)
        await self.notifier.drained()
        inode.doubtful = False

    def stale(self, caller: int, path: str, nameless: int = 0) -> None:
        """Record ESTALE for a request of a thread about ``path``: what it opens there next may be the kernel's second attempt.

        ``nameless``: number of the inode, if it has lost its name."""
        self._stale.pop(caller, None)
        self._stale[caller] = path.replace(NAMELESS, ""), nameless
        if len(self._stale) > _STALE_KEPT:
            del self._stale[next(iter(self._stale))]

    def looked_up(self, caller: int) -> None:
        """Record that a thread has looked up a name: its second attempt is by name."""
        if self._stale and caller in self._stale:
            self._stale[caller] = self._stale[caller][0], 0

    def stale_twice(self, opener: int, inode: Inode) -> bool:
        """Record ESTALE for an open of ``inode`` by a thread; return True if its last such error was of this name, or a folder of it.

        (The kernel attempts open(2) twice: the first attempt may have ended at the lookup of a name on the way.) Raises `NoSuchEntry`
        for a file without a name that is opened through /proc/PID/fd, where no second lookup precedes the second attempt.
        """
        path = inode.path.replace(NAMELESS, "")
        before, nameless = self._stale.pop(opener, (None, 0))
        if nameless == inode.ino:
            raise NoSuchEntry(f"{path!r}: was removed or replaced", key=path)
        if before is not None and (path == before or path.startswith(f"{before}/")):
            return True
        self.stale(opener, path, inode.ino if inode.nameless else 0)
        return False

    def not_stale(self, opener: int) -> None:
        """Record that an open by a thread succeeded: an earlier ESTALE concerned another call of open(2), or was repeated."""
        if self._stale:
            self._stale.pop(opener, None)

    def report(self, where: str, error: BaseException) -> None:
        """Record an error that a user may want to look up later; ``where`` is the handler's name."""
        if self._on_error is not None:
            self._on_error(where, error)


def below(parent: Inode, name: str) -> str:
    """Return the path of an entry of a folder."""
    folder = parent.path
    return f"{folder}/{name}" if folder else name


def numbers_of(*inodes: Inode | None) -> list[int]:
    """Return the numbers of those that exist."""
    return [each.ino for each in inodes if each is not None]
