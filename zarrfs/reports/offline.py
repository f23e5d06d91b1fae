"""A hierarchy without a mount: what the commands that only look at a store (info, check) work on."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from zarrfs.config import MountConfig
from zarrfs.errors import NoSuchEntry, ZarrfsError
from zarrfs.hierarchy.cache import ChunkCache
from zarrfs.hierarchy.chunk_layers import ShardLayers
from zarrfs.hierarchy.counters import HierarchyCounters
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.readers import ReaderPool
from zarrfs.hierarchy.roots import dialects
from zarrfs.hierarchy.slabs import SlabPool
from zarrfs.keys import NodePath
from zarrfs.memory import MemoryBudget
from zarrfs.model.metadata import GroupNode, Node, UnsupportedNode
from zarrfs.redact import public_url
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store
from zarrfs.transformers.deadline import DeadlineStore

# Deeper hierarchies are some program's mistake, or somebody's trap.
_MAX_DEPTH = 64


@asynccontextmanager
async def opened(config: MountConfig) -> AsyncIterator[tuple[Store, Hierarchy]]:
    """``config.store``, read-only, and its hierarchy, of which nothing is learnt twice. Raises whatever opening the store raises."""
    store = await open_store(config.store, read_only=True)
    try:
        async with trio.open_nursery() as nursery:
            timely: Store = DeadlineStore(store, config.timeout, nursery)
            counters = HierarchyCounters()
            readers = ReaderPool(ChunkCache(0), SlabPool(0, counters), ttl=0)
            layers = ShardLayers(counters, MemoryBudget(config.memory_limit))
            yield (
                timely,
                Hierarchy(timely, readers, counters, ttl=math.inf, layers=layers, dialects=dialects(config.dialect_choices)),
            )
            nursery.cancel_scope.cancel()
    finally:
        await store.aclose()


async def walk(hierarchy: Hierarchy, config: MountConfig, path: str) -> AsyncIterator[Node]:
    """The node at ``path`` (with or without a leading slash) and everything below it, parents first, by name.

    What cannot be read below it is an `UnsupportedNode`. Raises `NoSuchEntry` when there is no node at ``path``, and the store's
    error when that cannot be told.
    """
    start = NodePath("/" + path.strip("/"))
    node = await hierarchy.node(start)
    if node is None:
        raise NoSuchEntry(f"there is no node {start} in {public_url(config.store)}", key=start)
    pending: list[tuple[Node, int]] = [(node, 0)]
    while pending:
        node, depth = pending.pop()
        yield node
        if not isinstance(node, GroupNode):
            continue
        if depth == _MAX_DEPTH:
            reason = f"what lies below is more than {_MAX_DEPTH} groups deep: zarrfs does not go there"
            yield UnsupportedNode(path=node.path, dialect=node.dialect, reason=reason)
            continue
        try:
            children = await hierarchy.children(node.path)
        except ZarrfsError as error:
            yield UnsupportedNode(
                path=node.path, dialect=node.dialect, reason=f"what lies below cannot be listed: {error}", bad=True
            )
            continue
        pending.extend((child, depth + 1) for _, child in reversed(children))
