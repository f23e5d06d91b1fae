"""Edits of nodes that a consolidated copy lists: the next mount updates the copy after a kill between the edit and its update."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from zarrfs.dialects.base import Layout
from zarrfs.errors import KeyConflict, StoreAccessDenied, StoreFull, StoreQuotaExceeded, StoreTimeout, ZarrfsError
from zarrfs.hierarchy.consolidated import ConsolidatedCopies
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.records import Record
from zarrfs.keys import NodePath

log = logging.getLogger(__name__)


@asynccontextmanager
async def copies_recorded(
    intents: Intents, copies: ConsolidatedCopies, layout: Layout, path: NodePath, new_path: NodePath | None = None
) -> AsyncIterator[None]:
    """Record the nodes that the body edits, if there are copies that it has to update: at ``path``, or renamed from there.

    Without a place for the record the edit is possible all the same.
    """
    paths = (path,) if new_path is None else (path, new_path)
    if not any([await copies.is_any_above(layout, each) for each in paths]):
        yield
        return
    intent = intents.new()
    try:
        try:
            await intent.begin(Record.of_copies(paths[-1], path.prefix if new_path is not None else None))
        except (StoreAccessDenied, KeyConflict, StoreFull, StoreQuotaExceeded) as error:
            log.info("%s: consolidated copies not recorded: %s", path, error)
        yield
    except BaseException as error:
        if intent.is_held and not await _are_renewed(copies, paths, error):
            await intent.let_go()
        raise
    finally:
        if intent.is_held:
            await intent.end()


async def _are_renewed(copies: ConsolidatedCopies, paths: tuple[NodePath, ...], error: BaseException) -> bool:
    """Return True if the copies are as if the edit had not failed in between; else the next mount sees to it."""
    if isinstance(error, StoreTimeout) or not isinstance(error, Exception):
        # The nodes cannot be read before the outcome is known; a cancelled edit is one at the end of a mount that waits no longer.
        return False
    with trio.CancelScope(shield=True):
        try:
            for path in paths:
                await copies.renew(path)
        except StoreAccessDenied:
            # The next mount cannot read the nodes either.
            return True
        except ZarrfsError as again:
            log.warning("%s: consolidated copies not updated, left for the next mount: %s", paths[-1], again)
            return False
    return True
