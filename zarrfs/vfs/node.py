"""Directories, files and open files, as views offer them.

A view builds its tree from these three base classes; `zarrfs.fuse` translates kernel requests into their methods, and the tests call
the same methods directly. Node objects are cheap and stateless: they are made by `Directory.lookup` and forgotten freely. What has to
survive between two lookups (staged content) is kept by `zarrfs.vfs.staging` under the file's ``ident``.

Refusals are the defaults here: a node that does not override an operation does not have it.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator
from dataclasses import dataclass

from zarrfs.errors import AcrossViews, IsADirectory, NoSuchEntry, NotADirectory, NotPermitted, OperationUnsupported
from zarrfs.vfs.extended_attributes import ExtendedAttributes

Buffer = bytes | bytearray | memoryview


Entry = tuple[str, bool, int, int | None, bool] | tuple[str, bool, int, int | None, bool, int]
"""One directory entry: name, whether it is a directory, size in bytes (`SIZE_UNKNOWN` where the file has yet to be made, and
`Node.attributes` alone tells it), mtime_ns (None where it is not known), whether it is writable; `Attributes.allocated`, where that is
not the size. What its `Attributes` would say, so that ``ls -l`` needs no lookup. A plain tuple: there may be a hundred thousand."""
SIZE_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Attributes:
    """What stat(2) tells of a node; ``size`` in bytes, ``mtime_ns`` None where it is not known; ``blksize``: how many bytes programs had
    best read and write at once. ``allocated``: bytes that take room in the store (st_blocks), None for all of them. ``generation``, which
    stat(2) does not tell: another one is another value; None where it is not known."""

    is_directory: bool
    size: int = 0
    mtime_ns: int | None = None
    writable: bool = True
    nlink: int = 1
    blksize: int = 4096
    allocated: int | None = None
    generation: str | None = None


@dataclass(frozen=True, slots=True)
class OpenFlags:
    """How a file is opened: open(2)'s access mode and O_TRUNC."""

    read: bool = True
    write: bool = False
    truncate: bool = False


class Node(abc.ABC):
    """A directory or a file."""

    @abc.abstractmethod
    async def attributes(self) -> Attributes:
        """What stat(2) tells. Raises `NoSuchEntry` when the node is gone."""

    async def set_mtime(self, mtime_ns: int) -> None:
        """utimens(2). By default kept nowhere: times are not refused, so that ``cp -a`` and ``tar`` work everywhere."""

    async def extended_attributes(self) -> ExtendedAttributes | None:
        """See xattr(7); None where there can be none."""
        return None


class Directory(Node):
    """A directory: names, and the nodes behind them."""

    @property
    def is_outdated(self) -> bool:
        """Whether another folder is known to have its name by now. Asked often; does not wait."""
        return False

    @abc.abstractmethod
    async def lookup(self, name: str) -> Node:
        """The node called ``name``. Raises `NoSuchEntry`."""

    async def lookup_with_attributes(self, name: str) -> tuple[Node, Attributes]:
        """The node called ``name`` and its attributes, which cost nothing more where they are found on the way."""
        node = await self.lookup(name)
        return node, await node.attributes()

    async def listed_file(self, name: str) -> Node:
        """As `lookup`, for a name that a listing has shown to be a file: it need not be proved again, opening it does that."""
        return await self.lookup(name)

    async def extended_attributes_of(self, name: str) -> ExtendedAttributes | None:
        """Those of what is called ``name``, which need not be proved to be there: who lists a folder may ask for each name in it."""
        return await (await self.lookup(name)).extended_attributes()

    @abc.abstractmethod
    def entries(self) -> AsyncIterator[Entry]:
        """Every entry, each name once, in no particular order; streamed, so that a large directory starts at once."""

    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        """A new, empty file called ``name``, open: staged, not yet published.

        Raises `EntryExists`, `NameInvalid`, `NotPermitted`, `StoreReadOnly`.
        """
        raise NotPermitted(f"files cannot be created here: {name!r}", key=name)

    async def mkdir(self, name: str) -> Directory:
        """A new directory called ``name``. Raises `EntryExists`, `NameInvalid`, `NotPermitted`."""
        raise NotPermitted(f"folders cannot be made here: {name!r}", key=name)

    async def unlink(self, name: str) -> None:
        """Remove the file called ``name``. Raises `NoSuchEntry`, `IsADirectory`, `NotPermitted`."""
        if isinstance(await self.lookup(name), Directory):
            raise IsADirectory(f"{name!r} is a folder", key=name)
        raise NotPermitted(f"{name!r} cannot be removed", key=name)

    async def rmdir(self, name: str) -> None:
        """Remove the empty directory called ``name``. Raises `NoSuchEntry`, `NotADirectory`, `DirectoryNotEmpty`."""
        if not isinstance(await self.lookup(name), Directory):
            raise NotADirectory(f"{name!r} is a file", key=name)
        raise NotPermitted(f"{name!r} cannot be removed", key=name)

    async def rename(self, name: str, new_directory: Directory, new_name: str, *, replace: bool = True) -> None:
        """Move ``name`` to ``new_name`` in ``new_directory``, over what is there when ``replace``.

        Raises `NoSuchEntry`, `EntryExists` (not ``replace``), `AcrossViews`, `DirectoryNotEmpty`, `NotADirectory`, `IsADirectory`.
        """
        raise AcrossViews(f"{name!r} cannot be renamed in one step", key=name)

    async def link(self, file: File, new_name: str) -> File:
        """Another name for ``file``. Raises `OperationUnsupported`: a value has one key."""
        raise OperationUnsupported(f"a value has one key: {new_name!r} cannot be another name for it", key=new_name)

    async def sync(self) -> None:
        """fsync(2) of the directory: the names in it survive a power cut."""


class File(Node):
    """A file. ``ident`` is the same for every object that stands for the same file of this mount: the file's path below the folder
    of views, whether that or one view is the root."""

    ident: str

    @property
    def of(self) -> object:
        """`Handle.of` of what is open on it now."""
        return None

    @property
    def in_parts(self) -> bool:
        """Whether it stays the same file when parts of it change, for whoever has it open."""
        return False

    @property
    def held_nbytes(self) -> int:
        """Bytes of memory that are held for this object, about, where that may be many."""
        return 0

    @abc.abstractmethod
    async def open(self, flags: OpenFlags) -> Handle:
        """An open file. Refuses now what could not be published later: `NotPermitted`, `StoreReadOnly`, `StaleEntry`."""

    async def truncate(self, size: int) -> None:
        """truncate(2), by path: published at once."""
        raise NotPermitted(f"{self.ident} cannot be changed", key=self.ident)


class Handle(abc.ABC):
    """An open file. ``direct`` asks the kernel not to cache (the size is not known beforehand); ``keep_cache`` tells it that pages
    which it cached from an earlier open are still right. ``of``: the same object for all that are open on one file, another one for
    the file that has its name later; None where nobody has to tell them apart."""

    direct: bool = False
    keep_cache: bool = False
    of: object = None

    @abc.abstractmethod
    async def attributes(self) -> Attributes:
        """As fstat(2) sees the open file; it may have lost its name since."""

    @abc.abstractmethod
    async def read(self, offset: int, size: int) -> Buffer:
        """At most ``size`` bytes from ``offset``; fewer only at the end of the file.

        The result may be a view of memory that is reused later: it is valid until the caller awaits something.
        """

    async def write(self, offset: int, data: Buffer) -> int:
        """Stage ``data`` at ``offset``; bytes taken. Raises `FileTooLarge`, `NotPermitted`."""
        raise NotPermitted("this file is not open for writing")

    async def truncate(self, size: int) -> None:
        """ftruncate(2)."""
        raise NotPermitted("this file is not open for writing")

    async def flush(self) -> None:
        """FLUSH, at each close(2) of a descriptor: publish what was written; the errors are close's."""

    async def fsync(self) -> None:
        """FSYNC: publish, and make it durable."""

    async def set_mtime(self, mtime_ns: int) -> None:
        """futimens(2), of this file even if its name is another's by now. By default kept nowhere, as `Node.set_mtime`."""

    async def release(self) -> None:
        """The last reference is gone: publish what no flush saw. Never raises for what could not be published; that is recorded."""


async def find(directory: Directory, name: str) -> Node | None:
    """What is called ``name``; None when there is no such entry."""
    try:
        return await directory.lookup(name)
    except NoSuchEntry:
        return None


async def lookup_file(directory: Directory, name: str) -> File:
    """The file called ``name``. Raises `NoSuchEntry`, `IsADirectory`."""
    node = await directory.lookup(name)
    if not isinstance(node, File):
        raise IsADirectory(f"{name!r} is a folder", key=name)
    return node


def no_such_entry(name: str) -> NoSuchEntry:
    """The error for a name that is not there."""
    return NoSuchEntry(f"no such file or folder: {name!r}", key=name)
