"""The requests for extended attributes.

Costs decide how they are answered. A name outside of ``user.`` is refused before anything is looked up: ls(1) asks for
``system.posix_acl_access`` of each file unless it is told that the file system has no such thing (ENOTSUP: then it asks once), and at
each write(2) the kernel itself asks for ``security.capability``. What would end that is ENOSYS, which ends all requests of the kind
for the life of the mount: so without the option ``xattrs`` (docs/design/014-mount-and-systemd.md).

The errno are those that programs which copy pass over: ENOTSUP (cp -a, tar) for what cannot be set, ENODATA for what is not there. A
value that is set to what it is already is no error, so that what was copied out can be copied back. A value that is larger than the
kernel hands out is E2BIG, as the kernel itself says it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pyfuse3

from zarrfs.fuse.guard import guarded
from zarrfs.fuse.session import Session
from zarrfs.vfs.extended_attributes import ExtendedAttributes
from zarrfs.vfs.node import Directory

_NAMESPACE = b"user."


class XattrOperations(Session):
    """The handlers. ``xattrs`` False: as if the file system had never heard of extended attributes. ``xattr_requests``: how many came."""

    xattrs: bool = True
    xattr_requests: int = 0

    @guarded
    async def getxattr(self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, ctx: pyfuse3.RequestContext) -> bytes:
        return _value(await self._found(inode, name), name)

    @guarded
    async def listxattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> Sequence[pyfuse3.XAttrNameT]:
        return [pyfuse3.XAttrNameT(os.fsencode(name)) for name in (await self._found(inode)).listed]

    @guarded
    async def setxattr(self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        found = await self._found(inode, name)
        text = os.fsdecode(name)
        if found.values.get(text) != value and not (found.forgets is not None and text.startswith(found.forgets)):
            raise pyfuse3.FUSEError(errno.ENOTSUP)

    @guarded
    async def removexattr(self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, ctx: pyfuse3.RequestContext) -> None:
        if os.fsdecode(name) in (await self._found(inode, name)).values:
            raise pyfuse3.FUSEError(errno.ENOTSUP)
        raise pyfuse3.FUSEError(errno.ENODATA)

    async def _found(self, inode: int, name: bytes = _NAMESPACE) -> ExtendedAttributes:
        self.xattr_requests += 1
        if not self.xattrs:
            raise pyfuse3.FUSEError(errno.ENOSYS)
        found = await self._extended_attributes(inode) if name.startswith(_NAMESPACE) else None
        if found is None:
            raise pyfuse3.FUSEError(errno.ENOTSUP)
        return found

    async def _extended_attributes(self, ino: int) -> ExtendedAttributes | None:
        inode = self.inodes[ino]
        folder = inode.parent
        if folder is None or folder is self.inodes.root or inode.nameless or isinstance(inode.node, Directory):
            return await (await self._node(inode)).extended_attributes()
        # Not the file itself: who lists a folder may ask for each, and its folder knows without looking it up.
        return await (await self._directory(folder)).extended_attributes_of(inode.name)


def _value(found: ExtendedAttributes, name: bytes) -> bytes:
    try:
        value = found.values[os.fsdecode(name)]
    except KeyError:
        raise pyfuse3.FUSEError(errno.ENODATA) from None
    if value is None:
        raise pyfuse3.FUSEError(errno.E2BIG)
    return value
