"""A hierarchy without a mount: what the commands that only look at a store (info, check) work on."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import trio

from zarrfs.arrays.chunk_cache import ChunkCache
from zarrfs.arrays.counters import HierarchyCounters
from zarrfs.arrays.layers import ShardLayers
from zarrfs.arrays.reader import ReaderPool
from zarrfs.arrays.slab_pool import SlabPool
from zarrfs.errors import NoSuchEntry, ZarrfsError
from zarrfs.hierarchy.nodes import Hierarchy
from zarrfs.hierarchy.roots import dialects
from zarrfs.hierarchy.sharded_arrays import ShardedArrays
from zarrfs.hierarchy.unforeseen import reason_of, unusable
from zarrfs.keys import NodePath
from zarrfs.memory.budget import MemoryBudget
from zarrfs.model.metadata import ArrayNode, GroupNode, Node, UnsupportedNode
from zarrfs.options.config import MountConfig
from zarrfs.options.redact import public_url
from zarrfs.stores.base import Store
from zarrfs.stores.opening import open_store
from zarrfs.stores.urls import parse
from zarrfs.transformers.deadline import DeadlineStore
from zarrfs.transformers.unsharded import UnshardedStore

# Deeper hierarchies are some program's mistake, or somebody's trap.
_MAX_DEPTH = 64
# What lies below a node that cannot be read may be an array's chunks, in a folder each; of more than these nobody looks for nodes.
_FEW = 1000


@asynccontextmanager
async def opened(config: MountConfig, *, read_only: bool = True) -> AsyncIterator[Store]:
    """``config.store``. Raises whatever opening the store raises."""
    store = await open_store(config.store, read_only=read_only)
    try:
        if parse(config.store).unsharded:
            store = UnshardedStore(store, ShardedArrays(store, ttl=math.inf, dialects=dialects(config.dialect_choices)))
        async with trio.open_nursery() as nursery:
            yield DeadlineStore(store, config.timeout, nursery)
            nursery.cancel_scope.cancel()
    finally:
        await store.aclose()


def hierarchy_of(config: MountConfig, store: Store) -> Hierarchy:
    """The hierarchy of ``store``, of which nothing is learnt twice."""
    counters = HierarchyCounters()
    readers = ReaderPool(ChunkCache(0), SlabPool(0, counters), ttl=0)
    layers = ShardLayers(counters, MemoryBudget(config.memory_limit))
    return Hierarchy(store, readers, counters, ttl=math.inf, layers=layers, dialects=dialects(config.dialect_choices))


async def walk(hierarchy: Hierarchy, config: MountConfig, path: str) -> AsyncIterator[Node]:
    """The node that ``path`` names (`NodePath.normalized`) and everything below it, parents first, by name. A backslash may be
    part of a name, too (final v3).

    What cannot be read is an `UnsupportedNode`, and hides nothing that lies below it, as far as documents tell of that. Raises
    `NoSuchEntry` when there is no node at ``path``, and the store's error when that cannot be told.
    """
    start = NodePath.normalized(path)
    try:
        node = await hierarchy.node(start)
        literal = NodePath("/" + "/".join(filter(None, path.split("/"))))
        if node is None and literal != start:
            start, node = literal, await hierarchy.node(literal)
    except ZarrfsError:
        raise
    except Exception as error:  # noqa: BLE001 - what lies below may be sound
        node = unusable(start, "", error)
    if node is None:
        raise NoSuchEntry(f"there is no node {start} in {public_url(config.store)}", key=start)
    async for each in _below(hierarchy, node, 0, False):
        yield each


async def below_array(hierarchy: Hierarchy, node: ArrayNode) -> list[NodePath]:
    """Nodes with documents that lie below an array, where no view shows them: an array has no members. Not all where they are many."""
    keys = node.metadata.chunk_key_encoding
    names = sorted(name for name in await hierarchy.child_names(node.path) if not keys.may_begin(name))
    found: list[NodePath] = []
    for name in names[:_FEW]:
        child = await hierarchy.node(node.path.child(name))
        if child is not None:
            found += [each.path async for each in _below(hierarchy, child, 1, True)]
    return found


async def _below(hierarchy: Hierarchy, node: Node, depth: int, below_bad: bool) -> AsyncIterator[Node]:
    """``node`` and everything below it. Of what is still to come nothing is held."""
    is_bad = isinstance(node, UnsupportedNode)
    if not (below_bad and isinstance(node, GroupNode) and not node.explicit):
        yield node
    path, dialect = node.path, node.dialect
    if isinstance(node, ArrayNode):
        return
    if depth == _MAX_DEPTH:
        reason = f"what lies below is more than {_MAX_DEPTH} groups deep: zarrfs does not go there"
        yield UnsupportedNode(path=path, dialect=dialect, reason=reason)
        return
    try:
        if (is_bad or below_bad) and len(await hierarchy.child_names(path)) > _FEW:
            return
        async with aclosing(hierarchy.children(path)) as children:
            async for _, child in children:
                async for each in _below(hierarchy, child, depth + 1, is_bad or below_bad):
                    yield each
    except Exception as error:  # noqa: BLE001 - nothing that is wrong here keeps the rest from being told
        if not is_bad:
            reason = f"what lies below cannot be listed: {reason_of(path, error)}"
            yield UnsupportedNode(path=path, dialect=dialect, reason=reason, bad=True)
