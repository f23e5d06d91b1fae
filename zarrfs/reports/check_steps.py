"""Interrupted operations (docs/SEMANTICS.md, "Operations in several steps"): list and repair."""

from __future__ import annotations

from contextlib import suppress

from zarrfs.errors import StoreAccessDenied, StoreReadOnly, ZarrfsError
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.recovery import recover, require_known
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url
from zarrfs.reports.findings import Finding, Report
from zarrfs.reports.offline import hierarchy_of, open_offline
from zarrfs.stores.base import Store
from zarrfs.transformers.without_apart import WithoutApart


async def repair(config: MountConfig, report: Report) -> None:
    """Complete or undo operations without a worker. Raises `StoreReadOnly`, `IntentTooNew`, and any error of opening the store."""
    if config.read_only:
        raise StoreReadOnly(f"{public_url(config.store)}: repair impossible, read_only is set (by an option or its configuration)")
    async with open_offline(config, read_only=False) as store:
        if not store.capabilities.write:
            raise StoreReadOnly(f"{public_url(config.store)}: repair impossible, store is read-only")
        intents, shown = Intents(store), WithoutApart(store)
        await require_known(intents)
        for each in await recover(intents, hierarchy_of(config, shown), shown):
            report.repaired.add(Finding(each.path, f"{each.operation}: {'completed' if each.is_done else 'undone'}"))


async def look(store: Store, report: Report) -> None:
    """Report each operation present; whether it has a worker is not visible. One that was given up is a fault: its node is gone."""
    try:
        intents = Intents(store)
        there, kept = await intents.there(), await intents.kept()
    except StoreAccessDenied as error:
        report.steps.add(Finding("/", str(error)))
        return
    for intent in there:
        try:
            record = await intent.record()
        except ZarrfsError as error:
            report.steps.add(Finding("/", f"{intent.prefix}: {error}"))
            continue
        if record is None:
            # No existing content has been touched.
            report.making.add(Finding("/", f"{intent.prefix}: in progress, or left behind"))
        else:
            report.steps.add(Finding(record.path, f"{record.name} ({intent.prefix})"))
    for intent in kept:
        path, name = "/", "operation"
        with suppress(ZarrfsError):
            if (record := await intent.record()) is not None:
                path, name = record.path, record.name
        report.bad.add(Finding(path, f"interrupted {name} given up: the rest of it is kept in {intent.prefix}"))
