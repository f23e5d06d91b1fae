"""Arrays that are stored apart, and put in place complete, in one step: see `zarrfs.hierarchy.intents`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import trio

from zarrfs import fences, threads
from zarrfs.dialects.base import Layout
from zarrfs.errors import EntryExists, PrefixNotEmpty, StaleEntry, StoreNotFound, StoreTimeout, StoreUnsupported, ZarrfsError
from zarrfs.hierarchy.intents import Intents, OnDone
from zarrfs.hierarchy.live_array import LiveArray, is_held
from zarrfs.hierarchy.probe import holds_only_chunks
from zarrfs.hierarchy.putting import documents_of, put_all, sync_first
from zarrfs.hierarchy.records import Record
from zarrfs.hierarchy.resolving import copy_into_place
from zarrfs.hierarchy.stored_documents import are_stored, weight
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.model.metadata import ArrayNode
from zarrfs.stores.moving import moving
from zarrfs.stores.values import Generation

log = logging.getLogger(__name__)

Keep = Callable[[ArrayNode], Mapping[str, Any]]


def prefix_of(layout: Layout, node: ArrayNode) -> Prefix:
    """Return the prefix of an array alone: its folder, or, if its documents lie elsewhere, its chunk prefix."""
    return node.path.prefix if layout.per_node else node.chunk_prefix


def lies_beside(node: ArrayNode) -> bool:
    """Return True if the only chunk of a 0-dimensional array lies beside its chunk prefix (2019), where no rename of that moves it."""
    if node.metadata.shape:
        return False
    return not node.metadata.chunk_key_encoding.key(node.chunk_prefix, ()).startswith(node.chunk_prefix)


class Placing:
    """One array to be put in place. A failed `put` may be repeated; until it succeeds, the previous content stays."""

    def __init__(self, intents: Intents, layout: Layout, node: ArrayNode) -> None:
        self._store = intents.store
        self._intent = intents.new()
        self._place = prefix_of(layout, node)
        self._places = dict.fromkeys((self._place, *(key.parent for key in layout.document_keys(node.path))))
        self._is_beside = lies_beside(node)
        start = len(_above(self._place) if self._is_beside else self._place)
        self.chunk_prefix = Prefix(self._intent.new + node.chunk_prefix[start:])
        """Prefix of its chunks until then."""
        self.keep: Keep | None = None
        """Called with the array that it replaces, as it is stored then; returns the attributes that it gets."""
        self.is_placed = False
        self.was_moved = False
        """True if a `put` that failed may have moved the previous content away and back."""
        self.is_ended = False
        """True from `end` on: no `put` follows."""
        self.is_unsettled = False
        """True if it could not be undone: the previous content is not in its place."""
        self._document: tuple[Key, Generation | None] | None = None
        """The document stored last, relative to its folder: its generation identifies the array anywhere."""
        self._has_chunks = False
        """True if chunks were apart when an attempt began whose documents lie elsewhere."""
        self._is_stray = False
        """True if they did not return when it was undone."""
        self._replaced: LiveArray | None = None

    async def begin(self) -> None:
        """Lock the intent, before any part is stored."""
        # Without a record all of it is apart: what a kill leaves is deleted.
        await self._intent.hold(*self._places)
        if not self._is_beside:
            self._store.destine(self._intent.new, self._place)

    @property
    def is_unknown(self) -> bool:
        """True if a failed `put` may have taken effect: what was stored apart may be in its place."""
        record = self._intent.noted
        return not self.is_placed and (self._intent.is_unknown or (record is not None and record.copies))

    async def settle(self, path: NodePath, prefix: Prefix) -> None:
        """Undo an earlier `put`, or complete it, where that failed. Raises any error of the store.

        ``path``, ``prefix``: path and `prefix_of` the array."""
        if self.is_placed:
            return
        record = self._intent.noted
        is_copied = record is not None and record.copies and bool(record.after) and await are_stored(self._store, record.after)
        # Of a copy that was begun, neither the old nor the new array may be left: it is completed below.
        is_there = is_copied or await self._is_there(prefix)
        if self._intent.may_take_effect and not is_there:
            raise StoreTimeout(f"{path}: outcome of an earlier attempt is unknown", key=path)
        self._intent.is_unknown = False
        # Without a record nothing was replaced: the next attempt puts it in place.
        if is_there or (self._intent.noted is not None and await self._resolve()):
            self.is_placed = self._intent.is_done = True
            await self._intent.done()
        self.is_unsettled = False

    async def put(
        self,
        layout: Layout,
        node: ArrayNode,
        before: Mapping[Key, bytes],
        chunks: Iterable[Key] | None = None,
        *,
        over: bool,
        live: LiveArray | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        """Put the array in place: of nothing, or ``over`` the array there. The outcome of an earlier attempt was determined (`settle`).

        ``before``: documents of that array; ``chunks``: its chunks, if they cannot be renamed as a prefix; ``live``: that array, if in
        use. ``on_done``: called when the new one is in place, however late that is found out (`Intent.on_done`). Raises `EntryExists`,
        and `StaleEntry` if another program takes the old one away meanwhile.
        """
        self._replaced = live
        if self._intent.is_unknown or self.is_unsettled:
            raise StoreTimeout(f"{node.path}: outcome of an earlier attempt is unknown", key=node.path)
        if over and self.keep is not None:
            stored = {key: before[key] for key in layout.document_keys(node.path) if key in before}
            replaced = await threads.cpu(weight(stored), layout.parse, node.path, stored)
            if isinstance(replaced, ArrayNode):
                node = replace(node, attributes=self.keep(replaced))
        written = await documents_of(layout, node)
        self._intent.on_done = on_done
        if live is not None:
            live.is_being_replaced = True
        try:
            await self._put(layout, node, written, prefix_of(layout, node), before, chunks, over=over)
        except BaseException:
            if live is not None:
                live.is_being_replaced = self._intent.is_unknown or self.is_unsettled
            raise
        self.is_placed = self._intent.is_done = True
        await self._intent.done()

    async def _put(
        self,
        layout: Layout,
        node: ArrayNode,
        written: Mapping[Key, bytes],
        prefix: Prefix,
        before: Mapping[Key, bytes],
        chunks: Iterable[Key] | None,
        *,
        over: bool,
    ) -> None:
        earlier = self._intent.noted
        if earlier is not None and earlier.erased is not None:
            # An earlier attempt has erased the documents by which its chunks are known.
            chunks = dict.fromkeys((*earlier.erased, *(chunks or ())))
        if chunks is not None or not self._store.capabilities.rename:
            place = _above(prefix) if self._is_beside else prefix
            if place + self.chunk_prefix[len(self._intent.new) :] != node.chunk_prefix:
                raise StaleEntry(f"{node.path}: was renamed while it was written", key=node.path)
            await self._copy(node, place, before, written, tuple(chunks) if chunks is not None else None)
        else:
            try:
                if layout.per_node:
                    await self._put_folder(layout, node, written, prefix, over=over)
                elif over:
                    await self._replace(node, prefix, before, written)
                else:
                    await self._appear_with(node, prefix, written)
            except StoreUnsupported as error:
                log.info("%s: copied into place: %s", node.path, error)
                await self._copy(node, prefix, before, written, None)

    def document(self, layout: Layout, node: ArrayNode) -> tuple[Key, Generation | None]:
        """Return the document stored last, at its final key, and its generation."""
        if self._document is None:
            return list(layout.format(node))[-1], None
        return prefix_of(layout, node).key(self._document[0]), self._document[1]

    def is_found(self, layout: Layout, node: ArrayNode, found: ArrayNode, document: tuple[Key | None, Generation | None]) -> bool:
        """Return True if ``found``, with this document, is the array of a `put` whose outcome is not determined yet."""
        if self._intent.on_done is None:
            return False
        if self._document is not None and self._document[1] is not None:
            return document == self.document(layout, node)
        return found.metadata.shape == node.metadata.shape and found.metadata.stores_as(node.metadata)

    async def end(self) -> None:
        """Delete what is left apart: an array that was never put in place, or the previous content."""
        self.is_ended = True
        self._store.destine(self._intent.new)
        if self._intent.is_held:
            await self._intent.end()

    async def _copy(
        self,
        node: ArrayNode,
        prefix: Prefix,
        before: Mapping[Key, bytes],
        written: Mapping[Key, bytes],
        erased: tuple[Key, ...] | None,
    ) -> None:
        count = len([key async for key in self._store.list_prefix(self._intent.new)])
        # The folder above one of which a chunk lies beside its prefix (`lies_beside`) stays whatever others remove.
        has_folder = bool(before) and not self._is_beside and erased is None and self._store.capabilities.empty_prefixes
        record = Record(
            "replace",
            node.path,
            prefix,
            copies=True,
            erased=erased,
            count=count,
            before=before,
            after=written,
            has_folder=has_folder and await self._store.prefix_exists(prefix),
        )
        await self._intent.note(record)
        self.was_moved = True
        with self._intent.collecting():
            try:
                await copy_into_place(self._store, self._intent, record)
            except StoreTimeout:
                if fences.abandoned():
                    # The old documents may be erased after it was found that nothing is copied yet.
                    self._intent.unknown()
                raise
        self._intent.is_done = True
        await self._forget()

    async def _forget(self) -> None:
        """Erase the record: later changes of the array must not be undone, or copied over."""
        with suppress(ZarrfsError):
            await self._intent.forget()

    @contextmanager
    def _deciding(self) -> Iterator[None]:
        """Mark the outcome as unknown if the decisive step in the body times out."""
        try:
            yield
        except StoreTimeout:
            self._intent.unknown()
            self.was_moved = True
            raise

    def _require_in_place(self, node: ArrayNode) -> None:
        """Raise `StaleEntry` if another program has taken the array to be replaced away, as far as that is held.

        Until here the new one was synced, which may take long."""
        if self._replaced is not None and (self._replaced.why_gone is not None or self._replaced.has_left_its_path):
            raise _moved_away(node)

    # --- documents and chunks in one folder ---------------------------------------------------------------------------------

    async def _put_folder(
        self, layout: Layout, node: ArrayNode, written: Mapping[Key, bytes], target: Prefix, *, over: bool
    ) -> None:
        if self._document is not None and self._document[1] is not None and not await self._is_there(self._intent.new):
            raise StaleEntry(f"{node.path}: was put in place, and changed or moved by another program since", key=node.path)
        # If a document is not stored in time, it has another generation later.
        self._document = None
        for key, value in written.items():
            generation = await self._store.set(self._intent.new.key(key[len(target) :]), value)
            self._document = Key(key[len(target) :]), generation
        for prefix in layout.kept_prefixes(node) if self._store.capabilities.empty_prefixes else ():
            await self._store.make_prefix(Prefix(self._intent.new + prefix[len(target) :]))
        try:
            await (self._exchange(node, target, written) if over else self._appear(node, target))
        except (EntryExists, StoreUnsupported):
            raise
        except ZarrfsError:
            # If that fails too, it stays in doubt.
            before, self.is_unsettled, self.was_moved = (self.is_unsettled, self.was_moved), True, True
            is_there = await self._is_there(target)
            self.is_unsettled, self.was_moved = before
            if not is_there:
                self._intent.failed()
                raise
            self._intent.is_unknown = False

    async def _is_there(self, prefix: Prefix) -> bool:
        if self._document is None or self._document[1] is None:
            return False
        stat = await self._store.stat(prefix.key(self._document[0]))
        return stat is not None and stat.generation == self._document[1]

    async def _appear(self, node: ArrayNode, prefix: Prefix) -> None:
        await self._out_of_the_way(node, prefix)
        try:
            with self._deciding():
                if not await self._store.rename_prefix(self._intent.new, prefix):
                    raise StoreNotFound(f"{node.path}: {self._intent.new} was removed by another program", key=prefix)
        except PrefixNotEmpty as error:
            raise EntryExists(f"{node.path}: not empty", key=node.path) from error

    async def _exchange(self, node: ArrayNode, prefix: Prefix, written: Mapping[Key, bytes]) -> None:
        await self._intent.sync()
        record = Record("replace", node.path, prefix, documents=written)
        await self._intent.note(record)
        self._require_in_place(node)
        anchor = self._replaced.anchor if self._replaced is not None else None
        try:
            with self._deciding():
                await self._store.exchange_prefixes(self._intent.new, prefix)
            if is_held(anchor) and not anchor.is_at(self._intent.new):
                # Another program was faster.
                with self._deciding():
                    await self._store.exchange_prefixes(self._intent.new, prefix)
                raise _moved_away(node)
        except StoreNotFound as error:
            raise _moved_away(node) from error
        except StoreUnsupported:
            is_another = False
            try:
                with self._deciding():
                    # What is open of the array, and queued for it, stays until the new one is in place.
                    with moving():
                        await self._store.rename_prefix(prefix, self._intent.old)
                    if is_another := is_held(anchor) and not anchor.is_at(self._intent.old):
                        raise _moved_away(node)
                    await self._store.rename_prefix(self._intent.new, prefix)
            except BaseException:
                # Another's array that was moved is not the one to be replaced: a further attempt must not take it for that.
                await self._resolve(may_have_moved=not is_another)
                raise
            await self._store.rename_prefix(self._intent.old, self._intent.gone)

    # --- documents elsewhere ------------------------------------------------------------------------------------------------

    async def _appear_with(self, node: ArrayNode, prefix: Prefix, written: Mapping[Key, bytes]) -> None:
        await self._out_of_the_way(node, prefix)
        # Without it, chunks whose document never follows would stay in the store.
        await self._intent.note(Record("replace", node.path, prefix, is_used=False, after=written))
        await self._take_steps(node, (), written, prefix, ((self._intent.new, prefix),))

    async def _replace(self, node: ArrayNode, prefix: Prefix, before: Mapping[Key, bytes], written: Mapping[Key, bytes]) -> None:
        await self._intent.sync()
        is_used, has_chunks = await self._store.prefix_exists(prefix), await self._store.prefix_exists(self._intent.new)
        record = Record("replace", node.path, prefix, is_used=is_used, before=before, after=written, has_chunks=has_chunks)
        await self._intent.note(record)
        await self._take_steps(node, before, written, prefix, ((prefix, self._intent.old), (self._intent.new, prefix)))

    async def _take_steps(
        self,
        node: ArrayNode,
        before: Collection[Key],
        written: Mapping[Key, bytes],
        place: Prefix,
        renames: Iterable[tuple[Prefix, Prefix]],
    ) -> None:
        """Erase the documents ``before``, rename prefixes to and from ``place``, and store the documents ``written``, as recorded."""
        if self._is_stray:
            raise StaleEntry(
                f"{self._intent.new}: was put in place, and changed or moved by another program since", key=self._intent.new
            )
        self._has_chunks = await self._store.prefix_exists(self._intent.new)
        self._require_in_place(node)
        try:
            with self._deciding():
                if before:
                    await self._store.erase_values(before)
                for old, new in renames:
                    await self._store.rename_prefix(old, new)
                if before:
                    await sync_first(self._store, [place])
                await put_all(self._store, written, on_disk=bool(before))
        except ZarrfsError:
            if not await self._resolve():
                raise
        except BaseException:
            await self._resolve()
            raise
        self._intent.is_done = True
        await self._forget()

    async def _out_of_the_way(self, node: ArrayNode, prefix: Prefix) -> None:
        """Move leftover chunks aside, which belong to no array. Raises `EntryExists` for anything else."""
        if await holds_only_chunks(self._store, prefix):
            await self._store.rename_prefix(prefix, self._intent.gone)
        else:
            async for name, *_ in self._store.list_dir(prefix):
                raise EntryExists(f"{node.path}: {name!r} exists", key=node.path)

    async def _resolve(self, *, may_have_moved: bool = True) -> bool:
        is_done, self.is_unsettled, self.was_moved = False, True, self.was_moved or may_have_moved
        with trio.CancelScope(shield=True):
            is_done = await self._intent.resolve()
            if not is_done and not self._intent.is_unknown:
                self._is_stray = self._has_chunks and not await self._store.prefix_exists(self._intent.new)
                # Later edits of the old array are not what the record describes.
                await self._forget()
        self.is_unsettled = False
        return is_done


def _above(prefix: Prefix) -> Prefix:
    return Prefix(prefix[: prefix.rstrip("/").rfind("/") + 1])


def _moved_away(node: ArrayNode) -> StaleEntry:
    return StaleEntry(f"{node.path}: another program has moved or removed the array to be replaced", key=node.path)
