"""The outcome of an operation in several steps that failed or was interrupted, by what is stored (`zarrfs.hierarchy.intents`)."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from zarrfs.errors import KeyConflict, PartsMissing, StoreFull, StoreTimeout, ZarrfsError, raise_first
from zarrfs.hierarchy.bound_paths import paths_of
from zarrfs.hierarchy.erasing import remove_empty
from zarrfs.hierarchy.moves import Target, apart_in, rename_rest, require_all
from zarrfs.hierarchy.probe import holds_only_chunks, may_be_of_chunk
from zarrfs.hierarchy.putting import put_all, sync_all_first, sync_first
from zarrfs.hierarchy.records import RECORD, Record
from zarrfs.hierarchy.stored_documents import are_stored
from zarrfs.keys import Key, NodePath, Prefix
from zarrfs.stores.base import Store

log = logging.getLogger(__name__)

RequireFree = Callable[[NodePath], Awaitable[None]]


async def _require_nothing(path: NodePath) -> None:
    pass


class Apart:
    """Prefixes of what an operation keeps apart: ``new``, ``old`` and ``gone`` in its folder ``prefix``."""

    def __init__(self, prefix: Prefix) -> None:
        self.prefix = prefix
        self.new = prefix.child("new")
        self.old = prefix.child("old")
        self.gone = prefix.child("gone")
        self.was_left = False
        """True if the operation was interrupted, or could not be ended at once: what it has stored may be in use since."""

    def rest(self, record: Record) -> list[tuple[Target, Target]]:
        """Return pairs (apart, place) of the content apart and its destination: the new places, or the old ones unless ``is_placing``."""
        pairs = apart_in(self.old, record.moved)
        if not record.is_placing:
            return [(apart, target) for target, apart in pairs]
        return [(apart, new) for (_, apart), (_, new) in zip(pairs[len(record.replaced) :], record.moves, strict=True)]


async def resolve(store: Store, apart: Apart, record: Record, require_free: RequireFree = _require_nothing) -> bool:
    """Complete or undo an operation that failed or was interrupted; return True if it is completed, False if undone.

    ``require_free``: raises `KeyConflict` if another program has stored another node at a path since. The caller ends the operation
    (`Intent.end`). May be repeated after a failure.
    """
    if record.operation == "erase":
        # Content without a position is only deleted.
        return True
    if record.operation == "amend":
        return await _resolve_documents(store, record, completes=apart.was_left)
    if record.moves:
        return await _resolve_moves(store, apart, record, require_free)
    if record.is_new:
        return await _resolve_new(store, apart, record)
    await require_free(record.path)
    if record.before or record.after:
        await _require_no_others(store, record)
    if record.copies:
        return await _resolve_copies(store, apart, record)
    if not record.after and not record.before:
        return await _resolve_renamed_over(store, apart, record)
    return await _resolve_replaced(store, apart, record)


async def _resolve_moves(store: Store, apart: Apart, record: Record, require_free: RequireFree) -> bool:
    """Resolve a node that moves in several parts, and what it replaces: all go where the record says that they have to be."""
    pairs, count, sources = apart.rest(record), 0, [record.path]
    if not record.is_placing:
        count = len(record.replaced)
        sources = paths_of(record.source) or [] if record.source is not None else []
    # Chunks alone that were replaced may be leftovers.
    replaced = [record.path] if any(not isinstance(target, Prefix) for _, target in pairs[:count]) else []
    failed: list[Exception] = []
    for parts, paths in (pairs[:count], replaced), (pairs[count:], sources):
        try:
            for path in paths:
                await require_free(path)
            await require_all(store, parts)
            await rename_rest(store, parts)
        except KeyConflict as error:
            # The other node is complete, and its place may be free.
            failed.append(error)
    # A later mount may find the place free, but no missing parts.
    failed.sort(key=lambda error: isinstance(error, PartsMissing))
    raise_first(failed)
    return record.is_placing


async def _resolve_copies(store: Store, apart: Apart, record: Record) -> bool:
    """Resolve content that is copied to its place: it is completed, unless the documents show how it ended."""
    if record.after != record.before and record.after and await are_stored(store, record.after):
        # They are stored last. Chunks may have been changed since.
        return True
    if record.after != record.before and record.before and await are_stored(store, record.before):
        # They are erased first: nothing was copied, and others may have changed the old array since.
        return False
    if record.is_placing and not await _is_any_copied(store, apart, record):
        # All were in place. Others have removed the new array since.
        return True
    if record.has_folder and not await store.prefix_exists(record.prefix):
        # Nothing may have been erased or copied yet: only the record was there when others removed the old array.
        raise PartsMissing(f"{record.path}: the array to be replaced was moved or removed by another program", key=record.prefix)
    if record.erased is None:
        await _require_only_own(store, record)
    if await _is_stored_since(store, apart, [key for key, value in record.before.items() if record.after.get(key) != value]):
        # One equal document of several is enough: what is erased here is not stored again.
        raise KeyConflict(f"{record.path}: an equal array was stored by another program since", key=record.prefix)
    # The record was stored when all content lay apart.
    await copy_into_place(store, apart, record)
    return True


async def _resolve_renamed_over(store: Store, apart: Apart, record: Record) -> bool:
    """Resolve a folder, with its documents, that is put in the place of another: that goes back if its place is free."""
    if not await store.prefix_exists(apart.old):
        # Before the first step, or after the last one: only what is deleted is left.
        is_left = record.source is not None and await store.prefix_exists(record.source)
        return not is_left and await are_stored(store, record.documents)
    if not await store.prefix_exists(record.prefix):
        if record.source is not None:
            # What was to be renamed may have been moved by others instead, unless that was the next step.
            was_placed = record.is_placing and not await store.prefix_exists(record.source)
        else:
            was_placed = not await store.prefix_exists(apart.new)
        if was_placed:
            raise PartsMissing(f"{record.path}: the new array was moved or removed by another program", key=record.prefix)
        await store.rename_prefix(apart.old, record.prefix)
        return False
    if await store.prefix_exists(record.source if record.source is not None else apart.new):
        raise KeyConflict(f"{record.path}: previous content is in {apart.old}, its place is taken by other keys", key=record.prefix)
    return True


async def _resolve_replaced(store: Store, apart: Apart, record: Record) -> bool:
    """Resolve an array that replaces one: undone unless its documents, which are stored last, are all there."""
    if record.after and await are_stored(store, record.after):
        return True
    is_aside = await store.prefix_exists(apart.old)
    if not is_aside and await are_stored(store, record.before):
        # No step was taken.
        return False
    is_taken = await store.prefix_exists(record.prefix)
    if is_taken:
        await _require_only_own(store, record)
    if is_aside and await _is_equal_stored_since(store, apart, record, is_taken=is_taken):
        raise KeyConflict(f"{record.path}: an equal array was stored by another program since", key=record.prefix)
    if record.is_used and not is_aside and not is_taken:
        raise PartsMissing(f"{record.path}: its chunks were moved or removed by another program", key=record.prefix)
    if is_aside and record.has_chunks and not is_taken and not await store.prefix_exists(apart.new):
        # All steps were taken. What was replaced does not return when its successor goes.
        raise PartsMissing(f"{record.path}: the new array was moved or removed by another program", key=record.prefix)
    if (is_aside or not record.is_used) and is_taken:
        # The content goes back to where the next attempt expects it.
        is_apart = await store.prefix_exists(apart.new)
        await store.rename_prefix(record.prefix, apart.gone if is_apart else apart.new)
    if is_aside:
        await store.rename_prefix(apart.old, record.prefix)
        # Else a power cut may leave the documents alone: they would be taken for those of another program.
        await sync_first(store, [record.prefix])
    await put_all(store, record.before, on_disk=True)
    return False


async def _resolve_new(store: Store, apart: Apart, record: Record) -> bool:
    """Resolve a new array, whose chunks were to be in its place before its document: without that, they are moved back, to ``new``.

    Nothing else is apart. Whatever others have stored in its place since stays, and so do its chunks among that."""
    stored = {key: value for key in record.after if (value := await store.get(key)) is not None}
    if all(key in stored and bytes(stored[key]) == value for key, value in record.after.items()):
        return True
    is_free = not stored and not await store.prefix_exists(apart.new)
    if is_free and await holds_only_chunks(store, record.prefix, most=math.inf):
        await store.rename_prefix(record.prefix, apart.new)
    return False


async def _is_equal_stored_since(store: Store, apart: Apart, record: Record, *, is_taken: bool) -> bool:
    """Return True if another program has stored the documents of before, whose array is aside. ``is_taken``: chunks are in its place.

    They are erased before anything is moved. Once the new content is in the place, a power cut may bring them back: then they are older
    than the record."""
    if not record.before or not await are_stored(store, record.before):
        return False
    if is_taken and await store.prefix_exists(apart.new):
        return True
    return await _is_stored_since(store, apart, record.before)


async def _is_stored_since(store: Store, apart: Apart, keys: Iterable[Key]) -> bool:
    """Return True if one of these keys was stored after the record."""
    begun = await store.stat(apart.prefix.key(RECORD))
    if begun is None or begun.mtime_ns is None:
        return False
    stats = [await store.stat(key) for key in keys]
    return any(stat is not None and stat.mtime_ns is not None and stat.mtime_ns > begun.mtime_ns for stat in stats)


async def _require_no_others(store: Store, record: Record) -> None:
    """Raise `KeyConflict` if another program has stored other documents there since: its array is neither replaced nor removed."""
    for key in {**record.before, **record.after}:
        value = await store.get(key)
        if value is not None and bytes(value) not in (record.before.get(key), record.after.get(key)):
            raise KeyConflict(f"{record.path}: {key} was stored by another program since", key=key)


async def _require_only_own(store: Store, record: Record) -> None:
    """Raise `KeyConflict` if the place holds anything but the documents and chunks of an array: another program has put a group there.

    What is moved or erased with the chunks would be the nodes in it."""
    async for key in store.list_prefix(record.prefix):
        if key not in record.before and key not in record.after and not may_be_of_chunk(key[len(record.prefix) :], is_prefix=False):
            raise KeyConflict(f"{record.path}: {key} was stored by another program since", key=key)


async def _resolve_documents(store: Store, record: Record, *, completes: bool) -> bool:
    stored = {key: await store.get(key) for key in {**record.before, **record.after}}
    now = {key: bytes(value) for key, value in stored.items() if value is not None}
    if now == record.after:
        return True
    if any(value not in (record.before.get(key), record.after.get(key)) for key, value in now.items()):
        # Another program has changed them since. Their present content describes the node.
        return True
    is_whole = record.before.keys() <= now.keys()
    if completes and is_whole and any(value != record.before.get(key) for key, value in now.items()):
        # Chunks may have been stored in the new shape, which the first of the documents has.
        try:
            await put_all(store, {key: value for key, value in record.after.items() if now.get(key) != value}, on_disk=True)
        except StoreTimeout:
            raise
        except ZarrfsError as error:
            log.info("%s: operation is undone, since it cannot be completed: %s", record.path, error)
            return await _resolve_documents(store, record, completes=False)
        return True
    for key, value in now.items():
        if key not in record.before:
            await store.erase(key)
        elif value != record.before[key]:
            await put_all(store, {key: record.before[key]}, on_disk=True)
    return False


async def copy_into_place(store: Store, apart: Apart, record: Record) -> None:
    """Copy the content apart to its place, where it cannot be renamed: the old documents are erased first, the new ones stored last.

    After a failure it is repeated from the start.
    """
    new = await _copies(store, apart, record)
    if record.count is not None and len(new) != record.count:
        raise KeyConflict(f"{apart.new}: {len(new)} values found, {record.count} expected", key=record.prefix)
    new = {there: key for there, key in new.items() if there not in record.after}
    if record.before:
        await sync_all_first(store)
        await store.erase_values(record.before)
        # Else the old documents may be back after a power cut, and not their chunks, which would read as fill value.
        await sync_first(store, record.before)
    erased = record.erased if record.erased is not None else [key async for key in store.list_prefix(record.prefix)]
    # Before anything is copied: an old key may be in the way of a new folder.
    await store.erase_values([key for key in erased if key not in new])
    if store.capabilities.empty_prefixes:
        folders = {Prefix(key[: end + 1]) for key in erased for end, each in enumerate(key) if each == "/"}
        for folder in folders.intersection(Prefix(f"{there}/") for there in new):
            await remove_empty(store, folder)
    for there, key in new.items():
        if not await store.copy(key, there):
            raise KeyConflict(f"{record.path}: copy failed: {key!r} was removed meanwhile", key=key)
    if record.before:
        await sync_all_first(store)
    # On a full store there may be no room.
    with suppress(StoreFull):
        await put_all(store, {apart.prefix.key(RECORD): replace(record, is_placing=True).format()}, on_disk=True)
    await put_all(store, record.after, on_disk=bool(record.before))


async def _copies(store: Store, apart: Apart, record: Record) -> dict[Key, Key]:
    """Return the places of the content apart that is copied, with the key of each apart."""
    return {record.prefix.key(key[len(apart.new) :]): key async for key in store.list_prefix(apart.new)}


async def _is_any_copied(store: Store, apart: Apart, record: Record) -> bool:
    """Return True if a chunk of the new array is in its place, or if it has none."""
    chunks = [there for there in await _copies(store, apart, record) if there not in record.after]
    for there in chunks:
        if await store.stat(there) is not None:
            return True
    return not chunks
