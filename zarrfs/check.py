"""What ``zarrfs check`` does: reads and decodes every chunk of a store, and tells which cannot be.

In two passes: the first lists, so that it is known how much there is to do; the second reads, several chunks at once. Memory holds
as many chunks as `MountConfig.memory_limit` has room for and the lists of what was found, each of which ends at `MOST` entries.
"""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import trio

from zarrfs.config import MountConfig
from zarrfs.errors import MetadataUnsupported, ZarrfsError
from zarrfs.hierarchy.arrays import Array
from zarrfs.hierarchy.concurrency import for_each
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.keys import NodePath
from zarrfs.model.chunk_grid import Coords, Shape, in_grid
from zarrfs.model.metadata import ArrayNode, UnsupportedNode
from zarrfs.offline import opened, walk
from zarrfs.redact import public_url
from zarrfs.stores.base import Store

log = logging.getLogger(__name__)

MOST = 10_000
_WIDTH = 16
_BATCH = 4096
# Chunks of a grid that are all asked for, listed or not, where asking for one that is not there costs next to nothing.
_ASKED = 100_000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about the node at ``path``: about its documents or, with ``key`` and ``coords``, about one chunk."""

    path: str
    reason: str
    key: str | None = None
    coords: Coords | None = None


@dataclass(slots=True)
class Findings:
    """The first `MOST` that were found, and how many there are."""

    first: list[Finding] = field(default_factory=list)
    count: int = 0

    def add(self, finding: Finding) -> None:
        """One more."""
        self.count += 1
        if self.count <= MOST:
            self.first.append(finding)


@dataclass(slots=True)
class Report:
    """What was found, and how far it is.

    ``chunks``: decoded; ``stored_nbytes`` and ``decoded_nbytes``: theirs. ``done`` of ``total`` chunks were asked for, stored or not.
    ``bad``: nodes and chunks that are not what they have to be, or cannot be read. ``unchecked``: nodes that may be sound and ask for
    what zarrfs cannot do. ``outside``: what is stored as a chunk where the grid has none, which nobody reads and no text forbids.
    ``complete`` is False until the end is reached.
    """

    store: str
    nodes: int = 0
    chunks: int = 0
    stored_nbytes: int = 0
    decoded_nbytes: int = 0
    done: int = 0
    total: int = 0
    bad: Findings = field(default_factory=Findings)
    unchecked: Findings = field(default_factory=Findings)
    outside: Findings = field(default_factory=Findings)
    complete: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        said: dict[str, Any] = {
            name: getattr(self, name) for name in ("store", "complete", "nodes", "chunks", "stored_nbytes", "decoded_nbytes")
        }
        for name in ("bad", "unchecked", "outside"):
            findings: Findings = getattr(self, name)
            said[f"{name}_count"] = findings.count
            said[name] = [
                {"path": each.path, "reason": each.reason}
                | ({"key": each.key, "coords": list(each.coords)} if each.coords is not None else {})
                for each in findings.first
            ]
        return said


async def check(config: MountConfig, path: str, told: Callable[[Report], None] = lambda report: None) -> Report:
    """Read and decode every chunk of the arrays at and below ``path``; ``told`` is called whenever there is news.

    The first SIGINT ends it, with what was found until then. Raises `NoSuchEntry` when there is no such node, in the groups of its
    nurseries, and whatever opening the store raises.
    """
    report = Report(public_url(config.store))
    async with opened(config) as (store, hierarchy), trio.open_nursery() as nursery:
        await nursery.start(_end_on_interrupt, nursery.cancel_scope)
        arrays = [array async for array in _survey(config, store, hierarchy, path, report)]
        told(report)
        for array_path in arrays:
            found = await hierarchy.array(array_path)
            if found is not None:
                await _read(found.array, store, config.memory_limit, report, told)
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
    """The arrays that can be checked; what the documents and the listings show goes to ``report``."""
    async for node in walk(hierarchy, config, path):
        report.nodes += 1
        match node:
            case UnsupportedNode():
                (report.bad if node.bad else report.unchecked).add(Finding(node.path, node.reason))
            case ArrayNode():
                try:
                    found = await hierarchy.array(node.path)
                    if found is None:
                        continue
                    report.total += await _total(found.array, store, report)
                except ZarrfsError as error:
                    (report.unchecked if isinstance(error, MetadataUnsupported) else report.bad).add(Finding(node.path, str(error)))
                else:
                    yield node.path


async def _total(array: Array, store: Store, report: Report) -> int:
    """How many chunks of ``array`` there are to be asked for."""
    listed = 0
    if store.listable:
        async for coords, _, _ in array.chunks.list(outside=True):
            if in_grid(coords, array.metadata.grid_shape):
                listed += 1
            else:
                key = array.chunks.keys(coords)[0]
                report.outside.add(Finding(array.path, f"the grid has {array.metadata.grid_shape} chunks", key, coords))
    return math.prod(array.metadata.grid_shape) if _whole_grid(array, store) else listed


def _whole_grid(array: Array, store: Store) -> bool:
    """Whether every chunk of the grid is asked for, rather than those that are listed.

    Where nothing can be listed, always. Otherwise because a listing leaves out what is no value: a symbolic link in a folder, which
    is an error to whoever reads it, and not a missing chunk.
    """
    return not store.listable or (store.hierarchical and math.prod(array.metadata.grid_shape) <= _ASKED)


async def _read(array: Array, store: Store, memory: int, report: Report, told: Callable[[Report], None]) -> None:
    metadata = array.metadata
    # Encoded and decoded, each is there for a while; one that is larger than all memory allowed is read nevertheless.
    width = max(1, min(_WIDTH, memory // max(1, 2 * metadata.chunk_nbytes((0,) * metadata.ndim))))

    async def one(coords: Coords) -> None:
        try:
            stored = await array.read_chunk(coords) is not None
            stat = await array.chunks.stat(coords) if stored else None
        except Exception as error:
            if not isinstance(error, ZarrfsError):
                log.exception("chunk %s of %s", coords, array.path)
            reason = (
                str(error) if isinstance(error, ZarrfsError) else f"{type(error).__name__}: {error}: this is a defect of zarrfs"
            )
            report.bad.add(Finding(array.path, reason, array.chunks.keys(coords)[0], coords))
        else:
            # A chunk that is not stored is no fault: it reads as the fill value.
            if stat is not None:
                report.chunks += 1
                report.stored_nbytes += stat.size
                report.decoded_nbytes += metadata.chunk_nbytes(coords)
        report.done += 1
        told(report)

    if _whole_grid(array, store):
        await for_each(_coordinates(metadata.grid_shape), one, width)
        return
    batch: list[Coords] = []
    async for coords, _, _ in array.chunks.list():
        batch.append(coords)
        if len(batch) == _BATCH:
            await for_each(batch, one, width)
            batch.clear()
    await for_each(batch, one, width)


def _coordinates(grid_shape: Shape) -> Iterator[Coords]:
    """Every chunk of a grid, in C order. Not itertools.product, which would first make lists of grids that are as large as they say."""
    for number in range(math.prod(grid_shape)):
        coords: list[int] = []
        for extent in reversed(grid_shape):
            number, index = divmod(number, extent)
            coords.append(index)
        yield tuple(reversed(coords))
