"""Edits of nodes that a consolidated copy lists: after a failure between the edit and the update of the copy, this mount updates it
later (`zarrfs.hierarchy.unfinished`); after a kill the next mount does."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

import trio

from zarrfs.dialects.base import Layout
from zarrfs.errors import KeyConflict, StoreAccessDenied, StoreFull, StoreTimeout, ZarrfsError
from zarrfs.hierarchy.consolidated import ConsolidatedCopies
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.records import Record
from zarrfs.keys import NodePath

log = logging.getLogger(__name__)

Renewed = Literal["now", "later", "next mount"]


@asynccontextmanager
async def copies_recorded(
    intents: Intents, copies: ConsolidatedCopies, layout: Layout, path: NodePath, new_path: NodePath | None = None
) -> AsyncIterator[None]:
    """Record that the body edits the node at ``path``, or renames it to ``new_path``, if copies have to be updated.

    Without the right or the room to store the record the edit proceeds: a kill then leaves the copies as they are.
    """
    paths = (path,) if new_path is None else (path, new_path)
    if not any([await copies.is_any_above(layout, each) for each in paths]):
        yield
        return
    is_left = False
    intent, record = intents.new(), Record.of_copies(paths[-1], path.prefix if new_path is not None else None)
    try:
        try:
            await intent.begin(record)
        except (StoreAccessDenied, KeyConflict, StoreFull) as error:
            log.info("%s: consolidated copies not recorded: %s", path, error)
        # The copies are renewed when no step of the edit may take effect any more.
        with intent.collecting():
            yield
    except BaseException as error:
        match await _renewed(copies, paths, error):
            case "later":
                is_left = True
                await intent.end_later(record)
            case "next mount" if intent.is_held:
                await intent.let_go()
        raise
    finally:
        if intent.is_held and not is_left:
            await intent.end()


async def _renewed(copies: ConsolidatedCopies, paths: tuple[NodePath, ...], error: BaseException) -> Renewed:
    """Make the copies as if the edit had not failed in between; return when that is done."""
    if not isinstance(error, Exception):
        # A cancelled edit is one at the end of a mount that waits no longer.
        return "next mount"
    if isinstance(error, StoreTimeout):
        # Before the store has ended the step, its outcome cannot be read.
        return "later"
    with trio.CancelScope(shield=True):
        try:
            for path in paths:
                await copies.renew(path)
        except StoreAccessDenied:
            # The next mount cannot read the nodes either.
            return "now"
        except ZarrfsError as again:
            log.warning("%s: consolidated copies not updated, left for later: %s", paths[-1], again)
            return "later"
    return "now"
