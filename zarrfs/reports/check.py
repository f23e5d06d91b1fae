"""Implementation of ``zarrfs check``: reads and decodes every chunk of a store, and reports failures.

In two passes: the first lists, to determine the total; the second reads, several chunks at once. Memory holds as many chunks as
`MountConfig.memory_limit` allows, and the lists of findings, each of at most `findings.MAX_LISTED` entries.
"""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import trio

from zarrfs.arrays.array import Array
from zarrfs.arrays.concurrency import for_each
from zarrfs.errors import ChunkDecodeError, ZarrfsError
from zarrfs.hierarchy.compared_copies import ComparedCopies
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.hierarchy.unknown_documents import unknown_documents
from zarrfs.keys import APART, NodePath
from zarrfs.model.chunk_grid import Coords, in_grid
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url
from zarrfs.reports import check_shards, check_steps
from zarrfs.reports.check_grid import coordinates, whole_grid
from zarrfs.reports.check_names import misnamed
from zarrfs.reports.check_orphans import orphans
from zarrfs.reports.findings import Finding, Report
from zarrfs.reports.offline import below_array, hierarchy_of, open_offline, walk
from zarrfs.stores.base import Store
from zarrfs.transformers.without_apart import WithoutApart

_WIDTH = 16
_BATCH = 4096


async def check(
    config: MountConfig, path: str, on_progress: Callable[[Report], None] = lambda report: None, *, repairs: bool = False
) -> Report:
    """Read and decode every chunk of the arrays at and below ``path``; ``on_progress`` is called after every progress.

    ``repairs``: first complete or undo interrupted operations, which needs a writable store. The first SIGINT ends it, with the findings
    so far. Raises `NoSuchEntry` if there is no such node, in the groups of its nurseries, and any error of opening the store.
    """
    report = Report(public_url(config.store))
    if repairs:
        await check_steps.repair(config, report)
    async with open_offline(config) as whole, trio.open_nursery() as nursery:
        store = WithoutApart(whole)
        # Before SIGINT is handled: this imports plug-ins, which may hang.
        hierarchy = hierarchy_of(config, store)
        await nursery.start(_end_on_interrupt, nursery.cancel_scope)
        for what in whole.damage:
            report.bad.add(Finding("/", what))
        await check_steps.look(whole, report)
        arrays = [array async for array in _survey(config, store, hierarchy, path, report)]
        on_progress(report)
        for array_path in arrays:
            try:
                found = await hierarchy.array(array_path)
                if found is not None:
                    await _read(found.array, store, config.memory_limit, report, on_progress)
            except Exception as error:  # noqa: BLE001 - it is reported, and the others are checked
                report.findings_of(error).add(Finding(array_path, reason_of(array_path, error)))
        _look_at_left_out(whole, report)
        report.complete = True
        nursery.cancel_scope.cancel()
    return report


async def _end_on_interrupt(scope: trio.CancelScope, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()
            return


async def _survey(config: MountConfig, store: Store, hierarchy: Hierarchy, path: str, report: Report) -> AsyncIterator[NodePath]:
    """Yield the arrays that can be checked; findings from documents and listings go to ``report``."""
    copies = ComparedCopies(
        hierarchy, lambda group, key, what: report.outdated.add(Finding(group, f"consolidated copy {what}", key))
    )
    async for node in walk(hierarchy, config, path):
        report.nodes += 1
        await _look_beside(hierarchy, node, report)
        # A failure here is one of the store or of a dialect, and reported otherwise.
        with suppress(Exception):
            await copies.meet(node)
        await _look_for_unknown(hierarchy, node, report)
        await _look_at_copy(hierarchy, node, report)
        match node:
            case UnsupportedNode():
                (report.bad if node.bad else report.unchecked).add(Finding(node.path, node.reason))
            case ArrayNode():
                report.arrays += 1
                try:
                    found = await hierarchy.array(node.path)
                    if found is None:
                        continue
                    report.total += await _total(found.array, store, report)
                except Exception as error:  # noqa: BLE001 - as above
                    report.findings_of(error).add(Finding(node.path, reason_of(node.path, error)))
                else:
                    await _look_below(hierarchy, node, report)
                    yield node.path
            case GroupNode():
                await _look_at_names(hierarchy, store, node, report)
    with suppress(Exception):
        await copies.end()


async def _look_beside(hierarchy: Hierarchy, node: Node, report: Report) -> None:
    """Report documents of other layouts at the same path. One of several is always valid (docs/design/010-layouts.md): no fault."""
    try:
        others = await hierarchy.others_at(node.path)
    except Exception as error:  # noqa: BLE001 - as above
        if not isinstance(node, UnsupportedNode):  # else it is reported already
            report.bad.add(Finding(node.path, f"other nodes here unknown: {reason_of(node.path, error)}"))
        return
    if others:
        report.hidden.add(Finding(node.path, f"documents of {node.dialect} are valid, those of {' and '.join(others)} are ignored"))


def _look_at_left_out(store: Store, report: Report) -> None:
    """Report what listings leave out: it may be a node or a chunk, to which access is refused."""
    found = {finding.key for findings in (report.bad, report.unchecked) for finding in findings.first}
    for key in tuple(store.left_out):
        if not f"{key}/".startswith(APART) and key not in found:
            report.unchecked.add(Finding(f"/{key}", "a symbolic link or special file, which is not followed", key))


async def _look_for_unknown(hierarchy: Hierarchy, node: Node, report: Report) -> None:
    """Report documents of no known layout: what they describe is missing in every view."""
    with suppress(Exception):  # as reported by `_look_beside`, which reads the same documents
        for key in await unknown_documents(hierarchy, node):
            report.unchecked.add(Finding(node.path, "a document of no known layout: damaged, or of a later version of Zarr", key))


async def _look_at_copy(hierarchy: Hierarchy, node: Node, report: Report) -> None:
    """Report an unreadable consolidated copy. It hides nothing in a mount, but zarr-python and xarray open no node of its group."""
    layout = hierarchy.roots.layout_of(node) if isinstance(node, GroupNode) else None
    key = layout.copy_key(node.path) if layout is not None else None
    if layout is None or key is None:
        return
    try:
        found = await hierarchy.documents((key,))
        fault = layout.copy_fault(key, found[key], of_members=True) if key in found else None
    except Exception as error:  # noqa: BLE001 - as above
        fault = reason_of(node.path, error)
    if fault is not None:
        report.bad.add(Finding(node.path, f"consolidated copy unreadable: {fault}", key))


async def _look_below(hierarchy: Hierarchy, node: ArrayNode, report: Report) -> None:
    """Report nodes below an array, which no view shows."""
    try:
        for below in await below_array(hierarchy, node):
            report.below.add(Finding(below, f"{node.path} is an array, without members"))
    except Exception as error:  # noqa: BLE001 - as above
        report.bad.add(Finding(node.path, f"nodes below not listed: {reason_of(node.path, error)}"))


async def _look_at_names(hierarchy: Hierarchy, store: Store, group: GroupNode, report: Report) -> None:
    """Report documents at names that no node may have, and chunks of no array. A group whose listing fails is reported by the walk."""
    with suppress(ZarrfsError):
        async for key in misnamed(hierarchy, store, group):
            report.misnamed.add(Finding(group.path, f"no node of {group.dialect} may have this name", key))
        async for path in orphans(hierarchy, store, group):
            report.orphaned.add(Finding(path, "chunks, but no document of an array"))


async def _total(array: Array, store: Store, report: Report) -> int:
    """Return the number of chunks of ``array`` to read."""
    if array.metadata.shards:
        return await check_shards.survey(array, store, report)
    listed = 0
    if store.capabilities.list:
        async for coords, _, _ in array.chunks.list(outside=True):
            if in_grid(coords, array.metadata.grid_shape):
                listed += 1
            else:
                key = array.chunks.keys(coords)[0]
                report.outside.add(Finding(array.path, f"the grid has {array.metadata.grid_shape} chunks", key, coords))
    return math.prod(array.metadata.grid_shape) if whole_grid(array.metadata.grid_shape, store) else listed


async def _read(array: Array, store: Store, memory: int, report: Report, on_progress: Callable[[Report], None]) -> None:
    if array.metadata.shards:
        await check_shards.read(array, store, memory, report, on_progress)
        return
    metadata = array.metadata
    # Encoded and decoded chunk coexist for a while; one larger than all memory allowed is read nevertheless.
    width = max(1, min(_WIDTH, memory // max(1, 2 * metadata.max_chunk_nbytes)))

    async def one(coords: Coords) -> None:
        try:
            elements = await array.read_chunk(coords)
            if elements is not None:
                why = await array.invalid(coords, elements)
                if why is not None:
                    raise array.naming(ChunkDecodeError(why), "decoding", coords)
            stat = await array.chunks.stat(coords) if elements is not None else None
        except Exception as error:  # noqa: BLE001 - it is reported, and the others are checked
            report.add_chunk_error(array.path, array.chunks.keys(coords)[0], coords, error)
        else:
            # A missing chunk is no fault: it reads as the fill value.
            if elements is not None and stat is not None:
                report.chunks += 1
                report.stored_nbytes += stat.size
                report.decoded_nbytes += elements.nbytes
        report.done += 1
        on_progress(report)

    if whole_grid(array.metadata.grid_shape, store):
        await for_each(coordinates(metadata.grid_shape), one, width)
        return
    batch: list[Coords] = []
    async for coords, _, _ in array.chunks.list():
        batch.append(coords)
        if len(batch) == _BATCH:
            await for_each(batch, one, width)
            batch.clear()
    await for_each(batch, one, width)
