"""What ``zarrfs info`` tells of a store: its nodes, their metadata, and how much of them is stored.

Documents and listings are all that is read. How many chunks a shard holds is in its index, one read for each shard: that is for the
array that was asked for by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zarrfs.config import MountConfig
from zarrfs.errors import StoreUnsupported
from zarrfs.hierarchy.arrays import Array
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.shard_survey import ShardSurvey
from zarrfs.model import fill_value
from zarrfs.model.chunk_grid import Coords, in_grid
from zarrfs.model.metadata import ArrayMetadata, ArrayNode, GroupNode, Node
from zarrfs.offline import opened, walk
from zarrfs.redact import public_url

Told = Callable[[int, int], None]
"""Called with how many indexes were read, of how many."""

# Shards whose coordinates are held at once.
_BATCH = 4096


async def describe(
    config: MountConfig, path: str, *, indexes: bool = False, told: Told = lambda done, total: None
) -> dict[str, Any]:
    """The node at ``path`` of ``config.store`` and everything below it: ``{"store": url, "nodes": [...]}``, JSON values only.

    ``indexes``: where the node itself is a sharded array, read the index of every shard. Raises `NoSuchEntry` when there is no such
    node, and whatever opening the store raises.
    """
    nodes: list[dict[str, Any]] = []
    async with opened(config) as (_, hierarchy):
        async for node in walk(hierarchy, config, path):
            nodes.append(await _described(hierarchy, node, told if indexes and not nodes else None))
    return {"store": public_url(config.store), "nodes": nodes}


async def _described(hierarchy: Hierarchy, node: Node, told: Told | None) -> dict[str, Any]:
    said: dict[str, Any] = {"path": str(node.path), "dialect": node.dialect}
    if isinstance(node, GroupNode):
        return said | {"kind": "group", "explicit": node.explicit, "attributes": dict(node.attributes)}
    if not isinstance(node, ArrayNode):
        return said | {"kind": "unsupported", "reason": node.reason}
    found = await hierarchy.array(node.path)
    assert found is not None
    metadata = node.metadata
    try:
        amounts = await (_of_shards(found.array, told) if metadata.shards else _of_chunks(found.array))
    except StoreUnsupported:
        amounts = _Amounts(None, None)
    return said | {
        "kind": "array",
        "shape": list(metadata.shape),
        "data_type": metadata.data_type.v3_name,
        "chunk_shape": list(metadata.chunk_grid.chunk_shape((0,) * metadata.ndim)),
        "dimension_names": list(metadata.dimension_names) if metadata.dimension_names is not None else None,
        "codecs": [codec.name for codec in metadata.codecs],
        "fill_value": None if metadata.fill_value is None else fill_value.to_json(metadata.data_type, metadata.fill_value),
        "chunks_stored": amounts.chunks,
        "chunks_possible": math.prod(metadata.grid_shape),
        "stored_nbytes": amounts.nbytes,
        "nbytes": None if metadata.data_type.is_variable else metadata.nbytes,
        "shards": _levels(metadata),
        "shards_stored": amounts.shards,
        "shards_possible": math.prod(metadata.stored_grid_shape) if metadata.shards else None,
        "indexes": amounts.indexes,
        "quirks": list(node.quirks),
        "attributes": dict(node.attributes),
    }


@dataclass(frozen=True, slots=True)
class _Amounts:
    """What is stored; None for what is not known."""

    chunks: int | None
    nbytes: int | None
    shards: int | None = None
    indexes: dict[str, Any] | None = None


async def _of_chunks(array: Array) -> _Amounts:
    stored = stored_nbytes = 0
    async for _, nbytes, _ in array.chunks.list():
        stored, stored_nbytes = stored + 1, stored_nbytes + nbytes
    return _Amounts(stored, stored_nbytes)


async def _of_shards(array: Array, told: Told | None) -> _Amounts:
    survey = ShardSurvey(array.chunks, array.metadata)
    stored = stored_nbytes = 0
    async for coords, nbytes, _ in survey.list_shards():
        if in_grid(coords, survey.grid_shape):
            stored, stored_nbytes = stored + 1, stored_nbytes + nbytes
    if told is None:
        return _Amounts(None, stored_nbytes, stored)
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
                told(done, stored)
        batch.clear()

    async for coords, _, _ in survey.list_shards():
        if in_grid(coords, survey.grid_shape):
            batch.append(coords)
            if len(batch) == _BATCH:
                await read()
    await read()
    return _Amounts(chunks, stored_nbytes, stored, indexes.to_json(chunks))


@dataclass(slots=True)
class _Indexes:
    """What the indexes of an array's shards say, those within others included.

    ``read``: that could be; ``bad``: that could not. ``bad_chunks``: of which they say what cannot be right. ``chunks_possible``: in the
    outermost shards whose index could be read. ``unused_nbytes``: of shards, that belong to no chunk.
    """

    read: int = 0
    bad: int = 0
    bad_chunks: int = 0
    chunks_possible: int = 0
    unused_nbytes: int = 0

    def to_json(self, chunks: int) -> dict[str, Any]:
        """With the part of these chunks that is stored."""
        said: dict[str, Any] = {
            name: getattr(self, name) for name in ("read", "bad", "bad_chunks", "chunks_possible", "unused_nbytes")
        }
        return said | {"fullness": chunks / self.chunks_possible if self.chunks_possible else None}


def _levels(metadata: ArrayMetadata) -> list[dict[str, Any]]:
    """How chunks are bundled, outermost shards first; nothing where they are not."""
    shape = metadata.chunk_grid.chunk_shape((0,) * metadata.ndim)
    levels: list[dict[str, Any]] = []
    for spec in reversed(metadata.shards):
        shape = tuple(length * count for length, count in zip(shape, spec.chunks_per_shard, strict=True))
        names = [codec.name for codec in spec.index_codecs]
        levels.append(
            {
                "shape": list(shape),
                "chunks_per_shard": list(spec.chunks_per_shard),
                "index_location": spec.index_location,
                "index_codecs": names,
                "checksum": "crc32c" in names,
                "codecs": [codec.name for codec in spec.codecs],
            }
        )
    return levels[::-1]
