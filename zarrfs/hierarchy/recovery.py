"""Recovery of interrupted operations at the next writable mount: they are completed or undone (`zarrfs.hierarchy.intents`)."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from zarrfs.errors import IntentTooNew, KeyConflict, PartsMissing, PrefixNotEmpty, StoreFull, StoreTimeout, ZarrfsError
from zarrfs.hierarchy.bound_paths import paths_of
from zarrfs.hierarchy.consolidated import ConsolidatedCopies, begins_at, folder_beside, is_implicit
from zarrfs.hierarchy.erasing import erase_in_steps, remove_empty
from zarrfs.hierarchy.intents import Intent, Intents
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.probe import first_below, holds_only_chunks
from zarrfs.hierarchy.records import RECORD, Record
from zarrfs.hierarchy.resolving import resolve
from zarrfs.hierarchy.stored_documents import are_stored
from zarrfs.keys import ROOT, Key, NodePath
from zarrfs.stores.base import Store

log = logging.getLogger(__name__)


async def require_known(intents: Intents) -> None:
    """Raise `IntentTooNew` if a later version of zarrfs has left an operation."""
    async with aclosing(_left(intents)) as left:
        async for _, _ in left:
            pass


class _Busy(StoreTimeout):
    """The lock of edits was not to be had in time."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """An interrupted operation that was completed (``is_done``) or undone."""

    operation: str
    path: NodePath
    is_done: bool


def _ignore(error: ZarrfsError) -> None:
    pass


async def recover(
    intents: Intents, hierarchy: Hierarchy, store: Store, failed: Callable[[ZarrfsError], None] = _ignore
) -> list[Recovered]:
    """Complete or undo all operations without a worker, and return them.

    An operation for which both fail is left: it is logged, and ``failed`` is called with the reason. If no later mount can complete or
    undo it either, it is kept where none looks for it.
    """
    copies = ConsolidatedCopies(hierarchy, store)
    recovered: list[Recovered] = []
    async with aclosing(_left(intents)) as left:
        async for intent, record in left:
            try:
                if record is not None:
                    async with _no_edits_by_others(hierarchy, intents.store, record.path):
                        require_free = partial(_require_free, hierarchy, store, record)
                        try:
                            # Of a new array nothing was there that could be put back: others keep their chunks, and its own among them.
                            if record.is_new and await _other_node(hierarchy, store, record, record.path) is not None:
                                is_done = await are_stored(store, record.after)
                            else:
                                is_done = await resolve(intents.store, intent, record, require_free)
                        except PartsMissing as error:
                            await _keep_aside(intent, record, error, failed)
                            hierarchy.forget_all()
                            await renew_copies(copies, record)
                            continue
                        hierarchy.forget_all()
                        if record.operation == "erase":
                            is_done = await is_erased(hierarchy, store, intent, record.path)
                        log.warning(
                            "%s: interrupted operation (%s) %s", record.path, record.name, "completed" if is_done else "undone"
                        )
                        recovered.append(Recovered(record.name, record.path, is_done))
                        # What others edit from here on is not what the record describes.
                        intent.is_done = True
                        if not await is_renewed(copies, intent, record, failed):
                            continue
            except ZarrfsError as error:
                message = f"{intent.prefix}: interrupted operation neither completed nor undone: {error}"
                log.error("%s", message)
                failed(type(error)(message, key=error.key))
                if isinstance(error, _Busy):
                    # The start of the mount would wait as long for each of the others.
                    log.error("other interrupted operations are left unchanged as well")
                    break
            else:
                if record is not None or intents.store.capabilities.rename:
                    await intent.end()
                else:
                    # Without locks between processes another mount may be working on it.
                    log.warning("%s: left behind, or in use by another mount", intent.prefix)
    return recovered


@asynccontextmanager
async def _no_edits_by_others(hierarchy: Hierarchy, store: Store, path: NodePath) -> AsyncGenerator[None]:
    """Exclude edits of nodes by other mounts, as `NodeEditor.editing` does: what they store meanwhile must not be undone.

    Raises `_Busy` if they do not end."""
    locks = {layout.edit_lock for layout in await hierarchy.layouts(path)}
    async with AsyncExitStack() as stack:
        # One in each folder: mounts lock folders, and a second wait for a folder that is held already may not end.
        for key in {key.parent: key for key in sorted(locks)}.values():
            try:
                await stack.enter_async_context(store.exclusive(key))
            except StoreTimeout as error:
                raise _Busy(f"another mount is editing: {error}", key=key) from error
        yield


async def _require_free(hierarchy: Hierarchy, store: Store, record: Record, path: NodePath) -> None:
    """Raise `KeyConflict` if another program has stored another node at ``path`` since."""
    if (other := await _other_node(hierarchy, store, record, path)) is not None:
        raise KeyConflict(f"{record.path}: {other} was stored by another program since", key=other)


async def _other_node(hierarchy: Hierarchy, store: Store, record: Record, path: NodePath) -> Key | None:
    """Return a document of another node, at or below a path to which documents of the same layout are returned or moved; None without.

    Another program has put a group there, with documents or without: the array would hide it, and what is in it. Chunks of arrays in it
    may have the names of chunks of the array."""
    own = {*record.before, *record.after, *record.replaced, *(each for pair in record.moves for each in pair)}
    for layout in await hierarchy.layouts(path):
        keys = layout.document_keys(path)
        if own.isdisjoint(keys):
            continue
        if others := [key for key in await hierarchy.documents(keys) if key not in own]:
            return others[0]
        for prefix in layout.listing_prefixes(path) if not layout.per_node and path != ROOT else ():
            # What is moved with the node is its own.
            if prefix not in own and store.capabilities.list and (below := await first_below(store, prefix)) is not None:
                return below
    return None


async def is_erased(hierarchy: Hierarchy, store: Store, intent: Intent, path: NodePath) -> bool:
    """Return False if an erasure that was interrupted has not taken the node away.

    Else delete its chunks, if its documents lay elsewhere and were erased before them. Later chunks than the record are of another
    program, whose document may be still to come.
    """
    if (node := await hierarchy.node(path)) is not None:
        if is_implicit(node) and await _are_folders_removed(hierarchy, store, path):
            hierarchy.forget_all()
            return True
        # What is moved away first is decided; others have stored a node there since.
        return await intent.store.prefix_exists(intent.gone)
    stat = await intent.store.stat(intent.prefix.key(RECORD))
    if stat is None or (since_ns := stat.mtime_ns) is None:
        return True
    for layout in await hierarchy.layouts(path):
        prefix = layout.chunk_prefix(path)
        if not prefix.startswith(path.prefix) and await holds_only_chunks(store, prefix, most=math.inf):
            await erase_in_steps(store, prefix, until_ns=since_ns)
    return True


async def _are_folders_removed(hierarchy: Hierarchy, store: Store, path: NodePath) -> bool:
    """Remove the empty folders of a group whose documents lay elsewhere and were erased before them; return False if it stays.

    It would be a group without attributes."""
    layouts = [layout for layout in await hierarchy.layouts(path) if not layout.per_node and not begins_at(layout, path)]
    prefixes = [
        each
        for layout in layouts
        for each in (*layout.listing_prefixes(path), layout.chunk_prefix(path), *folder_beside(layout, path))
    ]
    if not prefixes or not store.capabilities.list or any([await first_below(store, each) is not None for each in prefixes]):
        return False
    try:
        for each in prefixes:
            await remove_empty(store, each)
    except PrefixNotEmpty:
        # Links and special files.
        return False
    return True


async def _keep_aside(intent: Intent, record: Record, error: PartsMissing, failed: Callable[[ZarrfsError], None]) -> None:
    aside = await intent.keep_aside()
    message = f"{record.path}: interrupted operation ({record.name}) given up, the rest of it is kept in {aside}: {error}"
    log.error("%s", message)
    failed(type(error)(message, key=error.key))


async def is_renewed(
    copies: ConsolidatedCopies, intent: Intent, record: Record, failed: Callable[[ZarrfsError], None] = _ignore
) -> bool:
    """Renew the copies; return False if they are left for the next mount, which then repeats nothing else over later changes."""
    try:
        await renew_copies(copies, record)
    except ZarrfsError as error:
        message = f"{record.path}: consolidated copies not updated: {error}"
        log.error("%s", message)
        failed(type(error)(message, key=error.key))
        return not record.is_of_copies and not await _is_left(intent, Record.of_copies(record.path, record.source))
    return True


async def _is_left(intent: Intent, record: Record) -> bool:
    """Put ``record`` in the place of that of an operation whose content is in its final position; False if neither is stored now."""
    try:
        # The store may be full: what is apart, and the record that is there, make room.
        for part in (intent.new, intent.old, intent.gone):
            await erase_in_steps(intent.store, part)
        try:
            await intent.note(record)
        except StoreFull:
            await intent.forget()
            await intent.note(record)
    except ZarrfsError:
        intent.is_done = True
        return False
    return True


async def _left(intents: Intents) -> AsyncGenerator[tuple[Intent, Record | None]]:
    async with aclosing(intents.left()) as left:
        async for intent in left:
            try:
                yield intent, await intent.record()
            except IntentTooNew:
                raise
            except ZarrfsError as error:
                log.error("%s: left unchanged: %s", intent.prefix, error)


async def renew_copies(copies: ConsolidatedCopies, record: Record) -> None:
    """Renew the consolidated copies of the nodes that an operation concerns, after its end."""
    for path in (record.path, *(paths_of(record.source) or () if record.source is not None else ())):
        await copies.renew(path)
