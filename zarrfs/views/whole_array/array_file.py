"""The content of a whole-array file: the array's elements between the literal bytes of a format."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress

from zarrfs.buffers import Buffer
from zarrfs.containers.base import MAX_NBYTES, Container, Elements, FileLayout
from zarrfs.errors import NotRepresentable, StaleEntry, ZarrfsError
from zarrfs.hierarchy.live_array import LiveArray, OpenArray
from zarrfs.keys import ROOT, Contents, Key, NodePath, Prefix
from zarrfs.keys.unsynced_keys import UnsyncedKeys
from zarrfs.model.metadata import ArrayMetadata, ArrayNode
from zarrfs.vfs import names
from zarrfs.vfs.content import Content, Snapshot
from zarrfs.vfs.node import Attributes, no_such_entry
from zarrfs.vfs.stage import Stage, StagingRoom
from zarrfs.views.base import ViewContext
from zarrfs.views.group_directory import entry_name_of, node_ident
from zarrfs.views.open_elements import OpenElements, read_range
from zarrfs.views.whole_array.array_stage import ElementsStage
from zarrfs.views.whole_array.new_array_stage import NewArrayStage


class WholeArrayContent(Content):
    """The array at ``path`` as a file of ``container``; codecs may round what is written."""

    verbatim = False
    in_parts = True
    # Network file systems report such a size too: cp then writes 1 MiB at a time, not 128 KiB. It applies to written files only:
    # readers with a buffer of this size would read, and decode, 1 MiB for a header.
    blksize = 1 << 20

    def __init__(self, context: ViewContext, path: NodePath, container: Container) -> None:
        self._context = context
        self._live: LiveArray | None = None
        self._layouts = 0
        self._emptied: NewArrayStage | None = None
        """Its content since it was emptied, until that is closed."""
        self._before: tuple[LiveArray | None, int] = None, 0
        """Its array, and the layouts of that, before it was emptied."""
        self._is_another = False
        """True if another array has the name of the one that it was, or was to replace."""
        self.container = container
        self._be_at(path)
        # Created when needed: each lookup makes a content.
        self._unsynced: UnsyncedKeys | None = None

    def follow(self) -> None:
        if self._live is not None and self._live.path != self.path:
            self._be_at(self._live.path)

    def _be_at(self, path: NodePath) -> None:
        self.path = path
        stem = names.name_of(path.name) if path != ROOT else self._context.store_name
        self.ident = node_ident(self.container.name, path.parent, entry_name_of(stem, self.container.suffix))

    async def _array_at_path(self) -> OpenArray | None:
        """Return the array at the path that the file has in the end: it may be renamed meanwhile."""
        while True:
            path = self.path
            open_array = await self._context.hierarchy.array(path)
            if self.path == path:
                return open_array

    async def _array_now(self) -> OpenArray | None:
        """Return the array; the file then follows it through renames."""
        if self._live is not None:
            self._live.check()
        open_array = await self._array_at_path()
        if self._live is not None and self.is_outdated:
            raise StaleEntry(f"{self.path} was resized: open the file again", key=self.ident)
        if open_array is not None:
            if self._live is not None and self._live is not open_array.live and self._live.has_left_its_path:
                # Another array has taken the path; this file's own is no longer in place.
                self._live.end("was replaced by another array")
                self._live.check()
            self._stand_for(open_array.live)
        return open_array

    def _stand_for(self, live: LiveArray) -> None:
        self._live, self._layouts = live, live.layouts

    def _closed(self, stage: NewArrayStage) -> None:
        """Stand for the array in place once ``stage`` is closed: the stored one, else the one of before."""
        if self._emptied is not stage:
            return
        self._emptied = None
        if stage.stored is not None:
            self._stand_for(stage.stored)
            return
        self._live, self._layouts = self._before
        # The file keeps the path of the array to be.
        self._is_another |= self._live is not None and self._live.path != self.path

    @property
    def may_be_another(self) -> bool:
        return not (isinstance(self._live, LiveArray) and self._live.is_amended)

    @property
    def is_outdated(self) -> bool:
        if self._is_another:
            return True
        return self._live is not None and (self._live.why_gone is not None or self._live.layouts != self._layouts)

    @property
    def is_elsewhere(self) -> bool:
        return self._live is not None and self._live.is_moved_away

    def renewed(self) -> WholeArrayContent:
        return WholeArrayContent(self._context, self.path, self.container) if self.is_outdated else self

    async def open_to_write(self) -> None:
        if (emptied := self._unpublished) is None:
            if (open_array := await self._array_now()) is not None:
                await self._context.hierarchy.live.open_to_write(open_array.live)
                self._require_own(open_array)
            return
        # A file that was emptied is that of the array to be, until it is published, whatever becomes of the array that it replaces.
        try:
            await self._array_to_replace()
        except StaleEntry:
            # A later open gets the file of the array that has the name.
            self._is_another |= self._unpublished is emptied
            raise

    async def _array_to_replace(self) -> OpenArray | None:
        """Return the array that the file replaces once it is emptied; None if the name is free. Raises `StaleEntry` for another."""
        open_array = await self._array_at_path()
        if open_array is not None:
            with suppress(StaleEntry):
                await self._context.hierarchy.live.open_to_write(open_array.live)
            open_array = await self._array_at_path()
        if open_array is None and self._live is not None:
            # Another program may have put an array there since this one was found to be gone.
            await self._context.hierarchy.reread(self.path)
            open_array = await self._array_at_path()
        if open_array is not None:
            self._require_own(open_array)
        return open_array

    def _require_own(self, found: OpenArray) -> None:
        """Raise `StaleEntry` if ``found``, at the path, is not the array of this file, nor the one that it replaces."""
        own, emptied = self._live, self._unpublished
        if emptied is not None:
            is_own = emptied.may_replace(found.live)
        else:
            is_own = own is None or own is found.live or (own.why_gone is None and not own.has_left_its_path)
        if not is_own:
            raise StaleEntry(f"{self.path} was replaced by another array: open the file again", key=self.ident)

    @property
    def _unpublished(self) -> NewArrayStage | None:
        """The content since the file was emptied, if it was not published."""
        return self._emptied if self._emptied is not None and self._emptied.stored is None else None

    async def snapshot(self) -> Snapshot | None:
        open_array = await self._array_now()
        if open_array is None:
            return None
        layout = layout_of(self.container, open_array.array.metadata)
        changed_ns = await self.mtime_ns(layout.size)
        writable = self.container.writable and self._context.may_write(open_array.array.node)
        attributes = Attributes(False, layout.size, changed_ns, writable=writable)
        return _ArraySnapshot(OpenElements(self._context.hierarchy, open_array), layout, attributes)

    async def stage(self, room: StagingRoom, *, empty: bool) -> Stage:
        # From now on, chunks that equal the fill value are left out.
        self._context.hierarchy.undefined_fills.discard(self.path)
        if empty:
            # An emptied file becomes a new array: the old one is no longer its content. An earlier save may have moved it apart.
            await self._context.editor.settle_at(self.path)
            open_array = await self._array_to_replace()
            if self._unpublished is None:
                replaced = open_array.live if open_array is not None and self._live is None else self._live
                self._before = replaced, replaced.layouts if replaced is not self._live and replaced is not None else self._layouts
            making = self._context.hierarchy.live.make(self.path, open_array.live if open_array is not None else None)
            self._stand_for(making)
            self._emptied = NewArrayStage(
                self._context, making, self.ident, self.container, room, open_array, self._stored, self._closed
            )
            return self._emptied
        open_array = await self._array_now()
        if open_array is None and self._live is not None:
            # Another program may be writing its documents.
            await self._live.confirmed()
            open_array = await self._array_now()
        if open_array is None:
            raise no_such_entry(self.ident)
        self._context.hierarchy.live.hold(open_array.live)
        layout = layout_of(self.container, open_array.array.metadata)
        return ElementsStage(self._context.hierarchy, self.ident, open_array, layout, room, self._context.start_soon, self._stored)

    async def keep(self, room: StagingRoom) -> Stage:
        raise StaleEntry(f"{self.ident} is too large to be kept", key=self.ident)

    async def erase(self) -> None:
        await self._context.editor.erase(self.path, only_empty=True, seen=ArrayNode)

    async def sync(self) -> None:
        # Queued shards too: they hold elements of this file, also those written through other files.
        unsynced = self._unsynced.versions() if self._unsynced is not None else {}
        shards = await self._context.hierarchy.queued.publish(self.path)
        targets: list[Key | Prefix] = [*unsynced, *shards]
        if (open_array := await self._array_at_path()) is not None:
            contents, document = Contents(open_array.live.chunk_prefix), open_array.live.document
            targets.append(contents)
            # Where documents and chunks are in different places, the document is not among the contents.
            targets += [document] if document is not None and not document.startswith(contents) else []
        await self._context.store.sync([*targets, *await self._context.unsynced_documents(self.path)])
        if self._unsynced is not None:
            self._unsynced.synced(unsynced)

    async def set_mtime(self, mtime_ns: int) -> None:
        if self._emptied is not None and self._emptied.stored is not None:
            # Its stage is closed after this. The array may be renamed before, and the file has to follow it.
            self._closed(self._emptied)
        open_array = await self._array_at_path()
        if open_array is not None:
            size = layout_of(self.container, open_array.array.metadata).size
            self._context.times.keep(self.ident, mtime_ns, size=size, stored_ns=await self.changed_ns())

    async def retimed(self, attributes: Attributes) -> Attributes:
        if not self.is_outdated:
            # Else what is at the path is not known: the file has the time that it had.
            with suppress(ZarrfsError):
                return attributes._replace(mtime_ns=await self.mtime_ns(attributes.size))
        return attributes

    async def mtime_ns(self, size: int) -> int:
        """Return the time of the array's file of ``size`` bytes: the one that was set, else the time of the array's last change."""
        stored_ns = await self.changed_ns()
        set_ns = self._context.times.mtime_ns_of(self.ident, size=size, stored_ns=stored_ns)
        return set_ns if set_ns is not None else stored_ns

    async def changed_ns(self) -> int:
        mtime_ns = await self._context.hierarchy.mtime_ns(self.path)
        return mtime_ns if mtime_ns is not None else self._context.mounted_ns

    def _stored(self, targets: Sequence[Key | Contents]) -> None:
        if self._unsynced is None:
            self._unsynced = UnsyncedKeys()
        self._unsynced.add(targets)


class _ArraySnapshot(Snapshot):
    """The file of an array with its metadata at open."""

    def __init__(self, elements: OpenElements, layout: FileLayout, attributes: Attributes) -> None:
        self._elements = elements
        self._layout = layout
        self.attributes = attributes

    @property
    def pages(self) -> object:
        return self._elements.generation()

    async def read(self, offset: int, size: int) -> Buffer:
        await self._elements.check()
        return await read_range(self._layout, offset, size, self._read)

    async def _read(self, extent: Elements, begin: int, nbytes: int) -> Buffer:
        return await self._elements.read(extent.start + begin, nbytes)

    async def aclose(self) -> None:
        await self._elements.aclose()


# Cache for repeated lookups; it holds the metadata, so that no other object can get the same id.
_layouts: OrderedDict[tuple[str, int], tuple[ArrayMetadata, FileLayout]] = OrderedDict()
_MAX_LAYOUTS = 1024


def layout_of(container: Container, metadata: ArrayMetadata) -> FileLayout:
    """Return the layout of an array's file. Raises `NotRepresentable`, also if it exceeds the maximum file size."""
    name = container.name, id(metadata)
    if (known := _layouts.get(name)) is not None:
        return known[1]
    layout = container.layout(metadata)
    if layout.size > MAX_NBYTES:
        raise NotRepresentable(f"a file of {layout.size} bytes exceeds the maximum file size ({MAX_NBYTES})")
    _layouts[name] = metadata, layout
    if len(_layouts) > _MAX_LAYOUTS:
        _layouts.popitem(last=False)
    return layout
