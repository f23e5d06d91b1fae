"""The folders of ``raw/``: keys and prefixes of the store.

If keys ``a`` and ``a/b`` exist, the folder wins, and the shadowed key is logged. Names that no directory entry can have are shown
escaped (`zarrfs.vfs.names`). Any other name is a key: a new file is a new key of the store, except for the temporary names of
programs that write Zarr (`zarrfs.vfs.temporary`), which exist in the mount only.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, suppress

from zarrfs import durability
from zarrfs.buffers import Buffer
from zarrfs.errors import AcrossViews, DirectoryNotEmpty, NameInvalid, NotPermitted, StoreUnsupported, raise_first
from zarrfs.hierarchy.spellings import is_same_folder
from zarrfs.keys import APART, Key, Prefix
from zarrfs.stores.values import DirEntry
from zarrfs.vfs import names
from zarrfs.vfs.content import Content
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Attributes, Directory, Entry, VfsNode, no_such_entry
from zarrfs.vfs.overlay import OverlayDirectory
from zarrfs.vfs.temporary import TemporaryContent, is_temporary
from zarrfs.views.base import ViewContext
from zarrfs.views.raw.bound import BoundFolders
from zarrfs.views.raw.unlisted import leads_to_node
from zarrfs.views.raw.value import VIEW, RawValue, ident, until_placed

log = logging.getLogger(__name__)

_LISTED_ONCE = 50_000


class RawDirectory(OverlayDirectory):
    """The keys and prefixes directly below one prefix."""

    view = VIEW
    verbatim = True

    def __init__(self, context: ViewContext, folders: BoundFolders, prefix: Prefix) -> None:
        super().__init__(context)
        self._context = context
        self._store = context.store
        self._folders = folders
        self._folder = folders.at(prefix)

    @property
    def prefix(self) -> Prefix:
        """Its place in the store."""
        return self._folder.prefix

    @property
    def is_outdated(self) -> bool:
        return self._folder.is_outdated

    @property
    def here(self) -> str:
        return ident(self.prefix)

    @property
    def family(self) -> object:
        return self._folders

    def check(self) -> None:
        self._folder.check()

    def entered(self) -> AbstractContextManager[None]:
        return self._folder.entered()

    # --- contents -----------------------------------------------------------------------------------------------------------

    async def stored_mtime_ns(self) -> int | None:
        return await self._store.prefix_mtime_ns(self.prefix)

    async def look(self, name: str) -> tuple[VfsNode, Attributes | None]:
        part = await self._part(name)
        prefix = self.prefix.child(part)
        await self._context.flush_queued(prefix)
        if part:
            content = RawValue(self._context, self.prefix.key(part))
            if self._is_staged(content):
                return self._file(content), None
            snapshot = await content.snapshot()
            if snapshot is not None and not (self._may_shadow and await self._store.prefix_exists(prefix)):
                # Another task may have begun to write it meanwhile.
                return self._file(content), None if self._is_staged(content) else snapshot.attributes
        if prefix in self._context.empty_prefixes or await self._exists(prefix):
            return self._at(prefix), None
        if await until_placed(self._context, prefix) or self.prefix.child(part) != prefix:
            # It, or this folder, may have been moved already, and is known at its new place only now.
            return await self.look(name)
        raise no_such_entry(name)

    @property
    def _may_shadow(self) -> bool:
        """True if a key may also be the prefix of others, which can be found out."""
        return self._store.capabilities.list and not self._store.capabilities.hierarchical

    async def _exists(self, prefix: Prefix) -> bool:
        if not self._store.capabilities.list:
            return await leads_to_node(self._context.hierarchy, prefix)
        return await self._store.prefix_exists(prefix)

    async def listed_file(self, name: str) -> VfsNode:
        here = self.here + name
        temporary = self._context.temporaries.get(here)
        return temporary or self._file(RawValue(self._context, self.prefix.key(await self._part(name)), here))

    async def extended_attributes_of(self, name: str) -> None:
        """Return None for every entry: keys are bytes without attributes, so nothing is looked up."""

    async def stored_entries(self) -> AsyncIterator[Entry]:
        prefix, writable = self.prefix, self.writable
        await self._context.flush_queued(prefix)
        created = {each for each in self._context.empty_prefixes if _is_directly_below(each, prefix)}
        listing = self._store.list_dir(prefix)
        if not self._store.capabilities.hierarchical:
            listing = self._without_shadowed(listing)
        async for name, is_prefix, size, mtime_ns in listing:
            if is_prefix and created:
                created.discard(prefix.child(name))
            yield names.name_of(name), is_prefix, size, mtime_ns, writable
        for each in created:
            yield names.name_of(each[len(prefix) : -1]), True, 0, None, writable

    async def _part(self, name: str) -> str:
        part = names.part_of(name)
        if part is not None:
            return part
        async for each, *_ in self._store.list_dir(self.prefix):
            if names.name_of(each) == name:
                return each
        raise no_such_entry(name)

    async def _without_shadowed(self, listing: AsyncIterator[DirEntry]) -> AsyncIterator[DirEntry]:
        entries: list[DirEntry] = []
        folders: set[str] = set()
        more = False
        async for entry in listing:
            if entry[1]:
                folders.add(entry[0])
            more = more or len(entries) == _LISTED_ONCE
            if not more:
                entries.append(entry)

        def is_shown(entry: DirEntry) -> bool:
            if entry[1] or entry[0] not in folders:
                return True
            log.warning("%r: key hidden by the folder of the same name", f"{self.prefix}{entry[0]}")
            return False

        if not more:
            for entry in filter(is_shown, entries):
                yield entry
            return
        # Too many to hold in memory: list a second time.
        entries.clear()
        async for entry in self._store.list_dir(self.prefix):
            if is_shown(entry):
                yield entry

    # --- operations ---------------------------------------------------------------------------------------------------------

    async def require_room(self, name: str) -> None:
        self._new_part(name)

    async def content(self, name: str, renamed: StagedFile | None = None) -> Content:
        if is_temporary(name):
            return self._context.temporaries.content(self.here + name, self._folder)
        part = self._new_part(name)
        while await until_placed(self._context, self.prefix):
            self.check()
        return RawValue(self._context, self.prefix.key(part))

    def creator(self, content: Content) -> Callable[[Buffer], Awaitable[None]]:
        assert isinstance(content, RawValue)
        return content.create

    async def make_folder(self, name: str) -> Directory:
        prefix = self.prefix.child(self._new_part(name))
        if not await self._holds(self._store.make_prefix, prefix):
            self._context.empty_prefixes.add(prefix)
        return self._at(prefix)

    async def remove_folder(self, folder: Directory) -> None:
        assert isinstance(folder, RawDirectory)
        await folder._require_empty()
        await self._holds(self._store.remove_prefix, folder.prefix)
        self._context.empty_prefixes.discard(folder.prefix)
        self._context.times.forget(folder.here)

    async def rename_file(self, file: StagedFile, content: Content, target: VfsNode | None) -> None:
        """Run rename(2) of a file. Staged bytes are published first, so that the store renames one complete value."""
        assert isinstance(content, RawValue)
        staging = self._context.staging
        old = file.content
        assert isinstance(old, RawValue)
        async with staging.renaming(file.ident, content), staging.unnaming(content.ident):
            await self._context.flush_described(old.key, content.key)
            async with self._context.hierarchy.live.changing_document(old.key, content.key):
                moved = await self._moved(old.key, content.key)
            if not moved:
                raise no_such_entry(old.key)
            self._context.times.move(file.ident, content.ident)

    async def _moved(self, old: Key, new: Key) -> bool:
        """Move a value to another key, atomically if the store supports that; return False if there is none."""
        if self._store.capabilities.rename:
            with suppress(StoreUnsupported):
                return await self._store.rename(old, new)
        moved = await self._store.copy(old, new)
        if moved:
            await self._store.erase(old)
        return moved

    async def withdraw(self, file: StagedFile, content: TemporaryContent, new_directory: OverlayDirectory) -> None:
        await self._context.temporaries.move(file, content)

    async def rename_folder(
        self, folder: Directory, target: Directory | None, new_directory: OverlayDirectory, new_name: str
    ) -> None:
        assert isinstance(folder, RawDirectory) and isinstance(new_directory, RawDirectory)
        old, new = folder.prefix, new_directory.prefix.child(new_directory._new_part(new_name))
        if old == new:
            return
        if new.startswith(old):
            raise NameInvalid(f"{old!r} cannot be moved into itself", key=new)
        if isinstance(target, RawDirectory) and not await is_same_folder(self._store, old, new):
            await target._require_empty()
        await self._context.staging.publish_below(folder.here)
        await self._context.flush_queued(old)
        is_kept_here = any(prefix.startswith(old) for prefix in self._context.empty_prefixes)
        try:
            async with self._context.hierarchy.live.lock.changing(old, new):
                moved = await self._store.rename_prefix(old, new)
        except StoreUnsupported as error:
            raise AcrossViews(f"{old!r}: this store cannot rename a folder in one step", key=old) from error
        if not (moved or is_kept_here):
            # Another program has moved or removed it.
            raise no_such_entry(old)

    async def sync(self) -> None:
        with self.entered(), durability.demanded():
            failed = await self._context.unfinished.attempt(self.prefix)
            shards = await self._context.hierarchy.queued.publish(self.prefix)
            await self._store.sync([self.prefix, *shards])
            raise_first(failed)

    def emptied(self) -> None:
        # If prefixes exist only through keys, a folder without keys stays in this mount, since a user created it.
        if self.prefix and not self._store.capabilities.hierarchical:
            self._context.empty_prefixes.add(self.prefix)

    async def _holds(self, change: Callable[[Prefix], Awaitable[None]], prefix: Prefix) -> bool:
        """Create or remove an empty prefix by ``change``; return False if the store does not hold empty prefixes."""
        if not self._store.capabilities.empty_prefixes:
            return False
        try:
            await change(prefix)
        except StoreUnsupported:
            return False
        return True

    async def _require_empty(self) -> None:
        async for name, *_ in self.entries():
            raise DirectoryNotEmpty(f"{self.prefix!r} is not empty: it holds {name!r}", key=self.prefix)

    def _at(self, prefix: Prefix) -> RawDirectory:
        return RawDirectory(self._context, self._folders, prefix)

    def _new_part(self, name: str) -> str:
        part = names.part_of(name)
        if not part:
            raise NameInvalid(f"{name!r} cannot name a new key", key=name)
        if not self.prefix and part == APART[:-1]:
            raise NotPermitted(f"{APART} of the store is reserved for operations in progress", key=name)
        return part

    def _is_staged(self, content: RawValue) -> bool:
        """Return True if the file exists here, whether or not the store has it."""
        staged = self._context.staging.get(content.ident)
        return staged is not None and staged.unpublished


def _is_directly_below(prefix: Prefix, parent: Prefix) -> bool:
    return prefix != parent and prefix.startswith(parent) and "/" not in prefix[len(parent) : -1]
