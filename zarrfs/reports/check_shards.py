"""Check of sharded arrays: every index first, then every chunk that an index contains.

A fault of a shard is reported once, with its key, and not for each chunk lost by it. Chunks of a shard are fetched together.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable

from zarrfs.arrays.array import Array, ChunkPart
from zarrfs.arrays.concurrency import for_each
from zarrfs.arrays.shard_survey import ShardSurvey, SurveyedShard
from zarrfs.errors import ChunkDecodeError, ZarrfsError
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.memory.spill import array as array_of
from zarrfs.model.chunk_grid import Coords, in_grid
from zarrfs.reports.check_grid import coordinates, whole_grid
from zarrfs.reports.findings import Finding, Report
from zarrfs.stores.base import Store

_WIDTH = 16
# Number of outermost shards surveyed in sequence, and of chunks collected before they are read.
_BATCH = 4096
# Number of chunks of a shard that are fetched together.
_TOGETHER = 64
# Number of chunks named in a finding.
_NAMED = 5


async def survey(array: Array, store: Store, report: Report) -> int:
    """Return the number of chunks of ``array`` to read; findings from indexes go to ``report``."""
    shards = ShardSurvey(array.chunks, array.metadata)
    total = 0
    async for batch in _batches(shards, store, array, report):
        present: set[Coords] = set()
        async for each in shards.survey(batch):
            if each.level == 0:
                present.add(each.coords)
                report.shard_chunks_possible += shards.possible(each.coords) if each.reason is None else 0
            if each.innermost:
                total += each.stored
                report.shard_chunks += each.stored
            report.shards += each.reason is None
            report.shard_unused_nbytes += each.unused_nbytes
            _record(array, each, report)
        if store.capabilities.hierarchical:
            await _look_behind(array, shards, [coords for coords in batch if coords not in present], report)
    return total


async def read(array: Array, store: Store, memory: int, report: Report, on_progress: Callable[[Report], None]) -> None:
    """Read and decode the chunks counted by `survey`."""
    nbytes = max(1, array.metadata.max_chunk_nbytes)
    width = max(1, min(_WIDTH, memory // (2 * nbytes)))
    if any(spec.codecs for spec in array.metadata.shards):
        # Each shard is decoded as a whole, for all of its chunks: in sequence.
        width = 1
    together = max(1, min(_TOGETHER, memory // (2 * nbytes * width)))
    shards = ShardSurvey(array.chunks, array.metadata)

    async def one(group: dict[Coords, int]) -> None:
        await _read_group(array, group, report)
        report.done += len(group)
        on_progress(report)

    groups: list[dict[Coords, int]] = []
    async for batch in _batches(shards, store, array, None):
        async for each in shards.survey(batch):
            if not each.innermost:
                continue
            group: dict[Coords, int] = {}
            async for coords, stored_nbytes in each.every_chunk():
                group[coords] = stored_nbytes
                if len(group) == together:
                    groups.append(group)
                    group = {}
            if group:
                groups.append(group)
            if len(groups) * together >= _BATCH:
                await for_each(groups, one, width)
                groups.clear()
    await for_each(groups, one, width)


async def _read_group(array: Array, group: dict[Coords, int], report: Report) -> None:
    metadata = array.metadata
    if array.plain is not None:
        for coords, nbytes in group.items():
            await _read_one(array, coords, nbytes, report)
        return
    parts = [ChunkPart(coords, array_of(metadata.chunk_grid.chunk_shape(coords), metadata.data_type.dtype), ()) for coords in group]
    try:
        results = await array.read_chunks_into(parts)
    except Exception as error:  # noqa: BLE001 - it is reported, and the others are checked
        if len(group) > 1:
            for coords, nbytes in group.items():
                await _read_group(array, {coords: nbytes}, report)
            return
        (coords,) = group
        report.add_chunk_error(array.path, array.chunks.keys(coords)[0], coords, error)
        return
    for part, result in zip(parts, results, strict=True):
        coords, nbytes = part.coords, group[part.coords]
        if result is True and (why := await array.invalid(coords, part.out)) is not None:
            result = array.naming(ChunkDecodeError(why), "decoding", coords)
        if isinstance(result, ZarrfsError):
            report.add_chunk_error(array.path, array.chunks.keys(coords)[0], coords, result)
        elif result:
            report.chunks += 1
            report.stored_nbytes += nbytes
            report.decoded_nbytes += metadata.chunk_nbytes(coords)


async def _read_one(array: Array, coords: Coords, stored_nbytes: int, report: Report) -> None:
    """Read a chunk of elements without a fixed size, whose decoded size is known only afterwards."""
    try:
        elements = await array.read_chunk(coords)
    except Exception as error:  # noqa: BLE001 - it is reported, and the others are checked
        report.add_chunk_error(array.path, array.chunks.keys(coords)[0], coords, error)
        return
    if elements is not None:
        report.chunks += 1
        report.stored_nbytes += stored_nbytes
        report.decoded_nbytes += elements.nbytes


async def _batches(shards: ShardSurvey, store: Store, array: Array, report: Report | None) -> AsyncIterator[list[Coords]]:
    """Yield the outermost shards to read, in batches. Those stored outside the grid go to ``report``."""
    whole = whole_grid(shards.grid_shape, store)
    batch: list[Coords] = []
    if store.capabilities.list and (report is not None or not whole):
        async for coords, _, _ in shards.list_shards():
            if not in_grid(coords, shards.grid_shape):
                if report is not None:
                    reason = f"the grid has {shards.grid_shape} shards"
                    report.outside.add(Finding(array.path, reason, shards.key(coords), shard=coords))
            elif not whole:
                batch.append(coords)
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
    for coords in coordinates(shards.grid_shape) if whole else ():
        batch.append(coords)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


async def _look_behind(array: Array, shards: ShardSurvey, missing: list[Coords], report: Report) -> None:
    """Report an entry at the position of a shard that is no value, such as a symbolic link: an error for its readers."""

    async def one(coords: Coords) -> None:
        try:
            await shards.look(coords)
        except Exception as error:  # noqa: BLE001 - it is reported, and the others are looked at
            report.findings_of(error).add(Finding(array.path, reason_of(array.path, error), shards.key(coords), shard=coords))

    await for_each(missing, one, _WIDTH)


def _record(array: Array, shard: SurveyedShard, report: Report) -> None:
    which = f"shard {shard.coords}" + (f" of level {shard.level + 1}" if shard.level else "")
    if shard.reason is not None:
        report.bad.add(Finding(array.path, f"{which}: {shard.reason}", shard.key, shard=shard.coords))
    if shard.bad:
        wrong = list(itertools.islice(shard.reasons(), _NAMED))
        named = ", ".join(str(coords) for coords, _ in wrong) + (", ..." if shard.bad > _NAMED else "")
        what = "chunks" if shard.innermost else "shards"
        reason = f"{which}: {shard.bad} of its {what} unreadable"
        if wrong:
            reason += f" ({named}): {wrong[0][1]}"
        report.bad.add(Finding(array.path, reason, shard.key, shard=shard.coords))
    if shard.outside:
        reason = f"{which}: {shard.outside} of its chunks outside the grid of {shard.grid_shape}"
        report.outside.add(Finding(array.path, reason, shard.key, shard=shard.coords))
