"""What ``zarrfs info`` tells of a store: its nodes, their metadata, and how much of them is stored."""

from __future__ import annotations

import math
from typing import Any

import trio

from zarrfs.config import MountConfig
from zarrfs.errors import NoSuchEntry, StoreUnsupported
from zarrfs.hierarchy.cache import ChunkCache
from zarrfs.hierarchy.counters import HierarchyCounters
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.readers import ReaderPool
from zarrfs.hierarchy.slabs import SlabPool
from zarrfs.keys import NodePath
from zarrfs.model import fill_value
from zarrfs.model.metadata import ArrayNode, GroupNode, Node
from zarrfs.redact import public_url
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store
from zarrfs.transformers.deadline import DeadlineStore

# Deeper hierarchies are some program's mistake, or somebody's trap.
_MAX_DEPTH = 64


async def describe(config: MountConfig, path: str) -> dict[str, Any]:
    """The node at ``path`` of ``config.store`` and everything below it: ``{"store": url, "nodes": [...]}``, JSON values only.

    Raises `NoSuchEntry` when there is no such node, and whatever opening the store raises.
    """
    start = NodePath(path if path.startswith("/") else f"/{path}") if path.strip("/") else NodePath("/")
    store = await open_store(config.store, read_only=True)
    try:
        async with trio.open_nursery() as nursery:
            timely: Store = DeadlineStore(store, config.timeout, nursery)
            counters = HierarchyCounters()
            readers = ReaderPool(ChunkCache(0), SlabPool(0, counters), ttl=0)
            hierarchy = Hierarchy(timely, readers, counters, ttl=math.inf)
            nodes: list[dict[str, Any]] = []
            await _walk(hierarchy, start, nodes, 0)
            nursery.cancel_scope.cancel()
    finally:
        await store.aclose()
    if not nodes:
        raise NoSuchEntry(f"there is no node {start} in {public_url(config.store)}", key=start)
    return {"store": public_url(config.store), "nodes": nodes}


async def _walk(hierarchy: Hierarchy, path: NodePath, nodes: list[dict[str, Any]], depth: int) -> None:
    node = await hierarchy.node(path)
    if node is None:
        return
    nodes.append(await _described(hierarchy, node))
    if isinstance(node, GroupNode) and depth < _MAX_DEPTH:
        for name, _ in await hierarchy.children(path):
            await _walk(hierarchy, path.child(name), nodes, depth + 1)


async def _described(hierarchy: Hierarchy, node: Node) -> dict[str, Any]:
    said: dict[str, Any] = {"path": str(node.path), "dialect": node.dialect}
    if isinstance(node, GroupNode):
        return said | {"kind": "group", "explicit": node.explicit, "attributes": dict(node.attributes)}
    if not isinstance(node, ArrayNode):
        return said | {"kind": "unsupported", "reason": node.reason}
    opened = await hierarchy.array(node.path)
    assert opened is not None
    metadata = node.metadata
    stored: int | None = 0
    stored_nbytes: int | None = 0
    try:
        async for _, nbytes, _ in opened.array.chunks.list():
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
