"""Arrays that are stored apart, and appear in their place whole, in one step: see `zarrfs.hierarchy.intents`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import trio

from zarrfs.dialects.base import Layout
from zarrfs.errors import EntryExists, PrefixNotEmpty, StoreUnsupported
from zarrfs.hierarchy.intents import Intents, Record, copy_into_place, settle
from zarrfs.keys import Key, Prefix
from zarrfs.model.metadata import ArrayNode


def place_of(layout: Layout, node: ArrayNode) -> Prefix:
    """What an array has for itself: its folder, or, where its documents lie elsewhere, that of its chunks."""
    return node.path.prefix if layout.per_node else node.chunk_prefix


class Placing:
    """One array on its way to its place. Of what `put` could not do, nothing is left; it may be done again."""

    def __init__(self, intents: Intents, layout: Layout, node: ArrayNode) -> None:
        self._store = intents.store
        self._intent = intents.new()
        self.chunk_prefix = Prefix(self._intent.new + node.chunk_prefix[len(place_of(layout, node)) :])
        """Where its chunks are stored until then."""
        self.is_placed = False

    async def begin(self) -> None:
        """Before anything of it is stored."""
        # Without a record, all of it lies apart: what a kill leaves goes.
        await self._intent.hold()

    async def put(self, layout: Layout, node: ArrayNode, before: Mapping[Key, bytes], *, over: bool) -> None:
        """Let it be at its place: where nothing is, or ``over`` the array there, whose documents are ``before``. Raises `EntryExists`."""
        written = layout.format(node)
        place = place_of(layout, node)
        if not self._store.renames_prefixes:
            record = Record("replace", node.path, place, before=before, after=written)
            await self._intent.note(record)
            await copy_into_place(self._store, self._intent, record)
        elif layout.per_node:
            await self._put_documents(layout, node, written, place)
            await (self._exchange(node, place) if over else self._appear(node, place))
        elif over:
            await self._replace(node, place, before, written)
        else:
            await self._appear_with(node, place, written)
        self.is_placed = True

    async def end(self) -> None:
        """What is left apart goes: what never got to its place, or what was there."""
        if self._intent.is_held:
            await self._intent.end()

    # --- documents and chunks in one folder ---------------------------------------------------------------------------------

    async def _put_documents(self, layout: Layout, node: ArrayNode, written: Mapping[Key, bytes], place: Prefix) -> None:
        for key, value in written.items():
            await self._store.set(self._intent.new.key(key[len(place) :]), value)
        for prefix in layout.kept_prefixes(node):
            with suppress(StoreUnsupported):
                await self._store.make_prefix(Prefix(self._intent.new + prefix[len(place) :]))

    async def _appear(self, node: ArrayNode, place: Prefix) -> None:
        await self._out_of_the_way(place)
        try:
            await self._store.rename_prefix(self._intent.new, place)
        except PrefixNotEmpty as error:
            raise EntryExists(f"there is something at {node.path} already", key=node.path) from error

    async def _exchange(self, node: ArrayNode, place: Prefix) -> None:
        # What takes another's place is there after a power cut, or that other.
        await self._store.sync_all()
        record = Record("replace", node.path, place)
        await self._intent.note(record)
        try:
            await self._store.exchange_prefixes(self._intent.new, place)
        except StoreUnsupported:
            try:
                await self._store.rename_prefix(place, self._intent.old)
                await self._store.rename_prefix(self._intent.new, place)
            except BaseException:
                await self._undo(record)
                raise
            await self._store.rename_prefix(self._intent.old, self._intent.gone)

    # --- documents elsewhere ------------------------------------------------------------------------------------------------

    async def _appear_with(self, node: ArrayNode, place: Prefix, written: Mapping[Key, bytes]) -> None:
        await self._out_of_the_way(place)
        await self._store.rename_prefix(self._intent.new, place)
        try:
            for key, value in written.items():
                await self._store.set(key, value)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._store.erase_values(written)
                await self._store.rename_prefix(place, self._intent.new)
            raise

    async def _replace(self, node: ArrayNode, place: Prefix, before: Mapping[Key, bytes], written: Mapping[Key, bytes]) -> None:
        await self._store.sync_all()
        record = Record("replace", node.path, place, await self._store.prefix_exists(place), before=before, after=written)
        await self._intent.note(record)
        try:
            await self._store.erase_values(before)
            await self._store.rename_prefix(place, self._intent.old)
            await self._store.rename_prefix(self._intent.new, place)
            for key, value in written.items():
                await self._store.set(key, value)
        except BaseException:
            await self._undo(record)
            raise

    async def _out_of_the_way(self, place: Prefix) -> None:
        """Chunks that lie there belong to no array."""
        if await self._store.prefix_exists(place):
            await self._store.rename_prefix(place, self._intent.gone)

    async def _undo(self, record: Record) -> None:
        with trio.CancelScope(shield=True):
            await settle(self._store, self._intent, record)
