"""What ``zarrfs info`` tells of a store: its nodes, their metadata, and how much of them is stored."""

from __future__ import annotations

import math
from typing import Any

from zarrfs.config import MountConfig
from zarrfs.errors import StoreUnsupported
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.model import fill_value
from zarrfs.model.metadata import ArrayNode, GroupNode, Node
from zarrfs.offline import opened, walk
from zarrfs.redact import public_url


async def describe(config: MountConfig, path: str) -> dict[str, Any]:
    """The node at ``path`` of ``config.store`` and everything below it: ``{"store": url, "nodes": [...]}``, JSON values only.

    Raises `NoSuchEntry` when there is no such node, and whatever opening the store raises.
    """
    async with opened(config) as (_, hierarchy):
        nodes = [await _described(hierarchy, node) async for node in walk(hierarchy, config, path)]
    return {"store": public_url(config.store), "nodes": nodes}


async def _described(hierarchy: Hierarchy, node: Node) -> dict[str, Any]:
    said: dict[str, Any] = {"path": str(node.path), "dialect": node.dialect}
    if isinstance(node, GroupNode):
        return said | {"kind": "group", "explicit": node.explicit, "attributes": dict(node.attributes)}
    if not isinstance(node, ArrayNode):
        return said | {"kind": "unsupported", "reason": node.reason}
    found = await hierarchy.array(node.path)
    assert found is not None
    metadata = node.metadata
    stored: int | None = 0
    stored_nbytes: int | None = 0
    try:
        async for _, nbytes, _ in found.array.chunks.list():
            stored, stored_nbytes = (stored or 0) + 1, (stored_nbytes or 0) + nbytes
    except StoreUnsupported:
        stored = stored_nbytes = None
    return said | {
        "kind": "array",
        "shape": list(metadata.shape),
        "data_type": metadata.data_type.v3_name,
        "chunk_shape": list(metadata.chunk_grid.chunk_shape((0,) * metadata.ndim)),
        "dimension_names": list(metadata.dimension_names) if metadata.dimension_names is not None else None,
        "codecs": [codec.name for codec in metadata.codecs],
        "fill_value": None if metadata.fill_value is None else fill_value.to_json(metadata.data_type, metadata.fill_value),
        "chunks_stored": stored,
        "chunks_possible": math.prod(metadata.grid_shape),
        "stored_nbytes": stored_nbytes,
        "nbytes": metadata.nbytes,
        "quirks": list(node.quirks),
        "attributes": dict(node.attributes),
    }
