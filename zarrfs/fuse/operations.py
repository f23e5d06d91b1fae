"""Kernel requests, translated into calls on the tree.

Every handler is `guarded`: only an errno ever reaches pyfuse3; another exception would end the mount for everyone. Handlers hold no lock
across an await; code between two awaits is atomic.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Sequence

import pyfuse3
import trio

from zarrfs.buffers import Buffer
from zarrfs.errors import CaseConflict, EntryExists, IsADirectory, NoSuchEntry, OperationUnsupported, StaleEntry, ZarrfsError
from zarrfs.fuse.guard import guarded
from zarrfs.fuse.handles import released_on_error
from zarrfs.fuse.inode import Inode
from zarrfs.fuse.listings import Listings
from zarrfs.fuse.session import Session, below, numbers_of
from zarrfs.fuse.stamps import matches_kernel, stamp_of
from zarrfs.fuse.translation import Attributor, Ownership, open_flags, statvfs, text_of
from zarrfs.fuse.xattrs import Xattrs
from zarrfs.vfs.node import File, Handle, OpenFlags, VfsNode
from zarrfs.vfs.temporary import TemporaryFile

_FORGOTTEN_AT_ONCE = 2000


class Operations(pyfuse3.Operations):
    """The handlers for one mount. ``ownership``: by default that of this process; ``xattrs``: see `Xattrs`."""

    supports_dot_lookup = False
    # With it the kernel owns sizes, and readers of a value that shrank got invented zeros (docs/design/004-kernel.md).
    enable_writeback_cache = False

    def __init__(self, session: Session, *, ownership: Ownership | None = None, xattrs: bool = True) -> None:
        super().__init__()
        self.session = session
        self.inodes = session.inodes
        self.requests = session.requests
        self.report = session.report
        self.xattrs = Xattrs(session, xattrs)
        self._attributor = Attributor(session.kernel_cache, ownership or Ownership.of_this_process(), writable=session.writable)
        self._listings = Listings(session, self._attributor)

    # --- names --------------------------------------------------------------------------------------------------------------

    @guarded
    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        parent, text = self.inodes[parent_inode], text_of(name)
        epoch, since_ns = self.session.kernel_cache.epoch, time.monotonic_ns()
        try:
            node, attributes = await self.session.lookup(parent, text)
        except StaleEntry:
            self.session.stale(ctx.pid, below(parent, text))
            raise
        self.session.looked_up(ctx.pid if ctx else 0)
        entry = self.session.refer(parent, text, node, attributes, since_ns)
        return self._attributor.entry(entry.ino, attributes, epoch, entry.path, settled=bool(entry.stamp))

    async def forget(self, inode_list: Sequence[tuple[pyfuse3.InodeT, int]]) -> None:
        # Not guarded: FORGET has no answer, not even an error. `InodeTable.forget` raises none. One request may contain 65,000 inodes.
        for index, (ino, count) in enumerate(inode_list, 1):
            self.inodes.forget(ino, count)
            if not index % _FORGOTTEN_AT_ONCE:
                await trio.lowlevel.checkpoint()

    @guarded
    async def getattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        entry, epoch, since_ns = self.inodes[inode], self.session.kernel_cache.epoch, time.monotonic_ns()
        entry.expired = False  # Changes from here on may not be in the answer.
        attributes = await self.session.attributes(entry)
        entry.replied(entry.settled(stamp_of(attributes), since_ns))
        entry.size = attributes.size
        return self._attributor.entry(entry.ino, attributes, epoch, entry.path, settled=bool(entry.stamp))

    @guarded
    async def setattr(
        self,
        inode: pyfuse3.InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: pyfuse3.FileHandleT | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        entry = self.inodes[inode]
        open_file = self.session.files.get(fh) if fh is not None else None
        if fields.update_size:
            size = await self.session.end_of(entry) if attr.st_size else 0
            # By path: the caller has no handle.
            with self.session.reads.changing(entry, open_file.opener if open_file is not None else ctx.pid if ctx else 0):
                if open_file is not None:
                    await open_file.handle.truncate(attr.st_size)
                else:
                    await (await self.session.file_to_change(entry)).truncate(attr.st_size)
            await self.session.past_the_end.grown(entry, size, attr.st_size)
            if open_file is None:
                await self.session.flush_notices(has_locked=True)
        if fields.update_mtime:
            # futimens(3) comes without a handle; an open file may have lost its name to another one.
            open_file = open_file or self.session.open_file(entry)
            await (open_file.handle if open_file is not None else await self.session.to_change(entry)).set_mtime(attr.st_mtime_ns)
        # Owner and mode belong to the mount, not to a value: cp -a, rsync and tar set them, and must not fail.
        epoch, since_ns = self.session.kernel_cache.epoch, time.monotonic_ns()
        attributes = await open_file.handle.attributes() if open_file is not None else await self.session.attributes(entry)
        entry.stamp, entry.expired = entry.settled(stamp_of(attributes), since_ns), False
        entry.size = attributes.size
        return self._attributor.entry(entry.ino, attributes, epoch, entry.path, settled=bool(entry.stamp))

    @guarded
    async def mkdir(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, mode: pyfuse3.ModeT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        parent, text, since_ns = self.inodes[parent_inode], text_of(name), time.monotonic_ns()
        with self.session.kernel_cache.dropping_attributes(parent):
            return await self._referred(parent, text, await (await self.session.directory(parent)).mkdir(text), since_ns)

    @guarded
    async def unlink(self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext) -> None:
        parent, text = self.inodes[parent_inode], text_of(name)
        unlinked = self.inodes.find(below(parent, text))
        with self.session.notifier.locked((parent.ino, text)):
            directory = await self.session.directory(parent)
            with self.session.kernel_cache.leaving(unlinked if directory.verbatim else None, parent, of_move=False):
                await directory.unlink(text)
            self.session.vanished(parent, text)
            self.session.unlist(parent, text)
            await self.session.drain_names(unlinked)
        await self.session.let_go(unlinked)

    @guarded
    async def rmdir(self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext) -> None:
        parent, text = self.inodes[parent_inode], text_of(name)
        self.session.require_listed(parent, text)
        removed = self.inodes.find(below(parent, text))
        locked = self.session.notifier.locked((parent.ino, text), also=numbers_of(removed))
        with locked, self.session.kernel_cache.dropping_attributes(parent):
            await (await self.session.directory(parent)).rmdir(text)
            self.session.vanished(parent, text)
            self.session.unlist(parent, text)
            await self.session.drain_names()

    @guarded
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
        old, new = text_of(name_old), text_of(name_new)
        self.session.require_listed(old_parent, old)
        self.session.require_listed(new_parent, new)
        moved, replaced = self.inodes.find(below(old_parent, old)), self.inodes.find(below(new_parent, new))
        with self.session.notifier.locked((old_parent.ino, old), (new_parent.ino, new), also=numbers_of(moved, replaced)):
            source, target = await self.session.directory(old_parent), await self.session.directory(new_parent)
            verbatim, both = source.verbatim and target.verbatim, (old_parent, new_parent)
            with self.session.kernel_cache.leaving(moved if verbatim else None, *both, of_move=True) as leaving:
                await source.rename(old, target, new, replace=flags != pyfuse3.RENAME_NOREPLACE)
            before, moved = moved, self.inodes.find(below(old_parent, old))
            self.session.unlist(old_parent, old, new_parent)
            is_unchanged = bool(leaving.entries) or (moved is not None and not isinstance(moved.node, TemporaryFile | None))
            if moved is not None or before is None or before.nameless:
                # Else it has its new name already: the rename was announced to other views with it.
                self.session.vanished(new_parent, new)
            if moved is not None:
                if not is_unchanged:
                    # The stored value may have another time, and may not read back byte for byte; it is the same file.
                    moved.stamp = 0
                    self.session.notifier.inode(moved.ino)
                self.inodes.move(moved, new_parent, new)
            await self.session.drain_names(replaced, moved if is_unchanged else None)
        if (named := moved or before) is None or named.nameless:  # The kernel has given the new name to a file that is replaced.
            self.session.notifier.entry(new_parent.ino, new)
        await self.session.let_go(replaced)

    @guarded
    async def link(
        self,
        inode: pyfuse3.InodeT,
        new_parent_inode: pyfuse3.InodeT,
        new_name: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        parent, text, since_ns = self.inodes[new_parent_inode], text_of(new_name), time.monotonic_ns()
        file = await self.session.file(self.inodes[inode])
        return await self._referred(parent, text, await (await self.session.directory(parent)).link(file, text), since_ns)

    @guarded
    async def symlink(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, target: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        raise OperationUnsupported("symbolic links are not supported")

    @guarded
    async def mknod(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        rdev: int,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        if not stat.S_ISREG(mode):
            raise OperationUnsupported("device nodes, sockets and pipes are not supported")
        # tar --xattrs creates files in this way, to set attributes before it opens them. Until then the file is held open here: an empty
        # chunk or document cannot be published.
        parent, text, since_ns = self.inodes[parent_inode], text_of(name), time.monotonic_ns()
        file, handle = await (await self.session.directory(parent)).create(text, OpenFlags(read=False, write=True))
        entry = self.session.refer_created(parent, text, file, handle, since_ns)
        self.session.hold(entry, handle)
        return self._attributor.entry(entry.ino, await handle.attributes())

    # --- folders ------------------------------------------------------------------------------------------------------------

    @guarded
    async def opendir(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileHandleT:
        return pyfuse3.FileHandleT(await self.session.add_directory(self.inodes[inode]))

    @guarded
    async def readdir(self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        await self._listings.reply(self.session.directories[fh], start_id, token)

    @guarded
    async def releasedir(self, fh: pyfuse3.FileHandleT) -> None:
        await self.session.release_directory(fh)

    @guarded
    async def fsyncdir(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        await (await self.session.directory(self.session.directories[fh].inode)).sync()

    @guarded
    async def open(self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        entry, how = self.inodes[inode], open_flags(flags)
        try:
            open_file = await self._open(entry, how, ctx.pid)
        except StaleEntry:
            # The kernel retries once: it finds another file, or none, which it may then create.
            if not self.session.stale_twice(ctx.pid, entry):
                raise
            return await self._open_new(entry, how, ctx.pid)
        self.session.not_stale(ctx.pid)
        if entry.doubtful:
            await self.session.forget_attributes(entry)
        return open_file

    async def _open(self, entry: Inode, how: OpenFlags, opener: int) -> pyfuse3.FileInfo:
        file = await self.session.file_to_change(entry)
        try:
            handle = await file.open(how)
        except NoSuchEntry as error:
            raise StaleEntry(f"{entry.path!r}: is gone", key=entry.path) from error
        except StaleEntry:
            self.session.part_from_another(entry, file.of)
            raise
        async with released_on_error(handle):
            if how.write:
                await self.session.let_go(entry)
                entry.pages = None
            if how.truncate:
                entry.stamp = entry.size = 0
                # It is emptied already: instead of another number it gets no pages.
                another = self.session.is_another_file(entry, handle.of)
                return self._file_info(entry, handle, how, keep_cache=False, opener=opener, direct=another)
            since_ns = time.monotonic_ns()
            attributes = None if handle.direct else await handle.attributes()
            stamp = entry.stamp if attributes is None else entry.settled(stamp_of(attributes), since_ns)
            # It may have become another file since it was found, or another open may be complete. From here on nothing is awaited.
            self.session.part_from_another(entry, handle.of)
            if entry.nameless or (entry.stamp and not matches_kernel(entry.stamp, stamp, keeps_pages=handle.keep_cache)):
                # The value was replaced since the kernel got its size.
                entry.stamp = -1
                raise StaleEntry(f"{entry.path!r}: was replaced", key=entry.path)
            if attributes is not None:
                entry.doubtful = entry.doubtful or entry.may_be_of_another_size(attributes.size)
                if how.append:
                    entry.require_size(attributes.size)
        # Without a known value the kernel may lack a notice of a change: drop its pages. From now on they belong to this value.
        known, entry.stamp = bool(entry.stamp), stamp
        are_valid = handle.keep_cache or (handle.pages is not None and handle.pages == entry.pages)
        keep_cache = are_valid and known and not entry.doubtful
        return self._file_info(entry, handle, how, keep_cache=keep_cache, opener=opener)

    async def _open_new(self, entry: Inode, how: OpenFlags, opener: int) -> pyfuse3.FileInfo:
        """Open the present file of the name of ``entry``, which is replaced faster than the kernel can open it.

        If ``entry`` is open elsewhere, the new handle uses no pages.
        """
        assert entry.parent is not None
        try:
            node = await self.session.child(entry.parent, entry.called)
        except NoSuchEntry as error:
            if not how.write:
                raise
            # The kernel does not create a file at this point.
            raise StaleEntry(f"{entry.path!r}: is gone", key=entry.path) from error
        if not isinstance(node, File):
            raise IsADirectory(f"{entry.path!r}: is a folder", key=entry.path)
        handle = await node.open(how)
        async with released_on_error(handle):
            if how.write:
                await self.session.let_go(entry)
            stamp = 0 if handle.direct else stamp_of(await handle.attributes())
        shared, entry.pages = bool(entry.open_handles), None
        if not shared:
            self.inodes.attach(entry, node)
            entry.stamp, entry.doubtful = stamp, True
        open_file = self._file_info(entry, handle, how, keep_cache=False, opener=opener, direct=shared)
        await self.session.forget_attributes(entry)
        return open_file

    @guarded
    async def create(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        parent, text, since_ns = self.inodes[parent_inode], text_of(name), time.monotonic_ns()
        how = open_flags(flags)
        try:
            file, handle = await (await self.session.directory(parent)).create(text, how)
        except EntryExists as error:
            if flags & os.O_EXCL or isinstance(error, CaseConflict):
                raise
            file = await self.session.existing_file(parent, text, error)
            handle = await file.open(how)
        async with released_on_error(handle):
            attributes = await handle.attributes()
        entry = self.session.refer_created(parent, text, file, handle, since_ns)
        entry.size = attributes.size
        open_file = self._file_info(entry, handle, how, keep_cache=False, opener=ctx.pid)
        parent.expired = True
        return open_file, self._attributor.entry(entry.ino, attributes)

    @guarded
    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> Buffer:  # type: ignore[override]
        open_file = self.session.files[fh]
        # The open is complete: the kernel has dropped the pages that were not valid for this handle.
        open_file.inode.pages = open_file.pages
        self.session.read_requests += 1
        return await self.session.reads.read(open_file, off, size)

    @guarded
    async def write(self, fh: pyfuse3.FileHandleT, off: int, buf: bytes) -> int:
        open_file = self.session.files[fh]
        inode = open_file.inode
        inode.stamp, inode.pages = 0, None
        inode.writes += 1
        open_file.written = True
        try:
            with self.session.reads.changing(inode, open_file.opener, off, off + len(buf)):
                # The size matters only for a write that leaves a gap.
                size = inode.size if 0 <= off <= inode.size else await self.session.end_of(inode) if off else 0
                done = await open_file.write(off, buf)
            if off > size:
                await self.session.past_the_end.written(inode, size, off, list(self.session.files.values()))
            inode.size = max(inode.size, size, off + done)
            inode.expired = True
            return done
        except Exception as error:
            await self.session.unheard.refused(open_file, off, error)
            raise

    @guarded
    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        if not self.session.writable:
            # The kernel takes ENOSYS as "never ask again", and close(2) as success: one request less for each file read.
            raise pyfuse3.FUSEError(errno.ENOSYS)
        open_file = self.session.files[fh]
        try:
            async with self.session.unheard.replying(open_file):
                await open_file.handle.flush()
        except ZarrfsError:
            await self.session.doubt_name(open_file.inode)
            raise
        self.session.forget_pages_if_superseded(open_file)
        await self.session.flush_notices()

    @guarded
    async def fsync(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        open_file = self.session.files[fh]
        async with self.session.unheard.replying(open_file):
            await open_file.handle.fsync()
        self.session.forget_pages_if_superseded(open_file)
        await self.session.flush_notices(has_locked=True)

    @guarded
    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        await self.session.release_file(fh)

    # --- extended attributes ------------------------------------------------------------------------------------------------

    @guarded
    async def getxattr(self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, ctx: pyfuse3.RequestContext) -> bytes:
        return await self.xattrs.get(inode, name)

    @guarded
    async def listxattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> Sequence[pyfuse3.XAttrNameT]:
        return [pyfuse3.XAttrNameT(name) for name in await self.xattrs.list(inode)]

    @guarded
    async def setxattr(self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        await self.xattrs.set(inode, name, value)

    @guarded
    async def removexattr(self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, ctx: pyfuse3.RequestContext) -> None:
        await self.xattrs.remove(inode, name)

    # --- the file system ----------------------------------------------------------------------------------------------------

    @guarded
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        return statvfs(await self.session.free_space())

    @guarded
    async def access(self, inode: pyfuse3.InodeT, mode: pyfuse3.ModeT, ctx: pyfuse3.RequestContext) -> bool:
        if not mode & os.W_OK:
            return True
        return self.session.writable and (await self.session.attributes(self.inodes[inode])).writable

    async def _referred(self, parent: Inode, name: str, node: VfsNode, since_ns: int) -> pyfuse3.EntryAttributes:
        epoch, attributes = self.session.kernel_cache.names_changed(parent), await node.attributes()
        entry = self.session.refer(parent, name, node, attributes, since_ns)
        return self._attributor.entry(entry.ino, attributes, epoch, entry.path)

    def _file_info(
        self, inode: Inode, handle: Handle, how: OpenFlags, *, keep_cache: bool, opener: int, direct: bool = False
    ) -> pyfuse3.FileInfo:
        direct = direct or handle.direct
        handle.opened_in(inode, paged=not (direct or how.direct))
        number = self.session.add_file(inode, handle, opener, writes=how.write, appends=how.append, direct=direct)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(number), direct_io=direct, keep_cache=keep_cache)
