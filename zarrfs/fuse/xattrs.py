"""Requests for extended attributes.

Costs decide the answers. A name outside of ``user.`` is refused before anything is looked up: ls(1) requests
``system.posix_acl_access`` of each file until it gets ENOTSUP (then once only), and at each write(2) the kernel itself requests
``security.capability``. Only ENOSYS would end that, but it ends all requests of the kind for the life of the mount: hence the option
``no_xattrs`` (docs/design/014-mount-and-systemd.md).

The errno are those that copying programs ignore: ENOTSUP (cp -a, tar) for what cannot be set, ENODATA for absent names. Setting a value
that is already set is no error, so that a copy can be copied back. A value larger than the kernel's limit is E2BIG, as by the kernel.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

import pyfuse3

from zarrfs.fuse.session import Session
from zarrfs.vfs.extended_attributes import ExtendedAttributes
from zarrfs.vfs.node import Directory

_NAMESPACE = b"user."


class Xattrs:
    """The answers. Without ``known``: as without support for extended attributes. ``requests``: number of requests."""

    def __init__(self, session: Session, known: bool) -> None:
        self._session = session
        self._known = known
        self.requests = 0

    async def get(self, ino: int, name: bytes) -> bytes:
        """Answer getxattr(2)."""
        return _value(await self._found(ino, name), name)

    async def list(self, ino: int) -> Sequence[bytes]:
        """Answer listxattr(2)."""
        return [os.fsencode(name) for name in (await self._found(ino)).listed]

    async def set(self, ino: int, name: bytes, value: bytes) -> None:
        """Answer setxattr(2)."""
        found = await self._found(ino, name)
        text = os.fsdecode(name)
        if found.values.get(text) != value and not (found.forgets is not None and text.startswith(found.forgets)):
            raise pyfuse3.FUSEError(errno.ENOTSUP)

    async def remove(self, ino: int, name: bytes) -> None:
        """Answer removexattr(2)."""
        if os.fsdecode(name) in (await self._found(ino, name)).values:
            raise pyfuse3.FUSEError(errno.ENOTSUP)
        raise pyfuse3.FUSEError(errno.ENODATA)

    async def _found(self, ino: int, name: bytes = _NAMESPACE) -> ExtendedAttributes:
        self.requests += 1
        if not self._known:
            raise pyfuse3.FUSEError(errno.ENOSYS)
        found = await self._extended_attributes(ino) if name.startswith(_NAMESPACE) else None
        if found is None:
            raise pyfuse3.FUSEError(errno.ENOTSUP)
        return found

    async def _extended_attributes(self, ino: int) -> ExtendedAttributes | None:
        inode = self._session.inodes[ino]
        folder = inode.parent
        if folder is None or folder is self._session.inodes.root or inode.nameless or isinstance(inode.node, Directory):
            return await (await self._session.node(inode)).extended_attributes()
        # Not through the file itself: a listing may request each, and the folder answers without a lookup.
        return await (await self._session.directory(folder)).extended_attributes_of(inode.name)


def _value(found: ExtendedAttributes, name: bytes) -> bytes:
    try:
        value = found.values[os.fsdecode(name)]
    except KeyError:
        raise pyfuse3.FUSEError(errno.ENODATA) from None
    if value is None:
        raise pyfuse3.FUSEError(errno.E2BIG)
    return value
