"""Renaming of nodes: a rename of keys in every layout, which keeps every byte of documents and chunks.

If all of a node lies in one folder (v0, v1, v2, the final v3; the folder of a hierarchy with an entry point), it is one step of the
store. If documents and chunks lie in different places (2019, 2022), each of these is moved apart, then to its place
(`zarrfs.hierarchy.intents`): a concurrent reader of the store finds no node, rather than one without its chunks. A store that cannot
rename prefixes, or another file system in a part of a folder, raises `AcrossViews`: a copy here would cost as much as in the calling
program.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest

import trio

from zarrfs.dialects.base import Layout
from zarrfs.errors import (
    AcrossViews,
    CopyMayNotFit,
    EntryExists,
    MetadataError,
    NameInvalid,
    NoSuchEntry,
    StoreTimeout,
    StoreUnsupported,
    ZarrfsError,
)
from zarrfs.hierarchy.consolidated import ConsolidatedCopies, begins_at, folder_beside, is_implicit
from zarrfs.hierarchy.intents import Intent, Intents
from zarrfs.hierarchy.live_array import DocumentVersion, OpenArray
from zarrfs.hierarchy.moves import Target, exists
from zarrfs.hierarchy.new_nodes import NewNodes, Seen
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.probe import first_below, holds_only_chunks
from zarrfs.hierarchy.records import Record
from zarrfs.hierarchy.spellings import is_same_node
from zarrfs.keys import ROOT, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode, Node
from zarrfs.stores.moving import moving

log = logging.getLogger(__name__)


class Renaming:
    """Renames of one editor, which serializes them."""

    def __init__(self, hierarchy: Hierarchy, intents: Intents, copies: ConsolidatedCopies, new: NewNodes) -> None:
        self._hierarchy = hierarchy
        self._intents = intents
        self._store = intents.store
        self._copies = copies
        self._new = new

    async def layout(self, path: NodePath, new_path: NodePath) -> Layout:
        """Return the layout of the node at ``path``, if it can be renamed to ``new_path``.

        Raises `AcrossViews`, `NameInvalid`, `StoreReadOnly`.
        """
        layout = await self._new.layout_for(path)
        layout.require_writable()
        if path == ROOT or not self._store.capabilities.rename:
            raise AcrossViews(f"{path}: cannot be renamed in one step", key=path)
        if new_path.startswith(path + "/"):
            raise NameInvalid(f"{path}: cannot be moved into itself", key=new_path)
        around = layout
        if begins_at(layout, path):
            around = await self._new.layout_for(path.parent)
        there = await self._new.layout_for(new_path.parent)
        if there.dialect.name != around.dialect.name or (not around.per_node and there.prefix != around.prefix):
            raise CopyMayNotFit(f"{path}: {new_path} is in another hierarchy", key=path)
        if begins_at(layout, path) and not around.per_node:
            raise CopyMayNotFit(f"{path}: is a hierarchy of its own", key=path)
        if not begins_at(layout, path) and isinstance(await self._hierarchy.node(path), GroupNode):
            for prefix in folder_beside(layout, path) if self._store.capabilities.list else ():
                if await self._store.prefix_exists(prefix):
                    raise CopyMayNotFit(f"{path}: shows the folder {prefix!r}, beside the keys of its hierarchy", key=path)
        return layout

    async def rename(
        self, layout: Layout, path: NodePath, new_path: NodePath, intent: Intent, *, over: bool, empty: Seen | None = None
    ) -> None:
        """Run `NodeEditor.rename`."""
        node = await self._hierarchy.node(path)
        if node is None:
            raise NoSuchEntry(f"{path}: no such node", key=path)
        target = await self._hierarchy.node(new_path)
        if target is not None and await is_same_node(self._hierarchy, path, new_path):
            if not layout.per_node and not begins_at(layout, path):
                raise EntryExists(f"{new_path}: the file system takes this name for that of {path}", key=new_path)
            # Only the spelling of its name changes.
            target = None
        is_empty = empty is not None and isinstance(target, GroupNode)
        if target is not None and not (is_empty or (over and isinstance(target, ArrayNode))):
            raise EntryExists(f"{new_path}: node exists", key=new_path)
        if target is not None:
            (await self._new.layout_for(new_path)).require_writable()
            await (self._new.require_no_members(new_path, empty) if is_empty else self._new.require_nothing_hidden(new_path))
        # In use until the outcome is known: its document is recognized wherever it is found (`_follow_when_done`).
        held = await self._in_use(node) if target is not None else None
        is_one = layout.per_node or begins_at(layout, path)
        unsupported = await self._copies.unsupported_in(layout, path, new_path) if not begins_at(layout, path) else []
        await self._new.check(layout if not begins_at(layout, path) else await self._new.layout_for(path.parent), new_path, path)
        for live in list(self._hierarchy.live.at_and_below(path)):
            # Only of these arrays: failures of shards queued for earlier arrays there do not concern the caller.
            await self._hierarchy.queued.publish(live)
        if not begins_at(layout, path):
            await self._new.make_parents(layout, new_path)
        await self._new.keep_parent(path)
        for each in (path,) if target is None else (path, new_path):
            await self._copies.write_out(layout, each)
        if is_one and target is not None:
            await intent.sync()
            await intent.begin(Record("rename", new_path, new_path.prefix, source=path.prefix))
        try:
            if target is not None:
                await self._copies.take_out(new_path, with_folder=is_empty)
            await self._copies.take_out(path, with_folder=True)
            if is_one:
                await self._in_one(layout, path, new_path, target, intent)
            else:
                await self._in_parts(layout, path, new_path, node, target, intent)
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await self._copies.put_in(layout, path, unsupported)
                if target is not None:
                    await self._copies.put_in(layout, new_path)
            if isinstance(error, StoreUnsupported):
                raise AcrossViews(f"{path}: the store cannot rename a folder in one step", key=path) from error
            raise
        del held
        self._hierarchy.empty_groups.move(path, new_path)
        if not begins_at(layout, path):
            moved = [NodePath(new_path + each[len(path) :]) for each in unsupported]
            await self._copies.put_in(layout, new_path, moved)

    async def _in_one(self, layout: Layout, path: NodePath, new_path: NodePath, target: Node | None, intent: Intent) -> None:
        old, new = path.prefix, new_path.prefix
        if not begins_at(layout, path):
            old, new = layout.listing_prefix(path), layout.listing_prefix(new_path)
        store = self._store
        async with self._hierarchy.live.lock.changing(path.prefix, old, new_path.prefix, new):
            # Decided before: a rename that the store announces moves them.
            is_of_mount = self._hierarchy.empty_groups.any_below(path)
            if target is None:
                self._require_moved(path, new_path, await store.rename_prefix(old, new), is_of_mount)
                return
            self._follow_when_done(intent, path, new_path, ((path.prefix, new_path.prefix), (old, new)), over=target)
            is_renamed = False
            try:
                # Until both are renamed, what is open of the target, and queued for it, stays: it may be put back.
                with moving():
                    await store.rename_prefix(new, intent.old)
                    if (record := intent.noted) is not None and not is_of_mount:
                        await intent.note(replace(record, is_placing=True))
                    if not await store.rename_prefix(old, new) and not is_of_mount:
                        if record is not None:
                            # Else what was set aside would count as replaced.
                            await intent.note(record)
                        raise NoSuchEntry(f"{path}: was moved or removed by another program", key=path)
                is_renamed = True
                await intent.done()
                await store.rename_prefix(intent.old, intent.gone)
                intent.is_done = True
            except BaseException as error:
                if isinstance(error, StoreTimeout):
                    intent.unknown()
                with trio.CancelScope(shield=True):
                    is_done = await intent.resolve()
                if not (is_renamed and is_done and isinstance(error, ZarrfsError)):
                    raise
                # What was replaced is deleted at the end of the operation. It is not put back, wherever other edits move what is there.
                intent.is_done = True
                with suppress(ZarrfsError):
                    await intent.forget()
                log.info("%s: renamed over: %s", new_path, error)

    async def _in_use(self, node: Node) -> OpenArray | None:
        """Return the array ``node``, which is in use while the result is held; None if it cannot be read, or is no array."""
        with suppress(MetadataError):
            return await self._hierarchy.array(node.path) if isinstance(node, ArrayNode) else None
        return None

    def _follow_when_done(
        self, intent: Intent, path: NodePath, new_path: NodePath, pairs: Sequence[tuple[Target, Target]], *, over: Node | None
    ) -> None:
        """When the node at ``path`` is at ``new_path``, let arrays in use follow, or end with what was there.

        ``pairs``: old and new places of its parts. A lookup may find it there before that is known (`LiveArray.is_successor`)."""
        live = self._hierarchy.live
        source, before = live.at(path), live.at(new_path) if isinstance(over, ArrayNode) else None
        prefix = before.chunk_prefix if before is not None else Prefix("")

        async def follow() -> None:
            if before is not None:
                await self._hierarchy.replaced(before, new_path, prefix)
            elif isinstance(over, GroupNode):
                self._hierarchy.empty_groups.lose(new_path)
                live.removed(new_path)
            if live.at(path) is source:
                live.renamed(path, new_path, pairs)

        def is_found(found: ArrayNode, document: DocumentVersion) -> bool:
            return (
                intent.on_done is not None and source is not None and document[1] is not None and document[1] == source.generation
            )

        intent.on_done = follow
        if before is not None:
            before.is_successor = is_found

    def _require_moved(self, path: NodePath, new_path: NodePath, is_moved: bool, is_of_mount: bool) -> None:
        """Raise `NoSuchEntry` if another program has moved or removed the node, unless it is a group of this mount only."""
        if is_moved:
            return
        if not is_of_mount:
            raise NoSuchEntry(f"{path}: was moved or removed by another program", key=path)
        # The store announces nothing.
        self._hierarchy.live.renamed(path, new_path, ())

    # --- documents and chunks in different places ---------------------------------------------------------------------------

    async def _in_parts(
        self, layout: Layout, path: NodePath, new_path: NodePath, node: Node, target: Node | None, intent: Intent
    ) -> None:
        try:
            layout.format(GroupNode(path=new_path, dialect=layout.dialect.name))
        except MetadataError as error:
            raise NameInvalid(f"{new_path}: cannot be a node: {error}", key=new_path) from error
        pairs = list(self._pairs(layout, path, new_path, node))
        documents = layout.document_keys(path)
        live = self._hierarchy.live
        async with live.lock.changing(path.prefix, new_path.prefix, *(each for pair in pairs for each in pair if each)):
            # Not before: a program may store the first chunk of the node meanwhile, or remove the last one, and its folder with it.
            there = [pair async for pair in self._there(pairs)]
            if not (is_implicit(node) or self._hierarchy.empty_groups.any_below(path) or any(old in documents for old, _ in there)):
                # Its chunks alone would be moved to where they belong to no array.
                raise NoSuchEntry(f"{path}: was moved or removed by another program", key=path)
            replaced = [each async for each in self._replaced(layout, new_path, target, [new for _, new in there])]
            if any(new == "" for _, new in there) or len({new for _, new in there}) < len(there):
                raise AcrossViews(f"{path}: no keys for its documents at {new_path}", key=path)
            self._follow_when_done(intent, path, new_path, pairs, over=target)
            if target is not None:
                await intent.sync()
            each = layout.listing_prefix(new_path)
            record = Record("rename", new_path, each, source=path.prefix, moves=tuple(there), replaced=tuple(replaced))
            with moving():
                try:
                    await intent.move(record)
                except BaseException as error:
                    if isinstance(error, StoreTimeout):
                        intent.unknown()
                    is_moved = False
                    with trio.CancelScope(shield=True):
                        is_done = await intent.resolve()
                        # A failed step may have taken effect without an announcement.
                        self._hierarchy.forget_all()
                        # Where nothing is left of it, another program may have removed it.
                        is_moved = is_done and not any([await exists(self._store, old) for old, _ in there])
                    if intent.is_unknown or not is_moved or not isinstance(error, Exception):
                        raise
            await intent.done()

    def _pairs(self, layout: Layout, path: NodePath, new_path: NodePath, node: Node) -> list[tuple[Target, Target]]:
        """Return pairs (old, new) of possible places of parts of the node and those below it; ``new`` is empty if there is none.

        Chunks come first: a document announces them.
        """
        pairs: list[tuple[Target, Target]] = []
        if isinstance(node, ArrayNode) and not node.metadata.shape:
            # The key of its only chunk may lie beside its prefix.
            old, new = (node.metadata.chunk_key_encoding.key(layout.chunk_prefix(each), ()) for each in (path, new_path))
            if not old.startswith(layout.chunk_prefix(path)):
                pairs.append((old, new))
        pairs.append((layout.chunk_prefix(path), layout.chunk_prefix(new_path)))
        listings = zip_longest(layout.listing_prefixes(path), layout.listing_prefixes(new_path), fillvalue=Prefix(""))
        documents = zip_longest(layout.document_keys(path), layout.document_keys(new_path), fillvalue=None)
        pairs += [(old, new) for old, new in listings if old]
        # An array's document comes first: a key that only some paths have is another form of it.
        first = layout.document_keys(new_path)[0]
        pairs += [(old, new if new is not None else first) for old, new in documents if old is not None]
        return pairs

    async def _there(self, pairs: list[tuple[Target, Target]]) -> AsyncIterator[tuple[Target, Target]]:
        """Yield those of ``pairs`` with content to move."""
        for old, new in pairs:
            if await exists(self._store, old):
                yield old, new

    async def _replaced(self, layout: Layout, path: NodePath, target: Node | None, found: list[Target]) -> AsyncIterator[Target]:
        """Yield the places at the new path to be deleted: of the node ``target``, or leftover chunks. Raises `EntryExists`."""
        own: list[Target] = []
        if target is not None:
            own = [old for old, _ in self._pairs(layout, path, path, target)]
            own += folder_beside(layout, path) if isinstance(target, GroupNode) else ()
        for each in dict.fromkeys((*own, *found)):
            if not each or not await exists(self._store, each):
                continue
            if each not in own and isinstance(each, Prefix) and not await holds_only_chunks(self._store, each):
                if await first_below(self._store, each) is not None:
                    raise EntryExists(f"{path}: not empty: {each!r}", key=path)
                continue
            yield each
