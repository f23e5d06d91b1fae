"""What a kill left of operations in several steps, ended or undone at the next mount that may write (`zarrfs.hierarchy.intents`)."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

from zarrfs.errors import IntentTooNew, ZarrfsError
from zarrfs.hierarchy.consolidated import ConsolidatedCopies
from zarrfs.hierarchy.intents import Intent, Intents, Record, settle
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.places import paths_of
from zarrfs.keys import NodePath
from zarrfs.stores.base import Store

log = logging.getLogger(__name__)


async def demand_known(intents: Intents) -> None:
    """Raise `IntentTooNew` where a later version of zarrfs has left something."""
    async with aclosing(_left(intents)) as left:
        async for _, _ in left:
            pass


@dataclass(frozen=True, slots=True)
class Recovered:
    """An operation that was cut short, and is ended (``is_done``) or undone."""

    operation: str
    path: NodePath
    is_done: bool


def _tell_nobody(error: ZarrfsError) -> None:
    pass


async def recover(
    intents: Intents, hierarchy: Hierarchy, store: Store, failed: Callable[[ZarrfsError], None] = _tell_nobody
) -> list[Recovered]:
    """End, or undo, whatever nobody works on, and tell what that was. What cannot be is left: a line in the log, and ``failed`` is called
    with the reason."""
    copies = ConsolidatedCopies(hierarchy, store)
    recovered: list[Recovered] = []
    async with aclosing(_left(intents)) as left:
        async for intent, record in left:
            try:
                if record is not None:
                    is_done = await settle(intents.store, intent, record)
                    log.warning(
                        "%s: an operation (%s) that was cut short is %s",
                        record.path,
                        record.operation,
                        "ended" if is_done else "undone",
                    )
                    recovered.append(Recovered(record.operation, record.path, is_done))
                    hierarchy.forget_all()
                    await _renew_copies(hierarchy, copies, record.path)
                    if record.source is not None and (source := paths_of(record.source)) is not None:
                        await _renew_copies(hierarchy, copies, *source)
            except ZarrfsError as error:
                message = f"{intent.prefix}: an operation that was cut short could be neither ended nor undone: {error}"
                log.error("%s", message)
                failed(type(error)(message, key=error.key))
            else:
                if record is not None or intents.store.capabilities.rename:
                    await intent.end()
                else:
                    # Where no lock holds between processes another mount may be at work on it.
                    log.warning("%s was left behind, or is in the making", intent.prefix)
    return recovered


async def _left(intents: Intents) -> AsyncGenerator[tuple[Intent, Record | None]]:
    async with aclosing(intents.left()) as left:
        async for intent in left:
            try:
                yield intent, await intent.record()
            except IntentTooNew:
                raise
            except ZarrfsError as error:
                log.error("%s is left as it is: %s", intent.prefix, error)


async def _renew_copies(hierarchy: Hierarchy, copies: ConsolidatedCopies, path: NodePath) -> None:
    node = await hierarchy.node(path)
    layout = next((each for each in await hierarchy.layouts(path) if node and each.dialect.name == node.dialect), None)
    if layout is None:
        await copies.take_out(path)
    else:
        await copies.put_in(layout, path)
