"""Directories, files and open files: the interface of views.

A view builds its tree from these three base classes; `zarrfs.fuse` translates kernel requests into their methods, and the tests call
the same methods directly. Node objects are cheap and stateless: `Directory.lookup` creates them, and callers may drop them at any time.
State that has to survive between two lookups (staged content) is in `zarrfs.vfs.staging` under the file's ``ident``.

The defaults refuse: a node that does not override an operation does not support it.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple

from zarrfs.buffers import Buffer
from zarrfs.errors import AcrossViews, IsADirectory, NoSuchEntry, NotADirectory, NotPermitted, OperationUnsupported
from zarrfs.vfs.extended_attributes import ExtendedAttributes

Entry = tuple[str, bool, int, int | None, bool]
"""One directory entry, with its `Attributes`, so that ``ls -l`` needs no lookup. A plain tuple: there may be a hundred thousand.

Name, True for a directory, size in bytes (`SIZE_UNKNOWN` if only `VfsNode.attributes` can compute it), mtime_ns (None if unknown), True
if writable."""
SIZE_UNKNOWN = -1


class Attributes(NamedTuple):
    """Attributes of a node for stat(2); ``size`` in bytes, a `HoledSize` if st_blocks is lower, ``mtime_ns`` None if unknown.

    ``blksize``: best size in bytes of a read or write.
    ``generation``, not part of stat(2), changes with the value; None if unknown."""

    is_directory: bool
    size: int = 0
    mtime_ns: int | None = None
    writable: bool = True
    nlink: int = 1
    blksize: int = 4096
    generation: str | None = None


@dataclass(frozen=True, slots=True)
class OpenFlags:
    """The flags of an open: access mode of open(2), O_TRUNC, O_APPEND and O_DIRECT."""

    read: bool = True
    write: bool = False
    truncate: bool = False
    append: bool = False
    direct: bool = False


class VfsNode(abc.ABC):
    """A directory or a file."""

    @abc.abstractmethod
    async def attributes(self) -> Attributes:
        """Return the attributes for stat(2). Raises `NoSuchEntry` if the node is gone."""

    async def set_mtime(self, mtime_ns: int) -> None:
        """Set the time, as utimens(2). The default ignores it without an error, so that ``cp -a`` and ``tar`` work everywhere."""

    async def extended_attributes(self) -> ExtendedAttributes | None:
        """Return the attributes of xattr(7); None if there can be none."""
        return None


class Directory(VfsNode):
    """A directory: names, and their nodes.

    ``verbatim``: a file that the store has renamed has the same bytes and attributes. ``keeps_its_time``: whatever changes in it.
    """

    verbatim: bool = False
    keeps_its_time: bool = False

    @property
    def is_outdated(self) -> bool:
        """True if its name is known to be another folder's by now. Called often; does not wait."""
        return False

    @abc.abstractmethod
    async def lookup(self, name: str) -> VfsNode:
        """Return the node called ``name``. Raises `NoSuchEntry`."""

    async def lookup_with_attributes(self, name: str) -> tuple[VfsNode, Attributes]:
        """Return the node called ``name`` and its attributes, which cost nothing extra if the lookup finds them."""
        node = await self.lookup(name)
        return node, await node.attributes()

    async def listed_file(self, name: str) -> VfsNode:
        """Return the node of a name that a listing has shown to be a file: no lookup is needed, since open fails if it is gone."""
        return await self.lookup(name)

    async def extended_attributes_of(self, name: str) -> ExtendedAttributes | None:
        """Return the attributes of ``name``, without checking that it exists: a program that lists a folder may query each name in it."""
        return await (await self.lookup(name)).extended_attributes()

    @abc.abstractmethod
    def entries(self) -> AsyncIterator[Entry]:
        """Return every entry, each name once, in no particular order; streamed, so that a large directory starts at once."""

    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        """Create a new, empty file called ``name``, open: staged, not yet published.

        Raises `EntryExists`, `NameInvalid`, `NotPermitted`, `StoreReadOnly`.
        """
        raise NotPermitted(f"files cannot be created here: {name!r}", key=name)

    async def mkdir(self, name: str) -> Directory:
        """Create a directory called ``name``. Raises `EntryExists`, `NameInvalid`, `NotPermitted`."""
        raise NotPermitted(f"folders cannot be created here: {name!r}", key=name)

    async def unlink(self, name: str) -> None:
        """Remove the file called ``name``. Raises `NoSuchEntry`, `IsADirectory`, `NotPermitted`."""
        if isinstance(await self.lookup(name), Directory):
            raise IsADirectory(f"{name!r} is a folder", key=name)
        raise NotPermitted(f"{name!r} cannot be removed", key=name)

    async def rmdir(self, name: str) -> None:
        """Remove the empty directory called ``name``. Raises `NoSuchEntry`, `NotADirectory`, `DirectoryNotEmpty`, `NotPermitted`."""
        if not isinstance(await self.lookup(name), Directory):
            raise NotADirectory(f"{name!r} is a file", key=name)
        raise NotPermitted(f"{name!r} cannot be removed", key=name)

    async def remove(self) -> None:
        """Run rmdir(2) of the folder itself, the root of a view. Raises `DirectoryNotEmpty`, `NotPermitted`."""
        raise NotPermitted("this folder cannot be removed")

    async def rename(self, name: str, new_directory: Directory, new_name: str, *, replace: bool = True) -> None:
        """Move ``name`` to ``new_name`` in ``new_directory``; with ``replace``, over an existing entry.

        Raises `NoSuchEntry`, `EntryExists` (not ``replace``), `AcrossViews`, `DirectoryNotEmpty`, `NotADirectory`, `IsADirectory`.
        """
        raise AcrossViews(f"{name!r} cannot be renamed in one step", key=name)

    async def link(self, file: File, new_name: str) -> File:
        """Create another name for ``file``. The default raises `OperationUnsupported`: a value has one key."""
        raise OperationUnsupported(f"a value has one key: {new_name!r} cannot be another name for it", key=new_name)

    async def sync(self) -> None:
        """Run fsync(2) of the directory: the names in it survive a power cut."""


class File(VfsNode):
    """A file. ``ident`` is the same for all objects of the same file of this mount: its path below the folder of views.

    That holds whether that folder or one view is the root."""

    ident: str

    @property
    def of(self) -> object:
        """The `Handle.of` of a handle opened now."""
        return None

    @property
    def in_parts(self) -> bool:
        """True if the file keeps its identity for open handles when parts of it change."""
        return False

    @property
    def held_nbytes(self) -> int:
        """Approximate bytes of memory held for this object, if that may be much."""
        return 0

    async def until_moved(self) -> bool:
        """Wait while its name is becoming that of another file, or of none. Return False, without a checkpoint, if it is not."""
        return False

    @abc.abstractmethod
    async def open(self, flags: OpenFlags) -> Handle:
        """Open the file. Raises at once if a publish would be refused later: `NotPermitted`, `StoreReadOnly`, `StaleEntry`."""

    async def truncate(self, size: int) -> None:
        """Run truncate(2) by path: published at once. Raises `FileTooLarge`, `NotPermitted`."""
        raise NotPermitted(f"{self.ident} cannot be changed", key=self.ident)


class Handle(abc.ABC):
    """An open file.

    ``direct`` disables the kernel's cache (the size is not known beforehand); ``keep_cache`` means that pages which the kernel cached
    from an earlier open are still valid, if its attributes are unchanged; ``pages``, if not None, that they are if they were cached since
    an open with an equal value of it. ``of`` is the same object for all handles of one file, and another one for a
    later file of its name; None if they need not be distinguished."""

    direct: bool = False
    keep_cache: bool = False
    pages: object = None
    of: object = None

    @property
    def is_outdated(self) -> bool:
        """True if other handles of its file have replaced what it was opened on."""
        return False

    def opened_in(self, page_cache: object, *, paged: bool) -> None:
        """Record, before the open is answered, which of the page caches that the kernel has of the file the handle reads and writes.

        ``paged``: False if it does without pages, whatever the kernel keeps there for other handles."""

    @abc.abstractmethod
    async def attributes(self) -> Attributes:
        """Return the attributes for fstat(2) of the open file, which may have lost its name since. Raises `StaleEntry`."""

    @abc.abstractmethod
    async def read(self, offset: int, size: int) -> Buffer:
        """Return at most ``size`` bytes from ``offset``; fewer only at the end of the file.

        The result may be a view of memory that is reused later: it is valid until the caller's next await.
        """

    async def write(self, offset: int, data: Buffer) -> int:
        """Stage ``data`` at ``offset``; return the number of bytes accepted. Raises `FileTooLarge`, `NotPermitted`."""
        raise NotPermitted("this file is not open for writing")

    async def append(self, offset: int, data: Buffer) -> int:
        """Run `write` at ``offset``, which has to be the end of the file; else an implementation may raise `StaleEntry`."""
        return await self.write(offset, data)

    async def truncate(self, size: int) -> None:
        """Run ftruncate(2): staged. Raises `FileTooLarge`, `NotPermitted`."""
        raise NotPermitted("this file is not open for writing")

    async def flush(self) -> None:
        """Publish what was written (FLUSH, at each close(2) of a descriptor); close(2) returns the error."""

    async def fsync(self) -> None:
        """Publish, and make it durable (FSYNC)."""

    async def set_mtime(self, mtime_ns: int) -> None:
        """Run futimens(2) on this file, even if its name is another's by now. The default ignores it, as `VfsNode.set_mtime`."""

    async def release(self) -> None:
        """Release the last reference, and publish what no flush did. Never raises if that fails; the failure is recorded."""


async def find(directory: Directory, name: str) -> VfsNode | None:
    """Return the node called ``name``; None if there is no such entry."""
    try:
        return await directory.lookup(name)
    except NoSuchEntry:
        return None


def no_such_entry(name: str) -> NoSuchEntry:
    """Return the error for a missing name."""
    return NoSuchEntry(f"no such file or folder: {name!r}", key=name)
