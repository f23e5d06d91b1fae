"""READDIRPLUS: entries of a folder with attributes; each is a reference that the kernel holds from then on."""

from __future__ import annotations

import time

import pyfuse3
import trio

from zarrfs.errors import StaleEntry, ZarrfsError
from zarrfs.fuse.handles import OpenDirectory
from zarrfs.fuse.inode import Inode
from zarrfs.fuse.inodes import UNKNOWN_FILE
from zarrfs.fuse.session import Session, below
from zarrfs.fuse.stamps import stamp_of
from zarrfs.fuse.translation import Attributor, name_of
from zarrfs.vfs.node import SIZE_UNKNOWN, Attributes, Entry

_DOTS = (pyfuse3.FileNameT(b"."), pyfuse3.FileNameT(b".."))
# Maximum time of an answer that may be partial.
_ANSWER_S = 0.5


class Listings:
    """The listings of one mount. Offsets are those of a listing's entries, after those of the two dots."""

    def __init__(self, session: Session, attributor: Attributor) -> None:
        self._session = session
        self._attributor = attributor

    async def reply(self, listing: OpenDirectory, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Answer with the entries from the offset ``start_id`` on that fit and do not take long."""
        self._session.idle_listings.take(listing)
        try:
            # Not afterwards: an error then would leave references that the kernel does not know of.
            await self._session.idle_listings.trim()
            await self._reply(listing, start_id, token)
        finally:
            self._session.idle_listings.put(listing)

    async def _reply(self, listing: OpenDirectory, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        start = max(0, start_id - len(_DOTS))
        if start and (listing.suspended or listing.has_dropped(start)):
            directory = await self._session.directory(listing.inode)
            await listing.resume(start, directory.entries, self._session.kernel_cache.epoch)
        if start_id == 0 or listing.suspended or listing.has_dropped(start):
            # POSIX requires the present content, after rewinddir(3) too; the folder may have been renamed since it was opened.
            entries = (await self._session.directory(listing.inode)).entries()
            await listing.restart(entries, self._session.kernel_cache.epoch)
        listing.answered = start
        if not self._add_dots(listing.inode, start_id, token):
            return
        position, is_empty = start, True
        now = trio.lowlevel.current_clock().current_time
        until = now() + _ANSWER_S
        # A killed program waits for the answer: the kernel gets the entries read by then, and asks again.
        while is_empty or now() < until:
            try:
                entry = await self._entry(listing, position)
            except Exception:
                if not is_empty:
                    # The kernel gets these entries and asks again: an error now would leave references that it does not know of.
                    return
                raise
            if entry is None:
                return
            name, is_directory, size, mtime_ns, writable = entry
            if name in listing.removed:
                position += 1
                continue
            attributes = Attributes(is_directory, max(size, 0), mtime_ns, writable)
            # The reference is the kernel's only if the entry fits; else it is taken back.
            stamp = stamp_of(attributes) if size != SIZE_UNKNOWN else UNKNOWN_FILE
            ino = self._session.inodes.listed(listing.inode, name, stamp=stamp, since_ns=listing.since_ns)
            position += 1
            if not is_directory and self._session.inodes.may_have_another_size(ino, size):
                attributes, size = await self._attributes(ino, attributes, size)
            settled = self._session.inodes.is_settled(ino)
            is_same = listing.epoch == self._session.kernel_cache.epoch
            path = None if is_same else below(listing.inode, name)
            shown = self._attributor.entry(ino, attributes, listing.epoch, path, settled=settled)
            if size == SIZE_UNKNOWN:
                # The file is generated when its size is requested.
                shown.attr_timeout = 0
            if not pyfuse3.readdir_reply(token, name_of(name), shown, position + len(_DOTS)):
                self._session.inodes.forget(ino, 1)
                return
            is_empty = False

    async def _entry(self, listing: OpenDirectory, position: int) -> Entry | None:
        """Return the entry at ``position``, also if this mount has moved the folder meanwhile; None after the last."""
        try:
            return await listing.entry(position)
        except StaleEntry:
            directory = await self._session.directory(listing.inode)
            await listing.resume(position, directory.entries, self._session.kernel_cache.epoch)
            return await listing.entry(position)

    async def _attributes(self, ino: int, listed: Attributes, size: int) -> tuple[Attributes, int]:
        """Return the present attributes of a file, and its size; those that were ``listed`` if there are none.

        The listing may have got its size before the file was changed. With it the kernel would drop pages of a file that has grown, and
        what a mapping has written there, or return zeros after the end of one that was cut. Drops the reference if it raises.
        """
        inode, since_ns = self._session.inodes[ino], time.monotonic_ns()
        try:
            attributes = await self._session.attributes(inode)
        except ZarrfsError:
            inode.stamp = 0
            return listed, size
        except BaseException:
            self._session.inodes.forget(ino, 1)
            raise
        inode.replied(inode.settled(stamp_of(attributes), since_ns))
        inode.size = attributes.size
        return attributes, attributes.size

    def _add_dots(self, folder: Inode, start_id: int, token: pyfuse3.ReaddirToken) -> bool:
        """Add the folder itself and the one above, unless their offsets are passed; return True if there is room for more.

        The kernel takes no references to them.
        """
        for offset, (name, inode) in enumerate(zip(_DOTS, (folder, folder.parent or folder), strict=True), 1):
            if offset > start_id:
                shown = self._attributor.entry(inode.ino, Attributes(True))
                if not pyfuse3.readdir_reply(token, name, shown, offset):
                    return False
        return True
