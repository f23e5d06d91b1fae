"""What a kill left of operations in several steps (docs/SEMANTICS.md, "Operations in several steps"): listed, and repaired."""

from __future__ import annotations

from zarrfs.errors import StoreReadOnly, ZarrfsError
from zarrfs.hierarchy.intents import Intents
from zarrfs.hierarchy.recovery import demand_known, recover
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url
from zarrfs.reports.findings import Finding, Report
from zarrfs.reports.offline import hierarchy_of, opened
from zarrfs.stores.base import Store
from zarrfs.transformers.without_apart import WithoutApart


async def repair(config: MountConfig, report: Report) -> None:
    """End, or undo, what nobody works on. Raises `StoreReadOnly`, `IntentTooNew`, and whatever opening the store raises."""
    async with opened(config, read_only=False) as store:
        if not store.capabilities.write:
            raise StoreReadOnly(f"{public_url(config.store)} cannot be written to: nothing can be repaired")
        intents, shown = Intents(store), WithoutApart(store)
        await demand_known(intents)
        for each in await recover(intents, hierarchy_of(config, shown), shown):
            report.repaired.add(Finding(each.path, f"{each.operation}: {'ended' if each.is_done else 'undone'}"))


async def look(store: Store, report: Report) -> None:
    """Tell of each that is there; who works on it cannot be seen."""
    for intent in await Intents(store).there():
        try:
            record = await intent.record()
        except ZarrfsError as error:
            report.steps.add(Finding("/", f"{intent.prefix}: {error}"))
            continue
        if record is None:
            # Nothing that was there has been touched.
            report.making.add(Finding("/", f"{intent.prefix} is in the making, or was left behind"))
        else:
            report.steps.add(Finding(record.path, f"{record.operation} ({intent.prefix})"))
