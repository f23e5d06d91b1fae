"""``raw/``: every store key as a file, byte for byte, as a directory store would hold it.

Where keys ``a`` and ``a/b`` exist the folder wins and the shadowed key is reported in the log. Names that no directory entry can have
are shown escaped (`zarrfs.vfs.names`). Any other name is a key: what is created here is a key of the store, except the temporary names
of programs that write Zarr (`zarrfs.vfs.temporary`), which exist in the mount only.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from zarrfs.errors import (
    AcrossViews,
    DirectoryNotEmpty,
    EntryExists,
    IsADirectory,
    NameInvalid,
    NoSuchEntry,
    NotADirectory,
    StoreReadOnly,
    StoreUnsupported,
)
from zarrfs.hierarchy.node_changes import NodeChange
from zarrfs.keys import Key, Prefix
from zarrfs.stores.base import Change, DirEntry
from zarrfs.vfs import names
from zarrfs.vfs.content import Content
from zarrfs.vfs.file import StagedFile
from zarrfs.vfs.node import Attributes, Directory, Entry, File, Handle, Node, OpenFlags, no_such_entry
from zarrfs.vfs.staging import Staged
from zarrfs.vfs.temporary import TemporaryContent, TemporaryFile, is_temporary
from zarrfs.views.base import Affected, NamedEntry, View, ViewContext, ViewPlugin
from zarrfs.views.raw.bound import BoundFolders
from zarrfs.views.raw.value import VIEW, RawValue, ident, names_of

log = logging.getLogger(__name__)

_LISTED_ONCE = 50_000


class RawView(View):
    """See the module's text."""

    def __init__(self, context: ViewContext) -> None:
        self._context = context
        self._folders = BoundFolders(context.store)

    def root(self) -> Directory:
        return RawDirectory(self._context, self._folders, Prefix(""))

    def follow(self, old: Prefix, new: Prefix) -> None:
        _follow(self._context, old, new)
        self._folders.moved(old, new)

    def names_of(self, place: Prefix) -> Iterable[NamedEntry]:
        return [(names_of(place), True)]

    def affected(self, change: Change, nodes: Iterable[NodeChange]) -> Iterable[Affected]:
        if change.waits:
            return
        yield Affected(names_of(change.place), gone=change.kind in ("erase", "unknown", "unmade"), content=change.kind != "times")


Given = ParamSpec("Given")
Result = TypeVar("Result")
Method = Callable[Concatenate["RawDirectory", Given], Coroutine[Any, Any, Result]]


def _entered(method: Method[Given, Result]) -> Method[Given, Result]:
    """It works in the folder that was looked up: see `BoundFolder.entered`."""

    @wraps(method)
    async def entered(self: RawDirectory, /, *args: Given.args, **kwargs: Given.kwargs) -> Result:
        with self._folder.entered():
            return await method(self, *args, **kwargs)

    return entered


class RawDirectory(Directory):
    """The keys and prefixes directly below one prefix."""

    def __init__(self, context: ViewContext, folders: BoundFolders, prefix: Prefix) -> None:
        self._context = context
        self._store = context.store
        self._temporaries = context.temporaries
        self._times = context.times
        self._folders = folders
        self._folder = folders.at(prefix)

    @property
    def prefix(self) -> Prefix:
        """Where it is in the store."""
        return self._folder.prefix

    @property
    def is_outdated(self) -> bool:
        return self._folder.is_outdated

    @property
    def _here(self) -> str:
        return ident(self.prefix)

    @_entered
    async def attributes(self) -> Attributes:
        stored_ns = await self._store.prefix_mtime_ns(self.prefix)
        mtime_ns = self._times.mtime_ns_of(self._here, size=0, stored_ns=stored_ns)
        return Attributes(True, mtime_ns=mtime_ns, writable=self._context.writable)

    @_entered
    async def set_mtime(self, mtime_ns: int) -> None:
        for staged in self._staged().values():
            # close(2) does not wait for the last RELEASE: a name that is being published now would change the time again.
            async with staged.lock:
                pass
        stored_ns = await self._store.prefix_mtime_ns(self.prefix)
        self._times.keep(self._here, mtime_ns, size=0, stored_ns=stored_ns)

    async def lookup(self, name: str) -> Node:
        return (await self._look(name))[0]

    async def lookup_with_attributes(self, name: str) -> tuple[Node, Attributes]:
        node, attributes = await self._look(name)
        return node, attributes if attributes is not None else await node.attributes()

    @_entered
    async def _look(self, name: str) -> tuple[Node, Attributes | None]:
        """What is called ``name``, and its attributes where they were found on the way."""
        temporary = self._temporaries.get(self._ident(name))
        if temporary is not None:
            return temporary, None
        part = await self._part(name)
        await self._context.flush_queued(self.prefix.child(part))
        if part:
            key = self.prefix.key(part)
            content = RawValue(self._context, key)
            if self._is_staged(content):
                return self._file(content), None
            snapshot = await content.snapshot()
            if snapshot is not None and (self._store.hierarchical or not await self._store.prefix_exists(self.prefix.child(part))):
                # Somebody may have begun to write it meanwhile.
                return self._file(content), None if self._is_staged(content) else snapshot.attributes
        prefix = self.prefix.child(part)
        if prefix in self._context.made_prefixes or await self._store.prefix_exists(prefix):
            return self._at(prefix), None
        raise no_such_entry(name)

    async def listed_file(self, name: str) -> Node:
        here = self._ident(name)
        return self._temporaries.get(here) or self._file(RawValue(self._context, self.prefix.key(await self._part(name)), here))

    async def extended_attributes_of(self, name: str) -> None:
        """None, whatever it is: keys are bytes, and nothing is looked up."""

    async def entries(self) -> AsyncIterator[Entry]:
        self._folder.check()
        await self._context.flush_queued(self.prefix)
        writable = self._context.writable
        here, times = self._here, self._times
        temporary = {entry[0]: entry for entry in self._temporaries.entries(here)}
        for entry in temporary.values():
            yield entry
        staged = self._staged()
        made = {prefix for prefix in self._context.made_prefixes if _is_directly_below(prefix, self.prefix)}
        listing = self._store.list_dir(self.prefix)
        if not self._store.hierarchical:
            listing = self._without_shadowed(listing)
        async for name, is_prefix, size, mtime_ns in listing:
            if temporary and name in temporary:
                continue
            if times:
                mtime_ns = times.mtime_ns_of(f"{here}{names.name_of(name)}{'/' * is_prefix}", size=size, stored_ns=mtime_ns)
            if is_prefix:
                made.discard(self.prefix.child(name))
            elif staged:
                one = staged.pop(names.name_of(name), None)
                if one is not None and one.size is not None:
                    size, mtime_ns = one.size, one.mtime_ns
            yield names.name_of(name), is_prefix, size, mtime_ns, writable
        for name, one in staged.items():
            yield name, False, one.size or 0, one.mtime_ns, writable
        for prefix in made:
            yield (
                names.name_of(prefix[len(self.prefix) : -1]),
                True,
                0,
                times.mtime_ns_of(ident(prefix), size=0, stored_ns=None),
                writable,
            )

    @_entered
    async def create(self, name: str, flags: OpenFlags) -> tuple[File, Handle]:
        key = await self._new_key(name)
        if await self._exists(name):
            raise EntryExists(f"{key!r} is there already", key=key)
        if is_temporary(name):
            return await self._temporaries.create(self._ident(name), flags)
        file = self._file(RawValue(self._context, key))
        return file, await file.create(flags)

    @_entered
    async def mkdir(self, name: str) -> Directory:
        key = await self._new_key(name)
        if await self._exists(name):
            raise EntryExists(f"{key!r} is there already", key=key)
        prefix = Prefix(key + "/")
        try:
            await self._store.make_prefix(prefix)
        except StoreUnsupported:
            self._context.made_prefixes.add(prefix)
        return self._at(prefix)

    @_entered
    async def unlink(self, name: str) -> None:
        node = await self.lookup(name)
        if not isinstance(node, StagedFile):
            raise IsADirectory(f"{name!r} is a folder", key=name)
        self._require_writable()
        async with self._context.staging.unnaming(node.ident):
            await node.content.erase()
        self._times.forget(node.ident)
        self._keep()

    @_entered
    async def link(self, file: File, new_name: str) -> File:
        if not isinstance(file, TemporaryFile):
            return await super().link(file, new_name)
        if not file.ident.startswith(f"{VIEW}/"):
            raise AcrossViews(f"{file.ident!r} is a file of another view", key=file.ident)
        key = await self._new_key(new_name)
        if await self._exists(new_name):
            raise EntryExists(f"{key!r} is there already", key=key)
        if is_temporary(new_name):
            return await super().link(file, new_name)
        content = RawValue(self._context, key)
        await self._temporaries.link(file, content, content.create)
        return self._file(content)

    @_entered
    async def rmdir(self, name: str) -> None:
        node = await self.lookup(name)
        if not isinstance(node, RawDirectory):
            raise NotADirectory(f"{name!r} is a file", key=name)
        self._require_writable()
        await node._require_empty()
        try:
            await self._store.remove_prefix(node.prefix)
        except StoreUnsupported:
            self._context.made_prefixes.discard(node.prefix)
        self._times.forget(ident(node.prefix))
        self._keep()

    @_entered
    async def rename(self, name: str, new_directory: Directory, new_name: str, *, replace: bool = True) -> None:
        if not isinstance(new_directory, RawDirectory) or new_directory._store is not self._store:
            raise AcrossViews(f"{name!r} cannot be renamed into another view", key=name)
        new_directory._folder.check()
        node = await self.lookup(name)
        new_key = await new_directory._new_key(new_name)
        try:
            target = await new_directory.lookup(new_name)
        except NoSuchEntry:
            target = None
        if target is not None and not replace:
            raise EntryExists(f"{new_key!r} is there already", key=new_key)
        if isinstance(node, RawDirectory):
            await self._rename_prefix(node, target, Prefix(new_key + "/"))
        elif isinstance(target, Directory):
            raise IsADirectory(f"{new_key!r} is a folder", key=new_key)
        elif isinstance(node, StagedFile) and (target is None or isinstance(target, StagedFile)):
            if isinstance(target, TemporaryFile) or (target is None and is_temporary(new_name)):
                await self._temporaries.move(node, self._temporaries.content(new_directory._ident(new_name)))
            elif isinstance(node, TemporaryFile):
                await self._temporaries.move(node, RawValue(self._context, new_key))
            else:
                await self._rename_value(node, new_key)
        self._keep()

    @_entered
    async def sync(self) -> None:
        await self._context.hierarchy.publish(self.prefix)
        await self._store.sync([self.prefix])

    async def _rename_value(self, node: StagedFile, new_key: Key) -> None:
        """What is staged is published first, so that the store sees one rename of one whole value."""
        staging = self._context.staging
        content = RawValue(self._context, new_key)
        if node.ident == content.ident:
            return
        staged = staging.get(node.ident)
        if staged is not None:
            await staged.publish_now()
        old = node.content
        assert isinstance(old, RawValue)
        async with staging.renaming(node.ident, content), staging.unnaming(content.ident):
            async with self._context.hierarchy.live.changing_document(old.key, new_key):
                try:
                    moved = await self._store.rename(old.key, new_key)
                except StoreUnsupported:
                    moved = await self._copy(old.key, new_key)
            if not moved:
                raise no_such_entry(old.key)
            self._times.move(node.ident, content.ident)

    async def _copy(self, old: Key, new: Key) -> bool:
        value = await self._store.get(old)
        if value is None:
            return False
        await self._store.set(new, value)
        await self._store.erase(old)
        return True

    async def _rename_prefix(self, node: RawDirectory, target: Node | None, new: Prefix) -> None:
        old = node.prefix
        if old == new:
            return
        if new.startswith(old):
            raise NameInvalid(f"{old!r} cannot be moved into itself", key=new)
        if isinstance(target, RawDirectory):
            await target._require_empty()
        elif target is not None:
            raise NotADirectory(f"{new!r} is a file", key=new)
        staging = self._context.staging
        await staging.publish_below(ident(old))
        await self._context.flush_queued(old)
        try:
            async with self._context.hierarchy.live.changing(old, new):
                moved = await self._store.rename_prefix(old, new)
        except StoreUnsupported as error:
            raise AcrossViews(f"{old!r}: this store cannot rename a folder in one step", key=old) from error
        if not moved:
            # There was nothing in the store, and nobody was told: what there is, is in this mount.
            _follow(self._context, old, new)

    async def _require_empty(self) -> None:
        async for name, *_ in self.entries():
            raise DirectoryNotEmpty(f"{self.prefix!r} is not empty: it holds {name!r}", key=self.prefix)

    def _require_writable(self) -> None:
        if not self._context.writable:
            raise StoreReadOnly("this mount is read-only")

    def _keep(self) -> None:
        """Where prefixes exist only through keys, a folder that loses its last key stays in this mount: its user made it."""
        if self.prefix and not self._store.hierarchical:
            self._context.made_prefixes.add(self.prefix)

    def _at(self, prefix: Prefix) -> RawDirectory:
        return RawDirectory(self._context, self._folders, prefix)

    def _file(self, content: RawValue) -> StagedFile:
        return StagedFile(self._context.staging, content, writable=self._context.writable)

    def _is_staged(self, content: RawValue) -> bool:
        """Whether the file is there although the store need not have it."""
        staged = self._context.staging.get(content.ident)
        return staged is not None and staged.unpublished

    def _staged(self) -> dict[str, Staged]:
        """What is staged directly below, by name."""
        found = self._context.staging.unpublished_in(self._here)
        return {name: one for name, one in found.items() if not isinstance(one.content, TemporaryContent)}

    def _ident(self, name: str) -> str:
        """`File.ident` of the entry called ``name``."""
        return self._here + name

    async def _exists(self, name: str) -> bool:
        if self._temporaries.get(self._ident(name)) is not None:
            return True
        part = await self._part(name)
        prefix = self.prefix.child(part)
        return (
            (bool(part) and self._is_staged(RawValue(self._context, self.prefix.key(part))))
            or prefix in self._context.made_prefixes
            or (bool(part) and await self._store.stat(self.prefix.key(part)) is not None)
            or await self._store.prefix_exists(prefix)
        )

    async def _new_key(self, name: str) -> Key:
        self._require_writable()
        part = names.part_of(name)
        if not part:
            raise NameInvalid(f"{name!r} cannot name a new key", key=name)
        return self.prefix.key(part)

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
            log.warning("the key %r is hidden by the folder of the same name", f"{self.prefix}{entry[0]}")
            return False

        if not more:
            for entry in filter(is_shown, entries):
                yield entry
            return
        # So many are not held: they are listed a second time.
        entries.clear()
        async for entry in self._store.list_dir(self.prefix):
            if is_shown(entry):
                yield entry


def _follow(context: ViewContext, old: Prefix, new: Prefix) -> None:
    """What was called ``old`` in this view is called ``new``."""
    context.staging.rekey_below(ident(old), lambda content: _moved(content, old, new))
    context.temporaries.move_below(ident(old), ident(new))
    context.times.move(ident(old), ident(new))
    for prefix in [prefix for prefix in context.made_prefixes if prefix.startswith(old)]:
        context.made_prefixes.discard(prefix)
        context.made_prefixes.add(Prefix(new + prefix[len(old) :]))


def _moved(content: Content, old: Prefix, new: Prefix) -> Content:
    """The same, elsewhere: what is staged is published through it."""
    content.ident = ident(new) + content.ident[len(ident(old)) :]
    if isinstance(content, RawValue):
        content.key = Key(new + content.key[len(old) :])
    return content


def _is_directly_below(prefix: Prefix, parent: Prefix) -> bool:
    return prefix != parent and prefix.startswith(parent) and "/" not in prefix[len(parent) : -1]


PLUGIN = ViewPlugin(VIEW, "every key of the store, byte for byte; what you write here is stored as it is", RawView)
