"""Creation, change, renaming and removal of nodes.

Dialects define the content of documents; this module reads what they need, and sets and erases keys in an order in which a concurrent
reader, or a mount after a crash, never sees a false state: a node appears when all of its parts exist, disappears before its chunks do
(an array without chunks would read as fill value), and is absent from consolidated copies while it is incomplete.

An edit reads documents and writes them again. Edits of one mount are serialized; those of several mounts too if the store has locks
between processes (`Store.exclusive`, of a document of the root).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from operator import lt

import trio

from zarrfs import fences
from zarrfs.arrays.live_node import LiveNode, bound_to, unfenced
from zarrfs.dialects.base import Edit, Layout
from zarrfs.errors import (
    ContentInvalid,
    EntryExists,
    KeyConflict,
    MetadataError,
    NoSuchEntry,
    StaleEntry,
    StoreAccessDenied,
    ZarrfsError,
)
from zarrfs.hierarchy.consolidated import ConsolidatedCopies, is_implicit
from zarrfs.hierarchy.erasing import EraseOutside, IsStored, Outside, erase_in_steps, erase_outside_of, never
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.live_array import LiveArray
from zarrfs.hierarchy.new_nodes import NewNodes, Seen, require_no_nodes
from zarrfs.hierarchy.node_erasing import NodeErasing, chunk_keys
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.placing import Placing, lies_beside, prefix_of
from zarrfs.hierarchy.probe import holds_only_chunks
from zarrfs.hierarchy.recorded_copies import copies_recorded
from zarrfs.hierarchy.renaming import Renaming
from zarrfs.hierarchy.revising import revise
from zarrfs.hierarchy.storing_together import store_together
from zarrfs.hierarchy.unforeseen import require_readable
from zarrfs.keys import ROOT, Key, NodePath
from zarrfs.model.chunk_grid import Shape, in_grid
from zarrfs.model.metadata import ArrayNode, GroupNode
from zarrfs.stores.base import Store

log = logging.getLogger(__name__)

Ends = list[trio.Event]
"""Set when steps end that their callers have abandoned."""


class NodeEditor:
    """Edits of the nodes in ``store``, one at a time. ``new_dialect``: dialect of the first node of an empty store."""

    def __init__(self, hierarchy: Hierarchy, store: Store, intents: Intents, *, new_dialect: str) -> None:
        self._hierarchy = hierarchy
        self._store = store
        self._intents = intents
        self._lock = trio.Lock()
        self._unsettled: dict[Placing, ArrayNode] = {}
        """Failed `put`, and their arrays, whose outcome is not determined yet."""
        self._late: dict[NodePath, Ends] = {}
        """The ends of changes of documents that timed out, and may still take effect."""
        self._copies = ConsolidatedCopies(hierarchy, store)
        self._new = NewNodes(hierarchy, store, self._copies, new_dialect=new_dialect)
        self._renaming = Renaming(hierarchy, intents, self._copies, self._new)
        self._erasing = NodeErasing(hierarchy, store, intents, self._copies, self._new)

    async def layout_for(self, path: NodePath) -> Layout:
        """Return `NewNodes.layout_for`."""
        return await self._new.layout_for(path)

    async def require_nothing_hidden(self, path: NodePath) -> None:
        """Run `NewNodes.require_nothing_hidden`."""
        await self._new.require_nothing_hidden(path)

    async def create(
        self, node: GroupNode | ArrayNode, *, stored: IsStored = never, pending: Ends | None = None, of: LiveNode | None = None
    ) -> None:
        """Create a node in the dialect of `layout_for`, with the groups above it that the dialect requires.

        ``stored``: the chunks of an array that are stored already; other keys there with names of chunks are leftovers, and erased.
        ``pending``: receives the ends of steps that timed out, and may still take effect. ``of``: the array in creation; its group must
        exist. An implicit group becomes a node by this; an array is created only where nothing lies below. Raises `EntryExists`,
        `NameInvalid`, `NotADirectory` (a node above it is not a group), `NotRepresentable`, `StaleEntry`.
        """
        async with self._listing(node.path, of=of, is_new=True) as layout:
            await self._new.check(layout, node.path)
            await self._new.check_free(node)
            # Its chunks may have been stored before it, hidden.
            self._hierarchy.reveal(node.path)
            await self._new.make_parents(layout, node.path)
            await self._new.clear(layout, node, stored)
            try:
                with fences.collected() as steps:
                    await self._new.write(layout, node)
            finally:
                for each in steps:
                    fences.given_up(each)
                if pending is not None:
                    pending += steps

    async def place_apart(self, node: ArrayNode, *, over: bool) -> Placing | None:
        """Return the place apart for the chunks of a new array, which are stored before its documents, until `put`.

        ``over``: it replaces the array at its path, in whose folder no foreign keys may lie (`HiddenKeys`). None if the chunks are stored
        at their final keys, as chunks without documents belong to no array.
        """
        layout = await self._new.layout_for(node.path)
        if over and node.path != ROOT:
            # Checked before any data is written.
            await self._new.require_nothing_hidden(node.path)
        keys = self._hierarchy.array_of(node).chunks.keys((0,) * node.metadata.ndim)
        placing = Placing(self._intents, layout, node)
        is_one = node.path != ROOT and all(key.startswith(node.chunk_prefix) for key in keys)
        if over or (is_one and self._store.capabilities.rename):
            try:
                await placing.begin()
            except (StoreAccessDenied, KeyConflict) as error:
                if over:
                    raise
                log.info("%s: created in place, no place apart: %s", node.path, error)
            else:
                return placing
        if self._store.capabilities.hierarchical and await holds_only_chunks(self._store, prefix_of(layout, node)):
            # A leftover chunk may be in the way of a folder.
            async with self.editing(node.path):
                await self._new.check_free(node)
                await erase_in_steps(self._store, prefix_of(layout, node))
        return None

    async def settle(self, placing: Placing, node: ArrayNode) -> None:
        """Undo or complete a failed `put`. Until then the array to be replaced may count as absent, and its layout as unknown."""
        self._unsettled[placing] = node
        async with self.editing(node.path):
            pass

    async def settle_at(self, path: NodePath) -> None:
        """Determine the outcome of a failed edit at ``path``, for a caller that looks what is there. Raises its error."""
        is_saved = any(node.path == path for node in self._unsettled.values())
        if is_saved or self._hierarchy.live.lock.is_underway(path) or self._intents.error_at(path) is not None:
            async with self.editing(path):
                pass

    async def settle_documents(self, path: NodePath) -> None:
        """Run `settle_at` for a change of documents, which may be none against what the store holds until an earlier one arrives."""
        await self.settle_at(path)
        await unfenced(self._late.get(path, []), path, "an earlier change")

    def require_settled(self, path: NodePath) -> None:
        """Raise the error of an edit of the documents at ``path`` that `settle_at` could not end: it may be undone later."""
        if (error := self._intents.error_at(path)) is not None:
            raise error

    async def _settle(self, paths: tuple[NodePath, ...]) -> None:
        """Settle all failed saves of open files before an edit: else they would put an array over its result later.

        Raises the error where one concerns a node at, above or below one of these paths."""
        for placing, node in list(self._unsettled.items()):
            if not placing.is_ended:
                try:
                    await self._settle_one(placing, node)
                except ZarrfsError as error:
                    own = node.path.prefix
                    if any(each.prefix.startswith(own) or own.startswith(each.prefix) for each in paths):
                        raise
                    log.warning("%s: outcome of a save is not determined yet: %s", node.path, error)
                    continue
            self._unsettled.pop(placing, None)

    async def _settle_one(self, placing: Placing, node: ArrayNode) -> None:
        layout = await self._new.layout_for(node.path)
        documents = [key for each in await self._hierarchy.layouts(node.path) for key in each.document_keys(node.path)]
        async with self._hierarchy.live.lock.changing(node.path.prefix, node.chunk_prefix, *documents):
            await placing.settle(node.path, prefix_of(layout, node))
        self._hierarchy.forget_all()

    async def put(self, node: ArrayNode, placing: Placing, *, over: LiveArray | None, of: LiveNode | None = None) -> None:
        """Move an array stored apart to its path, in one step; ``over``: replace this array if it is there. ``of``, and errors: as for
        `create`; `StaleEntry` if another array is there, too."""
        try:
            return await self._put_once(node, placing, over, of if over is None else None)
        except (StaleEntry, EntryExists):
            if over is None:
                raise
        # If another program has moved the old array meanwhile, the path is free, unless something else has taken it.
        try:
            await self._put_once(node, placing, over, None)
        except EntryExists as error:
            raise StaleEntry(f"{node.path}: the array to be replaced has left, and the path is taken", key=node.path) from error

    async def _put_once(self, node: ArrayNode, placing: Placing, over: LiveArray | None, of: LiveNode | None) -> None:
        async with self._listing(node.path, of=None if placing.is_placed else of) as layout:
            if not placing.is_placed:
                await self._new.check(layout, node.path)
                is_over = await self._new.check_place(node, over, again=placing.was_moved)
                if not is_over:
                    if over is not None:
                        await self._new.require_group_above(layout, node.path)
                    await self._new.make_parents(layout, node.path)
                await self._new.write_entry(layout)
                if is_over:
                    await self._copies.write_out(layout, node.path)
                try:
                    if is_over:
                        await self._copies.take_out(node.path)
                    await self._put(layout, node, placing, over if is_over else None)
                except BaseException:
                    if placing.is_unknown or placing.is_unsettled:
                        self._unsettled[placing] = node
                    if is_over:
                        with trio.CancelScope(shield=True):
                            await self._copies.put_in(layout, node.path)
                    raise
            await self._copies.follow(layout, [node.path])

    async def _put(self, layout: Layout, node: ArrayNode, placing: Placing, over: LiveArray | None) -> None:
        documents = [key for each in await self._hierarchy.layouts(node.path) for key in each.document_keys(node.path)]
        async with self._hierarchy.live.lock.changing(node.path.prefix, prefix_of(layout, node), *documents):
            before = await self._hierarchy.documents(await self._own_documents(layout, node.path))
            chunks: list[Key] | None = None
            found = await self._hierarchy.node(node.path)
            replaced = found if isinstance(found, ArrayNode) else None
            if node.path == ROOT or lies_beside(node) or (replaced is not None and lies_beside(replaced)):
                chunks = await chunk_keys(self._hierarchy, replaced) if replaced is not None else []
            live = self._hierarchy.live.at(node.path)
            follow = None
            if over is not None and live is not None:
                follow = partial(self._hierarchy.replaced, live, node.path, live.chunk_prefix)
                live.is_successor = partial(placing.is_found, layout, node)
            # What an earlier attempt has moved away and back is known as another object since.
            in_place = live if over is not None and placing.was_moved else over
            await placing.put(layout, node, before, chunks, over=over is not None, live=in_place, on_done=follow)

    async def _own_documents(self, layout: Layout, path: NodePath) -> list[Key]:
        """Return the keys of the documents of nodes at ``path``.

        At a root, other keys may have the names of another dialect's documents: the entry point of 2019 and 2022 has that of final v3.
        """
        layouts = await self._hierarchy.layouts(path)
        if path == ROOT:
            layouts = [each for each in layouts if await self._hierarchy.is_described(path, each)]
        return [key for each in layouts for key in each.document_keys(path) if key not in layout.entry_documents()]

    async def turn_into_array(self, node: ArrayNode) -> None:
        """Replace the group at ``node.path``, which contains no node, by this array. The attributes are those of ``node``.

        Raises `EntryExists` if the path is an array, and as `require_no_nodes` and `NewNodes.check`, before anything is erased."""
        async with self._listing(node.path) as layout:
            require_readable(before := await self._hierarchy.node(node.path))
            if not isinstance(before, GroupNode):
                raise EntryExists(f"{node.path}: not a group", key=node.path)
            await require_no_nodes(self._hierarchy, self._store, before)
            await self._new.check(layout, node.path)
            await self._new.make_parents(layout, node.path)
            await self._new.clear(layout, node)
            await self._new.write(layout, node, over=True)
            self._hierarchy.empty_groups.lose(node.path)

    async def amend(self, path: NodePath, edit: Edit, *, of: LiveNode | None = None, seen: Seen | None = None) -> None:
        """Change what ``edit`` names, in the node's documents and in their consolidated copies.

        A group without documents gets some. ``of``: the array in use that is meant, as opposed to another put there by another program;
        ``seen``: as for `erase`. Raises `NoSuchEntry`, `MetadataError`, `StaleEntry`; then nothing is changed.
        """
        async with self.editing(path) as layout, bound_to(of):
            node = await self._new.node_at(path, seen)
            if isinstance(node, GroupNode) and not node.explicit:
                if edit.shape is not None:
                    raise MetadataError(f"{path}: a group has no shape", key=path)
                if edit.attributes:
                    async with copies_recorded(self._intents, self._copies, layout, path):
                        await self._new.make_group(layout, path, edit.attributes)
                return
            with self._hierarchy.live.amending(path) if edit == Edit(attributes=edit.attributes) else nullcontext():
                await self._amend(layout, path, edit)

    async def has_copy(self, group: GroupNode) -> bool:
        """Return `ConsolidatedCopies.is_in`."""
        return await self._copies.is_in(group)

    async def consolidate(self, path: NodePath) -> bool:
        """Run `ConsolidatedCopies.make`."""
        async with self.editing(path) as layout:
            return await self._copies.make(layout, path)

    async def resize(
        self, path: NodePath, shape: Shape, *, erase_outside: EraseOutside, of: LiveNode | None = None, edit: Edit | None = None
    ) -> None:
        """Change the shape of the array at ``path``, with what ``edit`` names. Then stored chunks entirely outside of it are erased.

        The present shape erases those that a failed attempt has left. If ``erase_outside`` is false for one of them, `ContentInvalid` is
        raised, and nothing is changed. Elements outside of the new shape in partly inside chunks stay stored, as with every Zarr library:
        they reappear if the array grows before the chunk is written. ``of``: as for `amend`.
        """
        async with self.editing(path) as layout:
            node = await self._hierarchy.node(path)
            require_readable(node)
            if not isinstance(node, ArrayNode):
                raise NoSuchEntry(f"{path}: no such array", key=path)
            if len(shape) != node.metadata.ndim:
                raise ContentInvalid(f"{path}: number of dimensions ({node.metadata.ndim}) cannot change", key=path)
            if (live := self._hierarchy.live.at(path)) is not None:
                # Only of this array: failures of shards queued for an earlier array there do not concern the caller.
                await self._hierarchy.queued.publish_for_resize(live, node.metadata.shape, shape)
            async with self._hierarchy.live.lock.changing(*layout.document_keys(path)), bound_to(of):
                if live is not None:
                    # What writers have queued before they were kept out.
                    with live.held_by_changer():
                        await self._hierarchy.queued.publish_for_resize(live, node.metadata.shape, shape)
                await self._resize(layout, node, shape, edit or Edit(), erase_outside=erase_outside)

    async def _resize(self, layout: Layout, node: ArrayNode, shape: Shape, edit: Edit, *, erase_outside: EraseOutside) -> None:
        path, grid_shape = node.path, node.metadata.chunk_grid.resized(shape).grid_shape(shape)
        chunks = self._hierarchy.array_of(node).chunks
        outside = Outside(node.metadata.grid_shape)
        live, is_smaller = self._hierarchy.live.at(path), any(map(lt, grid_shape, node.metadata.grid_shape))
        if is_smaller or (live, node.metadata.shape) in self._hierarchy.live.half_erased:
            async for coords, _, _ in chunks.list(outside=erase_outside is True):
                if not in_grid(coords, grid_shape):
                    outside.add(coords)
                    if not (erase_outside(coords) if callable(erase_outside) else erase_outside):
                        message = f"{path}: chunk {coords} is stored outside of the new shape {shape} (see resize_erases)"
                        raise ContentInvalid(message, key=path)
        if live is not None and (outside or (is_smaller and erase_outside is True)):
            # Before the document: storing it may fail and yet take effect.
            self._hierarchy.live.half_erased.add((live, shape))
        changed = replace(edit, shape=shape) if shape != node.metadata.shape else edit
        if changed != Edit():
            await self._amend(layout, path, changed)
        await erase_outside_of(grid_shape, chunks, outside, may_be_more=is_smaller and erase_outside is True)
        self._hierarchy.live.half_erased = {each for each in self._hierarchy.live.half_erased if each[0] is not live}

    async def erase(self, path: NodePath, *, only_empty: bool = False, seen: Seen | None = None) -> None:
        """Remove the node at ``path`` with its chunks.

        A group is removed with all keys below it, an array at the root without other keys. An array whose folder contains foreign keys
        stays; a group whose documents share the path of an array stays without the array. An implicit parent group gets a document first,
        since it would vanish with its last member. ``only_empty``: a group with members stays, too, and what is no more as the caller has
        ``seen`` it, of another kind or with its first attributes: by another mount. Raises `NoSuchEntry`, `HiddenKeys`,
        `StaleEntry`, `NotPermitted` (root).
        """
        intent = self._intents.new()
        try:
            async with self._listing(path) as layout:
                if only_empty:
                    await self._new.require_no_members(path, seen)
                with intent.collecting():
                    await self._erasing.erase(layout, path, intent)
        finally:
            if intent.is_hanging and (record := intent.noted) is not None:
                # What is moved away late is to be deleted then.
                await intent.end_later(record)
            elif intent.is_held:
                await intent.end()

    async def rename(self, path: NodePath, new_path: NodePath, *, over: bool = False, empty: Seen | None = None) -> None:
        """Move the node at ``path``, with all below it, unchanged (`zarrfs.hierarchy.renaming`); consolidated copies are updated.

        ``over``: an array at ``new_path`` is replaced, unless its folder contains foreign keys (`HiddenKeys`); ``empty``: a group there,
        as `erase` removes it with ``only_empty`` and this as ``seen``. The group above the old path stays, those above the new one are
        created. Raises `AcrossViews` if the store cannot rename it, or to another dialect; `EntryExists`, `NoSuchEntry`, `NameInvalid`.
        """
        if path == new_path:
            return
        await self.check_rename(path, new_path)
        intent = self._intents.new()
        try:
            async with self._listing(path, new_path, is_new=True):
                await self._renaming.rename(await self.check_rename(path, new_path), path, new_path, intent, over=over, empty=empty)
        finally:
            if intent.is_held:
                await intent.end()

    async def check_rename(self, path: NodePath, new_path: NodePath) -> Layout:
        """Return `Renaming.layout`, for a caller that first removes something else."""
        return await self._renaming.layout(path, new_path)

    async def check_creatable(self, path: NodePath, old_path: NodePath | None = None) -> None:
        """Raise `NameInvalid`, `NotADirectory` or `EntryExists` if no node can be created at the free path ``path``.

        ``old_path``: the node to be renamed to it.
        """
        await self._new.check(await self._new.layout_for(path), path, old_path)

    @asynccontextmanager
    async def several(self) -> AsyncIterator[None]:
        """Keep other edits out between several edits in the body."""
        async with nullcontext() if self._lock.statistics().owner is trio.lowlevel.current_task() else self._lock:
            yield

    @asynccontextmanager
    async def editing(self, path: NodePath, *new_path: NodePath) -> AsyncIterator[Layout]:
        """Keep other edits out, of other mounts too; yield the layout of ``path``, which may be another than before these edits.

        The nodes there and the groups above are read again: other mounts may have changed them."""
        async with self.excluding(await self._new.layout_for(path), path, *new_path):
            for each in dict.fromkeys(each for at in (path, *new_path) for each in (*at.ancestors(), at)):
                # Documents at the root are not replaced by a new node, and may hold a copy of all others.
                if each != ROOT or is_implicit(await self._hierarchy.node(ROOT)):
                    await self._hierarchy.reread(each)
            yield await self._new.layout_for(path)

    @asynccontextmanager
    async def excluding(self, layout: Layout, *paths: NodePath) -> AsyncIterator[None]:
        """Keep other edits of a layout out, after earlier operations have ended, at least those at ``paths``."""
        layout.require_writable()
        async with self.several(), self._store.exclusive(layout.edit_lock):
            await self._intents.finish(paths)
            await self._settle(paths)
            yield

    @asynccontextmanager
    async def _listing(
        self, path: NodePath, *new_path: NodePath, of: LiveNode | None = None, is_new: bool = False
    ) -> AsyncIterator[Layout]:
        """Run `editing` for an edit that adds, removes or renames a node, so that consolidated copies follow after a kill, too.

        ``is_new``: nothing is at the last path yet. Raises `StaleEntry` if the group there is known, but was removed meanwhile."""
        group = (path, *new_path)[-1].parent
        above = await self._hierarchy.node(group) if is_new else None
        async with self.editing(path, *new_path) as layout:
            if of is not None:
                await of.confirmed()
            if above is not None and not is_implicit(above) and await self._hierarchy.node(group) is None:
                raise StaleEntry(f"{group}: another mount or program has removed it", key=group)
            async with copies_recorded(self._intents, self._copies, layout, path, *new_path):
                yield layout

    async def _amend(self, layout: Layout, path: NodePath, edit: Edit) -> None:
        keys = (*layout.document_keys(path), *layout.consolidated_keys(path))
        change = self._copies.noting(layout, lambda found: layout.amend(path, found, edit), layout.document_keys(path))
        steps: Ends = []
        try:
            with fences.collected() as steps:
                await revise(self._hierarchy.stored, keys, change, partial(store_together, self._intents, path))
        finally:
            for each in steps:
                fences.given_up(each)
            if steps:
                late = {**self._late, path: [*self._late.get(path, ()), *steps]}
                self._late = {at: left for at, ends in late.items() if (left := [each for each in ends if not each.is_set()])}
