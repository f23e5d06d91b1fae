"""A folder in three layers: temporary names, over staged files, over the store.

`OverlayDirectory` decides which operations are allowed, in the order and with the errors of POSIX. It holds the state that only this
mount has: temporary files, staged files, and times that were set. A view adds the store's entries, the content of a name, and the
operations on files and folders of the store. All views share this class, so they agree in everything else.
"""

from __future__ import annotations

import abc
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Protocol

from zarrfs.buffers import Buffer
from zarrfs.errors import (
    AcrossViews,
    CopyMayNotFit,
    DirectoryNotEmpty,
    EntryExists,
    IsADirectory,
    NameInvalid,
    NoSuchEntry,
    NotADirectory,
    NotPermitted,
    StoreReadOnly,
)
from zarrfs.vfs.content import Content
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Attributes, Directory, Entry, File, Handle, OpenFlags, VfsNode, find
from zarrfs.vfs.staging import Staged, StagingArea
from zarrfs.vfs.temporary import Temporaries, TemporaryContent, TemporaryFile, staged_in
from zarrfs.vfs.times import KeptTimes


class Layers(Protocol):
    """State shared by the folders of a mount. ``writable``: True if anything can be written."""

    @property
    def staging(self) -> StagingArea: ...
    @property
    def temporaries(self) -> Temporaries: ...
    @property
    def times(self) -> KeptTimes: ...
    @property
    def writable(self) -> bool: ...


class OverlayDirectory(Directory):
    """See the module's text. ``view`` is the prefix of the idents of all files of the view, with a slash."""

    view: str

    def __init__(self, layers: Layers) -> None:
        self._layers = layers

    # --- implemented by views -----------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def here(self) -> str:
        """The prefix of the idents of its entries, with the trailing slash."""

    @property
    @abc.abstractmethod
    def family(self) -> object:
        """The same object for all folders between which names can be moved."""

    @property
    def writable(self) -> bool:
        """True if anything in it can be written."""
        return self._layers.writable

    @abc.abstractmethod
    def check(self) -> None:
        """Raise `StaleEntry` if the folder is gone, even if its name is another folder's."""

    def entered(self) -> AbstractContextManager[None]:
        """Return the context of every operation in the folder. Raises `StaleEntry`."""
        self.check()
        return nullcontext()

    @abc.abstractmethod
    async def stored_mtime_ns(self) -> int | None:
        """Return the time at which its names last changed, according to the store."""

    async def time_to_keep_for(self) -> int | None:
        """Return the stored time for which a time that is set now is valid (`KeptTimes.keep`)."""
        return await self.stored_mtime_ns()

    @abc.abstractmethod
    async def look(self, name: str) -> tuple[VfsNode, Attributes | None]:
        """Return the node of a name that is not temporary, and its attributes if the lookup finds them. Raises `NoSuchEntry`."""

    @abc.abstractmethod
    def stored_entries(self) -> AsyncIterator[Entry]:
        """Return its entries in the store, with the store's times. Staged files may be missing or outdated."""

    @abc.abstractmethod
    async def content(self, name: str, renamed: StagedFile | None = None) -> Content:
        """Return the content of a file called ``name``, existing or not: `TemporaryContent` for a temporary one.

        ``renamed`` is the file that is to get this name. Raises `NameInvalid`, `ContentInvalid` if there can be no such file."""

    async def require_room(self, name: str) -> None:
        """Raise `NotPermitted` if nothing can be created in the folder, `NameInvalid` if nothing can have this name."""

    @abc.abstractmethod
    async def make_folder(self, name: str) -> Directory:
        """Run mkdir(2) of a name that is free."""

    @abc.abstractmethod
    async def remove_folder(self, folder: Directory) -> None:
        """Run rmdir(2). Raises `DirectoryNotEmpty`."""

    @abc.abstractmethod
    async def rename_folder(
        self, folder: Directory, target: Directory | None, new_directory: OverlayDirectory, new_name: str
    ) -> None:
        """Run rename(2) of a folder over ``target``, which has to be empty. Raises `NameInvalid`, `DirectoryNotEmpty`."""

    @abc.abstractmethod
    async def rename_file(self, file: StagedFile, content: Content, target: VfsNode | None) -> None:
        """Run rename(2) of a file that is not temporary to a name that is not temporary either."""

    async def withdraw(self, file: StagedFile, content: TemporaryContent, new_directory: OverlayDirectory) -> None:
        """Run rename(2) of a file that is not temporary to a temporary name. Raises `NotPermitted`, `AcrossViews`."""
        raise NotPermitted(f"{file.ident!r}: under the name {content.ident!r} it would not be stored", key=file.ident)

    async def erase_file(self, file: StagedFile) -> None:
        """Run unlink(2) of a file that is not temporary, and has lost its name already."""
        await file.content.erase()

    def creator(self, content: Content) -> Callable[[Buffer], Awaitable[None]] | None:
        """Return a function that stores bytes as ``content`` for link(2) of a temporary file; None if unsupported."""
        del content
        return None

    def emptied(self) -> None:
        """Handle the removal of a name from it, which may have been the last one."""

    # --- contents -----------------------------------------------------------------------------------------------------------

    async def attributes(self) -> Attributes:
        with self.entered():
            stored_ns = await self.stored_mtime_ns()
            mtime_ns = self._layers.times.mtime_ns_of(self.here, size=0, stored_ns=stored_ns)
            return Attributes(True, mtime_ns=mtime_ns, writable=self.writable)

    async def set_mtime(self, mtime_ns: int) -> None:
        with self.entered():
            for staged in self._staged().values():
                # close(2) does not wait for the last RELEASE: a publish in progress would change the time again.
                async with staged.lock:
                    pass
            self._layers.times.keep(self.here, mtime_ns, size=0, stored_ns=await self.time_to_keep_for())

    async def lookup(self, name: str) -> VfsNode:
        with self.entered():
            return (await self._look(name))[0]

    async def lookup_with_attributes(self, name: str) -> tuple[VfsNode, Attributes]:
        with self.entered():
            node, attributes = await self._look(name)
        return node, attributes if attributes is not None else await node.attributes()

    async def _look(self, name: str) -> tuple[VfsNode, Attributes | None]:
        temporary = self._layers.temporaries.get(self.here + name)
        return (temporary, None) if temporary is not None else await self.look(name)

    async def _settled(self, name: str) -> VfsNode:
        """Return the node of a name, which is not becoming that of another file. Raises `NoSuchEntry`."""
        await self._layers.staging.until_moved(self.here + name)
        return (await self._look(name))[0]

    async def _find(self, name: str) -> VfsNode | None:
        try:
            return (await self._look(name))[0]
        except NoSuchEntry:
            return None

    async def entries(self) -> AsyncGenerator[Entry]:
        self.check()
        taken = set()
        for entry in self._layers.temporaries.entries(self.here):
            taken.add(entry[0])
            yield entry
        staged, times, here = self._staged(), self._layers.times, self.here
        async for entry in self.stored_entries():
            name, is_directory, size, mtime_ns, writable = entry
            if taken and name in taken:
                continue
            one = staged.pop(name, None) if staged and not is_directory else None
            if one is not None:
                size = one.size if one.size is not None else size
                mtime_ns = one.mtime_ns if one.mtime_ns is not None else mtime_ns
            elif times:
                ident = f"{here}{name}{'/' * is_directory}"
                mtime_ns = times.mtime_ns_of(ident, size=size, stored_ns=mtime_ns)
            else:
                yield entry
                continue
            yield name, is_directory, size, mtime_ns, writable
        for name, one in staged.items():
            yield name, False, one.size or 0, one.mtime_ns, self.writable

    def _staged(self) -> dict[str, Staged]:
        """Return the unpublished files directly in it, by name."""
        return staged_in(self._layers.staging, self.here)

    # --- operations ---------------------------------------------------------------------------------------------------------

    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        with self.entered():
            await self._require_free(name)
            content = await self.content(name)
            created: tuple[File, Handle]
            if isinstance(content, TemporaryContent):
                created = await self._layers.temporaries.create(content, flags)
            else:
                file = self._file(content)
                created = file, await file.create(flags)
            self._touch()
            return created

    async def mkdir(self, name: str) -> Directory:
        with self.entered():
            await self._require_free(name)
            created = await self.make_folder(name)
            self._touch()
            return created

    async def link(self, file: File, new_name: str) -> File:
        with self.entered():
            if not isinstance(file, TemporaryFile):
                return await super().link(file, new_name)
            if not file.ident.startswith(f"{self.view}/"):
                raise AcrossViews(f"{file.ident!r} is a file of another view", key=file.ident)
            await self._require_free(new_name)
            content = await self.content(new_name)
            create = None if isinstance(content, TemporaryContent) else self.creator(content)
            if create is None:
                return await super().link(file, new_name)
            await self._layers.temporaries.link(file, content, create)
            self._touch()
            return self._file(content)

    async def unlink(self, name: str) -> None:
        with self.entered():
            self.require_writable()
            node = await self._settled(name)
            if isinstance(node, Directory):
                raise IsADirectory(f"{name!r} is a folder", key=name)
            if isinstance(node, TemporaryFile):
                try:
                    await self._layers.temporaries.unlink(node)
                except NoSuchEntry:
                    # It may have become a value.
                    await self.unlink(name)
                    return
            elif isinstance(node, StagedFile):
                with self._layers.staging.moving(node.ident):
                    async with self._layers.staging.unnaming(node.ident):
                        await self.erase_file(node)
                self._layers.times.forget(node.ident)
            else:
                await super().unlink(name)
            self._touch()
            self.emptied()

    async def rmdir(self, name: str) -> None:
        with self.entered():
            self.require_writable()
            node, _ = await self._look(name)
            if not isinstance(node, Directory):
                raise NotADirectory(f"{name!r} is a file", key=name)
            await self.remove_folder(node)
            self._touch()
            self.emptied()

    async def remove(self) -> None:
        with self.entered():
            self.require_writable()
            async with aclosing(self.entries()) as entries:
                async for entry in entries:
                    raise DirectoryNotEmpty(f"{self.here} is not empty: it holds {entry[0]!r}", key=self.here)

    async def rename(self, name: str, new_directory: Directory, new_name: str, *, replace: bool = True) -> None:
        if not isinstance(new_directory, OverlayDirectory) or new_directory.family is not self.family:
            await self._require_not_within(name, new_directory)
            if await find(new_directory, new_name) is not None:
                # On EXDEV, mv removes the target and copies the source, which may be the same node or value.
                raise EntryExists(f"{new_name!r} exists in the other view, and may be the same node or value as {name!r}", key=name)
            raise AcrossViews(f"{name!r} cannot be renamed into another view", key=name)
        new_directory.check()
        with self.entered():
            self.require_writable()
            await new_directory.require_room(new_name)
            node = await self._settled(name)
            await self._layers.staging.until_moved(new_directory.here + new_name)
            target = await find(new_directory, new_name)
            if target is not None and not replace:
                raise EntryExists(f"{new_name!r} already exists", key=new_directory.here + new_name)
            if isinstance(node, Directory):
                if target is not None and not isinstance(target, Directory):
                    raise NotADirectory(f"{new_name!r} is a file", key=new_directory.here + new_name)
                await self.rename_folder(node, target, new_directory, new_name)
            elif isinstance(target, Directory):
                raise IsADirectory(f"{new_name!r} is a folder", key=new_directory.here + new_name)
            elif isinstance(node, StagedFile) and isinstance(target, StagedFile | None):
                try:
                    await self._rename_file(node, target, new_directory, new_name)
                except NoSuchEntry:
                    if not isinstance(node, TemporaryFile) or self._layers.temporaries.get(node.ident) is not None:
                        raise
                    # It may have become a value.
                    await self.rename(name, new_directory, new_name, replace=replace)
                    return
            else:
                raise NotPermitted(f"{name!r} cannot be renamed to {new_name!r}", key=self.here + name)
            self._touch()
            new_directory._touch()
            self.emptied()

    async def _require_not_within(self, name: str, new_directory: Directory) -> None:
        """Raise `NameInvalid` if ``new_directory``, of another view, is within the folder ``name``.

        The kernel compares paths, which differ. On EXDEV, mv would copy what it creates by copying, until the path is too long.
        """
        if not isinstance(new_directory, OverlayDirectory):
            return
        below = f"{self.here}{name}/".partition("/")[2]
        if new_directory.here.partition("/")[2].startswith(below) and isinstance(await find(self, name), Directory):
            raise NameInvalid(f"{name!r} cannot be moved into itself, in another view", key=self.here + name)

    async def _rename_file(
        self, file: StagedFile, target: StagedFile | None, new_directory: OverlayDirectory, new_name: str
    ) -> None:
        content = target.content if target is not None else await new_directory.content(new_name, file)
        if file.ident == content.ident:
            return
        with self._layers.staging.moving(file.ident, content.ident):
            if isinstance(file, TemporaryFile):
                await self._layers.temporaries.move(file, content)
            elif isinstance(content, TemporaryContent):
                await self.withdraw(file, content, new_directory)
            else:
                try:
                    await self.rename_file(file, content, target)
                except CopyMayNotFit as error:
                    if target is None:
                        raise
                    # On EXDEV, mv removes the target before it copies what may be unable to replace it.
                    raise EntryExists(f"{content.ident!r} exists, and cannot be replaced: {error}", key=content.ident) from error

    def require_writable(self) -> None:
        """Raise `StoreReadOnly`, or `NotPermitted`, if nothing can be written."""
        if not self._layers.writable:
            raise StoreReadOnly("this mount is read-only")

    async def _require_free(self, name: str) -> None:
        """Raise `EntryExists` if ``name`` exists, or the error of whatever else prevents its creation."""
        self.require_writable()
        await self.require_room(name)
        if await self._find(name) is not None:
            raise EntryExists(f"{name!r} already exists", key=self.here + name)

    def _file(self, content: Content) -> StagedFile:
        return StagedFile(self._layers.staging, content, writable=self.writable)

    def _touch(self) -> None:
        """Record that a name in it is new, or gone, even if the store does not record it."""
        self._layers.times.touch(self.here, time.time_ns())
