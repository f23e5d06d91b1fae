"""Erasure of nodes, with their chunks.

Documents are erased before chunks: an array without chunks would read as fill value. Where the store can rename, a node is first moved
away in one step, since the deletion of its chunks may take long.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress

import trio

from zarrfs.arrays.queued_shard import QueuedShard
from zarrfs.dialects.base import Layout
from zarrfs.errors import (
    KeyConflict,
    NoSuchEntry,
    NotPermitted,
    PrefixNotEmpty,
    StoreAccessDenied,
    StoreFull,
    ZarrfsError,
)
from zarrfs.hierarchy.consolidated import ConsolidatedCopies, begins_at, folder_beside
from zarrfs.hierarchy.erasing import erase_keys, erase_listed, erase_most, remove_chunk_folders, require_removable, take_away
from zarrfs.hierarchy.intents import Intent, Intents
from zarrfs.hierarchy.moves import exists
from zarrfs.hierarchy.new_nodes import NewNodes
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.records import Record
from zarrfs.keys import ROOT, Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode, GroupNode, Node
from zarrfs.stores.base import Store

log = logging.getLogger(__name__)


class NodeErasing:
    """Erasures of one editor, which serializes them."""

    def __init__(self, hierarchy: Hierarchy, store: Store, intents: Intents, copies: ConsolidatedCopies, new: NewNodes) -> None:
        self._hierarchy = hierarchy
        self._store = store
        self._intents = intents
        self._copies = copies
        self._new = new

    async def erase(self, layout: Layout, path: NodePath, intent: Intent) -> None:
        """Run `NodeEditor.erase`."""
        node = await self._hierarchy.node(path)
        if node is None:
            raise NoSuchEntry(f"{path}: no such node", key=path)
        if path == ROOT:
            if not isinstance(node, ArrayNode):
                raise NotPermitted("/: the root group cannot be removed", key=ROOT)
            await self._copies.write_out(layout, ROOT)
            try:
                await self._copies.take_out(ROOT)
                await self._erase_root_array(node)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._copies.put_in(layout, ROOT)
                raise
            return
        if isinstance(node, ArrayNode):
            if await self._hierarchy.documents(layout.group_keys(path)):
                await self._erase_beside_group(layout, node)
                return
            await self._new.require_nothing_hidden(path)
        await self._new.keep_parent(path)
        await self._copies.write_out(layout, path)
        try:
            has_room = await self._take_out(path)
            await self._erase(layout, node, intent, in_place=not has_room)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._copies.put_in(layout, path)
            raise
        self._hierarchy.empty_groups.lose(path)
        if not has_room:
            await self._copies.take_out(path, with_folder=True)

    async def _take_out(self, path: NodePath) -> bool:
        """Take a node out of the copies; return False if a full store has no room for new ones until the node itself is erased."""
        try:
            await self._copies.take_out(path, with_folder=True)
        except StoreFull as error:
            log.info("%s: removed before it is taken out of the consolidated copies: %s", path, error)
            return False
        return True

    async def _erase_beside_group(self, layout: Layout, node: ArrayNode) -> None:
        """Erase an array whose path is also that of a group; the group and all below it stay."""
        path, metadata = node.path, node.metadata
        documents = [key for key in layout.document_keys(path) if key not in layout.group_keys(path)]
        await self._copies.write_out(layout, path)
        await self._copies.take_out(path)
        try:
            async with self._hierarchy.live.lock.changing(path.prefix, node.chunk_prefix, *documents):
                queued = self._queued([node.chunk_prefix], path)
                await require_removable(self._store, [node.chunk_prefix], in_place=False)
                await self._store.erase_values(documents)
                start, decode = len(node.chunk_prefix), metadata.chunk_key_encoding.decode
                if not metadata.shape:
                    await self._store.erase_values([metadata.chunk_key_encoding.key(node.chunk_prefix, ())])
                await erase_listed(
                    self._store,
                    lambda: (
                        key
                        async for key in self._store.list_prefix(node.chunk_prefix)
                        if decode(key[start:], metadata.ndim) is not None
                    ),
                )
                for key in documents:
                    self._hierarchy.live.erased(key)
                self._hierarchy.live.removed(path)
                await self._hierarchy.queued.drop(queued)
        finally:
            with trio.CancelScope(shield=True):
                await self._copies.put_in(layout, path)

    async def _erase(self, layout: Layout, node: Node, intent: Intent, *, in_place: bool) -> None:
        """Erase a node. ``in_place``: its room is needed when this returns; what is moved away is deleted later."""
        path = node.path
        layouts = await self._hierarchy.layouts(path)
        beside = folder_beside(layout, path) if isinstance(node, GroupNode) else ()
        prefixes = dict.fromkeys((*layout.listing_prefixes(path), layout.chunk_prefix(path), *beside))
        documents = [key for each in layouts for key in each.document_keys(path)]
        # All in one folder; or a hierarchy of its own, with its entry point and all else in its folder.
        is_one = all(each.startswith(path.prefix) for each in (*prefixes, *documents)) or begins_at(layout, path)
        if is_one:
            prefixes = {path.prefix: None}
        can_list = self._store.capabilities.list
        if isinstance(node, ArrayNode) and not await (
            self._store.prefix_exists(path.prefix) if is_one and can_list else self._hierarchy.documents(documents)
        ):
            await self._hierarchy.reread(path)
            raise NoSuchEntry(f"{path}: was moved or removed by another program", key=path)
        if not is_one and can_list:
            for prefix in prefixes:
                # Nothing is erased if a link is in the place of one: see `exists`.
                await exists(self._store, prefix)
        is_apart = not in_place and await self._begin_erasing(path, intent, prefixes)
        async with self._hierarchy.live.lock.changing(path.prefix, *prefixes, *documents):
            # Chunks of an array without documents are not written: what is queued now is the last.
            queued = self._queued(prefixes)
            is_erased = is_one and is_apart and await take_away(self._intents.store, path.prefix, intent.gone)
            try:
                if not is_erased:
                    await require_removable(self._store, prefixes, in_place=is_one or not is_apart)
                    try:
                        for each in layouts:
                            await self._erase_documents(each, path)
                    except ZarrfsError:
                        # A failed step may have taken effect.
                        if not documents or await self._hierarchy.documents(documents):
                            raise
                    # Even if the rest fails, or takes effect later than it may.
                    is_erased = True
                    await self._erase_values(node, prefixes, intent if is_apart else None)
            finally:
                if is_erased:
                    for key in documents:
                        self._hierarchy.live.erased(key)
                    self._hierarchy.live.removed(path)
                    await self._hierarchy.queued.drop(queued)

    def _queued(self, prefixes: Iterable[Prefix], path: NodePath | None = None) -> list[QueuedShard]:
        """Return what is queued below these prefixes for the array in use at ``path``, or for all arrays in use."""
        below = (each for prefix in prefixes for each in self._hierarchy.queued.below(prefix))
        return [each for each in below if each.node.why_gone is None and path in (None, each.node.path)]

    async def _erase_values(self, node: Node, prefixes: Collection[Prefix], intent: Intent | None) -> None:
        """Erase all chunks and members of a node without documents. ``intent``: to move them away first."""
        if isinstance(node, ArrayNode) and not node.metadata.shape:
            # The key of its only chunk may lie beside its prefix.
            await self._store.erase_values(self._hierarchy.array_of(node).chunks.keys(()))
        for number, prefix in enumerate(prefixes):
            if intent is not None and await take_away(self._intents.store, prefix, intent.gone.child(str(number)), is_decided=True):
                continue
            if isinstance(node, ArrayNode) and self._store.capabilities.list:
                await erase_most(self._store, prefix)
            await self._store.erase_prefix(prefix)

    async def _begin_erasing(self, path: NodePath, intent: Intent, prefixes: Iterable[Prefix]) -> bool:
        """Return True if the content can be moved away before its deletion, which may take long."""
        if not self._store.capabilities.rename:
            return False
        try:
            await intent.begin(Record("erase", path, path.prefix), *prefixes)
        except (StoreAccessDenied, KeyConflict, StoreFull) as error:
            # On a full store there is no room for the record either.
            log.info("%s: removed in place: %s", path, error)
            return False
        return True

    async def _erase_documents(self, layout: Layout, path: NodePath) -> None:
        await self._store.erase_values(await self._hierarchy.documents(layout.document_keys(path)))

    async def _erase_root_array(self, node: ArrayNode) -> None:
        documents = [key for each in await self._hierarchy.layouts(ROOT) for key in each.document_keys(ROOT)]
        async with self._hierarchy.live.lock.changing(*documents):
            keys = await chunk_keys(self._hierarchy, node)
            folders = dict.fromkeys(Prefix(key.rpartition("/")[0] + "/") for key in keys if "/" in key[len(node.chunk_prefix) :])
            await require_removable(self._store, folders, in_place=False)
            kept = (await self._new.layout_for(ROOT)).kept_prefixes(node)
            for layout in await self._hierarchy.layouts(ROOT):
                # Keys beside an array at the root are not its own, even if named as some dialect's document.
                if await self._hierarchy.is_described(ROOT, layout):
                    await self._erase_documents(layout, ROOT)
            await self._hierarchy.queued.drop(self._queued([node.chunk_prefix], ROOT))
            await erase_keys(self._store, keys)
            for prefix in kept if self._store.capabilities.empty_prefixes else ():
                # Keys in it are no chunks, and stay.
                with suppress(PrefixNotEmpty):
                    await self._store.remove_prefix(prefix)
            for key in documents:
                self._hierarchy.live.erased(key)
            ndim, may_begin = node.metadata.ndim, node.metadata.chunk_key_encoding.may_begin
            await remove_chunk_folders(self._store, node.chunk_prefix, lambda part: may_begin(part, ndim))


async def chunk_keys(hierarchy: Hierarchy, node: ArrayNode) -> list[Key]:
    """Return the keys of the stored chunks of an array, or of its shards."""
    chunks = hierarchy.array_of(node).chunks
    while chunks.below is not None:
        # Erase shards that cannot be read, too.
        chunks = chunks.below
    return [key async for coords, _, _ in chunks.list() for key in chunks.keys(coords)]
