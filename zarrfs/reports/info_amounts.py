"""Stored amounts of an array, for ``zarrfs info``: chunks, shards and bytes, by listing; content of shard indexes, by reading them.

Nothing iterates over a grid, which may have more chunks than can be counted: only listed keys are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zarrfs.arrays.array import Array
from zarrfs.arrays.shard_survey import ShardSurvey
from zarrfs.errors import StoreUnsupported
from zarrfs.hierarchy.unforeseen import reason_of
from zarrfs.model.chunk_grid import Coords, in_grid
from zarrfs.stores.answers_now import WouldWait

OnProgress = Callable[[str, int, int | None], None]
"""Called with the kind of things processed, the number so far, and the total, if known."""

# Number of shards whose coordinates are held at once.
_BATCH = 4096
# Progress is reported for every so many items, since each report takes time.
_PROGRESS_EVERY = 256


@dataclass(frozen=True, slots=True)
class Amounts:
    """Stored amounts; None if unknown. ``error``: the reason, after a failure."""

    chunks: int | None = None
    nbytes: int | None = None
    shards: int | None = None
    indexes: dict[str, Any] | None = None
    error: str | None = None


async def amounts_of(array: Array, on_progress: OnProgress, *, indexes: bool) -> Amounts:
    """Return what is stored of ``array``. With ``indexes``, shard indexes are read for the number of their chunks."""
    try:
        return await (_of_shards(array, on_progress, indexes) if array.metadata.shards else _of_chunks(array, on_progress))
    except StoreUnsupported:
        # A store that cannot list: readable, so no failure.
        return Amounts()
    except Exception as error:  # noqa: BLE001 - the rest of the array is still reported
        return Amounts(error=reason_of(array.path, error))


async def _of_chunks(array: Array, on_progress: OnProgress) -> Amounts:
    stored = stored_nbytes = 0
    with suppress(WouldWait):
        few = array.chunks.list_now()
        return Amounts(len(few), sum(nbytes for _, nbytes, _ in few))
    async for _, nbytes, _ in array.chunks.list():
        stored, stored_nbytes = stored + 1, stored_nbytes + nbytes
        if stored % _PROGRESS_EVERY == 0:
            on_progress(f"chunks of {array.path}", stored, None)
    return Amounts(stored, stored_nbytes)


async def _of_shards(array: Array, on_progress: OnProgress, read_indexes: bool) -> Amounts:
    survey = ShardSurvey(array.chunks, array.metadata)
    stored = stored_nbytes = 0
    async for coords, nbytes, _ in survey.list_shards():
        if in_grid(coords, survey.grid_shape):
            stored, stored_nbytes = stored + 1, stored_nbytes + nbytes
            if stored % _PROGRESS_EVERY == 0:
                on_progress(f"shards of {array.path}", stored, None)
    if not read_indexes:
        return Amounts(None, stored_nbytes, stored)
    indexes, chunks, done = _Indexes(), 0, 0
    batch: list[Coords] = []

    async def read() -> None:
        nonlocal chunks, done
        async for each in survey.survey(batch):
            chunks += each.stored if each.innermost else 0
            indexes.read += each.reason is None
            indexes.bad += each.reason is not None
            indexes.bad_chunks += each.bad
            indexes.unused_nbytes += each.unused_nbytes
            if each.level == 0:
                done += 1
                indexes.chunks_possible += survey.possible(each.coords) if each.reason is None else 0
                on_progress("indexes of shards", done, stored)
        batch.clear()

    async for coords, _, _ in survey.list_shards():
        if in_grid(coords, survey.grid_shape):
            batch.append(coords)
            if len(batch) == _BATCH:
                await read()
    await read()
    return Amounts(chunks, stored_nbytes, stored, indexes.to_json(chunks))


@dataclass(slots=True)
class _Indexes:
    """Content of the indexes of an array's shards, including nested ones.

    ``read``: number read; ``bad``: unreadable. ``bad_chunks``: entries that cannot be right. ``chunks_possible``: in the outermost shards
    with a readable index. ``unused_nbytes``: bytes of shards that belong to no chunk.
    """

    read: int = 0
    bad: int = 0
    bad_chunks: int = 0
    chunks_possible: int = 0
    unused_nbytes: int = 0

    def to_json(self, chunks: int) -> dict[str, Any]:
        """Return JSON values, with the fraction of the chunks that is stored."""
        members: dict[str, Any] = {
            name: getattr(self, name) for name in ("read", "bad", "bad_chunks", "chunks_possible", "unused_nbytes")
        }
        return members | {"fullness": chunks / self.chunks_possible if self.chunks_possible else None}
