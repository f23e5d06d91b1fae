"""Kernel requests, translated into calls on the tree.

Every handler is wrapped by `_guarded`: an error of our tree becomes its errno, anything else EIO with a traceback in the log; no
exception ever reaches pyfuse3, which would end the mount for everyone. Handlers hold no lock across an await; what is between two
awaits happens at once.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3
import trio

from zarrfs.errors import (
    EntryExists,
    IsADirectory,
    NameTooLong,
    NoSuchEntry,
    NotADirectory,
    OperationUnsupported,
    StaleEntry,
    ZarrfsError,
)
from zarrfs.fuse.errno import QUIET, errno_of
from zarrfs.fuse.inodes import Inode, InodeTable, same_size, stamp_of
from zarrfs.fuse.notifier import Notifier
from zarrfs.vfs.names import MAX_NBYTES
from zarrfs.vfs.node import Attributes, Buffer, Directory, Entry, File, Handle, Node, OpenFlags

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_BLOCK = 512
FreeSpace = Callable[[], Awaitable[tuple[int, int] | None]]


def _guarded(
    handler: Callable[Concatenate[Operations, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Operations, P], Coroutine[Any, Any, R]]:
    name = handler.__name__

    async def guarded(self: Operations, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await handler(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except ZarrfsError as error:
            number = errno_of(error)
            if number not in QUIET:
                log.warning("%s: %s (%s)", name, error, errno.errorcode[number])
                self._report(name, error)
            raise pyfuse3.FUSEError(number) from error
        except Exception as error:
            log.exception("%s failed in a way that zarrfs does not know", name)
            self._report(name, error)
            raise pyfuse3.FUSEError(errno.EIO) from error

    functools.update_wrapper(guarded, handler)
    return guarded


class _OpenFile:
    __slots__ = ("handle", "inode", "written")

    def __init__(self, inode: Inode, handle: Handle) -> None:
        self.inode = inode
        self.handle = handle
        self.written = False


class _OpenDirectory:
    """A listing under way. Entries that were read from the tree are kept, since the kernel may ask for any position again; so is the
    error that ended it, which must not be taken for its end."""

    __slots__ = ("entries", "error", "inode", "iterator", "listed")

    def __init__(self, inode: Inode, iterator: AsyncIterator[Entry]) -> None:
        self.inode = inode
        self.iterator: AsyncIterator[Entry] | None = iterator
        self.entries: list[Entry] = []
        self.error: Exception | None = None
        self.listed = False

    async def entry(self, position: int) -> Entry | None:
        """The entry at ``position``; None behind the last."""
        while position >= len(self.entries):
            if self.error is not None:
                raise self.error
            if self.iterator is None:
                return None
            try:
                entry = await anext(self.iterator, None)
            except Exception as error:
                self.error = error
                raise
            if entry is None:
                self.iterator = None
                return None
            self.entries.append(entry)
        return self.entries[position]

    async def restart(self, iterator: AsyncIterator[Entry] | None) -> None:
        """Begin anew with ``iterator``, or end."""
        before, self.iterator, self.error = self.iterator, iterator, None
        self.entries.clear()
        if isinstance(before, AsyncGenerator):
            await before.aclose()


class Operations(pyfuse3.Operations):
    """The handlers for one mount.

    ``hidden``: folders that are looked up in the root but not listed. ``timeout``: seconds that the kernel may keep names and
    attributes. ``report(where, error)`` is told of every error that a user may want to look up later.
    """

    supports_dot_lookup = False
    # With it the kernel owns sizes, and readers of a value that shrank got invented zeros (docs/design/004-kernel.md).
    enable_writeback_cache = False

    def __init__(
        self,
        root: Directory,
        notifier: Notifier,
        *,
        hidden: Mapping[str, Directory] | None = None,
        timeout: float,
        writable: bool,
        free_space: FreeSpace,
        report: Callable[[str, BaseException], None] | None = None,
    ) -> None:
        super().__init__()
        self.inodes = InodeTable(root)
        self.notifier = notifier
        self._hidden = dict(hidden or {})
        self._timeout = timeout
        self._writable = writable
        self._free_space = free_space
        self._on_error = report
        self._files: dict[int, _OpenFile] = {}
        self._directories: dict[int, _OpenDirectory] = {}
        self._releasing = 0
        self._next_handle = 1
        self._mounted_ns = time.time_ns()
        self._uid, self._gid = os.getuid(), os.getgid()

    @property
    def open_handles(self) -> int:
        """Files that are open, or whose last RELEASE is still at work."""
        return len(self._files) + self._releasing

    # --- names --------------------------------------------------------------------------------------------------------------

    @_guarded
    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        parent, text = self.inodes[parent_inode], _text(name)
        return await self._referred(parent, text, await self._child(parent, text))

    async def forget(self, inode_list: Sequence[tuple[pyfuse3.InodeT, int]]) -> None:
        # Not guarded: FORGET has no answer, and not even a FUSEError may leave. `InodeTable.forget` raises nothing.
        for ino, count in inode_list:
            self.inodes.forget(ino, count)

    @_guarded
    async def getattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        entry = self.inodes[inode]
        attributes = await self._attributes(entry)
        entry.stamp = stamp_of(attributes)
        return self._entry(entry.ino, attributes)

    @_guarded
    async def setattr(
        self,
        inode: pyfuse3.InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: pyfuse3.FileHandleT | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        entry = self.inodes[inode]
        opened = self._files.get(fh) if fh is not None else None
        if fields.update_size:
            if opened is not None:
                await opened.handle.truncate(attr.st_size)
            else:
                await (await self._file(entry)).truncate(attr.st_size)
                await self.notifier.drained()
        if fields.update_mtime:
            # futimens(3) comes without a handle; an open file may have lost its name to another one.
            opened = opened or self._open_file(entry)
            await (opened.handle if opened is not None else await self._node(entry)).set_mtime(attr.st_mtime_ns)
        # Owner and mode are the mount's, not a value's: cp -a, rsync and tar set them, and need no error.
        attributes = await opened.handle.attributes() if opened is not None else await self._attributes(entry)
        entry.stamp = stamp_of(attributes)
        return self._entry(entry.ino, attributes)

    @_guarded
    async def mkdir(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, mode: pyfuse3.ModeT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        parent, text = self.inodes[parent_inode], _text(name)
        return await self._referred(parent, text, await (await self._directory(parent)).mkdir(text))

    @_guarded
    async def unlink(self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext) -> None:
        parent, text = self.inodes[parent_inode], _text(name)
        await (await self._directory(parent)).unlink(text)
        self._vanished(parent, text)

    @_guarded
    async def rmdir(self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext) -> None:
        parent, text = self.inodes[parent_inode], _text(name)
        await (await self._directory(parent)).rmdir(text)
        self._vanished(parent, text)

    @_guarded
    async def rename(
        self,
        parent_inode_old: pyfuse3.InodeT,
        name_old: pyfuse3.FileNameT,
        parent_inode_new: pyfuse3.InodeT,
        name_new: pyfuse3.FileNameT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        if flags not in (0, pyfuse3.RENAME_NOREPLACE):
            raise pyfuse3.FUSEError(errno.EINVAL)
        old_parent, new_parent = self.inodes[parent_inode_old], self.inodes[parent_inode_new]
        old, new = _text(name_old), _text(name_new)
        await (await self._directory(old_parent)).rename(
            old, await self._directory(new_parent), new, replace=flags != pyfuse3.RENAME_NOREPLACE
        )
        moved = self.inodes.find(_below(old_parent, old))
        self._vanished(new_parent, new)
        if moved is not None:
            self.inodes.move(moved, new_parent, new)

    @_guarded
    async def link(
        self,
        inode: pyfuse3.InodeT,
        new_parent_inode: pyfuse3.InodeT,
        new_name: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        parent, text = self.inodes[new_parent_inode], _text(new_name)
        file = await self._file(self.inodes[inode])
        return await self._referred(parent, text, await (await self._directory(parent)).link(file, text))

    @_guarded
    async def symlink(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        target: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        raise OperationUnsupported("a store holds no symbolic links")

    @_guarded
    async def mknod(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        rdev: int,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        raise OperationUnsupported("a store holds no device nodes, sockets or pipes")

    # --- folders ------------------------------------------------------------------------------------------------------------

    @_guarded
    async def opendir(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileHandleT:
        entry = self.inodes[inode]
        directory = await self._directory(entry)
        number = self._new_handle()
        self._directories[number] = _OpenDirectory(entry, directory.entries())
        self.inodes.opened(entry)
        return pyfuse3.FileHandleT(number)

    @_guarded
    async def readdir(self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        listing = self._directories[fh]
        if start_id == 0 and listing.listed:
            # rewinddir(3): POSIX wants what is there now.
            await listing.restart((await self._directory(listing.inode)).entries())
        listing.listed = True
        folder = listing.inode.path
        position = start_id
        while True:
            try:
                entry = await listing.entry(position)
            except Exception:
                if position > start_id:
                    # The kernel gets what there is, and asks again: an error now would leave it with references it knows nothing of.
                    return
                raise
            if entry is None:
                return
            name, is_directory, size, mtime_ns, writable = entry
            attributes = Attributes(is_directory, size, mtime_ns, writable)
            path = f"{folder}/{name}" if folder else name
            stamp = stamp_of(attributes)
            # The reference is the kernel's only if the entry fits: it is taken back when it does not.
            ino = self.inodes.listed(listing.inode, name, path=path, stamp=stamp)
            position += 1
            if not pyfuse3.readdir_reply(token, _bytes(name), self._entry(ino, attributes), position):
                self.inodes.forget(ino, 1)
                return

    @_guarded
    async def releasedir(self, fh: pyfuse3.FileHandleT) -> None:
        listing = self._directories.pop(fh)
        self.inodes.closed(listing.inode)
        await listing.restart(None)

    @_guarded
    async def fsyncdir(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        await (await self._directory(self._directories[fh].inode)).sync()

    # --- files --------------------------------------------------------------------------------------------------------------

    @_guarded
    async def open(self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        entry = self.inodes[inode]
        how = _open_flags(flags)
        # ESTALE has the kernel look the name up again: it finds another file, or nothing, which it may then create.
        if entry.nameless:
            raise StaleEntry(f"{entry.path!r} was replaced", key=entry.path)
        try:
            handle = await (await self._file(entry)).open(how)
        except NoSuchEntry as error:
            raise StaleEntry(f"{entry.path!r} is gone", key=entry.path) from error
        if how.truncate:
            entry.stamp = 0
            return self._opened(entry, handle, keep_cache=False)
        try:
            stamp = entry.stamp if handle.direct else stamp_of(await handle.attributes())
            if entry.nameless or (entry.stamp and not _is_what_was_told(handle, entry.stamp, stamp)):
                # The value was replaced since the kernel learnt its size.
                entry.stamp = -1
                raise StaleEntry(f"{entry.path!r} was replaced", key=entry.path)
        except BaseException:
            with trio.CancelScope(shield=True):
                await handle.release()
            raise
        # If it is not known which value the kernel was told of it may not have heard of a change yet, and its pages have to go. From now
        # on they are of this value, and whoever finds another one opens another file.
        known, entry.stamp = bool(entry.stamp), stamp
        return self._opened(entry, handle, keep_cache=handle.keep_cache and known)

    @_guarded
    async def create(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        parent, text = self.inodes[parent_inode], _text(name)
        how = _open_flags(flags)
        try:
            file, handle = await (await self._directory(parent)).create(text, how)
        except EntryExists:
            if flags & os.O_EXCL:
                raise
            node = await self._child(parent, text)
            if not isinstance(node, File):
                raise IsADirectory(f"{text!r} is a folder", key=text) from None
            file, handle = node, await node.open(how)
        entry = self.inodes.refer(parent, text)
        entry.node = file
        return self._opened(entry, handle, keep_cache=False), self._entry(entry.ino, await handle.attributes())

    @_guarded
    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> Buffer:  # type: ignore[override]
        return await self._files[fh].handle.read(off, size)

    @_guarded
    async def write(self, fh: pyfuse3.FileHandleT, off: int, buf: bytes) -> int:
        opened = self._files[fh]
        opened.inode.stamp = 0
        opened.written = True
        return await opened.handle.write(off, buf)

    @_guarded
    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        if not self._writable:
            # The kernel takes this for "never ask again", and close(2) for success: a request less for each file that is read.
            raise pyfuse3.FUSEError(errno.ENOSYS)
        opened = self._files[fh]
        await opened.handle.flush()
        self._forget_pages_if_superseded(opened)
        await self.notifier.drained()

    @_guarded
    async def fsync(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        opened = self._files[fh]
        await opened.handle.fsync()
        self._forget_pages_if_superseded(opened)
        await self.notifier.drained()

    @_guarded
    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        opened = self._files.pop(fh)
        self._releasing += 1
        try:
            await opened.handle.release()
        finally:
            self._releasing -= 1
            self.inodes.closed(opened.inode)

    # --- the file system ----------------------------------------------------------------------------------------------------

    @_guarded
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        space = await self._free_space()
        # Where nobody knows, as much as a program may want.
        total, free = space if space is not None else (2**50, 2**50)
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = 4096
        data.f_blocks, data.f_bfree = total // 4096, free // 4096
        data.f_bavail = data.f_bfree
        data.f_files = data.f_ffree = data.f_favail = 2**40
        data.f_namemax = MAX_NBYTES
        return data

    @_guarded
    async def access(self, inode: pyfuse3.InodeT, mode: pyfuse3.ModeT, ctx: pyfuse3.RequestContext) -> bool:
        if not mode & os.W_OK:
            return True
        return self._writable and (await self._attributes(self.inodes[inode])).writable

    # --- change -------------------------------------------------------------------------------------------------------------

    def changed(self, entries: Iterable[tuple[str, bool, bool, bool]]) -> None:
        """Entries (path, may have lost its name, known, superseded) are different now: the kernel is told what it has to forget.

        ``known``: it was written through this very file, so its pages are right and only its attributes are not. ``superseded``:
        whoever has it open keeps the old value, whose pages stay with this inode; the name is another file's from now on.
        """
        for path, gone, known, superseded in entries:
            inode = self.inodes.find(path)
            if inode is None:
                continue
            inode.stamp = 0
            if (gone or superseded) and inode.parent is not None:
                self.notifier.entry(inode.parent.ino, inode.name)
            if superseded:
                self.inodes.vanished(inode)
            elif inode.node is None or isinstance(inode.node, File):
                self.notifier.inode(inode.ino, attributes_only=known)

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _forget_pages_if_superseded(self, opened: _OpenFile) -> None:
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
                inode.node = await (await self._directory(inode.parent)).listed_file(inode.name)
            else:
                inode.node = await self._child(inode.parent, inode.name)
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

    def _open_file(self, inode: Inode) -> _OpenFile | None:
        """One of the files open on it."""
        if not inode.open_handles:
            return None
        return next((opened for opened in self._files.values() if opened.inode is inode), None)

    async def _referred(self, parent: Inode, name: str, node: Node) -> pyfuse3.EntryAttributes:
        attributes = await node.attributes()
        inode = self.inodes.refer(parent, name, stamp=stamp_of(attributes))
        inode.node = node
        return self._entry(inode.ino, attributes)

    def _opened(self, inode: Inode, handle: Handle, *, keep_cache: bool) -> pyfuse3.FileInfo:
        number = self._new_handle()
        self._files[number] = _OpenFile(inode, handle)
        self.inodes.opened(inode)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(number), direct_io=handle.direct, keep_cache=keep_cache)

    def _new_handle(self) -> int:
        self._next_handle += 1
        return self._next_handle

    def _vanished(self, parent: Inode, name: str) -> None:
        inode = self.inodes.find(_below(parent, name))
        if inode is not None:
            self.inodes.vanished(inode)

    def _entry(self, ino: int, attributes: Attributes) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(ino)
        writable = self._writable and attributes.writable
        if attributes.is_directory:
            entry.st_mode = pyfuse3.ModeT(stat.S_IFDIR | (0o755 if writable else 0o555))
        else:
            entry.st_mode = pyfuse3.ModeT(stat.S_IFREG | (0o644 if writable else 0o444))
            # st_size is a signed 64-bit number: an array may be larger.
            entry.st_size = min(attributes.size, 2**63 - 1)
            entry.st_blocks = min(-(-attributes.size // _BLOCK), 2**63 - 1)
        entry.st_nlink = attributes.nlink
        entry.st_uid, entry.st_gid = self._uid, self._gid
        mtime_ns = attributes.mtime_ns if attributes.mtime_ns is not None else self._mounted_ns
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = mtime_ns
        entry.st_blksize = 4096
        entry.entry_timeout = entry.attr_timeout = self._timeout
        return entry

    def _report(self, where: str, error: BaseException) -> None:
        if self._on_error is not None:
            self._on_error(where, error)


def _is_what_was_told(handle: Handle, told: int, stamp: int) -> bool:
    # Where the kernel keeps no pages another time does no harm, and that of a whole array may change all the time.
    return stamp == told or (not handle.keep_cache and same_size(stamp, told))


def _open_flags(flags: int) -> OpenFlags:
    mode = flags & os.O_ACCMODE
    return OpenFlags(read=mode != os.O_WRONLY, write=mode != os.O_RDONLY, truncate=bool(flags & os.O_TRUNC))


def _below(parent: Inode, name: str) -> str:
    folder = parent.path
    return f"{folder}/{name}" if folder else name


def _text(name: bytes) -> str:
    if len(name) > MAX_NBYTES:
        # The kernel asks for names up to 1024 bytes; statfs(2) says 255, and longer parts of keys have other names.
        raise NameTooLong(f"a name has at most {MAX_NBYTES} bytes, not {len(name)}", key=os.fsdecode(name))
    return os.fsdecode(name)


def _bytes(name: str) -> pyfuse3.FileNameT:
    return pyfuse3.FileNameT(os.fsencode(name))
